"""quern inspect: what it says of files is what is in them, and hostile ones reach no terminal."""
import json
import os
import shutil
import struct

import numpy as np
import pytest

from support import PLAIN_DTYPES, call, fixture, read_json, read_safetensors

U32, I8, F32, BOOL, STRING, ARRAY, U64, F64 = 4, 1, 6, 7, 8, 9, 10, 12


def call_json(*args):
    """As support's, and strict: Python would take NaN."""
    out = call(*args, "--json")
    assert out.returncode == 0, out.stderr.decode()
    return json.loads(out.stdout.decode(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def write_gguf(path, values, tensors, data=b"", version=3):
    """values: (key, type, bytes); tensors: (name, dims fastest first, type number, offset)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    for key, kind, raw in values:
        out += text(key) + struct.pack("<I", kind) + raw
    for name, dims, kind, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    out += b"\0" * (-len(out) % 32)
    path.write_bytes(out + data)
    return path


@pytest.fixture
def odd(tmp_path):
    values = [
        ("general.architecture", STRING, text("o\x1b[31mdd")), ("n.u32", U32, struct.pack("<I", 7)),
        ("n.i8", I8, b"\xfe"), ("n.f32", F32, struct.pack("<f", 0.1)), ("n.nan", F32, struct.pack("<f", np.nan)),
        ("n.u64", U64, struct.pack("<Q", 2**64 - 1)), ("n.f64", F64, struct.pack("<d", 1 / 3)), ("n.bool", BOOL, b"\1"),
        ("a.numbers", ARRAY, struct.pack("<IQ", U32, 1000) + np.arange(1000, dtype=np.uint32).tobytes()),
        ("a.empty", ARRAY, struct.pack("<IQ", STRING, 0)),
        ("a.texts", ARRAY, struct.pack("<IQ", STRING, 3) + text("a\nb") + text(b"\xff") + text("\x9b2J\u202e")),
        ("long", STRING, text("y" * 5000)), ("k\x1b]0;title\x07", U32, struct.pack("<I", 1))]
    tensors = [("plain", [4, 2], 0, 0), ("t\x1b[2J\u2066", [4], 0, 32), ("iq", [256, 2], 16, 64),
               ("new", [5], 1234, 224)]
    return write_gguf(tmp_path / "odd.gguf", values, tensors, b"\0" * 256)


def test_gguf_values(odd):
    out = call_json("inspect", odd)
    values = {v["key"]: v for v in out["metadata"]}
    assert (out["format"], out["version"], out["n_tensors"]) == ("gguf", 3, 4)
    assert out["files"] == [{"path": str(odd), "size_bytes": os.path.getsize(odd)}]
    assert values["general.architecture"]["value"] == "o\x1b[31mdd"
    assert [values[f"n.{k}"]["value"] for k in ("u32", "i8", "nan", "u64", "bool")] == [7, -2, None, 2**64 - 1, True]
    assert np.float32(values["n.f32"]["value"]) == np.float32(0.1) and values["n.f64"]["value"] == 1 / 3
    assert values["a.numbers"] == {"key": "a.numbers", "type": "array", "element_type": "u32", "count": 1000,
                                   "value": list(range(1000))}
    assert values["a.empty"]["value"] == [] and values["a.empty"]["count"] == 0
    assert values["a.texts"]["value"] == ["a\nb", "\ufffd", "\x9b2J\u202e"]


def test_gguf_tensors(odd):
    out = call_json("inspect", odd)
    size = os.path.getsize(odd)
    plain, hostile, iq, new = out["tensors"]
    assert plain == {"name": "plain", "type": "F32", "supported": True, "shape": [2, 4], "n_elements": 8,
                     "size_bytes": 32, "offset_bytes": size - 256, "file": 0}
    assert hostile["name"] == "t\x1b[2J\u2066" and hostile["offset_bytes"] == size - 224
    assert (iq["type"], iq["supported"], iq["size_bytes"]) == ("IQ2_XXS", False, 2 * 66)
    assert (new["type"], new["supported"], new["size_bytes"]) == ("number 1234", False, None)
    assert {t["type"]: (t["n_tensors"], t["size_bytes"]) for t in out["types"]} == {
        "F32": (2, 32 + hostile["size_bytes"]), "IQ2_XXS": (1, 2 * 66), "number 1234": (1, None)}


def test_the_table(odd):
    out = call("inspect", odd)
    shown = out.stdout.decode()
    assert out.returncode == 0
    assert all(c == "\n" or c.isprintable() for c in shown), "control characters reach the terminal"
    assert "\u202e" not in shown and "\u2066" not in shown
    lines = {line.split()[0]: line for line in shown.split("\n") if line.startswith("  ")}
    assert "o\\x1b[31mdd" in lines["general.architecture"]
    assert lines["a.numbers"].endswith("1000 u32: 0, 1, 2, 3, 4, 5, 6, 7, ...")
    assert "3 string: " in lines["a.texts"] and "k\\x1b]0;title\\x07" in lines and "nan" in lines["n.nan"]
    assert len(lines["long"]) < 200 and lines["long"].endswith("yyy...")
    assert "IQ2_XXS" in lines["iq"] and lines["iq"].endswith("not supported") and "132" in lines["iq"]
    assert "number 1234" in lines["new"] and " ? " in lines["new"] and lines["new"].endswith("not supported")
    assert "t\\x1b[2J\\u2066" in lines
    types = [line for line in shown.split("\ntypes\n")[1].splitlines() if line.startswith("  number 1234")]
    assert len(types) == 1 and types[0].split()[-3:] == ["?", "not", "supported"]


def test_what_to_show(odd):
    assert "tensors" not in call_json("inspect", odd, "--metadata")
    assert "metadata" not in call_json("inspect", odd, "--tensors")
    assert b"\ntensors\n" not in call("inspect", odd, "--metadata").stdout
    assert b"\nmetadata\n" not in call("inspect", odd, "--tensors").stdout
    both = call_json("inspect", odd, "--tensors", "--metadata")
    assert both == call_json("inspect", odd)


def test_offsets_lead_to_the_data():
    """Shards: type, shape and offset of every tensor against the headers, and the bytes at the offset."""
    root = fixture("models/llama_rope3_tied")
    out = call_json("inspect", root)
    assert len(out["files"]) == 2 and out["config"] == read_json(os.path.join(root, "config.json"))
    expected = {}
    for i, f in enumerate(out["files"]):
        expected.update({k: (i, v) for k, v in read_safetensors(f["path"]).items() if k != "__metadata__"})
    assert sorted(t["name"] for t in out["tensors"]) == sorted(expected)
    assert out["size_bytes"] == sum(v.nbytes for _, v in expected.values())
    for t in out["tensors"]:
        i, values = expected[t["name"]]
        assert t["file"] == i and t["shape"] == list(values.shape) and PLAIN_DTYPES[t["type"]] == values.dtype
        with open(out["files"][i]["path"], "rb") as f:
            f.seek(t["offset_bytes"])
            assert f.read(t["size_bytes"]) == values.tobytes()
    one = call_json("inspect", root, "--file", "model-00002-of-00002.safetensors")
    assert [t["name"] for t in one["tensors"]] == [t["name"] for t in out["tensors"] if t["file"] == 1]
    table = call("inspect", root).stdout.decode()
    assert "model-00002-of-00002.safetensors" in table and "hidden_size" in table


def test_safetensors_that_are_no_model(tmp_path):
    header = json.dumps({"__metadata__": {"made by": "x\x1by"}, "f8": {"dtype": "F8_E4M3", "shape": [3],
                        "data_offsets": [0, 3]}, "s": {"dtype": "I64", "shape": [], "data_offsets": [3, 11]}}).encode()
    path = tmp_path / "any.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 11)
    (tmp_path / "config.json").write_text("{ this is not JSON and belongs to something else")
    out = call_json("inspect", path)
    assert out["metadata"] == [{"key": "made by", "type": "string", "value": "x\x1by", "file": 0}]
    assert [(t["type"], t["supported"], t["shape"], t["size_bytes"]) for t in out["tensors"]] == [
        ("F8_E4M3", False, [3], 3), ("I64", True, [], 8)]
    assert b"x\\x1by" in call("inspect", path).stdout


@pytest.mark.parametrize("how, word", [("truncate", "truncated"), ("magic", "not a GGUF"), ("missing", "m.gguf"),
                                       ("version", "version 1")])
def test_broken_files(tmp_path, how, word):
    path = shutil.copy(fixture("quant/gguf_models/llama-Q8_0.gguf"), tmp_path / "m.gguf")
    raw = bytearray(open(path, "rb").read())
    if how == "truncate":
        os.truncate(path, 4000)
    elif how == "missing":
        os.remove(path)
    else:
        raw[:8] = b"GGML\3\0\0\0" if how == "magic" else b"GGUF\1\0\0\0"
        open(path, "wb").write(raw)
    for options in ([], ["--json"]):
        out = call("inspect", path, *options)
        error = out.stderr.decode()
        assert out.returncode == 1 and out.stdout == b"" and "m.gguf" in error and word in error, error


def test_large_arrays_are_streamed(tmp_path):
    """Over a million elements: complete in JSON, eight of them in the table."""
    n = 1500000
    path = write_gguf(tmp_path / "big.gguf", [
        ("scores", ARRAY, struct.pack("<IQ", F32, n) + np.zeros(n, np.float32).tobytes()), ("z", BOOL, b"\0")], [])
    out = call("inspect", path, "--json")
    values = json.loads(out.stdout)["metadata"]
    assert len(values[0]["value"]) == n and values[1] == {"key": "z", "type": "bool", "value": False}
    assert len(call("inspect", path).stdout) < 1000
