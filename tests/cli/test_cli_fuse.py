"""quern fuse: the fused model's logits, its report, what is refused; and the bytes of GGUF files."""
import os
import struct

import numpy as np
import pytest

from support import call, call_json, fixture, logits, read_json, read_safetensors


def base_of(name):
    return fixture(f"models/{read_json(fixture(f'lora/{name}/expected.json'))['base']}")


@pytest.mark.parametrize("name", ["llama_all", "gemma3_text_qv"])
def test_logits_are_the_reference_s(name, tmp_path):
    adapter, out = fixture(f"lora/{name}"), str(tmp_path / "fused")
    report = call_json("fuse", base_of(name), "--adapter", adapter, "-o", out, "--type", "f32", "--json")
    assert report["output"] == out and report["merged"] > 0 and report["tensors"] > report["merged"]
    assert report["check"]["n_tokens"] > 10 and report["check"]["n_same_best"] >= 0.9 * report["check"]["n_tokens"]
    assert abs(report["check"]["kl"]) < 1e-3
    expected = read_safetensors(f"{adapter}/expected.safetensors")
    got = logits(out, [expected["prompt1.ids"].tolist()], tmp_path, "--precision", "exact")[0]
    assert np.abs(got - expected["prompt1.logits"]).max() < 2e-4


def failure(status, *args):
    got = call("fuse", *args)
    assert got.returncode == status, got.stderr.decode()
    return got.stderr.decode()


def test_says_what_it_did(tmp_path):
    out = str(tmp_path / "fused")
    args = [base_of("llama_qv"), "--adapter", fixture("lora/llama_qv"), "-o", out]
    text = call("fuse", *args).stdout.decode()
    assert out in text and "KL" in text and "merged" in text
    assert "config.json" in os.listdir(out)
    assert "not empty" in failure(1, *args)


def test_says_that_a_tower_is_left_out(tmp_path):
    base = fixture("families2/qwen3_vl")
    got = call("fuse", base, "-o", str(tmp_path / "seen"))
    assert got.returncode == 0 and b"tower" not in got.stderr
    got = call("fuse", base, "-o", str(tmp_path / "m.gguf"))
    assert got.returncode == 0 and b"the tower for pictures is not in the GGUF file" in got.stderr


def test_adapters_with_scales_together(tmp_path):
    """An adapter by half and once more by half is the adapter; the same with a whole and its opposite is none."""
    base, adapter, ids = base_of("llama_qv"), fixture("lora/llama_qv"), [5, 17, 301, 44, 9]
    whole, halves, none = (str(tmp_path / n) for n in ("whole", "halves", "none"))
    half = ["--adapter", f"{adapter}:0.5"]
    report = call_json("fuse", base, *half, *half, "-o", halves, "--type", "f32", "--json")
    assert report["check"] is None and report["merged"] > 0
    call_json("fuse", base, "--adapter", f"{adapter}:1", "-o", whole, "--type", "f32", "--json")
    call_json("fuse", base, "--adapter", adapter, "--adapter", f"{adapter}:-1", "-o", none, "--type", "f32", "--json")
    got = {p: logits(p, [ids], tmp_path, "--precision", "exact")[0] for p in (base, whole, halves, none)}
    assert np.abs(got[whole] - got[halves]).max() < 1e-4 and np.abs(got[base] - got[none]).max() < 1e-4
    assert np.abs(got[whole] - got[base]).max() > 0.1
    assert "scale must not be 0" in failure(1, base, "--adapter", f"{adapter}:0", "-o", str(tmp_path / "x"))


def test_refusals(tmp_path):
    base, adapter, out = base_of("llama_qv"), fixture("lora/llama_qv"), str(tmp_path / "x")
    assert "-o PATH" in failure(2, base, "--adapter", adapter)
    assert "bf16" in failure(1, base, "--adapter", adapter, "-o", out, "--type", "q4_0")
    assert "adapter_config.json" in failure(1, base, "--adapter", base, "-o", out)
    assert not os.listdir(tmp_path)


# ---- GGUF: what is written, read by nothing of quern's --------------------------------------------------

def gguf_tensors(path):
    """Names to (type number, shape slowest first, bytes), and the metadata's scalars and texts."""
    data = open(path, "rb").read()
    at = 4

    def take(form):
        nonlocal at
        got = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return got[0] if len(got) == 1 else got

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            element, n = take("IQ")
            return [value(element) for _ in range(n)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    assert data[:4] == b"GGUF" and take("I") == 3
    n_tensors, n_values = take("QQ")
    values = {}
    for _ in range(n_values):
        key = text()
        values[key] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name, n_dims = text(), take("I")
        dims = [take("Q") for _ in range(n_dims)]
        infos.append((name, dims[::-1], *take("IQ")))
    begin = (at + 31) // 32 * 32
    blocks = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 30: (1, 2)}
    tensors = {}
    for name, shape, kind, offset in infos:
        elements, size = blocks[kind]
        n = int(np.prod(shape)) // elements * size
        assert offset % 32 == 0
        tensors[name] = (kind, shape, np.frombuffer(data, np.uint8, n, begin + offset))
    assert len(data) % 32 == 0
    return tensors, values


