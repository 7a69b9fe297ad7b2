"""llama.cpp's own API: every field, whole answers and streams, gaps that are filled, tokens, errors, cancellation.

The models are the mock and small fixtures; one gets tokens that mark a gap.
"""
import json
import math
import os
import shutil

import pytest

from server_help import Server, begin, until, wait_for
from support import fixture, read_json

GONE = "quern_clients_gone_total"
TEXT = "/completion"
SETTINGS = {"temperature": 0.5, "top_p": 0.5, "min_p": 0.25, "top_k": 3, "typical_p": 0.5, "repeat_penalty": 1.5,
            "presence_penalty": 1.5, "frequency_penalty": 0.5, "repeat_last_n": 8, "top_n_sigma": 2.0,
            "xtc_probability": 0.5, "xtc_threshold": 0.25, "dynatemp_range": 0.25, "dynatemp_exponent": 2.0,
            "mirostat": 0, "mirostat_tau": 4.0, "mirostat_eta": 0.5, "dry_multiplier": 0.5, "dry_base": 1.5,
            "dry_allowed_length": 3,
            "dry_penalty_last_n": 9, "dry_sequence_breakers": ["x"], "ignore_eos": True, "stop": ["zz"]}


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--context", 4096, "--parallel", 2)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    """The qwen3 fixture with Qwen's tokens for gaps in the place of its last ones."""
    source, target = fixture("models/qwen3"), str(tmp_path_factory.mktemp("model") / "filler")
    shutil.copytree(source, target)
    for name in ("tokenizer.json", "config.json"):
        os.chmod(os.path.join(target, name), 0o644)
    tokenizer = read_json(os.path.join(target, "tokenizer.json"))

    def parts(merge):
        return merge if isinstance(merge, list) else merge.split(" ")

    n = read_json(os.path.join(target, "config.json"))["vocab_size"]
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
    known = {t["id"] for t in tokenizer["added_tokens"]}
    free = [i for i in range(n - 1, 255, -1) if i not in known][:len(marks)]
    words = tokenizer["model"]["vocab"]
    taken = {w for w, i in words.items() if i in free}
    tokenizer["model"]["vocab"] = {w: i for w, i in words.items() if w not in taken}
    tokenizer["model"]["merges"] = [
        m for m in tokenizer["model"]["merges"]
        if not taken & {*parts(m), "".join(parts(m))}]
    tokenizer["added_tokens"] += [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, text in zip(free, marks)]
    with open(os.path.join(target, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    s = Server(target)
    s.marks = dict(zip(marks, free))
    yield s
    assert s.stop() == 0


def ask(server, path=TEXT, **fields):
    body = {"n_predict": 8, "seed": 1, **({"prompt": "Hello"} if path == TEXT else {}), **fields}
    status, headers, got = server.post(path, body)
    assert status == 200, got
    return got


def refused(server, status, words, param=None, path=TEXT, **fields):
    got_status, headers, got = server.post(path, fields)
    error = got["error"]
    assert got_status == status == error["code"] and words in error["message"], got
    assert error.get("param") == param and error["request_id"] == headers["x-request-id"]
    return error["type"]


def events(server, path=TEXT, **fields):
    text = ask(server, path, stream=True, **fields)
    *pieces, empty = text.split("\n\n")
    assert empty == "" and all(p.startswith("data: ") and "\n" not in p for p in pieces)
    return [json.loads(p[6:]) for p in pieces]


def same(streamed, whole):
    """A stream's events of each choice add up to the whole answer."""
    wholes = whole if isinstance(whole, list) else [whole]
    for i, w in enumerate(wholes):
        own = [e for e in streamed if e["index"] == i]
        assert [e["stop"] for e in own] == [False] * (len(own) - 1) + [True]
        assert "".join(e["content"] for e in own) == w["content"]
        assert sum((e.get("completion_probabilities", []) for e in own), []) == w.get("completion_probabilities", [])
        last = own[-1]
        for key in set(w) - {"content", "tokens", "timings", "tokens_cached", "completion_probabilities"}:
            if key != "generation_settings":
                assert last[key] == w[key], key
        left = [{k: v for k, v in x["generation_settings"].items() if k not in ("stream", "seed")} for x in (last, w)]
        assert left[0] == left[1]
        assert len(sum((e["tokens"] for e in own), [])) == w["tokens_predicted"]


# ---- answers ----

@pytest.mark.parametrize("fields", [
    {}, {"temperature": 0}, {"n_probs": 3}, {"stop": ["e", "zz"], "n_predict": 40},
    {"prompt": ["Hello", "a", [98, 97]]},
    {"n_cmpl": 2}, {"n": 2, "prompt": ["a", "b"]}, {"prompt": [98, "bubi", 97]}, {"prompt": {"prompt_string": "a"}},
    {"return_tokens": True}, SETTINGS, {"n_predict": 0}])
def test_streamed(server, fields):
    whole = ask(server, **fields)
    same(events(server, **fields), whole)
    for one in whole if isinstance(whole, list) else [whole]:
        assert one["stop"] and one["model"] == "mill" and one["id_slot"] == -1 and "warnings" not in one
        assert one["tokens_evaluated"] == one["timings"]["prompt_n"] + one["timings"]["cache_n"]
        assert one["tokens_predicted"] == one["timings"]["predicted_n"]
        if "n_probs" in fields:
            assert all(len(t["top_logprobs"]) == 3 and {"id", "token", "logprob", "bytes"} <= set(t)
                       for t in one["completion_probabilities"])
            assert len(one["completion_probabilities"]) == 8
        if one["stop_type"] == "word":
            assert one["stopping_word"] in fields["stop"] and one["stopping_word"] not in one["content"]
        else:
            assert one["stop_type"] == "limit" and one["stopping_word"] == "" and not one["truncated"]
        assert len(one["tokens"]) == (8 if "return_tokens" in fields else 0)


def test_any_bytes_streamed():
    s = Server(fixture("models/llama"))
    try:
        for seed in range(4):
            fields = {"seed": seed, "temperature": 1.5, "n_predict": 60, "ignore_eos": True, "n_probs": 1}
            same(events(s, **fields), ask(s, **fields))
    finally:
        assert s.stop() == 0


def test_same_answers_as_openai(server):
    for fields in ({}, {"temperature": 0.5, "top_k": 5}, SETTINGS):
        body = {"prompt": "Hello", "max_tokens": 8, "seed": 1, **fields}
        wanted = server.post("/v1/completions", body)[2]["choices"][0]["text"]
        for own in ({}, {"max_tokens": 8, "n_predict": None}):
            assert ask(server, **fields, **own)["content"] == wanted


def test_prompts(server):
    assert ask(server, prompt="bubi")["prompt"] == "bubi" == ask(server, prompt={"prompt_string": "bubi"})["prompt"]
    assert [x["prompt"] for x in ask(server, prompt=["a", [98], {"prompt_string": "c"}])] == ["a", "b", "c"]
    assert isinstance(ask(server, prompt=["a"]), dict)
    mixed = ask(server, prompt=["bubi", 97])
    assert mixed["prompt"].endswith("bubia")
    assert mixed["tokens_evaluated"] == ask(server, prompt="bubi")["tokens_evaluated"] + 1
    for prompt in ([], {}, {"prompt_string": 5}, 5, True, [[]], [{}], ["a", {"x": 1}], [1.5], [98, []], [-1], [32000],
                   ["a", 32000], {"prompt_string": "a", "multimodal_data": ["aGk="]}):
        refused(server, 400, "prompt", "prompt", prompt=prompt)
    refused(server, 400, "prompt is missing", "prompt", n_predict=1)
    assert refused(server, 400, "4096", "prompt", prompt=" bubi" * 5000) == "exceed_context_size_error"
    refused(server, 400, "too much", "prompt", prompt=["a"] * 128, n=2)
    refused(server, 400, "128", "prompt", prompt=["a"] * 129)


def test_special_tokens():
    """A program that fills in a template itself: its marks are tokens."""
    s = Server(fixture("models/qwen3"))
    try:
        assert ask(s, prompt="<|im_start|>a")["tokens_evaluated"] == 2
        assert s.post("/tokenize", {"content": "<|im_start|>a"})[2]["tokens"][0] > 255
        plain = s.post("/tokenize", {"content": "<|im_start|>a", "parse_special": False})[2]["tokens"]
        assert len(plain) > 2
    finally:
        assert s.stop() == 0


def test_limits(server):
    got = ask(server, n_predict=-1, stop=["a"])
    assert got["stop_type"] == "word" and got["stopping_word"] == "a" and got["generation_settings"]["n_predict"] == -1
    none = ask(server, n_predict=0)
    assert none["content"] == "" and none["tokens_predicted"] == 0 and none["tokens_evaluated"] > 0
    assert [e["stop"] for e in events(server, n_predict=0)] == [True]
    small = Server("mock", "--backend", "mock", "--context", 16)
    try:
        assert ask(small, n_predict=-1)["truncated"] and not ask(small, n_predict=3)["truncated"]
    finally:
        assert small.stop() == 0


def test_settings(server):
    got = ask(server, **SETTINGS, cache_prompt=False)["generation_settings"]
    assert {k: got[k] for k in SETTINGS} == SETTINGS and got["seed"] == 1 and got["n_predict"] == 8
    got = ask(server, samplers=["top_k", "typ_p", "temperature"])["generation_settings"]
    assert got["samplers"] == ["top_k", "typ_p", "temperature"]
    for seed in (-1, 4294967295):
        assert ask(server, seed=seed)["generation_settings"]["seed"] != seed
    biased = ask(server, logit_bias=[[2217, 100]])["content"]
    assert biased == " ragu" * 8 == ask(server, logit_bias={"2217": 100})["content"]


def test_biases(server):
    """Of ids and of texts, which count for each of their tokens; false keeps a token out for good."""
    drawn = ask(server, temperature=0, n_predict=40)["content"]
    (first,) = set(server.post("/tokenize", {"content": " ragu"})[2]["tokens"]) & {2217}
    assert ask(server, logit_bias=[[" ragu", 100]])["content"] == " ragu" * 8
    shown = ask(server, logit_bias={" ragu": 100})["generation_settings"]["logit_bias"]
    assert shown == [{"bias": 100, "token": first}]
    word = drawn.split()[0]
    tokens = server.post("/tokenize", {"content": " " + word})[2]["tokens"]
    for bias in ({" " + word: False}, [[t, False] for t in tokens]):
        got = ask(server, temperature=0, n_predict=40, logit_bias=bias)
        assert all(b["bias"] is None for b in got["generation_settings"]["logit_bias"])
        assert not set(server.post("/tokenize", {"content": got["content"]})[2]["tokens"]) & set(tokens)
    everything = server.post("/v1/completions", {"prompt": "a", "allowed_token_ids": [98], "logit_bias": {"98": -100}})
    assert everything[0] == 200
    ends = ask(server, ignore_eos=True)["generation_settings"]["logit_bias"]
    assert ends and all(b["bias"] is None for b in ends)
    assert ask(server)["generation_settings"]["logit_bias"] == []


@pytest.mark.parametrize("fields", [
    {"temperature": 1.0}, {"temperature": 0}, {"temperature": 0.7, "top_k": 4}, {"top_p": 0.6, "min_p": 0.05},
    {"temperature": 1.3, "repeat_penalty": 1.5, "typical_p": 0.8}, {"mirostat": 2},
    {"logit_bias": {" ragu": 8}, "top_k": 6}, {"grammar": 'root ::= ("bubi" | "kaju") " x"'}])
def test_probabilities_after_sampling(server, fields):
    """They are those of what the chain leaves, and the model's own where the chain does nothing."""
    got = ask(server, n_probs=10, post_sampling_probs=True, **fields)
    tokens = got["completion_probabilities"]
    assert len(tokens) == got["tokens_predicted"]
    for t in tokens:
        top = t["top_probs"]
        assert set(t) == {"id", "token", "bytes", "prob", "top_probs"} and 0 < t["prob"] <= 1
        assert top == sorted(top, key=lambda p: -p["prob"]) and all(0 < p["prob"] <= 1 for p in top)
        assert sum(p["prob"] for p in top) < 1 + 1e-5
        assert len(top) == 10 or sum(p["prob"] for p in top) == pytest.approx(1, abs=1e-5)
        assert t["id"] not in [p["id"] for p in top] or t["prob"] == next(p["prob"] for p in top if p["id"] == t["id"])
    if fields == {"temperature": 0}:
        assert all(t["prob"] == 1 and len(t["top_probs"]) == 1 for t in tokens)
    if "top_k" in fields:
        assert all(len(t["top_probs"]) <= fields["top_k"] for t in tokens)
    own = ask(server, n_probs=10, **fields)["completion_probabilities"]
    assert [t["id"] for t in own] == [t["id"] for t in tokens]
    if fields == {"temperature": 1.0}:
        for a, b in zip(own, tokens):
            assert math.exp(a["logprob"]) == pytest.approx(b["prob"], rel=1e-4)
            assert [p["id"] for p in a["top_logprobs"]] == [p["id"] for p in b["top_probs"]]
    streamed = events(server, n_probs=10, post_sampling_probs=True, **fields)
    assert sum((e.get("completion_probabilities", []) for e in streamed), []) == tokens


def test_response_fields(server):
    names = ["content", "generation_settings/n_predict", "timings/prompt_n", "nothing/here", "content"]
    got = ask(server, response_fields=names)
    assert list(got) == names[:3] and got["generation_settings/n_predict"] == 8
    assert [set(x) for x in ask(server, prompt=["a", "b"], response_fields=["stop"])] == [{"stop"}] * 2
    text = server.post(TEXT, {"prompt": "a", "n_predict": 2, "stream": True, "response_fields": ["stop"]})[2]
    assert json.loads(text.split("\n\n")[-2][6:]) == {"stop": True}
    assert "generation_settings" in ask(server, response_fields=[])
    assert set(ask(server, id_slot=0, response_fields=["stop"])) == {"stop", "warnings"}


def test_progress_and_timings(server):
    got = events(server, return_progress=True, timings_per_token=True, prompt="bubi kaju")
    told = [e for e in got if "prompt_progress" in e]
    others = got[len(told):]
    assert all(e["content"] == "" for e in told) and all("prompt_progress" not in e for e in others)
    assert all("timings" in e for e in got) and [e["timings"]["predicted_n"] for e in others][-1] == 8
    assert "timings" not in events(server)[0]
    assert [w["param"] for w in ask(server, return_progress=True)["warnings"]] == ["return_progress"]


@pytest.fixture(scope="module")
def parts():
    s = Server(fixture("models/llama"), "--chunk", 16, "--cache-limit", 0)
    yield s
    assert s.stop() == 0


def data_of(text):
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


@pytest.mark.parametrize("path, body", [
    (TEXT, {"n_predict": 3}), ("/v1/completions", {"n_predict": 3}), ("/v1/chat/completions", {"n_predict": 3}),
    ("/v1/responses", {"max_output_tokens": 3})])
def test_progress_of_a_prompt_in_parts(parts, path, body):
    """First what the cache had, then each part, last the whole; times begin at 0. Answers are the same without it."""
    words = "the mill turns and the wheel turns " * 12
    body = {**body, "stream": True, "temperature": 0, **(
        {"input": words} if "responses" in path else {"messages": [{"role": "user", "content": words}]}
        if "chat" in path else {"prompt": words})}
    for _ in range(20):  # parts that are computed faster than they are sent make one event
        asked = data_of(parts.post(path, {**body, "return_progress": True, "timings_per_token": True})[2])
        told = [e for e in asked if "prompt_progress" in e]
        steps = [e["prompt_progress"] for e in told]
        if len(steps) > 3:
            break
    assert len(steps) > 3 and len({p["total"] for p in steps}) == 1 and {p["cache"] for p in steps} == {0}
    done = [p["processed"] for p in steps]
    assert done[0] == 0 and done == sorted(set(done)) and done[-1] == steps[0]["total"]
    timed = [e["timings"] for e in asked if "timings" in e]
    assert timed[-1]["predicted_n"] == 3 and timed[-1]["prompt_n"] == done[-1]
    assert timed[-1]["predicted_per_second"] == pytest.approx(2e3 / timed[-1]["predicted_ms"])
    if path == TEXT:
        first = told[0]["timings"]
        assert first["prompt_n"] == first["prompt_ms"] == first["predicted_n"] == first["predicted_ms"] == 0
        times = [e["timings"]["prompt_ms"] for e in told]
        assert times == sorted(times) and times[-1] > 0
    plain = data_of(parts.post(path, body)[2])
    assert not any("prompt_progress" in e for e in plain) and not any("timings" in e for e in plain[:-1])

    def said(events):
        return [json.dumps(e.get("choices", e.get("content", e.get("delta")))) for e in events
                if "prompt_progress" not in e]

    assert said(asked) == said(plain)


def test_rates_without_a_decode_step(server):
    """The first token comes of the prompt's own logits."""
    one = ask(server, n_predict=1)["timings"]
    assert one["predicted_n"] == 1 and one["predicted_per_second"] == one["predicted_per_token_ms"] == 0


def test_reported_and_refused(server):
    for name in ("id_slot", "slot_id", "n_cache_reuse", "n_keep", "n_indent", "t_max_prompt_ms", "t_max_predict_ms"):
        assert [w["param"] for w in ask(server, **{name: 1})["warnings"]] == [name]
        assert [w["param"] for w in events(server, **{name: 1})[-1]["warnings"]] == [name]
    for name, value in (("n_discard", 1), ("min_keep", 2), ("post_sampling_probs", 1), ("lora", [{"id": 0}]),
                        ("image_data", [{}]), ("preserved_tokens", ["a"]), ("grammar", "root ::= ("),
                        ("n_predict", "x"), ("n_predict", -3), ("n_probs", 21), ("n_probs", -1),
                        ("seed", 1.5), ("samplers", "kfyp"), ("samplers", ["nothing"]), ("temperature", -1),
                        ("response_fields", "x"), ("response_fields", [1]), ("stream", 1), ("stop", [1]),
                        ("logit_bias", [["a", 101]]), ("logit_bias", [["", 1]]), ("logit_bias", {"a": True}),
                        ("logit_bias", [[True, 1]]), ("logit_bias", [["x" * 2000, 1]]), ("logit_bias", "a"),
                        ("logit_bias", [[32000, 1]]), ("logit_bias", [[-1, 1]]), ("logit_bias", [["a"]]),
                        ("n_cmpl", 0), ("mystery", 1), ("input_prefix", "a"),
                        ("return_tokens", 1), ("sse_ping_interval", "x"), ("model", 5)):
        assert refused(server, 400, name, name, prompt="a", **{name: value}) == "invalid_request_error"
    assert refused(server, 400, "no name of a type", "json_schema", prompt="a", json_schema={"type": 5})
    for name, value in (("n_discard", 0), ("min_keep", 0), ("post_sampling_probs", False), ("lora", []),
                        ("grammar", ""), ("image_data", []), ("preserved_tokens", []), ("json_schema", None)):
        assert "warnings" not in ask(server, **{name: value})
    assert [w["param"] for w in ask(server, model="gpt-4")["warnings"]] == ["model"]


def test_strict_and_lenient():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--strict-model", "--lenient")
    try:
        for path, body in ((TEXT, {"prompt": "a"}), ("/tokenize", {"content": "a"}), ("/detokenize", {"tokens": [98]}),
                           ("/embedding", {"content": "a"}), ("/apply-template", {"messages": []})):
            assert refused(s, 404, "'mill'", "model", path, model="x", **body) == "not_found_error"
        assert [w["param"] for w in ask(s, mystery=1)["warnings"]] == ["mystery"]
        assert [w["param"] for w in s.post("/tokenize", {"content": "a", "mystery": 1})[2]["warnings"]] == ["mystery"]
    finally:
        assert s.stop() == 0


def test_completions(server):
    """One path, two APIs: a field that only llama.cpp's has tells."""
    own = server.post("/completions", {"prompt": "Hello", "n_predict": 8, "seed": 1})[2]
    assert own["content"] == ask(server)["content"]
    other = server.post("/completions", {"prompt": "Hello", "max_tokens": 8, "seed": 1})[2]
    assert other["object"] == "text_completion" and other["choices"][0]["text"] == own["content"]
    body = {"prompt": "Hello", "n_probs": 1, "stream": True, "max_tokens": 2}
    assert "completion_probabilities" in server.post("/completions", body)[2]
    assert server.post("/completions", {"prompt": "n_predict", "max_tokens": 1})[2]["object"] == "text_completion"
    same_limit = {"prompt": "Hello", "n_predict": 8, "seed": 1}
    assert server.post("/v1/completions", same_limit)[2]["choices"][0]["text"] == own["content"]
    status, _, got = server.post("/v1/completions", {**same_limit, "max_tokens": 7})
    assert status == 400 and got["error"]["param"] == "n_predict"
    for body in (b"{", b"[]", b"", {"prompt": "a", "mystery": 1}):
        assert server.post("/completions", body)[0] == 400


# ---- gaps ----

def test_infill(filler):
    fields = {"input_prefix": "def f(a):\n", "input_suffix": "    return b\n", "temperature": 0}
    got = ask(filler, "/infill", **fields)
    same(events(filler, "/infill", **fields), got)
    assert got["prompt"] == "<|fim_prefix|>def f(a):\n<|fim_suffix|>    return b\n<|fim_middle|>"
    got = ask(filler, "/infill", **fields, prompt="    b = ")
    assert got["prompt"].endswith("<|fim_middle|>    b = ")
    extra = [{"filename": "g.py", "text": "x = 1\n"}, {"text": "y"}]
    got = ask(filler, "/infill", **fields, input_extra=extra)
    assert got["prompt"].startswith(
        "<|repo_name|>project\n<|file_sep|>g.py\nx = 1\n<|file_sep|>\ny<|file_sep|>filename\n<|fim_prefix|>")
    # Marks within a file are text.
    hidden = ask(filler, "/infill", input_prefix="<|fim_middle|>", input_suffix="")
    ids = filler.post("/tokenize", {"content": hidden["prompt"], "parse_special": True})[2]["tokens"]
    assert hidden["tokens_evaluated"] > len(ids)
    same_gap = filler.post("/api/generate", {
        "model": "x", "prompt": fields["input_prefix"], "suffix": fields["input_suffix"], "stream": False,
        "options": {"temperature": 0, "num_predict": 8}})[2]
    assert same_gap["response"] == ask(filler, "/infill", **fields)["content"]
    assert "insert" in filler.post("/api/show", {"model": "x"})[2]["capabilities"]
    for bad in ({}, {"prompt": "a"}, {"input_prefix": 5}, {"input_prefix": "a", "input_extra": {}},
                {"input_prefix": "a", "input_extra": [{}]}, {"input_prefix": "a", "input_extra": [{"filename": "ok"}]},
                {"input_prefix": "a", "input_extra": [{"filename": 1, "text": "a"}]},
                {"input_prefix": "a", "prompt": [1]},
                {"input_prefix": "a", "input_extra": [{"text": "a"}] * 257}, {"input_prefix": "a", "input_suffix": 1}):
        status, _, got = filler.post("/infill", bad)
        assert status == 400 and got["error"]["param"], bad


def test_infill_without_tokens(server):
    assert "fill in the middle" in server.post("/infill", {"input_prefix": "a"})[2]["error"]["message"]
    refused(server, 400, "gap", "input_prefix", "/infill", input_prefix="a", input_suffix="b")
    status, _, got = server.post("/api/generate", {"model": "mill", "prompt": "a", "suffix": "b"})
    assert status == 400 and got["param"] == "suffix"


# ---- what is no answer ----

def test_tokens(server):
    text = "bubi kaju \u00e4\u4e2d"
    ids = server.post("/tokenize", {"content": text})[2]
    assert set(ids) == {"tokens"}
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True})[2]["tokens"]
    assert [p["id"] for p in pieces] == ids["tokens"]
    assert "".join(p["piece"] for p in pieces).startswith("bubi kaju ")
    with_bos = server.post("/tokenize", {"content": text, "add_special": True})[2]["tokens"]
    vllm = server.post("/tokenize", {"prompt": text, "return_token_strs": True})[2]
    assert vllm["tokens"] == with_bos and vllm["count"] == len(with_bos) == len(ids["tokens"]) + 1
    assert vllm["max_model_len"] == 4096 and len(vllm["token_strs"]) == vllm["count"]
    plain = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[2]
    assert plain["tokens"] == ids["tokens"] and plain["token_strs"] is None
    got = server.post("/detokenize", ids)[2]
    assert got == {"content": text, "prompt": text}
    assert server.post("/detokenize", {"tokens": []})[2]["content"] == ""
    for nothing in ({}, {"content": ""}):
        assert server.post("/tokenize", nothing)[2] == {"tokens": []}
    for path, body, param in (("/tokenize", {"content": 5}, "content"), ("/tokenize", {"prompt": ["a"]}, "prompt"),
                              ("/tokenize", {"content": "a", "prompt": "a"}, "content"),
                              ("/tokenize", {"messages": []}, "messages"), ("/tokenize", {"x": 1}, "x"),
                              ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
                              ("/detokenize", {"content": "a"}, "content")):
        refused(server, 400, param, param, path, **body)
    for tokens in (["a"], [[1]], [1, "a"], [-1], [10**9]):
        refused(server, 400, "tokens", "tokens", "/detokenize", tokens=tokens)


