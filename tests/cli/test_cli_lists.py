"""quern classify, score, embed and batch: lists of prompts in, results in their order out."""
import json
import os
import signal
import subprocess

import numpy as np
import pytest

from support import QUERN, call, call_json, fixture, greedy, heed_interrupt, logits, read_safetensors

EXACT = ["--precision", "exact"]


def lines(*args, status=0, **options):
    """The JSON objects that quern prints, one a line."""
    out = call(*args, **options)
    assert out.returncode == status, out.stderr.decode()[-500:]
    rows = [json.loads(line) for line in out.stdout.decode().splitlines()]
    assert [r["index"] for r in rows] == list(range(len(rows)))
    return rows


def jsonl(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(r) + "\n" for r in rows))
    return path


def log_softmax(x):
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def refused(out, *words, status=1):
    text = out.stderr.decode()
    assert out.returncode == status and out.stdout == b"", (out.returncode, text)
    assert len(text.strip().split("\n")) == 1, text
    for word in words:
        assert word in text, text


# ---- classify

@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_choices_are_exact(name, tmp_path):
    folder = fixture(f"models/{name}")
    prompts = [[5, 6, 7], [9], [40, 41, 42, 43, 44, 45]]
    choices = [[3], [10, 11], [12, 13, 14]]
    path = jsonl(tmp_path / "in.jsonl", [{"ids": p, "choices": choices} for p in prompts])
    got = lines("classify", folder, "-f", path, "--jsonl", "--json", *EXACT)
    for p, r in zip(prompts, got):
        want = []
        for c in choices:
            x = log_softmax(logits(folder, [p + c], tmp_path, *EXACT)[0])
            want.append(sum(x[len(p) - 1 + i, t] for i, t in enumerate(c)))
        assert np.allclose([c["logprob"] for c in r["choices"]], want, atol=2e-4)
        share = np.exp(want) / np.exp(want).sum()
        assert np.allclose([c["probability"] for c in r["choices"]], share, atol=1e-4)
        assert r["best"] == int(np.argmax(want)) and [c["ids"] for c in r["choices"]] == choices
        assert r["status"] == "QN_OK" and r["n_prompt_tokens"] == len(p)


def test_next_token(tmp_path):
    folder = fixture("models/llama")
    t = read_safetensors(f"{folder}/expected.safetensors")
    ids = [t[f"prompt{i}.ids"].tolist() for i in (1, 2, 3)]
    path = jsonl(tmp_path / "in.jsonl", [{"ids": i} for i in ids])
    got = lines("classify", folder, "-f", path, "--jsonl", "--json", "--logprobs", 2, *EXACT)
    assert [r["id"] for r in got] == [t[f"prompt{i}.greedy"][0] for i in (1, 2, 3)]
    for r, i in zip(got, (1, 2, 3)):
        want = log_softmax(t[f"prompt{i}.logits"][-1])
        assert abs(r["logprob"] - want.max()) < 5e-4 and len(r["top"]) == 2 and r["top"][0]["id"] == r["id"]


def test_classify_prints_answers(tmp_path):
    folder = fixture("models/llama")
    rows = lines("classify", folder, "--choices", "yes,no", "--choice", "a, b", "--json", "--raw",
                 stdin="One\nTwo\r\nThree")
    assert len(rows) == 3 and all([c["choice"] for c in r["choices"]] == ["yes", "no", "a, b"] for r in rows)
    out = call("classify", folder, "--choices", "yes,no", "--choice", "a, b", "--raw", stdin="One\nTwo\nThree\n")
    texts = [line.split("\t") for line in out.stdout.decode().splitlines()]
    for (text, probability), r in zip(texts, rows):
        best = r["choices"][r["best"]]
        assert text == best["choice"] and abs(float(probability) - best["probability"]) < 1e-4
    assert len(texts) == 3
    assert len(call("classify", folder, "-p", "One", "-p", "Two").stdout.splitlines()) == 2


