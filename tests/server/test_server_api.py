"""OpenAI's API as clients see it: what is answered, whole and streamed, and what is refused.

Most of it runs on the backend mock, a made-up model whose answers are words; tools and reasoning on a model that says
what it was made to say (server_help.parrot).
"""
import base64
import json
import math
import shutil
import struct

import pytest

from server_help import THOUGHT, Server, client, openai, parrot
from support import fixture, read_json

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--context", 4096)
    yield s
    assert s.stop() == 0


def refused(got, status, param=None, code=None):
    error = got[2]["error"]
    assert got[0] == status, got
    assert error["param"] == param and (code is None or error["code"] == code), error
    return error["message"]


def chat(server, messages=None, **fields):
    status, _, body = server.post("/v1/chat/completions", {"messages": messages or HELLO, **fields})
    assert status == 200, body
    return body


def complete(server, prompt, **fields):
    status, _, body = server.post("/v1/completions", {"prompt": prompt, **fields})
    assert status == 200, body
    return body


def stream(server, path, body):
    """The events of a stream; it must end with [DONE]."""
    status, headers, text = server.post(path, {**body, "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), text
    assert text.endswith("\n\n")
    events = [e for e in text.split("\n\n") if e]
    assert all(e.startswith("data: ") and "\n" not in e for e in events) and events[-1] == "data: [DONE]"
    return [json.loads(e[6:]) for e in events[:-1]]


def join(events):
    """What the deltas of a chat's choices add up to, as messages are; and their reasons."""
    found = {}
    for e in events:
        for c in e["choices"]:
            into = found.setdefault(c["index"], {"content": "", "reasoning_content": "", "calls": {}, "logprobs": [],
                                                 "finish_reason": None})
            assert into["finish_reason"] is None, "a delta behind the end"
            into["finish_reason"] = c["finish_reason"]
            into["content"] += c["delta"].get("content") or ""
            into["reasoning_content"] += c["delta"].get("reasoning_content") or ""
            into["logprobs"] += (c.get("logprobs") or {}).get("content") or []
            for call in c["delta"].get("tool_calls", []):
                known = into["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
                known["name"] += call["function"].get("name", "")
                known["arguments"] += call["function"].get("arguments", "")
    return [found[i] for i in sorted(found)]


# ---- answers ----

def test_chat(server):
    body = chat(server, max_tokens=12, seed=1)
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["model"] == "mill"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "length" and choice["index"] == 0 and "warnings" not in body
    usage = body["usage"]
    assert usage["completion_tokens"] == 12 and usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert chat(server, max_tokens=12, seed=1)["choices"] == body["choices"]
    assert chat(server, max_completion_tokens=12, seed=1)["choices"] == body["choices"]
    assert chat(server, max_tokens=12, seed=2)["choices"] != body["choices"]
    assert chat(server, max_tokens=12, seed=0)["choices"] == chat(server, max_tokens=12, seed=0)["choices"]


@pytest.mark.parametrize("fields", [
    {"seed": 1}, {"seed": 2, "n": 3}, {"temperature": 0}, {"seed": 3, "logprobs": True, "top_logprobs": 2},
    {"seed": 4, "stop": ["e", "zz"]}, {"seed": 5, "presence_penalty": 1.5, "frequency_penalty": -1}])
def test_chat_streamed(server, fields):
    """The deltas of a stream add up to the answer that is given whole."""
    body = {"messages": HELLO, "max_tokens": 40, **fields}
    whole = chat(server, **body)
    events = stream(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert len({e["id"] for e in events}) == 1 and {e["object"] for e in events} == {"chat.completion.chunk"}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"] == []
    cached = whole["usage"].pop("prompt_tokens_details"), events[-1]["usage"].pop("prompt_tokens_details")
    assert all(set(c) == {"cached_tokens"} for c in cached)
    assert events[-1]["usage"] == whole["usage"] and all(e["usage"] is None for e in events[:-1])
    for got, wanted in zip(join(events), whole["choices"], strict=True):
        assert got["content"] == wanted["message"]["content"]
        assert got["finish_reason"] == wanted["finish_reason"]
        assert got["logprobs"] == (wanted["logprobs"] or {"content": []})["content"]
    assert "usage" not in stream(server, "/v1/chat/completions", body)[-1]


def test_any_bytes_streamed():
    """A model that says anything, halves of characters too: its deltas are valid text and add up."""
    s = Server(fixture("models/llama"))
    try:
        for seed in range(8):
            body = {"messages": HELLO, "max_tokens": 60, "seed": seed, "temperature": 1.5, "ignore_eos": True}
            (got,) = join(stream(s, "/v1/chat/completions", body))
            assert got["content"] == chat(s, **body)["choices"][0]["message"]["content"]
            text = complete(s, "a", max_tokens=60, seed=seed, temperature=1.5, ignore_eos=True)["choices"][0]["text"]
            events = stream(s, "/v1/completions", {"prompt": "a", **{k: v for k, v in body.items() if k != "messages"}})
            assert "".join(e["choices"][0]["text"] for e in events) == text
    finally:
        assert s.stop() == 0


def test_completions(server):
    one = complete(server, "bubi", max_tokens=5, seed=1)
    assert one["object"] == "text_completion" and one["usage"]["completion_tokens"] == 5
    many = complete(server, ["bubi", "xubi", "bubi"], max_tokens=5, seed=1, n=2)
    assert [c["index"] for c in many["choices"]] == list(range(6)) and many["usage"]["completion_tokens"] == 30
    assert many["choices"][0]["text"] == one["choices"][0]["text"] == many["choices"][4]["text"]
    assert many["choices"][1]["text"] != one["choices"][0]["text"]
    assert many["usage"]["prompt_tokens"] == 3 * one["usage"]["prompt_tokens"]
    assert complete(server, [98, 117], max_tokens=5, seed=1)["usage"]["prompt_tokens"] == 2
    ids = complete(server, [[98, 117], [98]], max_tokens=3, seed=1)
    assert len(ids["choices"]) == 2 and ids["usage"]["prompt_tokens"] == 3
    assert complete(server, "bubi", seed=1)["usage"]["completion_tokens"] == 16  # OpenAI's default
    events = stream(server, "/v1/completions", {"prompt": ["bubi", "xubi"], "max_tokens": 5, "seed": 1})
    texts = ["".join(c["text"] for e in events for c in e["choices"] if c["index"] == i) for i in (0, 1)]
    assert texts == [many["choices"][0]["text"], many["choices"][2]["text"]]


def test_logprobs(server):
    body = chat(server, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == 6 and "".join(e["token"] for e in entries) == body["choices"][0]["message"]["content"]
    for e in entries:
        assert bytes(e["bytes"]).decode() == e["token"] and len(e["top_logprobs"]) == 3
        assert e["top_logprobs"][0]["token"] == e["token"] and e["top_logprobs"][0]["logprob"] == e["logprob"] <= 0
        assert e["logprob"] == max(t["logprob"] for t in e["top_logprobs"])
    got = complete(server, "bubi", max_tokens=4, temperature=0, logprobs=2)["choices"][0]
    lists = got["logprobs"]
    assert "".join(lists["tokens"]) == got["text"] and len(lists["token_logprobs"]) == 4
    assert [len(t) for t in lists["top_logprobs"]] == [2] * 4
    assert lists["text_offset"] == [len("".join(lists["tokens"][:i])) for i in range(4)]
    assert complete(server, "bubi", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] is None
    assert chat(server, max_tokens=2)["choices"][0]["logprobs"] is None


def test_bias_and_stops(server):
    text = complete(server, "bubi", max_tokens=3, logit_bias={"97": 100}, temperature=0)["choices"][0]["text"]
    assert text == "aaa"
    assert complete(server, "bubi", max_tokens=3, logit_bias=[[98, 100]], temperature=0)["choices"][0]["text"] == "bbb"
    long = complete(server, "bubi", max_tokens=20, seed=1)["choices"][0]["text"]
    cut = complete(server, "bubi", max_tokens=20, seed=1, stop=long[10:14])["choices"][0]
    assert cut["text"] == long[:long.index(long[10:14])] and cut["finish_reason"] == "stop"
    got = complete(server, "bubi", max_tokens=3, logit_bias={"97": 100}, stop_token_ids=[97], temperature=0)
    assert got["choices"][0]["text"] == "" and got["choices"][0]["finish_reason"] == "stop"
    # A nucleus of nothing is the likeliest token, for this API.
    assert complete(server, "bubi", max_tokens=5, top_p=0)["choices"] == \
        complete(server, "bubi", max_tokens=5, temperature=0)["choices"]


def test_steps_of_the_chain(server):
    """Fields of llama.cpp, Ollama and vLLM: each changes the answer, which depends on the seed alone."""
    asked = {"max_tokens": 24, "seed": 5, "ignore_eos": True}

    def text(**fields):
        return complete(server, "bubi bubi", **{**asked, **fields})["choices"][0]["text"]

    plain = text()
    for fields in ({"typical_p": 0.2}, {"top_n_sigma": 0.5}, {"xtc_probability": 1, "xtc_threshold": 0.001},
                   {"dynatemp_range": 0.9, "dynatemp_exponent": 3}, {"mirostat": 1, "mirostat_tau": 1.5},
                   {"mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.3},
                   {"repeat_penalty": 50, "repeat_last_n": 4}, {"samplers": ["top_k"], "temperature": 0.01}):
        got = text(**fields)
        if "samplers" not in fields:
            assert got != plain, fields
        assert got == text(**fields), fields
    again = text(logit_bias={"97": 100})
    dry = text(logit_bias={"97": 100}, dry_multiplier=60, dry_base=1.5, dry_allowed_length=3, dry_penalty_last_n=30,
               dry_sequence_breakers=["x"])
    assert again == "a" * 24 and dry.startswith("aaaa") and not dry.startswith("aaaaaa")
    # Steps that are left out, and windows of 0, are off.
    assert text(samplers=["penalties", "typ_p"], temperature=0.01, top_p=0.1) == plain
    assert text(dry_multiplier=50, dry_penalty_last_n=0) == plain == text(repeat_penalty=9, repeat_last_n=0)
    # Mirostat draws last, also where clients of llama.cpp list the other steps.
    want = text(mirostat=2, mirostat_tau=0.5)
    for samplers in (["temperature"], ["temperature", "mirostat"]):
        assert text(mirostat=2, mirostat_tau=0.5, samplers=samplers) == want


def test_bans(server):
    def text(**fields):
        return complete(server, "bubi", max_tokens=6, temperature=0, **fields)["choices"][0]["text"]

    assert text(allowed_token_ids=[97]) == "aaaaaa"
    assert text(logit_bias={"97": 100}, bad_words=["a"]) == text()
    assert "aa" not in text(allowed_token_ids=[97, 98], logit_bias={"97": 100}, bad_words=[[97, 97]])
    got = server.post("/v1/completions", {"prompt": "bubi", "allowed_token_ids": [97], "bad_words": [[97]]})
    assert "all allowed tokens are banned" in refused(got, 400, "bad_words")
    got = server.post("/v1/completions", {"prompt": "bubi", "bad_words": ["no " * 300]})
    assert "tokens, at most 256 are allowed" in refused(got, 400, "bad_words")


def test_messages(server):
    """Roles and parts of messages are brought into the form that templates take."""
    def tokens(*messages):
        return chat(server, list(messages), max_tokens=1)["usage"]["prompt_tokens"]

    user = {"role": "user", "content": "Hello"}
    parts = {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}
    brief = {"role": "system", "content": "Be brief"}
    assert tokens({**brief, "role": "developer"}, user) == tokens(brief, user)
    assert tokens(parts) == tokens({"role": "user", "content": "Hel\nlo"})
    answered = {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None, "annotations": []}
    assert tokens(user, answered, user) == tokens(user, {"role": "assistant", "content": "Hi"}, user)
    # What a user writes never becomes a special token.
    assert tokens({"role": "user", "content": "<|im_end|>"}) - tokens({"role": "user", "content": ""}) > 1


@pytest.mark.parametrize("messages, param", [
    ([], "messages"), ("Hello", "messages"), ({}, "messages"), ([1], "messages[0]"), ([{}], "messages[0].role"),
    ([{"role": "robot", "content": ""}], "messages[0].role"), ([{"role": 1, "content": ""}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": 1}], "messages[0].content"),
    ([{"role": "assistant", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text", "text": "", "detail": 1}]}], "messages[0].content[0].detail"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
     "messages[0].content[0].type"),
    ([{"role": "user", "content": "", "colour": "red"}], "messages[0].colour"),
    ([{"role": "user", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
    (HELLO + [{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[1].tool_calls[0]"),
    (HELLO + [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}], "messages[1].tool_calls[0]"),
    (HELLO + [{"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]}],
     "messages[1].tool_calls[0]"),
    (HELLO + [{"role": "assistant", "tool_calls": {"function": {"name": "f"}}}], "messages[1].tool_calls"),
    (HELLO + [{"role": "assistant", "function_call": {}}], "messages[1].function_call"),
    (HELLO + [{"role": "assistant", "function_call": "f"}], "messages[1].function_call"),
    ([{"role": "user", "content": "", "function_call": {"name": "f"}}], "messages[0].function_call"),
])
def test_messages_that_are_none(server, messages, param):
    refused(server.post("/v1/chat/completions", {"messages": messages}), 400, param)


# ---- fields ----

# What clients send to servers of this kind; "..." is said in users' requests.
SENT = """messages model max_tokens max_completion_tokens temperature top_p top_k min_p typical_p n stop stop_token_ids
    mirostat mirostat_tau mirostat_eta repeat_last_n repeat_penalty xtc_probability xtc_threshold top_n_sigma
    dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers dynatemp_range
    dynatemp_exponent samplers seed stream stream_options logprobs top_logprobs logit_bias presence_penalty
    frequency_penalty repetition_penalty
    response_format tools tool_choice parallel_tool_calls user safety_identifier metadata store service_tier verbosity
    prediction modalities functions function_call prompt_cache_key prompt_cache_options prompt_cache_breakpoint
    cache_control thinking output_config speed reasoning_effort reasoning include_reasoning thinking_budget
    reasoning_budget reasoning_format chat_template chat_template_kwargs add_generation_prompt continue_final_message
    documents ignore_eos min_tokens skip_special_tokens truncate_prompt_tokens bad_words allowed_token_ids grammar
    json_schema regex ebnf choice structured_outputs guided_json guided_regex guided_choice guided_grammar
    guided_decoding_backend guided_whitespace_pattern structural_tag
    priority cache_salt session_id request_id lora lora_path prompt_logprobs return_token_ids
    return_progress timings_per_token sse_ping_interval cache_prompt id_slot keep_alive options
    backend_sampling adaptive_target adaptive_decay verbose n_keep n_indent n_discard n_cache_reuse t_max_prompt_ms
    t_max_predict_ms n_probs post_sampling_probs min_keep preserved_tokens response_fields n_cmpl reasoning_control
    speculative.n_max speculative.n_min speculative.p_min speculative.type""".split()


@pytest.mark.parametrize("field", SENT + ["echo", "best_of", "suffix"])
def test_every_field_is_known(server, field):
    """A value that makes no sense is refused by the field's own name, or the field is reported; null is nothing."""
    path, body = "/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}
    if field in ("echo", "best_of", "suffix"):
        path, body = "/v1/completions", {"prompt": "a", "max_tokens": 1}
    nonsense = {"json_schema": 5, "guided_json": 5, "chat_template_kwargs": ["no sense"]}.get(field, {"no": ["sense"]})
    status, _, got = server.post(path, {**body, field: nonsense})
    if status == 200:
        assert [w["param"] for w in got["warnings"]] == [field] and got["warnings"][0]["message"]
    else:
        error = got["error"]
        assert status == 400 and error["param"] in (field, field + ".no", field + ".type"), error
        assert error["param"] != field or error["code"] != "unknown_parameter", error
    if field not in ("messages",):
        assert server.post(path, {**body, field: None})[0] == 200


def test_unknown_fields(server):
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "mesages": 1}), 400, "mesages", "unknown_parameter")
    refused(server.post("/v1/completions", {"prompt": "a", "messages": HELLO}), 400, "messages", "unknown_parameter")
    refused(server.post("/v1/embeddings", {"input": "a", "temperature": 1}), 400, "temperature", "unknown_parameter")
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "stream": True, "stream_options": {"x": 1}}), 400,
            "stream_options.x", "unknown_parameter")
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "é" * 5000: 1}), 400, "é" * 63)


def test_fields_that_ask_for_nothing(server):
    body = chat(server, max_tokens=1, response_format={"type": "text"}, tools=[], tool_choice="auto", store=False,
                modalities=["text"], parallel_tool_calls=True, typical_p=1.0, min_tokens=0, bad_words=[], n=1,
                logit_bias={}, stop=[], functions=[], function_call="none", skip_special_tokens=True)
    assert "warnings" not in body


@pytest.mark.parametrize("field, value", [
    ("n", 0), ("n", -1), ("n", 33), ("n", 10**9), ("n", 1.5), ("n", "1"), ("n", True), ("n", 10**30),
    ("max_tokens", 0), ("max_tokens", -2), ("max_tokens", 2**31), ("max_tokens", 1e3), ("max_tokens", [1]),
    ("max_tokens", -1.0), ("max_tokens", True), ("max_completion_tokens", 0), ("max_completion_tokens", -2),
    ("temperature", -0.1), ("temperature", 101), ("temperature", 1e300), ("temperature", "hot"), ("temperature", True),
    ("top_p", -0.1), ("top_p", 1.1), ("min_p", 2), ("top_k", -2), ("top_k", 2**31), ("repetition_penalty", 0),
    ("repetition_penalty", -1), ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("seed", 1.5), ("seed", "x"),
    ("seed", 2**64), ("stop", [""]), ("stop", ""), ("stop", 1), ("stop", ["a"] * 17), ("stop", ["a", 1]),
    ("stop", "x" * 2000), ("stop", "a\u0000b"), ("logprobs", 1), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"32000": 1}), ("logit_bias", {"99999999999999999999": 1}), ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": "x"}), ("logit_bias", [[1]]), ("logit_bias", [1, 2]), ("logit_bias", 1),
    ("logit_bias", {str(i): 0 for i in range(1025)}), ("stop_token_ids", [32000]), ("stop_token_ids", [-1]),
    ("stop_token_ids", list(range(65))), ("stop_token_ids", 1), ("stream", 1), ("stream", "yes"),
    ("typical_p", 1.1), ("top_n_sigma", -1.5), ("xtc_probability", 2), ("xtc_threshold", -0.1), ("mirostat", 3),
    ("mirostat", -1), ("mirostat", 1.5), ("mirostat_tau", -1), ("mirostat_eta", 1.5), ("dry_multiplier", -1),
    ("dry_base", 0.5), ("dry_allowed_length", -1), ("dry_penalty_last_n", -2), ("repeat_last_n", -2),
    ("dynatemp_range", -1), ("dynatemp_exponent", -1), ("dry_sequence_breakers", "a"), ("dry_sequence_breakers", [1]),
    ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", ["a"] * 65), ("dry_sequence_breakers", ["a\u0000"]),
    ("samplers", "top_k"), ("samplers", ["infill"]), ("samplers", ["top_k", "top_k"]), ("samplers", [1]),
    ("samplers", ["mirostat", "top_k"]), ("bad_words", "a"), ("bad_words", [""]), ("bad_words", [[]]),
    ("bad_words", [1]), ("bad_words", [[32000]]), ("bad_words", ["a"] * 257), ("bad_words", [[1] * 257]),
    ("allowed_token_ids", []), ("allowed_token_ids", [32000]), ("allowed_token_ids", [-1]), ("allowed_token_ids", 1),
    ("allowed_token_ids", ["a"]), ("priority", 1001), ("cache_salt", 1), ("cache_salt", "a\u0000"), ("model", 1),
    ("n_discard", -5),
    ("response_format", "json"), ("json_schema", 1), ("regex", 1), ("ebnf", "root: 1"), ("grammar", "root"),
    ("choice", []), ("choice", [1]), ("guided_choice", "a"), ("structured_outputs", []), ("tools", {}),
    ("tools", [{}] * 129), ("tool_choice", "maybe"),
    ("tool_choice", "required"), ("reasoning_effort", "very"), ("chat_template_kwargs", 1),
    ("chat_template", "{{ x }}"), ("stream_options", {"include_usage": True})])
def test_values_out_of_range(server, field, value):
    """J4 to J6 of the list of security cases: caps, ranges, ids outside the vocabulary."""
    got = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, **{field: value}})
    assert field in refused(got, 400, field)


def test_no_limit(server):
    """-1 is "no limit", as clients of llama.cpp and LM Studio send it; for completions too, where nothing means 16."""
    body = {"prompt": [98] * 4050, "ignore_eos": True, "seed": 1}
    whole = complete(server, max_tokens=-1, **body)
    assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] > 40
    assert whole["usage"]["total_tokens"] in (4096, 4097) and "warnings" not in whole
    assert complete(server, max_tokens=None, **body)["usage"]["completion_tokens"] == 16
    prompt = [{"role": "user", "content": "b" * 4000}]
    texts = [chat(server, prompt, seed=1, ignore_eos=True, **{field: value})["choices"][0]["message"]["content"]
             for field, value in (("max_tokens", -1), ("max_completion_tokens", -1), ("max_tokens", None))]
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) > 40
    chat(server, max_tokens=-1, max_completion_tokens=-1, stop=["e"])
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": -1, "max_completion_tokens": 2}), 400,
            "max_tokens")
    message = refused(server.post("/v1/completions", {"prompt": "a", "max_tokens": 0}), 400, "max_tokens")
    assert "-1 for no limit" in message and "one token" in message


def test_values_that_json_cannot_say(server):
    for value in ("1e999", "-1e999", "NaN", "Infinity"):
        text = '{"prompt":"a","temperature":%s}' % value
        assert server.request("POST", "/v1/completions", text.encode())[0] == 400


def test_fields_that_need_others(server):
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 2}), 400, "top_logprobs")
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 21, "logprobs": True}), 400,
            "top_logprobs")
    refused(server.post("/v1/completions", {"prompt": "a", "logprobs": 21}), 400, "logprobs")
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}), 400,
            "max_tokens")
    refused(server.post("/v1/chat/completions", {}), 400, "messages")