def test_templates(server):
    """What a chat becomes, sent as a prompt, has the answer of the chat. The text has no BOS that comes by itself."""
    hello = [{"role": "user", "content": "Hello"}]
    for model in ("qwen3", "gemma3_text", "smollm3"):
        s = Server(fixture("models/" + model))
        try:
            got = s.post("/apply-template", {"messages": hello})[2]
            assert set(got) == {"prompt"} and "Hello" in got["prompt"]
            chat = s.post("/v1/chat/completions", {"messages": hello, "max_tokens": 8, "temperature": 0})[2]
            own = ask(s, prompt=got["prompt"], temperature=0)
            assert own["tokens_evaluated"] == chat["usage"]["prompt_tokens"], model
            assert own["content"] == chat["choices"][0]["message"]["content"], model
        finally:
            assert s.stop() == 0
    refused(server, 400, "messages", "messages", "/apply-template")
    refused(server, 400, "role", "messages[0].role", "/apply-template", messages=[{"content": "a"}])


def test_vectors(server):
    wanted = [d["embedding"] for d in server.post("/v1/embeddings", {"input": ["a", "b"]})[2]["data"]]
    for field in ("content", "input"):
        got = server.post("/embedding", {field: ["a", "b"], "embd_normalize": 2})[2]
        assert got == [{"index": i, "embedding": [w]} for i, w in enumerate(wanted)]
    (raw,) = server.post("/embedding", {"content": "a", "embd_normalize": -1})[2]
    length = sum(x * x for x in raw["embedding"][0]) ** 0.5
    assert [x / length for x in raw["embedding"][0]] == pytest.approx(wanted[0], abs=1e-5)
    assert "warnings" in server.post("/embedding", {"content": ["a", "b"], "model": "x"})[2][-1]
    for body, param in (({}, "content"), ({"content": {}}, "content"), ({"content": " bubi" * 5000}, "content"),
                        ({"content": "a", "embd_normalize": 1}, "embd_normalize")):
        refused(server, 400, param, param, "/embedding", **body)


