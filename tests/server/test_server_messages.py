"""Anthropic's Messages: every field, blocks, events of streams, loops of tools, errors, cancellation.

The models say what they were made to say (server_help.parrot), or are the mock and small fixtures.
"""
import json

import pytest

from server_help import THOUGHT, Server, begin, parrot, server, until, wait_for
from test_server_ping import COMMENT, hold, read_for
from test_server_tools import FORMS, ROME, ZURICH

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"name": name, "description": "Tells.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
    for name in ("get_weather", "get_time")]
ASK = {"messages": HELLO, "max_tokens": 60, "temperature": 0}
BLOCKS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
          "tool_use": ("input_json_delta", "partial_json")}


def ask(server, **fields):
    status, headers, got = server.post("/v1/messages", {**ASK, **fields})
    assert status == 200, got
    assert headers["request-id"] == headers["x-request-id"]
    return got


def refused(server, status, words, path="/v1/messages", **fields):
    got_status, headers, got = server.post(path, {**ASK, **fields})
    assert got_status == status and set(got) == {"type", "error", "request_id"} and got["type"] == "error", got
    assert set(got["error"]) == {"type", "message", "details"} and words in got["error"]["message"], got
    assert set(got["error"]["details"]) <= {"error_code", "param"}
    assert got["request_id"] == headers["request-id"]
    return got["error"]["type"]


def events(server, **fields):
    """[(event, data), ...]"""
    text = ask(server, stream=True, **fields)
    *pieces, empty = text.split("\n\n")
    assert empty == ""
    found = []
    for piece in pieces:
        first, second = piece.split("\n")
        data = json.loads(second.removeprefix("data: "))
        assert first == "event: " + data["type"]
        found.append((data["type"], data))
    return found


def joined(got):
    """The message that events add up to, as Anthropic's clients join them; asserts their order."""
    assert got[0][0] == "message_start" and got[-1][0] == "message_stop" and got[-2][0] == "message_delta"
    message, text = dict(got[0][1]["message"]), None
    assert message["content"] == [] and message["stop_reason"] is None
    blocks = []
    for kind, data in got[1:-2]:
        if kind == "ping":
            assert data == {"type": "ping"}
        elif kind == "content_block_start":
            assert text is None and data["index"] == len(blocks)
            blocks.append(dict(data["content_block"]))
            text = ""
        elif kind == "content_block_delta":
            assert text is not None and data["index"] == len(blocks) - 1
            delta, block = data["delta"], blocks[-1]
            if delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                name, key = BLOCKS[block["type"]]
                assert delta["type"] == name and delta[key]
                text += delta[key]
        else:
            assert kind == "content_block_stop" and data["index"] == len(blocks) - 1
            block = blocks[-1]
            if block["type"] == "tool_use":
                block["input"] = text
            else:
                block[block["type"]] += text
            text = None
    assert text is None
    message.update(content=blocks, **got[-2][1]["delta"])
    message["usage"] = {**message["usage"], **got[-2][1]["usage"]}
    if "warnings" in got[-1][1]:
        message["warnings"] = got[-1][1]["warnings"]
    return message


def same(streamed, whole):
    """A message that came in events, and one that came whole: but for ids, and input that breaks off."""
    def plain(message):
        blocks = []
        for block in message["content"]:
            block = {k: v for k, v in block.items() if k != "id"}
            if isinstance(block.get("input"), str):
                try:
                    block["input"] = json.loads(block["input"])
                except ValueError:
                    block["input"] = "broken"
            blocks.append(block)
        return {**message, "id": None, "content": blocks,
                "usage": {k: v for k, v in message["usage"].items() if "cache" not in k and k != "input_tokens"}}
    a, b = plain(streamed), plain(whole)
    for x, y in zip(a["content"], b["content"]):
        if x.get("input") == "broken":
            y["input"] = "broken"
    assert a == b


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
    got = ask(server, model=server.name, max_tokens=5)
    assert got["id"].startswith("msg_") and got["type"] == "message" and got["role"] == "assistant"
    assert got["model"] == server.name and got["stop_reason"] == "max_tokens" and got["stop_sequence"] is None
    assert [set(b) for b in got["content"]] == [{"type", "text"}] and "warnings" not in got
    assert got["usage"]["output_tokens"] == 5
    same_chat = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5, "temperature": 0})[2]
    assert same_chat["choices"][0]["message"]["content"] == got["content"][0]["text"]
    assert got["usage"]["input_tokens"] + got["usage"]["cache_read_input_tokens"] == same_chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize("fields", [
    {}, {"top_k": 3, "temperature": 1, "seed": 5}, {"top_p": 0.5, "temperature": 1, "seed": 6},
    {"system": "Be kind."}, {"system": [{"type": "text", "text": "Be kind."}]}, {"max_tokens": 1},
    {"metadata": {"user_id": "me"}}, {"priority": 3}, {"cache_salt": "x"}])
