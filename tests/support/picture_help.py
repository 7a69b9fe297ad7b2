"""Pictures for tests: what the fixture of a model that sees has, and a writer of PNG."""
import json
import struct
import zlib

import numpy as np

from support import fixture

MODEL = "models/qwen2_vl"


def tensors():
    with open(fixture(f"{MODEL}/expected.safetensors"), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    kinds = {"U8": np.uint8, "I32": np.int32, "F32": np.float32}
    return {k: np.frombuffer(data[v["data_offsets"][0]:v["data_offsets"][1]], kinds[v["dtype"]]).reshape(v["shape"])
            for k, v in header.items() if k.startswith("image.")}


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rgb, alpha=False):
    """A PNG of [height, width, 3]; alpha: with a fourth channel, opaque."""
    if alpha:
        rgb = np.concatenate([rgb, np.full((*rgb.shape[:2], 1), 255, np.uint8)], 2)
    height, width, channels = rgb.shape
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)
    head = struct.pack(">IIBBBBB", width, height, 8, 6 if channels == 4 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