@pytest.mark.parametrize("prompt", [1, {}, True, [], [[]], [1.5], [-1], [32000], ["a", 1], [[1], "a", 2], [[98], []],
                                    ["a"] * 129])
def test_prompts_that_are_none(server, prompt):
    refused(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}), 400, "prompt")
    if prompt != ["a"] * 129:
        refused(server.post("/v1/embeddings", {"input": prompt}), 400, "input")


def test_prompts_that_are_too_long(server):
    words = " bubi" * 5000
    for path, body, param in (("/v1/completions", {"prompt": words}, "prompt"),
                              ("/v1/completions", {"prompt": [98] * 5000}, "prompt"),
                              ("/v1/chat/completions", {"messages": [{"role": "user", "content": words}]}, "messages"),
                              ("/v1/embeddings", {"input": ["a", words]}, "input")):
        message = refused(server.post(path, body), 400, param, "context_length_exceeded")
        assert "4096" in message and "50" in message


def test_models_by_name(server):
    """The one model answers to any name, and says so; --strict-model refuses other names."""
    body = chat(server, model="mill", max_tokens=1)
    assert body["model"] == "mill" and "warnings" not in body
    strict = Server("mock", "--backend", "mock", "--model-name", "mill", "--strict-model")
    try:
        for name in ("gpt-4", "", "../mill", "m\u00fcll" * 1000):
            body = chat(server, model=name, max_tokens=1)
            assert body["model"] == "mill" and [w["param"] for w in body["warnings"]] == ["model"]
            assert "'mill'" in body["warnings"][0]["message"] and name[:50] in body["warnings"][0]["message"]
            for path, rest in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "a"}),
                               ("embeddings", {"input": "a"})):
                refused(strict.post(f"/v1/{path}", {**rest, "model": name}), 404, "model", "model_not_found")
        got = server.post("/v1/embeddings", {"input": "a", "model": "ada"})[2]
        assert got["model"] == "mill" and [w["param"] for w in got["warnings"]] == ["model"]
        assert chat(strict, model="mill", max_tokens=1)["model"] == "mill"
    finally:
        assert strict.stop() == 0
    for name in ("mill+none", "mill+"):  # an adapter is asked for
        got = server.post("/v1/chat/completions", {"messages": HELLO, "model": name})
        refused(got, 404, "model", "model_not_found")


