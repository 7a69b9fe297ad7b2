"""quern run --logprobs, --logit-bias and the penalties, against the golden logits."""
import json
import os

import numpy as np
import pytest

from support import call, call_json, fixture, read_safetensors


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def run(folder, ids, n, tmp_path, *options):
    path = os.path.join(tmp_path, "ids.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"ids": [ids]}, f)
    return call_json("run", folder, "--ids", path, "-n", n, "--json", "--ignore-eos", "--precision", "exact", *options)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3", "mistral"])
def test_golden(name, tmp_path):
    folder = fixture(f"models/{name}")
    t = read_safetensors(f"{folder}/expected.safetensors")
    want = log_softmax(t["prompt1.greedy_logits"])
    ids = t["prompt1.ids"].tolist()
    got = run(folder, ids, len(want), tmp_path, "--logprobs", 3)
    assert got["ids"][0] == t["prompt1.greedy"].tolist()[:len(want)]
    assert len(got["logprobs"]) == 1 and len(got["logprobs"][0]) == len(want)
    for token, expected, i in zip(got["logprobs"][0], want, got["ids"][0]):
        assert token["id"] == i and abs(token["logprob"] - expected[i]) < 5e-4
        assert [x["id"] for x in token["top"]] == np.argsort(-expected, kind="stable")[:3].tolist()
        for x in token["top"]:
            assert abs(x["logprob"] - expected[x["id"]]) < 5e-4


def test_none_without_being_asked(tmp_path):
    folder = fixture("models/llama")
    assert "logprobs" not in run(folder, [5, 6, 7], 3, tmp_path)
    got = run(folder, [5, 6, 7], 3, tmp_path, "--logprobs", 0)
    assert [x["top"] for x in got["logprobs"][0]] == [[], [], []]


def test_bias_and_penalties(tmp_path):
    folder = fixture("models/llama")
    assert run(folder, [5, 6, 7], 4, tmp_path, "--logit-bias", "9=100")["ids"] == [[9, 9, 9, 9]]
    plain = run(folder, [5, 6, 7], 4, tmp_path)["ids"][0]
    assert plain[0] not in run(folder, [5, 6, 7], 4, tmp_path, "--logit-bias", f"{plain[0]}=-100")["ids"][0]
    turns = run(folder, [5, 6, 7], 40, tmp_path, "--logit-bias=9=90", "--logit-bias=8=90", "--frequency-penalty", 2,
                "--presence-penalty=2")["ids"][0]
    assert set(turns) == {8, 9}


def test_steps_of_the_chain(tmp_path):
    """Each option changes the answer, which depends on the seed alone."""
    folder = fixture("models/llama")

    def ids(*options):
        return run(folder, [5, 6, 7, 5, 6], 24, tmp_path, "--temp", 1, "--seed", 3, *options)["ids"][0]

    plain = ids()
    for options in (("--typical", 0.2), ("--top-nsigma", 0.5), ("--xtc-probability", 1, "--xtc-threshold", 0.002),
                    ("--dynatemp-range", 0.9, "--dynatemp-exp", 3), ("--mirostat", 1, "--mirostat-ent", 2),
                    ("--mirostat", 2, "--mirostat-ent", 2, "--mirostat-lr", 0.5),
                    ("--repeat-penalty", 20, "--repeat-last-n", 3)):
        got = ids(*options)
        assert got != plain and got == ids(*options), options
    assert ids("--logit-bias", "9=40") == [9] * 24
    dry = ids("--logit-bias", "9=40", "--dry-multiplier", 40, "--dry-base", 2, "--dry-allowed-length", 3,
              "--dry-sequence-breaker", "none")
    assert dry[:4] == [9] * 4 and dry[4] != 9
    # What is off, or left out of the order.
    for options in (("--repeat-penalty", 20, "--repeat-last-n", 0), ("--dry-multiplier", 50, "--dry-penalty-last-n", 0),
                    ("--typical", 1), ("--typical", 0.2, "--samplers", "top_p;temperature")):
        assert ids(*options) == plain, options
    assert ids("--mirostat", 2, "--samplers", "penalties;typ_p;temperature") == ids("--mirostat", 2)
    assert set(ids("--allowed-ids", "9,11", "--allowed-ids", 12, "--bad-ids", "12", "--bad-ids", "9,9")) <= {9, 11}
    pairs = ids("--allowed-ids", "9,11", "--bad-ids", "9,9", "--bad-ids", "11,11")
    assert pairs in ([9, 11] * 12, [11, 9] * 12)
    out = [call("run", folder, "-p", "the", "-n", 30, "--raw", "--temp", 2, "--seed", 1, *options).stdout
           for options in ((), ("--bad-word", "e", "--bad-word", "t"))]
    assert out[0] != out[1]


@pytest.mark.parametrize("options,words", [
    (["--logit-bias", "9"], "--logit-bias: '9'"),
    (["--logit-bias", "9=nan"], "--logit-bias: '9=nan'"),
    (["--logit-bias", "9=101"], "--logit-bias: '9=101'"),
    (["--logit-bias", "-1=1"], "--logit-bias: '-1=1'"),
    (["--logit-bias", "123456789012345678901=1"], "--logit-bias: '12345678901234567890"),
    (["--presence-penalty", "3"], "--presence-penalty"),
    (["--frequency-penalty", "x"], "--frequency-penalty"),
    (["--logprobs", "21"], "--logprobs"),
    (["--logprobs", "2"], "--logprobs needs --json or --ids"),
])
def test_usage(options, words):
    out = call("run", fixture("models/llama"), "-p", "x", *options)
    assert out.returncode == 2 and out.stdout == b"", out
    assert words in out.stderr.decode()
    assert out.stderr.decode().count("\n") == 1


def test_id_outside_the_vocabulary():
    out = call("run", fixture("models/llama"), "-p", "x", "--logit-bias", "1048576=1")
    assert out.returncode == 1 and out.stdout == b""
    assert "logit_bias: token id 1048576 is outside the vocabulary" in out.stderr.decode()
