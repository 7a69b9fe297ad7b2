"""quern pack: the same answers from packed weights, and what happens when the file does not fit."""
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile

import pytest

from gguf_split import part_names, split_gguf
from support import QUERN, call, call_json, fixture, read_safetensors

MODELS = ["models/llama", "models/llama_rope3_tied", "models/qwen3", "quant/gguf_models/llama-Q4_K_M.gguf",
          "quant/gguf_models/gemma3-Q8_0.gguf"]
SAMPLE = 512  # bytes that the fingerprint reads at the beginning, in the middle and at the end of a tensor


def copy(relative, tmp_path):
    source = fixture(relative)
    if os.path.isdir(source):
        return shutil.copytree(source, tmp_path / "model")
    return shutil.copy(source, tmp_path / os.path.basename(source))


def logits(model, tmp_path, *options):
    ids, out = tmp_path / "ids.json", tmp_path / "out.safetensors"
    ids.write_text(json.dumps({"ids": [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]]}))
    done = call("logits", model, "--ids", ids, "-o", out, "--json", *options)
    assert done.returncode == 0, done.stderr
    tensors = read_safetensors(out)
    notes = [line for line in done.stderr.decode().split("\n") if "packed" in line]
    return tensors["logits.0"].tobytes(), json.loads(done.stdout)["model"]["packed"], notes


def pack(model, *options, **more):
    return call_json("pack", model, "--json", *options, **more)


def spoil(path, at, data=b"\xa5"):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(data)


@pytest.mark.parametrize("relative", MODELS)
def test_same_bits(relative, tmp_path):
    model = copy(relative, tmp_path)
    want, used, _ = logits(model, tmp_path)
    assert used == ""
    made = pack(model)
    assert made["was_there"] is False and made["output"].endswith(".qpack") and os.path.exists(made["output"])
    for options in ((), ("--threads", 1), ("--precision", "fast")):
        plain = logits(model, tmp_path, "--packed", "none", *options)
        got = logits(model, tmp_path, *options)
        assert got[0] == plain[0] and got[1] == made["output"] and plain[1] == "" and got[2] == []
    assert logits(model, tmp_path)[0] == want
    assert pack(model)["was_there"] is True
    assert pack(model, "--force")["was_there"] is False
    assert not [n for n in os.listdir(os.path.dirname(made["output"])) if n.endswith(".tmp")]


def test_split_models_in_one_folder(tmp_path):
    """Each has a packed file under the name of its first part."""
    models = []
    for stem in ("llama-Q8_0", "llama-Q4_K_M"):
        with open(fixture(f"quant/gguf_models/{stem}.gguf"), "rb") as f:
            parts = split_gguf(f.read(), 2)
        for name, data in zip(part_names(stem, 2), parts):
            (tmp_path / name).write_bytes(data)
        models.append(str(tmp_path / part_names(stem, 2)[0]))
        assert pack(models[-1])["output"] == models[-1] + ".qpack"
    for model in models:
        plain, got = logits(model, tmp_path, "--packed", "none"), logits(model, tmp_path)
        assert got[0] == plain[0] and got[1:] == (model + ".qpack", [])
    second_part = models[0].replace("-00001-", "-00002-")
    assert logits(second_part, tmp_path)[1] == models[0] + ".qpack"


def test_where_it_lies(tmp_path):
    single = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    assert pack(single)["output"] == f"{single}.qpack"
    folder = copy("models/llama_rope3_tied", tmp_path)  # in two shards
    assert pack(folder)["output"] == f"{folder}/model.qpack"
    elsewhere = tmp_path / "other.qpack"
    os.remove(f"{single}.qpack")
    assert pack(single, "-o", elsewhere)["output"] == str(elsewhere)
    assert logits(single, tmp_path)[1] == "" and logits(single, tmp_path, "--packed", elsewhere)[1] == str(elsewhere)


def tensor_places(path):
    report = call_json("inspect", path, "--tensors", "--json")
    return [(t["offset_bytes"], t["size_bytes"]) for t in report["tensors"] if len(t["shape"]) > 1]