def test_lenient():
    """Unknown fields are reported with --lenient; what would change the answer is refused all the same."""
    s = Server("mock", "--backend", "mock", "--lenient")
    try:
        for path, rest in (("chat/completions", {"messages": HELLO, "max_tokens": 1}), ("completions", {"prompt": "a"}),
                           ("embeddings", {"input": "a"})):
            status, _, body = s.post(f"/v1/{path}", {**rest, "mystery": {"x": 1}, "\u00fc" * 200: None})
            params = [w["param"] for w in body["warnings"]]
            assert status == 200 and params[0] == "mystery" and set(params[1]) == {"\u00fc"}, body
        refused(s.post("/v1/completions", {"prompt": "a", "best_of": 4}), 400, "best_of", "unsupported_parameter")
        refused(s.post("/v1/completions", {"prompt": "a", "top_k": "x"}), 400, "top_k", "invalid_type")
    finally:
        assert s.stop() == 0


def test_templates_that_refuse(tmp_path):
    """A template's own complaint is the client's fault, with its sentence."""
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{% if 'abacus' in m.content %}{{ raise_exception('no abacus here') }}"
                        "{% endif %}{{ m.content }}{{ kind }}{% endfor %}")
    s = Server("mock", "--backend", "mock", "--template", template)
    try:
        got = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "An abacus"}]})
        assert "no abacus here" in refused(got, 400, "messages")
        base = chat(s, max_tokens=1)["usage"]["prompt_tokens"]
        assert chat(s, max_tokens=1, chat_template_kwargs={"kind": "bubi"})["usage"]["prompt_tokens"] > base
        refused(s.post("/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": {"messages": []}}), 400,
                "chat_template_kwargs")
    finally:
        assert s.stop() == 0


