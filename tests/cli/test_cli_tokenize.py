"""quern tokenize: every case of the tokenizer fixtures, through the command line."""
import gzip
import json
import os
import shutil

import pytest

from support import call, call_json, each, fixture, mismatches, read_json

NAMES = ["llama3", "gemma3", "qwen3", "mistral", "qwen25", "qwen2vl", "deepseek", "gemma2", "phi3", "macro"]
GGUF = ["llama-F32", "llama-Q4_K_M", "llama-Q8_0", "qwen3-F16", "qwen3-Q4_K_M", "gemma3-Q4_0", "gemma3-Q8_0",
        "qwen2-Q5_K_M"]
REAL = ["smollm2", "llama-bpe", "llama-spm", "gemma-3", "llama3-json", "qwen3-json", "gemma3-json"]


def encode(model, text, *options):
    return call_json("tokenize", model, "--json", *options, stdin=text)["ids"]


def read_cases(name):
    """The folder of a tokenizer and its cases."""
    path = fixture(f"tokenizers/{name}/tokenizer_cases.json")
    return os.path.dirname(path), read_json(path)


def decode(model, ids, *options):
    return call_json("tokenize", model, "--json", "--decode", *options, stdin={"ids": ids})["text"]


@pytest.mark.parametrize("name", NAMES)
def test_encodes_every_case(name):
    folder, cases = read_cases(name)
    cases = cases["cases"]
    mismatches(each(lambda c: (c["text"], encode(folder, c["text"], "--special"), c["ids"]), cases))


@pytest.mark.parametrize("name", NAMES)
def test_encodes_with_bos(name):
    folder, cases = read_cases(name)
    cases = cases["cases"]
    mismatches(each(lambda c: (c["text"], encode(folder, c["text"], "--special", "--bos"),
                               c.get("ids_with_special", c["ids"])), cases[::4]))


@pytest.mark.parametrize("name", NAMES)
def test_decodes_every_case(name):
    folder, d = read_cases(name)
    cases = d["cases"][::2] + d["decode_only"]
    mismatches(each(lambda c: (c["ids"], decode(folder, c["ids"]), c["decoded"]), cases))
    cases = [c for c in cases if c["decoded"] != c["decoded_skip_special"]] + d["decode_only"]
    mismatches(each(lambda c: (c["ids"], decode(folder, c["ids"], "--skip-special"), c["decoded_skip_special"]), cases))


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gemma3"])
def test_special_tokens_in_plain_text_stay_text(name):
    folder = fixture(f"tokenizers/{name}")
    special = [t for t in read_json(f"{folder}/tokenizer.json")["added_tokens"] if t["special"]]
    assert special
    for t in special[:4]:
        text = f"a {t['content']} b"
        assert t["id"] in encode(folder, text, "--special")
        assert t["id"] not in encode(folder, text)


@pytest.mark.parametrize("name", GGUF)
def test_encodes_by_a_gguf(name):
    model = fixture(f"quant/gguf_models/{name}.gguf")
    for c in read_json(fixture(f"quant/gguf_models/{name}.tokens.json"))["cases"]:
        options = ["--special"] * c["parse_special"] + ["--bos"] * c["add_special"]
        assert encode(model, c["text"], *options) == c["ids"], c


def real_vocabulary(name, folder):
    """The gzipped vocabulary laid out as a model."""
    source = fixture(f"tokenizers/real/{name}")
    for packed, plain in (("vocab.gguf.gz", "vocab.gguf"), ("tokenizer.json.gz", "tokenizer.json")):
        if os.path.exists(f"{source}/{packed}"):
            with gzip.open(f"{source}/{packed}") as f, open(f"{folder}/{plain}", "wb") as out:
                shutil.copyfileobj(f, out)
            return f"{folder}/{plain}" if plain.endswith(".gguf") else str(folder)
    raise AssertionError(source)