def test_order_and_company(tmp_path):
    folder = fixture("models/qwen3")
    texts = [f"{'The mill and the wheel ' * (i % 4)}number {i}" for i in range(40)]
    args = ["--choices", " good, bad,indifferent", "--json", "--raw"]
    together = lines("classify", folder, *args, "--slots", 8, stdin="\n".join(texts))
    for i in (0, 7, 39):
        alone = lines("classify", folder, *args, stdin=texts[i], **{})
        assert {**alone[0], "index": i} == together[i]
    narrow = lines("classify", folder, *args, "--slots", 1, "--chunk", 3, stdin="\n".join(texts))
    assert narrow == together


def test_chats(tmp_path):
    folder = fixture("models/llama")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One"}]
    path = jsonl(tmp_path / "in.jsonl", [{"messages": messages}])
    a = lines("classify", folder, "-f", path, "--jsonl", "--json")
    b = lines("classify", folder, "--system", "Be brief.", "--json", stdin="One\n")
    assert a == b and a[0]["n_prompt_tokens"] > 5
    refused(call("classify", folder, "--raw", "--system", "x", stdin="One"), "--system", "--raw")


# ---- what is no list of prompts

@pytest.mark.parametrize("text,words", [
    ("", "there are no prompts"),
    ("{\"prompt\":\"a\"}\n[1]\n", "line 2: it is not a JSON object"),
    ("{\"prompt\":\"a\"\n", "line 1"),
    ("{\"prompt\":3}", "line 1: \"prompt\""),
    ("{\"text\":\"a\"}", "line 1: \"text\" is none of"),
    ("{\"prompt\":\"a\",\"ids\":[1]}", "2 are given"),
    ("{}", "0 are given"),
    ("{\"ids\":[1,-2]}", "element 1"),
    ("{\"ids\":[99999999999]}", "element 0"),
    ("{\"ids\":[1],\"choices\":[3]}", "choice 0 is neither"),
    ("{\"ids\":[1],\"choices\":[[1.5]]}", "element 0 of choice 0"),
    ("{\"ids\":[1],\"choices\":[\"a\"]}\n{\"ids\":[2]}", "line 2 has no choices"),
    ("[" * 100000, "line 1"),
])
def test_bad_lists(text, words):
    refused(call("classify", fixture("models/llama"), "--jsonl", stdin=text), words)


@pytest.mark.parametrize("command", ["classify", "score", "embed", "batch"])
def test_usage(command, tmp_path):
    folder = fixture("models/llama")
    path = jsonl(tmp_path / "in", [{}])
    refused(call(command, folder, "-f", path, "-p", "x"), "--prompt cannot be used with --prompts", status=2)
    refused(call(command, folder, "--jsonl", "-p", "x"), "--prompt cannot be used with --jsonl", status=2)
    refused(call(command, folder, "-f", tmp_path / "none"), "No such file")
    refused(call(command, folder, stdin=""), "no prompts")
    refused(call(command, folder, "--use", "nobody", "-p", "x"), "nobody")


@pytest.mark.parametrize("command", ["classify", "score", "embed", "batch"])
def test_one_bad_prompt(command, tmp_path):
    """It has its own status; the others have what they have without it."""
    folder = fixture("models/llama")
    good = [{"ids": [5, 6, 7]}, {"prompt": "The mill"}]
    bad = [{"ids": []}, {"ids": [1 << 20]}, {"ids": [4] * 70}]
    options = ["--jsonl", "--context", 64, *(["--raw"] if command in ("classify", "batch") else [])]
    options += ["--json"] if command in ("classify", "score") else ["-n", 5] if command == "batch" else []
    want = lines(command, folder, "-f", jsonl(tmp_path / "a", good), *options)
    got = lines(command, folder, "-f", jsonl(tmp_path / "b", [bad[0], good[0], bad[1], bad[2], good[1]]), *options,
                status=1)
    assert [r["status"] for r in got] == ["QN_E_ARG", "QN_OK", "QN_E_ARG", "QN_E_ARG", "QN_OK"]
    for r, words in zip((got[0], got[2], got[3]), ("no token", "outside the vocabulary", "70 tokens")):
        assert words in r["error"]
    assert [{**got[1], "index": 0}, {**got[4], "index": 1}] == want