def test_variables_of_templates_may_be_refused(tmp_path):
    s = Server("mock", "--backend", "mock", "--no-template-kwargs")
    try:
        refused(s.post("/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": {}}), 400,
                "chat_template_kwargs", "unsupported_parameter")
    finally:
        assert s.stop() == 0


# ---- what is shown of prompts and ends ----

def joined_text(server, path, body):
    """The texts of each choice of a stream, and its last chunks."""
    text = server.post(path, {**body, "stream": True})[2]
    texts, last, ids = {}, {}, {}
    for piece in text.split("\n\n")[:-2]:
        for c in json.loads(piece.removeprefix("data: "))["choices"]:
            said = c["text"] if "text" in c else c["delta"].get("content") or ""
            texts[c["index"]] = texts.get(c["index"], "") + said
            ids[c["index"]] = ids.get(c["index"], []) + c.get("token_ids", [])
            last[c["index"]] = c
    return texts, last, ids


def test_echo(server):
    body = {"prompt": ["One mill", "Two mills"], "max_tokens": 4, "temperature": 0}
    plain = server.post("/v1/completions", body)[2]["choices"]
    got = server.post("/v1/completions", {**body, "echo": True})[2]["choices"]
    assert [c["text"] for c in got] == [p + c["text"] for p, c in zip(body["prompt"], plain)]
    texts, _, _ = joined_text(server, "/v1/completions", {**body, "echo": True})
    assert [texts[0], texts[1]] == [c["text"] for c in got]
    ids = server.post("/v1/completions", {**body, "return_token_ids": True})[2]["choices"][0]["prompt_token_ids"]
    by_id = server.post("/v1/completions", {**body, "prompt": ids, "echo": True})[2]["choices"][0]["text"]
    assert by_id == got[0]["text"]
    refused(server.post("/v1/completions", {**body, "echo": 1}), 400, "echo")


