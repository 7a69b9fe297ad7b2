"""Ollama's API: every field and option, whole answers and streams, calls, thinking, vectors, errors, cancellation.

The models are the mock, small fixtures, and ones that say what they were made to say (server_help.parrot).
"""
import json
import re

import pytest

from server_help import THOUGHT, Server, begin, parrot, until, wait_for
from support import fixture
from test_server_tools import FORMS, say

HELLO = [{"role": "user", "content": "Hello"}]
GONE = "quern_clients_gone_total"
CHAT, GENERATE = "/api/chat", "/api/generate"
TOOLS = [{"type": "function", "function": {"name": name, "description": "Tells.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}
    for name in ("get_weather", "get_time")]
SAMPLING = {"temperature": 0.5, "top_p": 0.5, "min_p": 0.2, "top_k": 2, "typical_p": 0.5, "repeat_penalty": 1.5,
            "presence_penalty": 1.5, "frequency_penalty": 1.5, "mirostat": 2}


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--context", 4096)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    s = Server(parrot(str(tmp_path_factory.mktemp("model")), THOUGHT))
    yield s
    assert s.stop() == 0


def ask(server, path=CHAT, options=None, **fields):
    body = {"model": server.name, "stream": False, **({"messages": HELLO} if path == CHAT else {"prompt": "Hello"}),
            "options": {"num_predict": 40, "seed": 1, **(options or {})}, **fields}
    status, headers, got = server.post(path, body)
    assert status == 200, got
    assert headers["content-type"] == ("application/x-ndjson" if body["stream"] else "application/json")
    return got


def refused(server, status, words, param=None, path=CHAT, **fields):
    body = {"model": server.name, "stream": False, **({"messages": HELLO} if path == CHAT else {}), **fields}
    got_status, headers, got = server.post(path, body)
    assert got_status == status and isinstance(got["error"], str) and words in got["error"], got
    assert got.get("param") == param and got["request_id"] == headers["x-request-id"]


def lines(server, path=CHAT, **fields):
    text = ask(server, path, stream=True, **fields)
    assert text.endswith("\n")
    got = [json.loads(line) for line in text.split("\n")[:-1]]
    assert [g["done"] for g in got] == [False] * (len(got) - 1) + [True]
    assert all(("done_reason" in g) == g["done"] for g in got)
    return got


def joined(got, path):
    """What the lines of a stream add up to, in the form of a whole answer, without what differs from run to run."""
    whole = dict(got[-1])
    logprobs = sum((g.get("logprobs", []) for g in got), [])
    parts = [g["message"] if path == CHAT else g for g in got]
    into = whole["message"] if path == CHAT else whole
    for key in ("content", "thinking") if path == CHAT else ("response", "thinking"):
        if any(key in p for p in parts):
            into[key] = "".join(p.get(key, "") for p in parts)
    calls = sum((p.get("tool_calls", []) for p in parts), [])
    if calls:
        into["tool_calls"] = calls
    return stable({**whole, **({"logprobs": logprobs} if logprobs else {})})


def stable(got):
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", got["created_at"])
    message = got.get("message", {})
    calls = [{k: v for k, v in c.items() if k != "id"} for c in message.get("tool_calls", [])]
    return {**{k: v for k, v in got.items() if k != "created_at" and not k.endswith("_duration")},
            **({"message": {**message, **({"tool_calls": calls} if calls else {})}} if message else {})}


# ---- what is no answer ----

def test_root():
    s = Server("mock", "--backend", "mock", "--api-key", "k")
    try:
        for method in ("GET", "HEAD"):
            assert s.request(method, "/")[0] == 401
            status, headers, text = s.request(method, "/", headers={"Authorization": "Bearer k"})
            assert status == 200 and headers["content-type"].startswith("text/plain")
            assert text == ("Ollama is running" if method == "GET" else "")
        assert s.request("POST", "/", {}, {"Authorization": "Bearer k"})[0] == 405 and s.request("GET", "/x")[0] == 401
        assert s.request("GET", "/api/tags")[0] == 401
        status, _, got = s.request("GET", "/api/tags", headers={"Authorization": "Bearer wrong"})
        assert status == 401 and isinstance(got["error"], str)
        assert s.request("GET", "/api/tags", headers={"Authorization": "Bearer k"})[0] == 200
    finally:
        assert s.stop() == 0


def test_models(server):
    version = server.request("GET", "/api/version")[2]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version["version"]) and version["quern"]
    (tag,), (loaded,) = (server.request("GET", path)[2]["models"] for path in ("/api/tags", "/api/ps"))
    assert tag["name"] == tag["model"] == loaded["name"] == "mill:latest"
    assert re.fullmatch("[0-9a-f]{64}", tag["digest"]) and tag["digest"] == loaded["digest"] and tag["size"] > 0
    assert tag["details"] == loaded["details"] and tag["details"]["families"] == [tag["details"]["family"]]
    assert loaded["context_length"] == 4096 and "modified_at" in tag and "expires_at" in loaded
    for key in ("model", "name"):
        status, _, got = server.post("/api/show", {key: "mill:latest", "verbose": None})
        assert status == 200 and "warnings" not in got, got
    family = got["model_info"]["general.architecture"]
    assert got["model_info"][family + ".context_length"] == 4096 and got["details"] == tag["details"]
    assert got["capabilities"] == ["completion"] and "{{" in got["template"]
    params = [w["param"] for w in server.post("/api/show", {"model": "other", "verbose": True})[2]["warnings"]]
    assert params == ["verbose", "model"]
    status, _, got = server.post("/api/show", {"model": "mill", "template": "x"})
    assert status == 400 and got["param"] == "template"


def test_capabilities(thinker):
    got = thinker.post("/api/show", {"model": "x"})[2]
    assert got["capabilities"] == ["completion", "tools", "thinking"] and ".Tools" in got["template"]


def test_adapters():
    s = Server(fixture("models/llama"), "--model-name", "mill:1b", "--adapter", "qv=" + fixture("lora/llama_qv"))
    try:
        assert [m["name"] for m in s.request("GET", "/api/tags")[2]["models"]] == ["mill:1b", "mill:1b+qv"]
        one, other = (ask(s, options={"temperature": 0}, model=m) for m in ("mill:1b+none", "mill:1b+qv"))
        assert one["message"] != other["message"] and other["model"] == "mill:1b+qv"
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("method, path", [("POST", "pull"), ("POST", "create"), ("POST", "push"), ("POST", "copy"),
                                          ("DELETE", "delete")])
def test_refused_routes(server, method, path):
    status, _, got = server.request(method, "/api/" + path, {"model": "x"})
    assert status == 501 and re.search(r"quern serve|rm|scp", got["error"])


# ---- answers ----

STREAMED = [{}, {"options": {"temperature": 0}}, {"options": {"seed": 2, "stop": ["e", "zz"]}},
            {"options": {"num_predict": 1}}, {"logprobs": True, "top_logprobs": 2, "options": {"seed": 3}},
            {"options": SAMPLING}]


@pytest.mark.parametrize("path, fields", [(path, fields) for path in (CHAT, GENERATE) for fields in STREAMED] +
                         [(GENERATE, {"raw": True}), (GENERATE, {"system": "Be brief."})])
def test_streamed(server, path, fields):
    """The lines of a stream add up to the answer that is given whole."""
    whole = ask(server, path, **fields)
    assert whole["done"] and whole["prompt_eval_count"] > 0 and whole["total_duration"] > 0
    assert whole["done_reason"] in ("stop", "length") and whole["eval_count"] <= 40
    assert (whole["message"]["content"] if path == CHAT else whole["response"]) or "stop" in fields.get("options", {})
    assert joined(lines(server, path, **fields), path) == stable(whole)
    if "logprobs" in fields:
        assert len(whole["logprobs"]) == 40 and len(whole["logprobs"][0]["top_logprobs"]) == 2


def test_any_bytes_streamed():
    """A model that says anything, halves of characters too."""
    s = Server(fixture("models/llama"))
    try:
        for path in (CHAT, GENERATE):
            for seed in range(4):
                fields = {"options": {"seed": seed, "temperature": 1.5}, "logprobs": True}
                assert joined(lines(s, path, **fields), path) == stable(ask(s, path, **fields))
    finally:
        assert s.stop() == 0


def test_streams_by_default(server):
    for path, rest in ((CHAT, {"messages": HELLO}), (GENERATE, {"prompt": "a"})):
        for stream in ({}, {"stream": None}, {"stream": True}):
            body = {"model": "mill", "options": {"num_predict": 3}, **rest, **stream}
            assert server.post(path, body)[1]["content-type"] == "application/x-ndjson"


def test_same_answers_as_chat(server):
    """The template is the model's own, the options mean what OpenAI's fields mean."""
    for options in ({}, SAMPLING):
        talk = [{"role": "system", "content": "Be brief."}, *HELLO]
        body = {"messages": talk, "max_tokens": 40, "seed": 1, **options}
        wanted = server.post("/v1/chat/completions", body)[2]["choices"][0]["message"]["content"]
        assert ask(server, messages=talk, options=options)["message"]["content"] == wanted
        assert ask(server, GENERATE, system="Be brief.", options=options)["response"] == wanted
    raw = ask(server, GENERATE, raw=True)
    body = {"prompt": "Hello", "max_tokens": 40, "seed": 1}
    assert raw["response"] == server.post("/v1/completions", body)[2]["choices"][0]["text"]


def test_special_tokens_in_raw_prompts():
    """A program that fills in a template itself says so by raw; elsewhere such text stays text."""
    s = Server(fixture("models/qwen3"))
    try:
        count = {raw: ask(s, GENERATE, raw=raw, prompt="<|im_start|>a", options={"num_predict": 1})["prompt_eval_count"]
                 for raw in (True, False)}
        plain = ask(s, GENERATE, raw=False, prompt="a", options={"num_predict": 1})["prompt_eval_count"]
        assert count[True] == 2 and count[False] > plain + 1
    finally:
        assert s.stop() == 0


def test_nothing_asked(server):
    """Clients load a model with a request that asks for nothing."""
    for path, rest in ((CHAT, {}), (CHAT, {"messages": []}), (GENERATE, {}), (GENERATE, {"prompt": ""})):
        for stream in (False, True):
            status, _, got = server.post(path, {"model": "mill", "stream": stream, **rest})
            got = json.loads(got) if stream else got
            assert status == 200 and got["done"] and got["done_reason"] == "load" and "eval_count" not in got


def test_options(server):
    long = ask(server, options={"num_predict": -1, "stop": ["a"]})
    assert long["done_reason"] == "stop" and "a" not in long["message"]["content"]
    assert ask(server, options={"num_predict": 7})["eval_count"] == 7
    assert ask(server, options={"seed": -1})["done"]
    texts = {json.dumps(ask(server, options={"temperature": 1, **o})["message"]) for o in (
        {}, {"top_k": 1}, {"repeat_penalty": 5.0}, {"seed": 5})}
    assert len(texts) == 4
    for name in ("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "use_mmap",
                 "use_mlock"):
        assert [w["param"] for w in ask(server, options={name: 1})["warnings"]] == ["options." + name]
    for name, value in (("tfs_z", 0.5), ("penalize_newline", False), ("logits_all", True), ("vocab_only", True),
                        ("embedding_only", True), ("top_p", 2), ("temperature", "x"), ("stop", 5), ("num_predict", -3),
                        ("num_ctx", 5000), ("num_ctx", "x"), ("seed", 1.5), ("mirostat", 3), ("mystery", 1)):
        refused(server, 400, name, "options." + name, options={name: value})
    for name, value in (("tfs_z", 1), ("tfs_z", 1.0), ("penalize_newline", True), ("num_ctx", 2048), ("num_ctx", 4096),
                        ("mystery", None)):
        if name != "mystery":
            assert "warnings" not in ask(server, options={name: value})
    refused(server, 400, "4096", "options.num_ctx", options={"num_ctx": 4097})


def test_fields(server):
    assert [w["param"] for w in ask(server, keep_alive="5m")["warnings"]] == ["keep_alive"]
    assert [w["param"] for w in lines(server, GENERATE, keep_alive=-1)[-1]["warnings"]] == ["keep_alive"]
    assert ask(server, model="mill:latest")["model"] == "mill"
    assert [w["param"] for w in ask(server, model="llama3.2:latest")["warnings"]] == ["model"]
    assert ask(server, GENERATE, images=[], template="", context=[], suffix="", system="")["done"]
    assert ask(server, shift=True, truncate=False, think=None, format="")["done"]
    assert "warnings" not in ask(server, think=False)
    for path, name, value in ((CHAT, "template", "x"), (GENERATE, "context", [1]), (GENERATE, "images", ["aGk="]),
                              (GENERATE, "suffix", "x"), (CHAT, "format", "xml"), (CHAT, "truncate", True),
                              (CHAT, "format", 5), (CHAT, "think", True),
                              (CHAT, "think", "high"), (CHAT, "think", 5), (CHAT, "stream", 1), (CHAT, "messages", {}),
                              (CHAT, "keep_alive", []), (CHAT, "options", []), (CHAT, "model", 5), (GENERATE, "raw", 1),
                              (GENERATE, "prompt", ["a"]), (GENERATE, "system", 5), (CHAT, "mystery", 1),
                              (CHAT, "prompt", "a"), (CHAT, "tools", {}), (CHAT, "logprobs", 3), (CHAT, "shift", 0),
                              (CHAT, "top_logprobs", 2), (CHAT, "model", None)):
        rest = {"prompt": "a", **{name: value}} if path == GENERATE else {name: value}
        refused(server, 400, name, name, path, **rest)
    refused(server, 400, "no name of a type", "format", GENERATE, prompt="a", format={"type": 5})
    refused(server, 400, "raw", "raw", GENERATE, prompt="a", raw=True, system="x")
    refused(server, 404, "'mill'", "model", model="mill+x")


def test_messages(server):
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    talk = [{"role": "system", "content": "Be brief."}, *HELLO, {"role": "assistant", "content": "Hi.", "images": None},
            {"role": "user", "content": "And?", "images": []}]
    assert ask(server, messages=talk)["done"]
    for message, where in (({"role": "robot", "content": "a"}, "role"), ({"content": "a"}, "role"),
                           ({"role": "user"}, "content"), ({"role": "user", "content": 5}, "content"),
                           ({"role": "user", "content": ["a"]}, "content"), ("a", None),
                           ({"role": "user", "content": "a", "images": ["aGk="]}, "images"),
                           ({"role": "user", "content": "a", "tool_calls": [call]}, "tool_calls"),
                           ({"role": "assistant", "tool_calls": 5}, "tool_calls"),
                           ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0]"),
                           ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
                            "tool_calls[0]"),
                           ({"role": "user", "content": "a", "thinking": 5}, "thinking"),
                           ({"role": "user", "content": "a", "mystery": 1}, "mystery")):
        param = "messages[1]" + ("." + where if where else "")
        refused(server, 400, param, param, messages=[*HELLO, message])
    refused(server, 400, "4096", "messages", messages=[{"role": "user", "content": " bubi" * 5000}])
    refused(server, 400, "4096", "prompt", GENERATE, prompt=" bubi" * 5000)