def test_streams_equal_whole_answers(server, fields):
    same(joined(events(server, **fields)), ask(server, **fields))


def test_stop_sequences(server):
    text = ask(server)["content"][0]["text"]
    stop = text[10:14]
    got = ask(server, stop_sequences=["never there", stop])
    assert got["stop_reason"] == "stop_sequence" and got["stop_sequence"] == stop
    assert got["content"][0]["text"] == text[:text.index(stop)]
    same(joined(events(server, stop_sequences=["never there", stop])), got)


def test_end_of_turn(thinks):
    assert ask(thinks)["stop_reason"] == "end_turn"


def test_usage_counts_the_cache(server):
    fields = {"messages": [{"role": "user", "content": "A long question that nobody asked before: " + "why? " * 40}],
              "max_tokens": 2}
    first, second = (ask(server, **fields)["usage"] for _ in range(2))
    assert first["cache_creation_input_tokens"] == second["cache_creation_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > first["cache_read_input_tokens"]
    assert sum(v for k, v in first.items() if "input" in k) == sum(v for k, v in second.items() if "input" in k)
    streamed = joined(events(server, **fields))["usage"]
    assert streamed["cache_read_input_tokens"] >= second["cache_read_input_tokens"]
    block = {"type": "text", "text": "Again, and marked: " + "why? " * 40, "cache_control": {"type": "ephemeral"}}
    got = ask(server, messages=[{"role": "user", "content": [block]}], max_tokens=2)
    assert got["usage"]["cache_creation_input_tokens"] > 0 and got["usage"]["input_tokens"] == 0
    assert "warnings" not in got


def test_the_length_of_the_prompt_is_known_at_once(server):
    got = events(server, max_tokens=3)
    usage = got[0][1]["message"]["usage"]
    assert usage["output_tokens"] == 0
    status, _, count = server.post("/v1/messages/count_tokens", {"messages": HELLO})
    assert status == 200 and usage["input_tokens"] == count["input_tokens"] > 0


# ---- thinking ----

def test_thinking(thinks):
    got = ask(thinks, thinking={"type": "enabled", "budget_tokens": 20})
    assert [b["type"] for b in got["content"]] == ["thinking", "text"]
    assert got["content"][0]["thinking"].startswith("The user wants") and got["content"][0]["signature"]
    assert got["content"][1]["text"] == "It grinds corn."
    assert 0 < got["usage"]["output_tokens_details"]["thinking_tokens"] < got["usage"]["output_tokens"]
    assert "warnings" not in got
    same(joined(events(thinks, thinking={"type": "enabled", "budget_tokens": 20})), got)
    assert "warnings" not in ask(thinks, thinking={"type": "adaptive", "display": "summarized"})
    omitted = ask(thinks, thinking={"type": "adaptive", "display": "omitted"})
    assert [w["param"] for w in omitted["warnings"]] == ["thinking.display"]


def test_thinking_is_a_variable_of_the_template(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}"
                        "{{ 'on on on' if enable_thinking else 'off' }}")
    s = Server("mock", "--backend", "mock", "--template", template)
    try:
        counts = [s.post("/v1/messages/count_tokens", {"messages": HELLO, **fields})[2]["input_tokens"]
                  for fields in ({}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}})]
        assert counts[0] == counts[1] < counts[2]
    finally:
        assert s.stop() == 0


def test_thinking_that_cannot_be(server):
    """The fixture's template has no reasoning."""
    got = ask(server, thinking={"type": "adaptive"})
    assert [w["param"] for w in got["warnings"]] == ["thinking"]


def test_thinking_is_history(thinks):
    """Thinking that comes back with its signature is taken; what is encrypted is reported."""
    answer = ask(thinks, thinking={"type": "enabled", "budget_tokens": 20})
    turn = [*HELLO, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "More"}]
    assert "warnings" not in ask(thinks, messages=turn)
    turn[1]["content"] = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}]
    assert [w["param"] for w in ask(thinks, messages=turn)["warnings"]] == ["messages[1].content[0]"]