def test_stop_strings_in_the_output(server):
    body = {"prompt": "One mill", "max_tokens": 30, "temperature": 0}
    text = server.post("/v1/completions", body)[2]["choices"][0]["text"]
    stop = text[5:8]
    before = text[:text.index(stop)]
    for fields, wanted in (({}, before), ({"include_stop_str_in_output": True}, before + stop)):
        got = server.post("/v1/completions", {**body, "stop": ["\x01", stop], **fields})[2]["choices"][0]
        assert got["text"] == wanted and got["stop_reason"] == stop and got["finish_reason"] == "stop"
        texts, last, _ = joined_text(server, "/v1/completions", {**body, "stop": ["\x01", stop], **fields})
        assert texts[0] == wanted and last[0]["stop_reason"] == stop


def test_stop_reason(server):
    """The request's own stop strings and ids are reasons; the model's, and a limit, are none."""
    body = {"prompt": "One mill", "max_tokens": 30, "temperature": 0, "return_token_ids": True}
    got = server.post("/v1/completions", body)[2]["choices"][0]
    assert got["stop_reason"] is None and len(got["token_ids"]) == 30
    third = next(i for n, i in enumerate(got["token_ids"]) if n > 2)
    got = server.post("/v1/completions", {**body, "stop_token_ids": [third]})[2]["choices"][0]
    assert got["stop_reason"] == third and got["finish_reason"] == "stop" and third not in got["token_ids"]