def test_state(server):
    props = server.request("GET", "/props")[2]
    assert props["total_slots"] == 2 and props["default_generation_settings"]["n_ctx"] == 4096
    assert props["model_alias"] == "mill" and not props["modalities"]["vision"]
    assert props["default_generation_settings"]["params"]["n_predict"] == -1
    assert server.request("GET", "/version")[2]["version"] in props["build_info"]
    assert refused(server, 501, "quern serve", None, "/props") == "not_supported_error"
    refused(server, 501, "/prompt-cache", None, "/slots/0?action=save")

    def busy():
        return [slot["is_processing"] for slot in server.request("GET", "/slots")[2]]

    until(lambda: busy() == [False, False])
    with begin(server, {"prompt": "a", "n_predict": -1, "stream": True}, TEXT) as s:
        wait_for(s, b"data:")
        assert busy() == [True, False]
    until(lambda: busy() == [False, False])


# ---- errors and cancellation ----

def test_errors(server):
    for body in (b"", b"{", b"[]", b"5", b'{"prompt":"a","prompt":"b"}', b"\xff"):
        for path in (TEXT, "/infill", "/tokenize", "/detokenize", "/embedding", "/apply-template"):
            status, _, got = server.post(path, body)
            assert status == 400 and got["error"]["code"] == 400 and got["error"]["message"], (path, body, got)
    status, headers, got = server.request("GET", TEXT)
    assert status == 405 and headers["allow"] == "POST" and got["error"]["code"] == 405
    s = Server("mock", "--backend", "mock", "--api-key", "k")
    try:
        for path in ("/props", "/slots", "/version"):
            status, _, got = s.request("GET", path)
            assert status == 401 and got["error"]["type"] == "authentication_error"
    finally:
        assert s.stop() == 0


def test_cancelled(server):
    gone = server.metrics()[GONE]
    with begin(server, {"prompt": "a", "n_predict": -1, "stream": True}, TEXT) as s:
        wait_for(s, b'"stop":false')
    with begin(server, {"prompt": ["a", "b"], "n_predict": -1}, TEXT):
        pass
    until(lambda: server.metrics()[GONE] == gone + 2)
    until(lambda: not any(slot["is_processing"] for slot in server.request("GET", "/slots")[2]))
    assert ask(server)["content"]