# ---- tools ----

def test_calls(calls):
    server, _ = calls
    got = ask(server, tools=TOOLS)
    assert [(b["name"], b["input"]) for b in got["content"]] == [("get_weather", ZURICH), ("get_time", ROME)]
    assert got["stop_reason"] == "tool_use" and len({b["id"] for b in got["content"]}) == 2
    same(joined(events(server, tools=TOOLS)), got)


def test_calls_that_break_off(calls):
    """Wherever max_tokens ends the answer, events add up to what comes whole, and input is an object."""
    server, pieces = calls
    for n in range(1, len(pieces)):
        whole = ask(server, tools=TOOLS, max_tokens=n)
        assert whole["stop_reason"] == "max_tokens"
        for block in whole["content"]:
            if block["type"] == "tool_use":
                wanted = ZURICH if block["name"] == "get_weather" else ROME
                assert block["input"].items() <= wanted.items()
        same(joined(events(server, tools=TOOLS, max_tokens=n)), whole)


def test_tool_choice(calls):
    server, _ = calls
    one = ask(server, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b["name"] for b in one["content"]] == ["get_weather"] and one["stop_reason"] == "tool_use"
    none = ask(server, tools=TOOLS, tool_choice={"type": "none"})
    assert [b["type"] for b in none["content"]] == ["text"] and none["stop_reason"] == "end_turn"
    refused(server, 400, "none of the tools", tools=TOOLS, tool_choice={"type": "tool", "name": "get_rain"})
    refused(server, 400, "no tools", tool_choice={"type": "any"})
    refused(server, 400, "tool_choice.type", tools=TOOLS, tool_choice={"type": "maybe"})
    refused(server, 400, "tool_choice.name", tools=TOOLS, tool_choice={"type": "tool"})


def test_loop_has_the_same_prompt_as_openais(calls):
    """A call and its result, in both forms: the same tokens."""
    server, _ = calls
    got = ask(server, tools=TOOLS)
    messages = [*HELLO, {"role": "assistant", "content": got["content"]}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": b["id"], "content": [{"type": "text", "text": "sunny"}]}
        for b in got["content"]]}]
    status, _, count = server.post("/v1/messages/count_tokens", {
        "messages": messages, "tools": TOOLS, "thinking": {"type": "adaptive"}})
    assert status == 200, count
    chat = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [
        {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": json.dumps(b["input"])}}
        for b in got["content"]]}]
    chat += [{"role": "tool", "tool_call_id": b["id"], "content": "sunny"} for b in got["content"]]
    tools = [{"type": "function", "function": {"name": t["name"], "description": t["description"],
                                               "parameters": t["input_schema"]}} for t in TOOLS]
    chat = server.post("/v1/chat/completions", {"messages": chat, "tools": tools, "max_tokens": 1})[2]
    assert chat["usage"]["prompt_tokens"] == count["input_tokens"]


def test_errors_of_tools_are_reported(calls):
    server, _ = calls
    block = {"type": "tool_result", "tool_use_id": "a", "content": "it failed", "is_error": True}
    call = {"type": "tool_use", "id": "a", "name": "get_time", "input": {}}
    got = ask(server, tools=TOOLS, messages=[*HELLO, {"role": "assistant", "content": [call]},
                                            {"role": "user", "content": [block]}])
    assert any(w["param"] == "messages[2].content[0].is_error" for w in got["warnings"])


# ---- fields ----