def nibbles(q):
    return (q[:, :16] | q[:, 16:] << 4).astype(np.uint8)


def fifth_bits(q):
    return np.packbits((q >> 4 & 1).astype(np.uint8), axis=1, bitorder="little")


def around_zero(x, middle):
    top = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    d = (top / np.float32(-middle)).astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = np.trunc(x.astype(np.float64) * inverse.astype(np.float64) + (middle + 0.5)).clip(0, 2 * middle - 1)
    return d.astype(np.float16).view(np.uint8), q.astype(np.uint8)


def from_least(x, most):
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    d = ((high - low) / np.float32(most)).astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = np.trunc((x - low) * inverse + np.float32(0.5)).clip(0, most).astype(np.uint8)
    return np.concatenate([d.astype(np.float16).view(np.uint8), low.astype(np.float16).view(np.uint8)], 1), q


def encoded(name, x):
    """The reference quantiser's blocks of 32."""
    x = x.reshape(-1, 32)
    if name == "q8_0":
        d = (np.abs(x).max(1, keepdims=True) / np.float32(127)).astype(np.float32)
        v = x * np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
        q = (np.sign(v) * np.floor(np.abs(v) + np.float32(0.5))).astype(np.int8)
        return np.concatenate([d.astype(np.float16).view(np.uint8), q.view(np.uint8)], 1)
    head, q = {"q4_0": lambda: around_zero(x, 8), "q5_0": lambda: around_zero(x, 16),
               "q4_1": lambda: from_least(x, 15), "q5_1": lambda: from_least(x, 31)}[name]()
    parts = [head, fifth_bits(q), nibbles(q & 15)] if name.startswith("q5") else [head, nibbles(q)]
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_blocks_are_the_reference_s(name, tmp_path):
    base = fixture("models/llama")
    exact, out = str(tmp_path / "f32.gguf"), str(tmp_path / "out.gguf")
    call_json("fuse", base, "-o", exact, "--type", "f32", "--no-check", "--json")
    report = call_json("fuse", base, "-o", out, "--type", name, "--json")
    assert report["check"]["n_tokens"] > 10 and report["check"]["kl"] >= 0 and report["merged"] == 0
    (wanted, _), (got, values) = gguf_tensors(exact), gguf_tensors(out)
    assert list(wanted) == list(got) and values["general.architecture"] == "llama"
    n_quantised = 0
    for tensor, (kind, shape, data) in got.items():
        x = wanted[tensor][2].view(np.float32)
        if kind == 0:
            assert len(shape) == 1 and np.array_equal(data.view(np.float32), x)
            continue
        n_quantised += 1
        assert np.array_equal(data.reshape(-1), encoded(name, x).reshape(-1)), tensor
    assert n_quantised > 10


def test_metadata_is_the_directory_s(tmp_path):
    base, out = fixture("models/llama"), str(tmp_path / "out.gguf")
    call_json("fuse", base, "-o", out, "--type", "f16", "--embedding-type", "q8_0", "--no-check", "--json")
    tensors, values = gguf_tensors(out)
    config, words = read_json(f"{base}/config.json"), read_json(f"{base}/tokenizer.json")
    assert values["llama.block_count"] == config["num_hidden_layers"]
    assert values["llama.embedding_length"] == config["hidden_size"]
    assert values["general.file_type"] == 1 and tensors["token_embd.weight"][0] == 8
    tokens = values["tokenizer.ggml.tokens"]
    assert len(tokens) == config["vocab_size"] == len(values["tokenizer.ggml.token_type"])
    for word, i in words["model"]["vocab"].items():
        assert tokens[i] == word
    for added in words["added_tokens"]:
        assert values["tokenizer.ggml.token_type"][added["id"]] == (3 if added["special"] else 4)
    assert len(values["tokenizer.ggml.merges"]) == len(words["model"]["merges"])


def test_the_package_gguf_reads_it(tmp_path):
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    out = str(tmp_path / "out.gguf")
    call_json("fuse", fixture("models/llama"), "-o", out, "--type", "q4_0", "--no-check", "--json")
    tensors, _ = gguf_tensors(out)
    read = gguf.GGUFReader(out)
    assert {t.name: int(t.tensor_type) for t in read.tensors} == {k: v[0] for k, v in tensors.items()}
    for t in read.tensors:
        if int(t.tensor_type) == 2:
            exact = gguf.quants.dequantize(t.data, t.tensor_type)
            assert np.array_equal(gguf.quants.quantize(exact, t.tensor_type).shape, t.data.shape)


def test_interrupted_leaves_nothing(tmp_path):
    out = tmp_path / "no" / "out.gguf"
    assert "no/out.gguf" in failure(1, fixture("models/llama"), "-o", str(out))
    (tmp_path / "out.gguf").write_bytes(b"mine")
    assert "already" in failure(1, fixture("models/llama"), "-o", str(tmp_path / "out.gguf"))
    assert (tmp_path / "out.gguf").read_bytes() == b"mine" and len(os.listdir(tmp_path)) == 1
    assert "q4_k" in failure(1, fixture("models/llama"), "-o", str(tmp_path / "x.gguf"), "--type", "q3_k")