# ---- score

@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_score_is_of_the_golden_logits(name, tmp_path):
    folder = fixture(f"models/{name}")
    t = read_safetensors(f"{folder}/expected.safetensors")
    ids = t["prompt1.ids"]
    want = log_softmax(t["prompt1.logits"])[np.arange(len(ids) - 1), ids[1:]]
    got = lines("score", folder, "-f", jsonl(tmp_path / "in", [{"ids": ids.tolist()}]), "--jsonl", "--json", "--tokens",
                *EXACT)[0]
    assert got["n_scored"] == len(ids) - 1 and got["ids"] == ids.tolist() and got["logprobs"][0] is None
    assert np.abs(np.array(got["logprobs"][1:]) - want).max() < 5e-4
    assert abs(got["perplexity"] / np.exp(-want.mean()) - 1) < 1e-3


def test_score_files(tmp_path):
    folder = fixture("models/llama")
    text = "The mill stands by the river.\nIts wheel turns all day long.\n" * 10
    whole = lines("score", folder, "--json", stdin=text)
    assert len(whole) == 1 and whole[0]["n_scored"] == whole[0]["n_tokens"] - 1
    out = call("score", folder, stdin=text).stdout.decode().split("\t")
    assert abs(float(out[0]) / whole[0]["perplexity"] - 1) < 1e-4 and int(out[1]) == whole[0]["n_scored"]
    assert len(lines("score", folder, "--lines", "--json", stdin=text)) == 20
    refused(call("score", folder, "--window", 1, stdin=text), "--window", status=2)
    refused(call("score", folder, "--stride", 30, "--window", 20, stdin=text), "stride: 30")
    out = call("score", folder, "--context", 100, stdin=text)
    assert out.returncode == 1 and b"a stride to score it" in out.stderr
    strided = lines("score", folder, "--context", 100, "--stride", 50, "--json", stdin=text)[0]
    assert strided["n_scored"] == whole[0]["n_scored"] and strided["perplexity"] != whole[0]["perplexity"]


# ---- embed

def test_embed(tmp_path):
    folder = fixture("models/qwen3")
    t = read_safetensors(f"{folder}/expected.safetensors")
    hidden = t[max((k for k in t if k.startswith("hidden.")), key=lambda k: int(k[7:]))]
    path = jsonl(tmp_path / "in", [{"ids": t["prompt3.ids"].tolist()}, {"prompt": "The mill"}])
    for pooling, want in (("mean", hidden.mean(0)), ("last", hidden[-1]), ("cls", hidden[0])):
        got = lines("embed", folder, "-f", path, "--jsonl", "--pooling", pooling, *EXACT)
        assert len(got) == 2 and np.abs(np.array(got[0]["embedding"]) - want).max() < 1e-4 * np.abs(hidden).max()
        unit = lines("embed", folder, "-f", path, "--jsonl", "--pooling", pooling, "--normalise", *EXACT)
        assert abs(np.linalg.norm(unit[0]["embedding"]) - 1) < 1e-4
        assert np.allclose(unit[0]["embedding"], want / np.linalg.norm(want), atol=1e-4)


# ---- batch

