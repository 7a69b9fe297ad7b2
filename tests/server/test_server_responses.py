"""OpenAI's Responses: every field, items, events of streams, loops of tools, errors, cancellation.

The models say what they were made to say (server_help.parrot), or are the mock and small fixtures.
"""
import json

import pytest

from server_help import THOUGHT, Server, begin, parrot, server, until, wait_for
from test_server_ping import hold, read_for
from test_server_tools import FORMS, ROME, ZURICH

TOOLS = [{"type": "function", "name": name, "description": "Tells.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
    for name in ("get_weather", "get_time")]
ASK = {"input": "Hello", "max_output_tokens": 60, "temperature": 0}
DELTAS = {"response.output_text": "text", "response.reasoning_text": "text",
          "response.function_call_arguments": "arguments"}


def ask(server, **fields):
    status, _, got = server.post("/v1/responses", {**ASK, **fields})
    assert status == 200, got
    return got


def refused(server, status, words, path="/v1/responses", **fields):
    got_status, headers, got = server.post(path, {**ASK, **fields})
    assert got_status == status and set(got) == {"error"}, got
    assert words in got["error"]["message"], got
    assert got["error"]["request_id"] == headers["x-request-id"]
    return got["error"]


def events(server, **fields):
    """The events of a stream; asserts that they are numbered."""
    text = ask(server, stream=True, **fields)
    *pieces, empty = text.split("\n\n")
    assert empty == ""
    found = []
    for i, piece in enumerate(pieces):
        first, second = piece.split("\n")
        found.append(json.loads(second.removeprefix("data: ")))
        assert first == "event: " + found[-1]["type"] and found[-1]["sequence_number"] == i
    return found


def joined(got):
    """The response that a stream ends with; asserts the order of events, and that what they say adds up to it."""
    assert [e["type"] for e in got[:2]] == ["response.created", "response.in_progress"]
    for e in got[:2]:
        assert e["response"]["status"] == "in_progress" and e["response"]["output"] == []
        assert e["response"]["usage"] is None
    response = got[-1]["response"]
    assert got[-1]["type"] == "response." + response["status"]
    output, item, part, text, done = [], None, None, None, False
    for e in got[2:-1]:
        kind = e["type"]
        assert e["output_index"] == len(output)
        if kind == "response.output_item.added":
            assert item is None
            item, text, part, done = e["item"], "", None, False
            assert item["status"] == "in_progress" and item.get("content", []) == [] and not item.get("arguments")
            continue
        if kind == "response.output_item.done":
            assert done and e["item"]["id"] == item["id"] and e["item"]["type"] == item["type"]
            output.append(e["item"])
            item = None
            continue
        assert e["item_id"] == item["id"]
        if item["type"] == "function_call":
            assert "content_index" not in e
        else:
            assert e["content_index"] == 0
        if kind == "response.content_part.added":
            part = e["part"]
            assert part["text"] == "" and text == ""
        elif kind == "response.content_part.done":
            assert done and e["part"] == {**part, "text": text}
        elif kind.endswith(".delta"):
            assert kind[:-len(".delta")] in DELTAS and e["delta"] and not done
            text += e["delta"]
        else:
            assert e[DELTAS[kind[:-len(".done")]]] == text and not done
            done = True
    assert item is None and output == response["output"]
    return response


def same(streamed, whole):
    """Two responses: but for ids and times, and what the second found in the cache."""
    def plain(response):
        output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
        usage = {k: v for k, v in response["usage"].items() if k != "input_tokens_details"}
        return {**response, "id": 0, "created_at": 0, "output": output, "usage": usage}
    assert plain(streamed) == plain(whole)


def text_of(response):
    return "".join(p["text"] for item in response["output"] if item["type"] == "message" for p in item["content"])


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The server, and what the model says."""
    pieces = FORMS["hermes, two calls"][1]
    s = Server(parrot(str(tmp_path_factory.mktemp("model")), pieces), "--free-tool-calls")
    yield s, pieces
    assert s.stop() == 0


@pytest.fixture(scope="module")
def thinks(tmp_path_factory):
    s = Server(parrot(str(tmp_path_factory.mktemp("model")), THOUGHT))
    yield s
    assert s.stop() == 0


# ---- answers ----

def test_whole(server):
    got = ask(server, model=server.name, max_output_tokens=5, metadata={"k": "v"}, top_p=0.5)
    assert got["id"].startswith("resp_") and got["object"] == "response" and got["model"] == server.name
    assert got["status"] == "incomplete" and got["incomplete_details"] == {"reason": "max_output_tokens"}
    assert got["error"] is None and got["store"] is False and got["previous_response_id"] is None
    assert got["metadata"] == {"k": "v"} and got["max_output_tokens"] == 5
    assert (got["temperature"], got["top_p"]) == (0, 0.5) and "warnings" not in got
    (item,) = got["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["status"] == "incomplete"
    assert set(item["content"][0]) == {"type", "text", "annotations", "logprobs"}
    chat = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "temperature": 0, "top_p": 0.5})[2]
    assert chat["choices"][0]["message"]["content"] == text_of(got)
    usage = got["usage"]
    assert usage["input_tokens"] == chat["usage"]["prompt_tokens"] and usage["output_tokens"] == 5
    assert usage["total_tokens"] == usage["input_tokens"] + 5
    details = usage["input_tokens_details"]
    assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("fields", [
    {}, {"temperature": 1, "seed": 5}, {"temperature": 1, "top_p": 0.5, "seed": 6}, {"instructions": "Be kind."},
    {"max_output_tokens": 1}, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
    {"user": "me"}, {"priority": 3}, {"cache_salt": "x"}, {"truncation": "disabled"}, {"store": False},
    {"top_k": 2}, {"min_p": 0.1}, {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1}])
def test_streams_equal_whole_answers(server, fields):
    same(joined(events(server, **fields)), ask(server, **fields))


def test_instructions_are_a_system_message(server):
    got = ask(server, instructions="Be kind.")
    assert got["instructions"] == "Be kind."
    assert text_of(got) == text_of(ask(server, input=[{"role": "system", "content": "Be kind."},
                                                      {"role": "user", "content": "Hello"}]))


def test_usage_counts_the_cache(server):
    fields = {"input": "A long question that nobody asked before: " + "why? " * 40, "max_output_tokens": 2}
    first, second = (ask(server, **fields)["usage"] for _ in range(2))
    assert second["input_tokens_details"]["cached_tokens"] > first["input_tokens_details"]["cached_tokens"]
    assert first["input_tokens"] == second["input_tokens"]


# ---- reasoning ----

def test_reasoning(thinks):
    got = ask(thinks)
    thought, said = got["output"]
    assert thought["type"] == "reasoning" and thought["summary"] == [] and thought["status"] == "completed"
    assert thought["content"][0]["type"] == "reasoning_text"
    assert thought["content"][0]["text"].startswith("The user wants")
    assert said["content"][0]["text"] == "It grinds corn." and got["status"] == "completed"
    assert 0 < got["usage"]["output_tokens_details"]["reasoning_tokens"] < got["usage"]["output_tokens"]
    same(joined(events(thinks)), got)


def test_reasoning_that_breaks_off(thinks):
    for n in range(1, len(THOUGHT)):
        got = ask(thinks, max_output_tokens=n)
        same(joined(events(thinks, max_output_tokens=n)), got)
        assert got["status"] == "incomplete"
        if got["output"]:
            assert got["output"][-1]["status"] == "incomplete"


def test_reasoning_is_history(thinks):
    first = ask(thinks)
    got = ask(thinks, input=[{"role": "user", "content": "Hello"}, *first["output"], {"role": "user", "content": "a"}])
    assert text_of(got) == "It grinds corn." and "warnings" not in got
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    got = ask(thinks, input=[{"role": "user", "content": "Hello"}, item, {"role": "assistant", "content": "b"},
                             {"role": "user", "content": "a"}])
    assert [w["param"] for w in got["warnings"]] == ["input[1]"]


def test_effort_none_turns_thinking_off(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}"
                        "{{ 'off' if enable_thinking is false else 'on on on' }}{{ reasoning_effort }}")
    s = Server("mock", "--backend", "mock", "--template", template)
    try:
        none, high = (s.post("/v1/responses/input_tokens", {"input": "a", "reasoning": {"effort": effort}})[2]
                      for effort in ("none", "high"))
        assert none["input_tokens"] < high["input_tokens"]
    finally:
        assert s.stop() == 0


# ---- tools ----

def made(response):
    return [(item["name"], json.loads(item["arguments"])) for item in response["output"]
            if item["type"] == "function_call"]


def test_calls(calls):
    server, _ = calls
    got = ask(server, tools=TOOLS)
    assert made(got) == [("get_weather", ZURICH), ("get_time", ROME)] and got["status"] == "completed"
    assert got["tools"] == TOOLS and got["tool_choice"] == "auto" and got["parallel_tool_calls"] is True
    assert len({item["call_id"] for item in got["output"]}) == len({item["id"] for item in got["output"]}) == 2
    same(joined(events(server, tools=TOOLS)), got)


def test_arguments_as_they_are_written(calls):
    got = events(calls[0], tools=TOOLS)
    assert sum(e["type"] == "response.function_call_arguments.delta" for e in got) > 6


def test_calls_that_break_off(calls):
    server, pieces = calls
    for n in range(1, len(pieces)):
        whole = ask(server, tools=TOOLS, max_output_tokens=n)
        assert whole["status"] == "incomplete"
        same(joined(events(server, tools=TOOLS, max_output_tokens=n)), whole)


def test_tool_choice(calls):
    server, _ = calls
    one = ask(server, tools=TOOLS, parallel_tool_calls=False)
    assert made(one) == [("get_weather", ZURICH)] and one["parallel_tool_calls"] is False
    none = ask(server, tools=TOOLS, tool_choice="none")
    assert [item["type"] for item in none["output"]] == ["message"] and none["tool_choice"] == "none"
    error = refused(server, 400, "none of the tools", tools=TOOLS, tool_choice={"type": "function", "name": "get_rain"})
    assert error["param"] == "tool_choice"
    refused(server, 400, "no tools", tool_choice="required")
    refused(server, 400, "tool_choice must be", tools=TOOLS, tool_choice="maybe")
    refused(server, 400, "must have a mode", tools=TOOLS, tool_choice={"type": "allowed_tools"})
    refused(server, 400, "tool_choice.type", tools=TOOLS, tool_choice={"type": "web_search"})


def test_loop_has_the_same_prompt_as_the_chats(calls):
    """A call and its result, in both forms: the same tokens."""
    server, _ = calls
    got = ask(server, tools=TOOLS)
    items = [{"role": "user", "content": "Hello"}, *got["output"], *(
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"} for item in got["output"])]
    count = server.post("/v1/responses/input_tokens", {"input": items, "tools": TOOLS})[2]
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "", "tool_calls": [
        {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
        for item in got["output"]]}]
    chat += [{"role": "tool", "tool_call_id": item["call_id"], "content": "sunny"} for item in got["output"]]
    tools = [{"type": "function", "function": {k: t[k] for k in ("name", "description", "parameters")}} for t in TOOLS]
    chat = server.post("/v1/chat/completions", {"messages": chat, "tools": tools, "max_tokens": 1})[2]
    assert chat["usage"]["prompt_tokens"] == count["input_tokens"]


# ---- fields ----

@pytest.mark.parametrize("fields, words", [
    ({"input": None}, "input is missing"), ({"input": []}, "input must be"), ({"input": 1}, "input must be"),
    ({"input": [1]}, "input[0] must be an object"), ({"input": [{}]}, "input[0] must have a type or a role"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content must be"),
    ({"input": [{"role": "user", "content": [1]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "must have a text"),
    ({"input": [{"role": "user", "content": "a", "colour": 1}]}, "input[0].colour"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aaaa"}]}]},
     "images are not supported"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "parts of the type 'input_file'"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "the server stores no items"),
    ({"input": [{"type": "web_search_call"}]}, "items of the type 'web_search_call'"),
    ({"input": [{"type": "function_call"}]}, "input[0] must have a call_id"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "must have arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output must be"),
    ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}]}, "must not end with"),
    ({"instructions": 1}, "instructions must be a string"), ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"), ({"top_p": 2}, "top_p"), ({"metadata": {"a": 1}}, "metadata must be"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options needs stream"),
    ({"store": 1}, "store must be"),
    ({"reasoning": {"effort": "very"}}, "reasoning_effort must be"), ({"reasoning": {"depth": 1}}, "reasoning.depth"),
    ({"tools": {}}, "tools must be an array"), ({"tools": [{}]}, "tools[0] must be an object with a type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"), ({"tools": [{**TOOLS[0], "colour": 1}]}, "tools[0].colour"),
    ({"tools": [{"type": "web_search"}]}, "tools of the type 'web_search'"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}}}, "type"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format must be of the type"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"), ({"text": {"colour": 1}}, "text.colour"),
    ({"include": ["message.output_text.logprobs"]}, "include: log-probabilities"),
    ({"include": "a"}, "include must be"),
    ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
    ({"conversation": "c"}, "conversation is not supported"), ({"background": True}, "background is not supported"),
    ({"prompt": {"id": "p"}}, "prompt is not supported"), ({"top_logprobs": 3}, "top_logprobs is not supported"),
    ({"colour": 1}, "unknown parameter: colour")])
def test_refused(server, fields, words):
    assert refused(server, 400, words, **fields)["type"] == "invalid_request_error"


@pytest.mark.parametrize("fields, params", [
    ({"store": True}, ["store"]), ({"background": False}, []), ({"top_logprobs": 0}, []), ({"include": []}, []),
    ({"include": ["reasoning.encrypted_content"]}, ["include"]), ({"prompt_cache_key": "k"}, []),
    ({"service_tier": "auto"}, ["service_tier"]), ({"max_tool_calls": 3}, ["max_tool_calls"]),
    ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, []),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, ["reasoning.summary", "reasoning_effort"]),
    ({"tools": [{**t, "strict": False} for t in TOOLS]}, [])])
def test_reported(calls, fields, params):
    got = ask(calls[0], **fields)
    assert [w["param"] for w in got.get("warnings", [])] == params
    assert joined(events(calls[0], **fields)).get("warnings", []) == got.get("warnings", [])


def test_stream_options(server):
    joined(events(server, stream_options={"include_obfuscation": False}))


# ---- counting, and what is not stored ----

def test_input_tokens(server):
    for fields in ({}, {"instructions": "Be kind."}, {"input": "A longer one"}):
        status, _, got = server.post("/v1/responses/input_tokens", {"input": "Hello", **fields})
        usage = ask(server, **fields)["usage"]
        assert status == 200 and got == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    status, _, got = server.post("/v1/responses/input_tokens", {"input": "Hello", "stream": True})
    assert status == 400 and got["error"]["param"] == "stream"


@pytest.mark.parametrize("method, path", [("GET", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("DELETE", "")])
def test_nothing_is_stored(server, method, path):
    name = ask(server, max_output_tokens=1)["id"]
    status, _, got = server.request(method, f"/v1/responses/{name}{path}", {} if method == "POST" else None)
    assert status == 404 and "stores no responses" in got["error"]["message"]


# ---- errors, keys, connections ----

def test_errors_of_the_server(server):
    status, headers, got = server.request("GET", "/v1/responses")
    assert status == 405 and headers["allow"] == "POST" and got["error"]["type"] == "invalid_request_error"
    status, _, got = server.post("/v1/responses", b"{")
    assert status == 400 and got["error"]["code"] == "invalid_json"
    error = refused(server, 400, "the context of this model holds", input="word " * 5000)
    assert error["code"] == "context_length_exceeded" and error["param"] == "input"


def test_keys():
    s = Server("mock", "--backend", "mock", "--api-key", "secret")
    try:
        for headers, wanted in (({}, 401), ({"Authorization": "Bearer secret"}, 200)):
            status, _, got = s.request("POST", "/v1/responses", {**ASK, "max_output_tokens": 2}, headers)
            assert status == wanted, got
    finally:
        assert s.stop() == 0


def test_cancellation(server):
    gone = server.metrics()["quern_clients_gone_total"]
    s = begin(server, {**ASK, "max_output_tokens": 100000, "stream": True}, "/v1/responses")
    wait_for(s, b"response.created")
    s.close()
    until(lambda: server.metrics()["quern_clients_gone_total"] == gone + 1)
    until(lambda: server.metrics()["quern_sequences_active"] == 0)


def test_the_first_events_come_at_once():
    s = Server("mock", "--backend", "mock", "--parallel", 1, "--no-look-ahead", "--sse-ping", "0.1")
    try:
        with hold(s), begin(s, {**ASK, "stream": True}, "/v1/responses") as waits:
            got = read_for(waits, 0.5)
        assert b"response.created" in got and b"response.in_progress" in got and b"\n: keep-alive\n\n" in got
        assert b"response.output" not in got
    finally:
        assert s.stop() == 0