def json_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies(name, tmp_path):
    """A sample here, with the long inputs; the unit tests take all."""
    model = real_vocabulary(name, tmp_path)
    source = fixture(f"tokenizers/real/{name}")
    texts = {d["id"]: d for d in json_lines(fixture("tokenizers/real/inputs.jsonl"))}
    rows = []
    cases = json_lines(f"{source}/encode.jsonl")
    for i, c in enumerate(cases):
        origin = c if "text" in c else texts.get(c["id"], {})
        if "text" not in origin or (i % 24 and not (len(origin["text"]) > 15000 and not c["add_special"])):
            continue
        options = ["--special"] * c["parse_special"] + ["--bos"] * c["add_special"]
        got = encode(model, origin["text"], *options)
        right = c["ids"] if c.get("agree", True) or model == str(tmp_path) or got != c.get("alt") else c["alt"]
        rows.append((c["id"], got, right))
    assert rows
    mismatches(rows)
    rows = []
    for c in json_lines(f"{source}/decode.jsonl")[::24]:
        expected = c["text"] if "text" in c else bytes.fromhex(c["detok_hex"]).decode("utf-8", "replace")
        rows.append((c["ids"], decode(model, c["ids"]), expected))
    mismatches(rows)


def test_invalid_utf8_is_refused():
    out = call("tokenize", fixture("tokenizers/llama3"), "--json", stdin=b"ab\xff\xfecd")
    assert out.returncode == 1 and b"UTF-8" in out.stderr and out.stderr.count(b"\n") == 1
    assert out.stdout == b""


def test_an_id_without_a_token_is_reported():
    out = call("tokenize", fixture("models/llama"), "--json", "--decode", stdin={"ids": [39, 99999]})
    assert out.returncode == 0 and json.loads(out.stdout)["text"]
    assert b"99999" in out.stderr and b"640" in out.stderr


MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}


TIMES_TEN = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}


@pytest.mark.parametrize("change, unit, times, words", [
    ({"model": {**MODEL, "vocab": {}}}, "a", 1, "tokenizer.json: model.vocab is empty"),
    ({"model": {**MODEL, "vocab": {"a": 2**53}}}, "a", 1, ": 9007199254740992 is not in [0, "),
    ({"model": {**MODEL, "vocab": {"a": 0, "b": 0}}}, "a", 1, ": token 0 is both 'a' and 'b'"),
    ({"model": {**MODEL, "merges": ["a c"]}}, "a", 1,
     ": merge 0 ('a' + 'c'): the right token is not in the vocabulary"),
    ({"added_tokens": [{"id": 1, "content": "x", "special": True}]}, "x", 1,
     ": added token 'x' has the id 1, which belongs to 'b'"),
    ({"pre_tokenizer": split("(a+)+$")}, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 1,
     "tokenizer.json: regular expression '(a+)+$': match limit exceeded"),
    ({"pre_tokenizer": split("(?=.*b)a")}, "a", 300000,
     "tokenizer.json: regular expression '(?=.*b)a' looks too far ahead in a text of 300000 bytes"),
    ({"normalizer": {"type": "Sequence", "normalizers": [TIMES_TEN] * 9}}, "a", 1,
     "tokenizer.json: the normalizer makes more than 4250 bytes from a text of 1"),
])
def test_hostile_tokenizers(change, unit, times, words, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": MODEL, **change}))
    out = call("tokenize", tmp_path, "--json", stdin=unit * times)
    message = out.stderr.decode()
    assert out.returncode == 1 and out.stdout == b"" and message.count("\n") == 1 and words in message, message


def test_a_decoder_that_grows(tmp_path):
    decoder = {"type": "Sequence", "decoders": [TIMES_TEN] * 9}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": MODEL, "decoder": decoder}))
    out = call("tokenize", tmp_path, "--json", "--decode", stdin={"ids": [0]})
    assert out.returncode == 1 and b"tokenizer.json: the decoder makes more than " in out.stderr, out.stderr


@pytest.mark.parametrize("unit", ["a", "a\u0301\u0323"])
def test_10_megabytes_of_one_thing(unit):
    text = unit * (10_000_000 // len(unit.encode()))
    model = fixture("models/llama")
    ids = encode(model, text)
    assert 0 < len(ids) <= 10_000_000 and ids[:100] == encode(model, text[:10000])[:100]