def test_min_tokens(server):
    body = {"prompt": "One mill", "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    ids = server.post("/v1/completions", body)[2]["choices"][0]["token_ids"]
    stop = {**body, "stop_token_ids": sorted(set(ids))}
    assert server.post("/v1/completions", stop)[2]["choices"][0]["token_ids"] == []
    rest = {k: v for k, v in stop.items() if k != "prompt"}
    for path, given in (("/v1/completions", {"prompt": "One mill"}), ("/v1/chat/completions", {"messages": HELLO})):
        got = server.post(path, {**rest, **given, "min_tokens": 8})[2]["choices"][0]
        assert 8 <= len(got["token_ids"]) <= 12 and not set(got["token_ids"]) & set(ids)
    refused(server.post("/v1/completions", {**body, "min_tokens": 13}), 400, "min_tokens")
    refused(server.post("/v1/completions", {**body, "min_tokens": -1}), 400, "min_tokens")


def test_token_ids(server):
    """The ids of prompts and tokens, whole and streamed, with logprobs and without, in chats and completions."""
    for path, body in (("/v1/completions", {"prompt": "One mill"}), ("/v1/chat/completions", {"messages": HELLO})):
        body = {**body, "max_tokens": 6, "temperature": 0, "n": 2, "return_token_ids": True}
        whole = server.post(path, body)[2]
        with_logprobs = server.post(path, {**body, "logprobs": True if "messages" in body else 0})[2]
        _, _, ids = joined_text(server, path, body)
        for i, choice in enumerate(whole["choices"]):
            assert len(choice["token_ids"]) == 6 and choice["logprobs"] is None
            assert choice["token_ids"] == ids[i] == with_logprobs["choices"][i]["token_ids"]
            assert with_logprobs["choices"][i]["logprobs"]
            prompt = choice if "prompt" in body else whole
            assert len(prompt["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
        assert "token_ids" not in server.post(path, {**body, "return_token_ids": False})[2]["choices"][0]


def test_reasoning_tokens(server, tmp_path):
    details = chat(server, max_tokens=3)["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 0}
    s = Server(parrot(str(tmp_path), THOUGHT))
    try:
        usage = chat(s)["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == THOUGHT.index("</think>")
    finally:
        assert s.stop() == 0


def test_fields_of_answers_in_a_history(server):
    answer = {"role": "assistant", "content": "Hello", "refusal": None, "annotations": [{"type": "url_citation"}],
              "reasoning_details": [{"type": "reasoning.text", "text": "a"}], "provider_specific_fields": {"a": 1},
              "audio": None, "function_call": None, "tool_calls": None}
    body = chat(server, messages=[*HELLO, answer, *HELLO], max_tokens=1)
    assert "warnings" not in body


def test_effort_is_a_variable_of_the_template(tmp_path):
    """It reaches the template as it was sent, and the client hears that it may do nothing."""
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}"
                        "{% if reasoning_effort == 'high' %} think long about it{% endif %}")
    s = Server("mock", "--backend", "mock", "--template", template)
    try:
        base, low, high = (chat(s, max_tokens=1, **effort) for effort in
                           ({}, {"reasoning_effort": "low"}, {"reasoning_effort": "high"}))
        assert low["usage"]["prompt_tokens"] == base["usage"]["prompt_tokens"] < high["usage"]["prompt_tokens"]
        assert any(w["param"] == "reasoning_effort" for w in low["warnings"]) and "warnings" not in base
    finally:
        assert s.stop() == 0


def test_without_template(tmp_path):
    """A model without a template answers no chats, and continues texts."""
    model = tmp_path / "plain"
    shutil.copytree(fixture("models/llama"), model)
    config = read_json(model / "tokenizer_config.json")
    del config["chat_template"]
    config.pop("added_tokens_decoder", None)  # it names the tokens too
    tokenizer = (model / "tokenizer.json").read_text()
    for name, text in (("tokenizer_config.json", json.dumps(config)),
                       ("tokenizer.json", tokenizer.replace("<|start_header_id|>", "<|no_header|>"))):
        (model / name).unlink()
        (model / name).write_text(text)
    s = Server(model)
    try:
        got = s.post("/v1/chat/completions", {"messages": HELLO})
        assert "/v1/completions" in refused(got, 400, "messages", "unsupported")
        assert complete(s, "Hello", max_tokens=1)["choices"]
    finally:
        assert s.stop() == 0


def test_adapters_are_models():
    """The first is in use where none is named; the model alone is one of them."""
    adapters = [x for name in ("qv", "all") for x in ("--adapter", f"{name}=" + fixture(f"lora/llama_{name}"))]
    s = Server(fixture("models/llama"), "--model-name", "mill", *adapters)
    names = ["mill", "mill+qv", "mill+all", "mill+none"]
    try:
        assert [m["id"] for m in s.request("GET", "/v1/models")[2]["data"]] == names
        texts = [chat(s, model=m, max_tokens=4, logprobs=True, temperature=0)["choices"][0]["logprobs"] for m in names]
        assert texts[0] == texts[1] and all(texts[i] != texts[k] for i, k in ((1, 2), (1, 3), (2, 3)))
        assert s.request("GET", "/v1/models/mill%2Bnone")[2]["id"] == "mill+none"
        for name in ("mill+", "mill+vq"):
            got = s.post("/v1/chat/completions", {"messages": HELLO, "model": name})
            refused(got, 404, "model", "model_not_found")
            assert "'mill'" in got[2]["error"]["message"] and "/v1/models" in got[2]["error"]["message"]
    finally:
        assert s.stop() == 0


# ---- tools and reasoning ----

CALL = ["<think>", "\nThe ", "user asks.\n", "</think>", "\n\n", "<tool_call>", "\n{\"na", "me\": \"get_weather\", ",
        "\"argu", "ments\": {\"city\": ", "\"Zurich", "\", \"days\": ", "3}}", "\n ", "</tool_call>"]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Tells it.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    s = Server(parrot(tmp_path_factory.mktemp("model"), CALL), "--free-tool-calls")
    yield s
    assert s.stop() == 0


def test_calls_of_tools(caller):
    message = chat(caller, tools=TOOLS, temperature=0)["choices"][0]
    assert message["finish_reason"] == "tool_calls" and message["message"]["content"] is None
    assert message["message"]["reasoning_content"].strip() == "The user asks."
    (call,) = message["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"] and call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Zurich", "days": 3}
    (got,) = join(stream(caller, "/v1/chat/completions", {"messages": HELLO, "tools": TOOLS, "temperature": 0}))
    assert got["calls"] == {0: call["function"]} and got["finish_reason"] == "tool_calls" and got["content"] == ""
    assert got["reasoning_content"] == message["message"]["reasoning_content"]
    # The call and its result go back through the template.
    more = HELLO + [message["message"], {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    assert chat(caller, more, tools=TOOLS, temperature=0)["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_of_which_the_template_knows_little(server, caller):
    """The request is answered, and says so; a stream does in its first event."""
    (warning,) = chat(server, tools=TOOLS, max_tokens=1)["warnings"]
    assert warning["param"] == "tools" and "calls stay in the text" in warning["message"]
    assert "warnings" not in chat(caller, tools=TOOLS, temperature=0)
    seed = Server("seed")
    (warning,) = chat(seed, tools=TOOLS, max_tokens=1)["warnings"]
    assert warning["param"] == "tools" and "does not show tools" in warning["message"]
    last = stream(seed, "/v1/chat/completions", {"messages": HELLO, "tools": TOOLS, "max_tokens": 1})[-1]
    assert last["warnings"] == [warning]
    assert seed.stop() == 0


def test_calls_that_nobody_asked_for(caller):
    """Without tools, or with tool_choice none, it is text."""
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        message = chat(caller, temperature=0, **fields)["choices"][0]
        assert "<tool_call>" in message["message"]["content"] and message["finish_reason"] == "stop"
    message = chat(caller, temperature=0, reasoning_format="none")["choices"][0]["message"]
    assert message["content"] == "".join(CALL) and "reasoning_content" not in message


def test_calls_that_are_cut_short(caller):
    for n in range(1, len(CALL)):
        body = {"messages": HELLO, "tools": TOOLS, "temperature": 0, "max_tokens": n}
        whole = chat(caller, **body)["choices"][0]
        (got,) = join(stream(caller, "/v1/chat/completions", body))
        assert whole["finish_reason"] == got["finish_reason"] == "length"
        assert got["content"] == (whole["message"]["content"] or "")


def test_one_call_alone(tmp_path):
    two = ["<tool_call>", '{"name": "get_weather", ', '"arguments": {"city": "A"}}', "</tool_call>", " \n", " <tool_",
           'call>{"name": "get_weather", "arguments": {"city": "B"}}', "</tool_", "call>"]
    s = Server(parrot(tmp_path, two), "--free-tool-calls")
    try:
        both = chat(s, tools=TOOLS, temperature=0)["choices"][0]["message"]["tool_calls"]
        assert [json.loads(c["function"]["arguments"])["city"] for c in both] == ["A", "B"]
        assert both[0]["id"] != both[1]["id"]
        one = chat(s, tools=TOOLS, temperature=0, parallel_tool_calls=False)["choices"][0]
        assert len(one["message"]["tool_calls"]) == 1 and one["finish_reason"] == "tool_calls"
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("tool, param", [
    (1, "tools[0].type"), ({"type": "browser"}, "tools[0].type"), ({"type": "function"}, "tools[0].function"),
    ({"type": "function", "function": {}}, "tools[0].function.name"),
    ({"type": "function", "function": {"name": "f", "colour": 1}}, "tools[0].function.colour"),
    ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
    ({"type": "function", "function": {"name": "f", "strict": 1}}, "tools[0].function.strict")])
def test_tools_that_are_none(server, tool, param):
    refused(server.post("/v1/chat/completions", {"messages": HELLO, "tools": [tool]}), 400, param)


# ---- embeddings ----

def test_embeddings(server):
    def vectors(**body):
        status, _, got = server.post("/v1/embeddings", body)
        assert status == 200, got
        return got

    got = vectors(input=["bubi", "xubi"], model="mill")
    assert got["object"] == "list" and [d["index"] for d in got["data"]] == [0, 1] and got["model"] == "mill"
    first, second = (d["embedding"] for d in got["data"])
    assert len(first) == len(second) and first != second
    assert math.isclose(sum(x * x for x in first), 1, rel_tol=1e-4)
    assert vectors(input="bubi")["data"][0]["embedding"] == first
    raw = base64.b64decode(vectors(input="bubi", encoding_format="base64")["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(first)}f", raw)) == pytest.approx(first, rel=1e-6)
    assert got["usage"]["prompt_tokens"] == got["usage"]["total_tokens"] > 0
    assert vectors(input="bubi", dimensions=len(first))["data"][0]["embedding"] == first
    refused(server.post("/v1/embeddings", {"input": "bubi", "dimensions": 3}), 400, "dimensions")
    refused(server.post("/v1/embeddings", {"input": "bubi", "encoding_format": "int8"}), 400, "encoding_format")
    assert [w["param"] for w in vectors(input="bubi", user="me")["warnings"]] == ["user"]


# ---- the official client ----

def test_client(server):
    c = client(server)
    assert [m.id for m in c.models.list()] == ["mill"] and c.models.retrieve("mill").id == "mill"
    whole = c.chat.completions.create(model="mill", messages=HELLO, max_tokens=8, seed=1, n=2, logprobs=True,
                                      top_logprobs=2)
    assert whole.usage.completion_tokens == 16 and whole.usage.prompt_tokens_details.cached_tokens >= 0
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    text = ""
    for chunk in c.chat.completions.create(model="mill", messages=HELLO, max_tokens=8, seed=1, stream=True,
                                           stream_options={"include_usage": True}):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage
    assert text == whole.choices[0].message.content and usage.completion_tokens == 8
    assert c.completions.create(model="mill", prompt="bubi", max_tokens=4).choices[0].text
    assert "".join(e.choices[0].text for e in c.completions.create(model="mill", prompt="bubi", max_tokens=4, seed=1,
                                                                   stream=True))
    vectors = c.embeddings.create(model="mill", input=["bubi", "xubi"]).data
    assert len(vectors) == 2 and len(vectors[0].embedding) == len(vectors[1].embedding) > 1
    raw = c.chat.completions.with_raw_response.create(model="mill", messages=HELLO, max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req_") and raw.parse()._request_id == raw.headers["x-request-id"]


def test_client_and_tools(caller):
    c = client(caller)
    first = c.chat.completions.create(model=caller.name, messages=HELLO, tools=TOOLS, temperature=0)
    message = first.choices[0].message
    assert message.tool_calls[0].function.name == "get_weather"
    more = [*HELLO, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    assert c.chat.completions.create(model=caller.name, messages=more, tools=TOOLS, temperature=0).choices
    with c.chat.completions.stream(model=caller.name, messages=HELLO, tools=TOOLS, temperature=0) as s:
        (call,) = s.get_final_completion().choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Zurich", "days": 3}


def test_client_and_errors(server):
    package, c = openai(), client(server)

    def fails(kind, call, **fields):
        with pytest.raises(kind) as caught:
            call(**fields)
        assert caught.value.request_id.startswith("req_")
        return caught.value

    error = fails(package.BadRequestError, c.chat.completions.create, model="mill", messages=HELLO, temperature=-1)
    assert error.param == "temperature" and error.code == "invalid_value" and error.type == "invalid_request_error"
    assert fails(package.NotFoundError, c.chat.completions.create, model="mill+x", messages=HELLO).param == "model"
    fails(package.NotFoundError, c.models.retrieve, model="other")
    assert "--store" in fails(package.BadRequestError, c.files.list).message
    fails(package.BadRequestError, c.chat.completions.create, model="mill", messages=HELLO, stream=True, n=1000)
    fails(package.BadRequestError, c.embeddings.create, model="mill", input=[])
    s = Server("mock", "--backend", "mock", "--api-key", "right")
    try:
        assert client(s, api_key="right").models.list().data
        error = fails(package.AuthenticationError, client(s, api_key="wrong").models.list)
        assert error.code == "invalid_api_key" and error.status_code == 401
    finally:
        assert s.stop() == 0