def test_batch_is_run(tmp_path):
    folder = fixture("models/llama")
    rows = [[5 + i] * (1 + i % 5) for i in range(70)]
    want = greedy(folder, rows, 9, tmp_path)
    got = lines("batch", folder, "-f", jsonl(tmp_path / "in", [{"ids": r} for r in rows]), "--jsonl", "-n", 9,
                "--ignore-eos")
    assert [r["ids"] for r in got] == want
    assert {r["end"] for r in got} == {"length"} and [r["n_prompt_tokens"] for r in got] == [len(r) for r in rows]
    one = call_json("run", folder, "-p", "Tell me.", "-n", 9, "--temp", 1, "--seed", 4, "--json", "--ignore-eos")
    got = lines("batch", folder, "-n", 9, "--temp", 1, "--seed", 4, "--ignore-eos", stdin="x\nTell me.\n")
    assert got[1]["text"] == one["text"][0] and got[1]["ids"] == one["ids"][0]
    got = lines("batch", folder, "-n", 3, "--ignore-eos", "--logprobs", "-p", "x")
    assert len(got[0]["logprobs"]) == 3 and max(got[0]["logprobs"]) <= 0


def test_batch_ends_by_interrupt():
    folder = fixture("models/llama")
    p = subprocess.Popen([QUERN, "batch", folder, "-n", "400", "--ignore-eos", "--context", "512"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=heed_interrupt)
    p.stdin.write(b"The mill\n" * 3000)
    p.stdin.close()
    first = p.stdout.readline()
    p.send_signal(signal.SIGINT)
    rest = p.stdout.read().splitlines()
    assert p.wait(60) == 130
    rows = [json.loads(line) for line in [first, *rest]]
    assert [r["index"] for r in rows] == list(range(3000))
    assert rows[0]["end"] == "length" and rows[-1]["end"] == "cancelled"


@pytest.mark.parametrize("command", ["classify", "score", "embed"])
def test_interrupt(command):
    """One Ctrl-C ends what computes, with a sentence."""
    folder = fixture("models/llama")
    options = ["--lines"] if command == "score" else []
    p = subprocess.Popen([QUERN, command, folder, "--slots", "1", *options], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interrupt)
    p.stdin.write(b"The mill stands by the river and its wheel turns all day long\n" * 20000)
    p.stdin.close()
    p.stdout.readline()
    p.send_signal(signal.SIGINT)
    p.stdout.read()
    text = p.stderr.read().decode()
    assert p.wait(60) == 130 and "cancelled" in text and text.count("\n") == 1, text


# ---- rerank

def test_rerank_lines(tmp_path):
    folder = fixture("families2/qwen3_reranker")
    rows = [{"query": "grain", "documents": ["a mill", "a song"]}, {"ids": [[5, 6, 7], [8, 9]]},
            {"query": "grain", "documents": ["word " * 5000, "a song"]}]
    path = jsonl(tmp_path / "in.jsonl", rows)
    got = lines("rerank", folder, "--json", "-f", path, *EXACT, status=1)
    assert [len(r["scores"]) for r in got] == [2, 2, 2] and all(r["scores"] == r["probabilities"] for r in got)
    assert got[2]["scores"][0] is None and got[2]["scores"][1] == got[0]["scores"][1] and "context" in got[2]["error"]
    for row, words in (({"query": "a"}, ["documents"]), ({"query": 1, "documents": ["a"]}, ["query"]),
                       ({"ids": [[1], []]}, ["ids", "[1]"]), ({"ids": [[1]], "types": [[0, 1]]}, ["types"]),
                       ({"query": "a", "ids": [[1]]}, ["both"]), ({"colour": 1}, ["colour"])):
        refused(call("rerank", folder, "--json", "-f", jsonl(tmp_path / "bad.jsonl", [row])), "line 1", *words)
    refused(call("rerank", folder, "-q", "a", "-p", "b", "--kind", "cross-encoder"), "classification head")
    refused(call("rerank", folder, "-p", "b"), "--query", status=2)
    encoder = fixture("families2/bert_reranker")
    refused(call("rerank", encoder, "-q", "a", "-p", "b", "--kind", "yes-no"), "this one is a cross-encoder")
    refused(call("rerank", encoder, "-q", "a", "-p", "b", "--instruction", "c"), "only a model that is asked")