def test_source_data_is_not_read(tmp_path):
    """What the fingerprint does not look at may be anything: it is not computed with."""
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    want = logits(model, tmp_path)[0]
    os.utime(pack(model)["output"], (0, 0))
    for at, n in tensor_places(model):
        if n > 4 * SAMPLE:
            spoil(model, at + SAMPLE, b"\xa5" * (n // 2 - SAMPLE))
    got, used, notes = logits(model, tmp_path)
    assert got == want and used and len(notes) == 1 and f"older than {model}" in notes[0]
    assert logits(model, tmp_path, "--packed", "none")[0] != want


def test_pack_compares_all(tmp_path):
    """A model damaged where the fingerprint does not look, packed, and repaired; damaged panels; another time."""
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    want, whole = logits(model, tmp_path)[0], open(model, "rb").read()
    at, n = max(tensor_places(model), key=lambda p: p[1])
    spoil(model, at + SAMPLE, bytes(n // 2 - SAMPLE))
    made = pack(model)["output"]
    with open(model, "wb") as f:
        f.write(whole)
    os.utime(made, (0, 0))
    got, used, notes = logits(model, tmp_path)
    assert got != want and used and "older than" in notes[0]
    assert pack(model)["was_there"] is False and logits(model, tmp_path) == (want, made, [])
    spoil(made, os.path.getsize(made) // 2, b"\xff" * 4096)
    assert pack(model)["was_there"] is False and logits(model, tmp_path) == (want, made, [])
    packed = open(made, "rb").read()
    spoil(made, packed.index(b"blk.0.attn_q.weight"), b"blk.0.attn_Q.weight")
    assert "blk.0.attn_q.weight: missing" in logits(model, tmp_path)[2][0]
    assert pack(model)["was_there"] is False and open(made, "rb").read() == packed
    os.utime(made, (0, 0))
    assert "older than" in logits(model, tmp_path)[2][0]
    assert pack(model)["was_there"] is True and logits(model, tmp_path) == (want, made, [])


def test_damaged_panels_are_named(tmp_path):
    """Nothing checks them at a start; who gives no numbers says where its weights come from."""
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    made = pack(model)["output"]
    size = os.path.getsize(made)
    spoil(made, size // 4, b"\xff" * (size // 2))
    out = call("run", model, "--raw", "-p", "A", "-n", 3)
    assert out.returncode == 1 and f"{made}, which `quern pack` compares".encode() in out.stderr, out.stderr
    report = json.loads(call("doctor", model, "--json").stdout)
    assert any("`quern pack` compares" in f.get("next", "") for f in report["findings"])
    assert pack(model)["was_there"] is False
    assert call("run", model, "--raw", "-p", "A", "-n", 3).returncode == 0


def test_draft_models_have_packed_weights_too(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    (tmp_path / "draft").mkdir()
    draft = shutil.copy(model, tmp_path / "draft")
    made = pack(draft)["output"]
    os.truncate(made, 5000)
    args = ("run", model, "--raw", "-p", "A", "-n", 3, "--draft-model", draft)
    out = call(*args)
    assert out.returncode == 0 and f"draft model {draft}: {made}: ".encode() in out.stderr, out.stderr
    assert b".qpack" not in call(*args, "--packed", "none").stderr


def test_no_more_permissions_than_the_model(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    before = os.umask(0o022)
    try:
        for mode, want in ((0o644, 0o644), (0o600, 0o600), (0o640, 0o600)):
            os.chmod(model, mode)
            assert os.stat(pack(model, "--force")["output"]).st_mode & 0o777 == want
    finally:
        os.umask(before)


@pytest.mark.parametrize("where", ["begin", "middle", "end", "header"])
def test_changed_source(where, tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    pack(model)
    before = os.path.getsize(model)
    at, n = max(tensor_places(model), key=lambda p: p[1])
    if where == "header":
        data = open(model, "rb").read()
        spoil(model, data.index(b"general.name") + 8, b"N")
    else:
        spoil(model, at + {"begin": 5, "middle": n // 2 + 5, "end": n - 5}[where])
    assert os.path.getsize(model) == before
    want = logits(model, tmp_path, "--packed", "none")[0]
    got, used, notes = logits(model, tmp_path)
    assert used == "" and len(notes) == 1 and "before the model was changed" in notes[0] and got == want
    assert pack(model)["was_there"] is False  # made anew without being asked twice
    got, used, notes = logits(model, tmp_path)
    assert used and notes == [] and got == want


def with_metadata(path, key, value):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    header["__metadata__"][key] = value
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("key,value,words", [
    ("quern.layout", "0", "layout version 0"), ("quern.layout", "x", "is not a number"),
    ("quern.device", "cuda", "for the device cuda"), ("quern.packed", "7", "of format 7"),
    ("quern.fingerprint", "12", "is not a hash"),
    ("quern.fingerprint", "+" + "0" * 15, "is not a hash"), ("quern.fingerprint", "0x" + "0" * 14, "is not a hash"),
    ("quern.fingerprint", "0" * 16, "another model")])
def test_other_versions(key, value, words, tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    want = logits(model, tmp_path)[0]
    made = pack(model)["output"]
    with_metadata(made, key, value)
    got, used, notes = logits(model, tmp_path)
    assert got == want and used == "" and len(notes) == 1 and words in notes[0] and made in notes[0], notes


def test_damaged(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    want = logits(model, tmp_path)[0]
    made = pack(model)["output"]
    whole = open(made, "rb").read()
    cuts = [0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1]
    for data in [whole[:n] for n in cuts] + [whole + b"x", b"\xff" * 100, whole[:8] + b"[" + whole[9:]]:
        with open(made, "wb") as f:
            f.write(data)
        got, used, notes = logits(model, tmp_path)
        assert got == want and used == "" and len(notes) == 1 and made in notes[0], notes
    # A tensor less, and one that is not where it is said to be.
    with open(made, "wb") as f:
        f.write(whole)
    n = struct.unpack("<Q", whole[:8])[0]
    name = b'"blk.0.attn_k.weight"'
    assert name in whole[:n]
    with open(made, "wb") as f:
        f.write(whole.replace(name, b'"blk.0.attn_x.weight"', 1))
    got, used, notes = logits(model, tmp_path)
    assert got == want and used == "" and len(notes) == 1 and "blk.0.attn_k.weight: missing" in notes[0]


@pytest.fixture
def open_path():
    """A folder that others may look into: pytest's own are for their owner alone, and it says so at every start."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


def test_in_the_cache(open_path):
    """Where the model's folder cannot be written. Root may write anywhere, so quern runs as somebody else then."""
    tmp_path = open_path
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    want = logits(model, tmp_path)[0]
    program, cache = shutil.copy(os.path.realpath(QUERN), tmp_path / "quern"), tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    tmp_path.chmod(0o555)

    def as_somebody(*args):
        become = (lambda: os.setuid(65534)) if os.geteuid() == 0 else None
        return subprocess.run([str(program), *map(str, args)], capture_output=True, preexec_fn=become,
                              env={**os.environ, "QUERN_CACHE": str(cache)})

    out = as_somebody("pack", model, "--json")
    tmp_path.chmod(0o755)
    assert out.returncode == 0, out.stderr
    made = json.loads(out.stdout)["output"]
    assert made.startswith(str(cache / "packed" / "llama-Q4_K_M.gguf-")) and made.endswith(".qpack")
    os.environ["QUERN_CACHE"] = str(cache)
    try:
        got = logits(model, tmp_path)
    finally:
        del os.environ["QUERN_CACHE"]
    assert got == (want, made, [])
    beside = tmp_path / (os.path.basename(model) + ".qpack")
    beside.write_text("cut short")
    os.environ["QUERN_CACHE"] = str(cache)
    try:
        got = logits(model, tmp_path)
    finally:
        del os.environ["QUERN_CACHE"]
    assert got[:2] == (want, made) and len(got[2]) == 1 and f"ignored in favour of {made}" in got[2][0]


def test_other_files_are_kept(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    out = call("pack", model, "-o", mine)
    assert out.returncode == 1 and b"--force replaces it" in out.stderr and mine.read_text() == "mine"
    assert pack(model, "-o", mine, "--force")["output"] == str(mine)
    named = tmp_path / "mine.qpack"  # the name alone does not make it one of quern's
    named.write_text("mine")
    out = call("pack", model, "-o", named)
    assert out.returncode == 1 and b"--force replaces it" in out.stderr and named.read_text() == "mine"
    beside = tmp_path / (os.path.basename(model) + ".qpack")  # quern's own choice of a name does
    beside.write_text("cut short")
    assert pack(model)["output"] == str(beside)
    out = call("pack", model, "-o", "none")
    assert out.returncode == 1 and b"./none" in out.stderr and not os.path.exists("none")
    out = call("pack", model, "-o", tmp_path)
    assert out.returncode == 1 and b"is a directory" in out.stderr
    out = call("pack", model, "-o", tmp_path / "no" / "such" / "folder.qpack")
    assert out.returncode == 1 and b"folder.qpack" in out.stderr


@pytest.mark.parametrize("relative", MODELS[1:2] + MODELS[-1:])
def test_the_model_itself_is_kept(relative, tmp_path):
    model = copy(relative, tmp_path)
    files = [model] if os.path.isfile(model) else [
        model / n for n in os.listdir(model) if n.startswith("model") or n in ("config.json", "tokenizer.json")]
    assert len(files) == (1 if os.path.isfile(model) else 5)  # two shards and their index
    link = tmp_path / "link"
    for path in files:
        with open(path, "rb") as f:
            before = f.read()
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.abspath(path))
        for out_path in (path, link):
            out = call("pack", model, "-o", out_path, "--force")
            assert out.returncode == 1 and b"is a file of the model itself" in out.stderr, out.stderr
        with open(path, "rb") as f:
            assert f.read() == before


def test_named_and_not_there(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    want = logits(model, tmp_path)[0]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path / "missing", fifo, tmp_path):
        got, used, notes = logits(model, tmp_path, "--packed", path)
        assert got == want and used == "" and len(notes) == 1, notes
        assert f"{path}: " in notes[0] and f"`quern pack --force -o {path}` writes a new file" in notes[0], notes


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def test_no_room(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    out = subprocess.run([QUERN, "pack", model], capture_output=True, preexec_fn=limit_files)
    assert out.returncode == 1 and out.stderr.count(b"\n") == 1 and b".qpack: " in out.stderr, out.stderr
    assert os.listdir(tmp_path) == [os.path.basename(model)]


def test_inspect_and_run(tmp_path):
    model = copy("quant/gguf_models/llama-Q4_K_M.gguf", tmp_path)
    made = pack(model)["output"]
    text = call("inspect", made).stdout.decode()
    assert f"packed weights of {model} for the device cpu, version" in text and "blk.0.attn_k.weight" in text
    report = call_json("inspect", made, "--json")
    assert report["format"] == "packed"
    out = call("run", made, "-p", "x")
    assert out.returncode == 1 and b"packed weights, not a model" in out.stderr
    out = call("inspect", shutil.copy(model, tmp_path / "fake.qpack"))
    assert out.returncode in (0, 1)  # a GGUF by its first bytes, whatever its name