# ---- thinking and tools ----

def test_thinking(thinker):
    for fields in ({}, {"think": True}, {"think": "high"}):
        got = ask(thinker, **fields)
        assert got["message"]["thinking"] and got["message"]["content"] and "<think>" not in json.dumps(got)
        assert ("warnings" in got) == ("think" in fields)
        assert joined(lines(thinker, **fields), CHAT) == stable(got)
    got = ask(thinker, GENERATE)
    assert got["thinking"] and got["response"] and joined(lines(thinker, GENERATE), GENERATE) == stable(got)
    # A template that knows the variable closes the reasoning before the answer begins.
    on, off = (ask(thinker, think=think)["prompt_eval_count"] for think in (True, False))
    assert off > on
    history = [*HELLO, {"role": "assistant", "content": "It grinds.", "thinking": "A mill."}, *HELLO]
    assert ask(thinker, messages=history)["done"]
    refused(thinker, 400, "think", "think", GENERATE, prompt="a", raw=True, think=True)


def test_tools(tmp_path):
    pieces = ["It rains. ", "<tool_call>", '\n{"name": "get_weather", "arguments": {"city": ', '"Rome", "days": 2}}\n',
              "</tool_call>"]
    s = Server(parrot(str(tmp_path), pieces))
    try:
        got = ask(s, tools=TOOLS)
        (call,) = got["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather" and call["id"]
        assert call["function"]["arguments"] == {"city": "Rome", "days": 2} and got["done_reason"] == "stop"
        assert joined(lines(s, tools=TOOLS), CHAT) == stable(got)
        assert [len(g["message"].get("tool_calls", [])) for g in lines(s, tools=TOOLS)].count(1) == 1
        history = [*HELLO, got["message"], {"role": "tool", "content": "sunny", "tool_name": "get_weather"}]
        assert ask(s, messages=history, tools=TOOLS)["done"]
        assert ask(s, tools=[])["message"]["content"]
        refused(s, 400, "tools[0]", "tools[0].function.name", tools=[{"type": "function", "function": {}}])
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_calls(form, tmp_path):
    """Each form in which models write calls: whole calls in a stream, the same as in a whole answer."""
    template, pieces, calls = FORMS[form]
    s = say(str(tmp_path), pieces, template)
    try:
        got = ask(s, tools=TOOLS)
        assert [(c["function"]["name"], c["function"]["arguments"]) for c in got["message"]["tool_calls"]] == calls
        assert [c["function"]["index"] for c in got["message"]["tool_calls"]] == list(range(len(calls)))
        assert joined(lines(s, tools=TOOLS), CHAT) == stable(got)
    finally:
        assert s.stop() == 0


def test_calls_that_break_off(tmp_path):
    """The arguments are an object whatever the model wrote: of the members that are complete."""
    s = Server(parrot(str(tmp_path), ["<tool_call>", '{"name": "get_weather", "arguments": {"city": "Rome", "da']))
    try:
        got = ask(s, tools=TOOLS)
        assert joined(lines(s, tools=TOOLS), CHAT) == stable(got)
        for call in got["message"].get("tool_calls", []):
            assert call["function"]["arguments"] == {"city": "Rome"}
    finally:
        assert s.stop() == 0


# ---- vectors ----

def test_vectors(server):
    wanted = [d["embedding"] for d in server.post("/v1/embeddings", {"input": ["a", "b"]})[2]["data"]]
    status, _, got = server.post("/api/embed", {"model": "mill", "input": ["a", "b"], "options": {}})
    assert status == 200 and got["embeddings"] == wanted and got["prompt_eval_count"] > 0 and got["model"] == "mill"
    assert server.post("/api/embed", {"model": "mill", "input": "a"})[2]["embeddings"] == wanted[:1]
    assert server.post("/api/embeddings", {"model": "mill", "prompt": "b"})[2]["embedding"] == wanted[1]
    for empty in ({}, {"input": ""}, {"input": []}):
        assert server.post("/api/embed", {"model": "mill", **empty})[2]["embeddings"] == []
    assert server.post("/api/embeddings", {"model": "mill"})[2] == {"embedding": []}
    long = " bubi" * 5000
    for fields in ({}, {"truncate": True}):
        got = server.post("/api/embed", {"model": "mill", "input": [long, "a"], **fields})[2]
        assert got["prompt_eval_count"] > 4096 and got["embeddings"][1] == wanted[0]
    for path, fields, param in (("/api/embed", {"input": long, "truncate": False}, "input"),
                                ("/api/embeddings", {"prompt": long}, "prompt"),
                                ("/api/embeddings", {"prompt": ["a"]}, "prompt"),
                                ("/api/embed", {"input": {}}, "input"),
                                ("/api/embed", {"input": "a", "dimensions": 7}, "dimensions"),
                                ("/api/embed", {"input": "a", "stream": True}, "stream")):
        status, _, got = server.post(path, {"model": "mill", **fields})
        assert status == 400 and got["param"] == param, got
    got = server.post("/api/embed", {"model": "x", "input": "a", "options": {"num_ctx": 9}, "keep_alive": 1})[2]
    assert sorted(w["param"] for w in got["warnings"]) == ["keep_alive", "model", "options"]


# ---- errors and cancellation ----

def test_errors(server):
    for body in (b"", b"{", b"[]", b"5", b'"a"', b'{"model":"mill","model":"x"}', b"\xff"):
        for path in (CHAT, GENERATE, "/api/embed", "/api/embeddings", "/api/show"):
            status, _, got = server.post(path, body)
            assert status == 400 and isinstance(got["error"], str), (path, body, got)
    status, headers, got = server.request("GET", CHAT)
    assert status == 405 and headers["allow"] == "POST" and isinstance(got["error"], str)
    body = json.dumps({"model": "mill", "messages": HELLO}).encode()
    assert server.request("POST", CHAT, body, {"Content-Type": "text/plain", "Origin": "http://a.example"})[0] == 415
    assert server.request("POST", CHAT, body, {"Content-Type": "application/x-www-form-urlencoded"})[0] == 200


def test_strict_and_lenient():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--strict-model", "--lenient", "--context", 64)
    try:
        for path in (CHAT, GENERATE, "/api/embed", "/api/embeddings", "/api/show"):
            status, _, got = s.post(path, {"model": "other"})
            assert status == 404 and "'mill'" in got["error"]
            if path != "/api/show":
                status, _, got = s.post(path, {"model": "mill:latest", "mystery": 1, "stream": False})
                if path in (CHAT, GENERATE):
                    assert [w["param"] for w in got["warnings"]] == ["mystery"]
        options = {"num_ctx": 9999, "mystery": 1, "num_predict": 2}
        assert [w["param"] for w in ask(s, options=options)["warnings"]] == ["options.num_ctx", "options.mystery"]
    finally:
        assert s.stop() == 0


def test_cancelled(server):
    """A client that goes ends its request: streams in the middle, whole answers before they are given."""
    gone = server.metrics()[GONE]
    body = {"model": "mill", "messages": HELLO, "options": {"num_predict": -1}}
    with begin(server, body, CHAT) as s:
        wait_for(s, b'"done":false')
    with begin(server, {**body, "stream": False}, CHAT):
        pass
    until(lambda: server.metrics()[GONE] == gone + 2)
    assert ask(server)["done"]
