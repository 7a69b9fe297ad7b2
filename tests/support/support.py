"""What the tests of the command line share: where things are, how quern is called, safetensors in a few lines.

Run from the root of the repository (`make test-cli`). QUERN names the program (default ./quern). Fixtures are looked
for as tests/support/fixtures.h says: QUERN_FIXTURES, when that is not set ../shared/fixtures, then tests/golden.
"""
import concurrent.futures
import json
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

# Python packages that tools/test fetched.
own, xdg = os.environ.get("QUERN_CACHE"), os.environ.get("XDG_CACHE_HOME")
sys.path.append(os.path.join(own or os.path.join(xdg or os.path.expanduser("~/.cache"), "quern"),
                             f"python{sys.version_info[0]}.{sys.version_info[1]}"))

QUERN = os.environ.get("QUERN", "./quern")
ROOTS = [os.environ.get("QUERN_FIXTURES") or "../shared/fixtures", "tests/golden"]
PLAIN_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64,
                "U8": np.uint8, "U16": np.uint16, "U32": np.uint32}


def leave_out(why):
    pytest.skip(why)


def fixture(relative):
    """The path of a fixture; the test is left out where it is absent."""
    for root in ROOTS:
        path = os.path.join(root, relative)
        if os.path.exists(path):
            return path
    leave_out(f"{relative} is not in this clone: it is of the larger fixtures (QUERN_FIXTURES, CONTRIBUTING.md)")


def real_model(name):
    own, xdg = os.environ.get("QUERN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    folder = os.path.join(own or os.path.join(xdg or os.path.expanduser("~/.cache"), "quern"), "models", name)
    files = [f for f in os.listdir(folder) if f.endswith(".gguf")] if os.path.isdir(folder) else []
    if not files:
        leave_out(f"the model {name} is absent (tools/fetch-models)")
    return os.path.join(folder, files[0])


def heed_interrupt():
    """For preexec_fn of what is to be interrupted: a script's background jobs ignore Ctrl-C and hand that on, as nohup
    does with SIGHUP."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def call(*args, stdin="", timeout=600, env=None):
    """Runs quern; stdin is text, bytes, or something to be sent as JSON."""
    if not isinstance(stdin, (str, bytes)):
        stdin = json.dumps(stdin, ensure_ascii=False)
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    return subprocess.run([QUERN, *map(str, args)], input=data, capture_output=True, timeout=timeout,
                          env={**os.environ, **(env or {})})


def call_json(*args, **options):
    """The JSON that quern prints; the call must succeed."""
    out = call(*args, **options)
    assert out.returncode == 0, f"quern {' '.join(map(str, args))}: exit {out.returncode}: {out.stderr.decode()[-500:]}"
    return json.loads(out.stdout.decode())


def each(function, items):
    """function(item) for all items on two threads, in order: most of the time goes into starting processes."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, items))


def mismatches(rows):
    """Asserts that no row (what, got, expected) differs; shows the first few."""
    bad = [r for r in rows if r[1] != r[2]]
    assert not bad, f"{len(bad)} of {len(rows)} differ: " + "; ".join(
        f"{w!r:.80}: got {g!r:.200}, expected {e!r:.200}" for w, g, e in bad[:3])


def read_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def read_safetensors(path):
    """name -> array (memory-mapped); BF16 as its 16 bits. "__metadata__" -> dict."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
    raw = np.zeros(0, np.uint8)
    if os.path.getsize(path) > 8 + n:
        raw = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + n)
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            out[name] = t
            continue
        begin, end = t["data_offsets"]
        out[name] = raw[begin:end].view(PLAIN_DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def rewrite_safetensors(source, target, change):
    """Copies a safetensors file. change(tensors) edits name -> [dtype, shape, bytes] in place."""
    with open(source, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    tensors = {k: [t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]]
               for k, t in header.items() if k != "__metadata__"}
    change(tensors)
    header, blob = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def logits(model, rows, folder, *options):
    """Runs `quern logits` on the rows of ids; one array [L, vocab] per row."""
    ids, out = os.path.join(folder, "ids.json"), os.path.join(folder, "out.safetensors")
    with open(ids, "w") as f:
        json.dump({"ids": [[int(i) for i in row] for row in rows]}, f)
    got = call("logits", model, "--ids", ids, "-o", out, *options)
    assert got.returncode == 0, f"quern logits {model} {options}: exit {got.returncode}: {got.stderr.decode()[-500:]}"
    tensors = read_safetensors(out)
    return [tensors[f"logits.{i}"] for i in range(len(rows))]


def greedy(model, rows, n, folder, *options):
    """Runs `quern run --ids` at temperature 0; the generated ids of each row."""
    ids = os.path.join(folder, "ids.json")
    with open(ids, "w") as f:
        json.dump({"ids": [[int(i) for i in row] for row in rows]}, f)
    return call_json("run", model, "--ids", ids, "-n", n, "--temp", 0, "--json", "--ignore-eos", *options)["ids"]