@pytest.mark.parametrize("fields, words", [
    ({"max_tokens": None}, "max_tokens is missing"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content must not be empty"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content must be"),
    ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "must have a text"),
    ({"messages": [{"role": "user", "content": "a", "colour": 1}]}, "messages[0].colour"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "colour": 1}]}]}, "content[0].colour"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": "aaaa"}}]}]}, "images are not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "documents are not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "must have a tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "not supported here"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}]},
     "must have an input that is an object"),
    ({"system": 1}, "system must be"), ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"stop_sequences": "a"}, "stop_sequences must be an array"), ({"stop_sequences": [""]}, "stop_sequences must be"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences has too many strings"),
    ({"temperature": -1}, "temperature"), ({"top_p": 2}, "top_p"), ({"top_k": 1.5}, "top_k"),
    ({"thinking": {"type": "hard"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 60}}, "must be less than max_tokens"),
    ({"thinking": {"type": "enabled", "depth": 1}}, "thinking.depth"),
    ({"tools": {}}, "tools must be an array"), ({"tools": [{}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"), ({"tools": [{**TOOLS[0], "colour": 1}]}, "tools[0].colour"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "a tool that Anthropic defines"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "type"),
    ({"output_config": {"format": {"type": "json_object"}}}, "must be an object of the type"),
    ({"output_format": {"type": "json_schema"}}, "output_format is not supported"),
    ({"mcp_servers": [{}]}, "mcp_servers is not supported"), ({"container": "x"}, "container is not supported"),
    ({"thread": {"type": "create"}}, "thread is not supported"), ({"colour": 1}, "unknown parameter: colour")])
def test_refused(server, fields, words):
    assert refused(server, 400, words, **fields) == "invalid_request_error"


@pytest.mark.parametrize("fields, params", [
    ({"metadata": {}}, ["metadata"]), ({"service_tier": "auto"}, ["service_tier"]), ({"mcp_servers": []}, []),
    ({"context_management": {"edits": []}}, ["context_management"]), ({"output_config": {}}, []),
    ({"output_config": {"effort": "low"}}, ["reasoning_effort"]),
    ({"cache_control": {"type": "ephemeral"}}, []),
    ({"tools": [{**TOOLS[0], "defer_loading": True}]}, ["tools[0].defer_loading"])])
def test_reported(calls, fields, params):
    got = ask(calls[0], **fields)
    assert [w["param"] for w in got.get("warnings", [])] == params
    assert joined(events(calls[0], **fields)).get("warnings", []) == got.get("warnings", [])


def test_answers_that_clients_begin(server):
    whole = ask(server, messages=[*HELLO, {"role": "assistant", "content": "I say"}])
    chat = server.post("/v1/chat/completions", {"messages": [*HELLO, {"role": "assistant", "content": "I say"}],
                                                "max_tokens": 60, "temperature": 0})[2]
    assert whole["content"][0]["text"] == chat["choices"][0]["message"]["content"]


# ---- counting ----

def test_count_tokens(server):
    for fields in ({}, {"system": "Be kind."}, {"messages": [{"role": "user", "content": "A longer one"}]}):
        status, _, got = server.post("/v1/messages/count_tokens", {"messages": HELLO, **fields})
        usage = ask(server, **fields)["usage"]
        assert status == 200 and got == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert refused(server, 400, "max_tokens", "/v1/messages/count_tokens") == "invalid_request_error"


# ---- errors, keys, connections ----

def test_errors_of_the_server(server):
    status, headers, got = server.request("GET", "/v1/messages")
    assert status == 405 and headers["allow"] == "POST" and got["type"] == "error"
    status, _, got = server.post("/v1/messages", b"{")
    assert status == 400 and got["error"]["type"] == "invalid_request_error"
    got = server.post("/v1/messages", {**ASK, "messages": [{"role": "user", "content": "word " * 5000}]})
    assert got[0] == 400 and "the context of this model holds" in got[2]["error"]["message"]


def test_keys():
    s = Server("mock", "--backend", "mock", "--api-key", "secret")
    try:
        for headers, wanted in (({}, 401), ({"x-api-key": "wrong"}, 401),
                                ({"x-api-key": "secret", "anthropic-version": "2023-06-01"}, 200),
                                ({"Authorization": "Bearer secret"}, 200)):
            status, _, got = s.request("POST", "/v1/messages?beta=true", {**ASK, "max_tokens": 2}, headers)
            assert status == wanted, got
            if wanted == 401:
                assert got["error"]["type"] == "authentication_error"
    finally:
        assert s.stop() == 0


def test_cancellation(server):
    gone = server.metrics()["quern_clients_gone_total"]
    s = begin(server, {**ASK, "max_tokens": 100000, "stream": True, "messages": HELLO}, "/v1/messages")
    wait_for(s, b"message_start")
    s.close()
    until(lambda: server.metrics()["quern_clients_gone_total"] == gone + 1)
    until(lambda: server.metrics()["quern_sequences_active"] == 0)


def test_pings():
    """A silent stream gets events of the type ping, no comments."""
    s = Server("mock", "--backend", "mock", "--parallel", 1, "--no-look-ahead", "--sse-ping", "0.1")
    try:
        with hold(s), begin(s, {**ASK, "stream": True}, "/v1/messages") as waits:
            got = read_for(waits, 1)
        assert got.count(b'event: ping\ndata: {"type":"ping"}\n\n\r\n') > 3 and COMMENT not in got
        assert b"content_block" not in got
    finally:
        assert s.stop() == 0
