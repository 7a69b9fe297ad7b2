"""Prefixes that clients ask to keep: Anthropic's cache_control, OpenAI's prompt_cache_key, its options and breakpoints.
What is kept outlasts other requests for its time, and usage tells what was read and written."""
import json

import pytest

from server_help import MODEL, Server
from support import fixture

LONG = "The miller grinds corn, rye and spelt, day and night. " * 6
SYSTEM = "Be brief. " + LONG
CONTROL = {"type": "ephemeral"}
TOOLS = [{"name": "grind", "description": "Grinds. " * 20, "input_schema": {"type": "object", "properties": {}}}]


OPTIONS = ["--context", "1024", "--parallel", "1", "--no-look-ahead", "--model-name", "mill"]


@pytest.fixture(scope="module")
def server():
    """Its cache holds some 2,000 tokens."""
    s = Server(fixture(MODEL), *OPTIONS)
    n = ask(s, "/v1/completions", prompt="Some text. " * 60)["usage"]["total_tokens"]
    size = s.metrics()['quern_memory_bytes{entry="cache"}']
    assert s.stop() == 0
    s = Server(fixture(MODEL), *OPTIONS, "--cache-limit", int(size * 2000 / n))
    ask(s, messages=user(text("x")))  # what the template puts before all
    yield s
    assert s.stop() == 0


def ask(server, path="/v1/messages", **fields):
    status, _, got = server.post(path, {"max_tokens": 2, "temperature": 0, **fields})
    assert status == 200, got
    return got


def others(server, n=12):
    """So many prompts that nothing stays which is not pinned."""
    for i in range(n):
        ask(server, "/v1/completions", prompt=f"{i} is another text. " * 60)


def text(words, **more):
    return {"type": "text", "text": words, **more}


def user(*blocks):
    return [{"role": "user", "content": list(blocks)}]


def usage(got):
    u = got["usage"]
    return u["input_tokens"], u["cache_creation_input_tokens"], u["cache_read_input_tokens"]


def test_system(server):
    """The marked prefix is written, outlasts others, and is read; the rest of the prompt is not."""
    fields = {"system": [text(SYSTEM, cache_control=CONTROL)]}
    first = ask(server, **fields, messages=user(text("First question")))
    assert "warnings" not in first
    rest, written, read = usage(first)
    assert rest > 0 and written > 40
    assert first["usage"]["cache_creation"] == {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0}
    others(server)
    rest, again, read = usage(ask(server, **fields, messages=user(text("A second one"))))
    assert read >= written and again == 0 and rest > 0
    assert server.metrics()["quern_prefix_pins"] >= 1


def test_unmarked(server):
    fields = {"system": "Unmarked. " + LONG, "messages": user(text("First question"))}
    first = usage(ask(server, **fields))
    assert first[1] == 0 and usage(ask(server, **fields))[2] > first[2]
    others(server)
    assert usage(ask(server, **fields))[2] <= first[2]


def test_blocks_and_tools(server):
    """Each mark adds what is before it; text behind the last one is input."""
    messages = user(text("One. " + LONG, cache_control={"type": "ephemeral", "ttl": "1h"}),
                    text("Two. " + LONG, cache_control={"type": "ephemeral", "ttl": "5m"}), text("Three. " + LONG))
    got = ask(server, tools=[{**TOOLS[0], "cache_control": CONTROL}], messages=messages)
    rest, written, read = usage(got)
    parts = got["usage"]["cache_creation"]
    assert rest > 20 and sum(parts.values()) == written and min(parts.values()) > 20
    others(server)
    other = [messages[0]["content"][0], text("Another two."), text("Another three.")]
    again = usage(ask(server, tools=TOOLS, messages=user(*other)))
    assert again[2] >= parts["ephemeral_1h_input_tokens"] + read - 2


def test_whole(server):
    """cache_control of the request is about all of it; so is a mark on the last block."""
    for fields in ({"cache_control": CONTROL, "messages": user(text("All of this. " + LONG))},
                   {"messages": user(text("Or of that. " + LONG, cache_control=CONTROL))}):
        rest, written, read = usage(ask(server, **fields))
        assert rest == 0 and written > 20
        others(server)
        assert usage(ask(server, **fields))[2] >= written + read - 1


def test_history(server):
    """Marks within a conversation: on an answer, a call and a result."""
    calls = [{"type": "tool_use", "id": "a", "name": "grind", "input": {}}]
    messages = [*user(text("Grind. " + LONG)), {"role": "assistant", "content": [text("I do. " + LONG,
                                                                                    cache_control=CONTROL)]},
                *user(text("Once more")), {"role": "assistant", "content": calls},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "flour " * 40,
                                              "cache_control": CONTROL}]}]
    status, _, got = server.post("/v1/messages", {"max_tokens": 2, "messages": messages[:3]})
    assert status == 200 and usage(got)[1] > 40 and usage(got)[0] > 0
    others(server)
    assert usage(ask(server, messages=[*messages[:2], *user(text("Something else"))]))[2] >= usage(got)[1]


def test_streams(server):
    fields = {"system": [text("Streamed. " + LONG, cache_control=CONTROL)], "messages": user(text("Hello"))}
    status, _, got = server.post("/v1/messages", {"max_tokens": 2, "stream": True, **fields})
    events = [json.loads(line[6:]) for line in got.split("\n") if line.startswith("data: ")]
    delta = next(e for e in events if e["type"] == "message_delta")
    assert status == 200 and delta["usage"]["cache_creation_input_tokens"] > 20
    assert delta["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("control, param", [
    ({"type": "eternal"}, "type"), ({"type": "ephemeral", "ttl": "2h"}, "ttl"), ({"ttl": 5}, "ttl"),
    ({"type": "ephemeral", "scope": "x"}, "scope"), ("ephemeral", "")])
def test_refused(server, control, param):
    for fields, place in (({"system": [text("a", cache_control=control)]}, "system[0].cache_control"),
                          ({"tools": [{**TOOLS[0], "cache_control": control}]}, "tools[0].cache_control"),
                          ({"cache_control": control}, "cache_control")):
        status, _, got = server.post("/v1/messages", {"max_tokens": 2, "messages": user(text("a")), **fields})
        assert status == 400, got
        assert got["error"]["details"]["param"] == place + (f".{param}" if param else "")


def test_too_many_marks(server):
    blocks = [text(str(i), cache_control=CONTROL) for i in range(5)]
    assert ask(server, messages=user(*blocks[:4]))
    status, _, got = server.post("/v1/messages", {"max_tokens": 2, "messages": user(*blocks)})
    assert status == 400 and got["error"]["details"]["param"] == "messages[0].content[4].cache_control"


def test_marks_that_keep_nothing(tmp_path):
    """The template shows the conversation otherwise from its first character on: that is reported."""
    (tmp_path / "template").write_text("{{ messages | length }} {% for m in messages %}<{{ m.role }}> {{ m.content }}\n"
                                       "{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}")
    s = Server(fixture(MODEL), "--template", tmp_path / "template")
    try:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *user(text("c"))]
        got = ask(s, system=[text(SYSTEM, cache_control=CONTROL)], messages=messages)
        assert [w["param"] for w in got["warnings"]] == ["cache_control"] and usage(got)[1] == 0
    finally:
        assert s.stop() == 0


# ---- OpenAI's fields ----

def cached(got):
    return got["usage"]["prompt_tokens_details"]["cached_tokens"]


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("i, fields", enumerate([
    {"prompt_cache_key": "mill"}, {"prompt_cache_retention": "24h"}, {"prompt_cache_retention": "in_memory"},
    {"prompt_cache_options": {"ttl": "30m"}}, {"prompt_cache_options": {"mode": "implicit"}}]))
def test_keys(server, i, fields):
    messages = [{"role": "user", "content": f"{i} with a key. " + LONG}]
    got = ask(server, CHAT, messages=messages, **fields)
    n = got["usage"]["prompt_tokens"]
    assert "warnings" not in got and cached(got) + got["usage"]["prompt_tokens_details"]["cache_write_tokens"] == n
    others(server)
    assert cached(ask(server, CHAT, messages=messages)) == n - 1


def test_completions_and_responses(server):
    prompt = "A prompt with a key. " + LONG
    n = ask(server, "/v1/completions", prompt=prompt, prompt_cache_key="k")["usage"]["prompt_tokens"]
    others(server)
    assert cached(ask(server, "/v1/completions", prompt=prompt)) == n - 1
    fields = {"input": "A response with a key. " + LONG, "max_output_tokens": 2}
    status, _, got = server.post("/v1/responses", {**fields, "prompt_cache_key": "k"})
    assert status == 200, got
    others(server)
    details = server.post("/v1/responses", fields)[2]["usage"]["input_tokens_details"]
    assert details["cached_tokens"] == got["usage"]["input_tokens"] - 1


def test_breakpoints(server):
    """The end of a part, exactly; with `explicit` nothing else is kept."""
    mark = {"mode": "explicit", "ttl": "12h"}
    parts = [text("Marked. " + LONG, prompt_cache_breakpoint=mark), text("Not marked. " + LONG)]
    got = ask(server, CHAT, messages=user(*parts), prompt_cache_options={"mode": "explicit"})
    n, written = got["usage"]["prompt_tokens"], got["usage"]["prompt_tokens_details"]["cache_write_tokens"]
    assert 40 < written < n - 20
    before = cached(got)
    others(server)
    assert cached(ask(server, CHAT, messages=user(*parts))) == before + written
    response = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Marked, too. " + LONG,
                                                        "prompt_cache_breakpoint": mark}]}], "max_output_tokens": 2}
    assert server.post("/v1/responses", response)[0] == 200


def test_openai_refused(server):
    for fields, param in (({"prompt_cache_key": 5}, "prompt_cache_key"),
                          ({"prompt_cache_key": "k" * 2000}, "prompt_cache_key"),
                          ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
                          ({"prompt_cache_options": {"mode": "x"}}, "prompt_cache_options.mode"),
                          ({"prompt_cache_options": {"ttl": "1m"}}, "prompt_cache_options.ttl"),
                          ({"prompt_cache_options": 3}, "prompt_cache_options")):
        status, _, got = server.post(CHAT, {"messages": user(text("a")), **fields})
        assert status == 400 and got["error"]["param"] == param, got
    part = text("a", prompt_cache_breakpoint={"mode": "implicit"})
    status, _, got = server.post(CHAT, {"messages": user(part)})
    assert status == 400 and got["error"]["param"] == "messages[0].content[0].prompt_cache_breakpoint.mode"


# ---- what holds under pressure ----

def test_pins_give_way(server):
    """However much is pinned, a request that fits alone is answered."""
    for i in range(8):
        assert ask(server, "/v1/completions", prompt=f"{i} pinned. " * 80, prompt_cache_key=str(i))
    assert ask(server, "/v1/completions", prompt="all of it " * 140)
    m = server.metrics()
    assert m["quern_prefix_pins_given_up_total"] > 0


def test_keys_of_others():
    """A pin is of its API key, as all prefixes are."""
    s = Server(fixture(MODEL), "--api-key", "a", "--api-key", "b")
    try:
        got = []
        for key in ("a", "b", "a"):
            status, _, answer = s.request("POST", "/v1/messages", {"max_tokens": 1, "system": [
                text(SYSTEM, cache_control=CONTROL)], "messages": user(text("Hello"))}, {"x-api-key": key})
            assert status == 200
            got.append(usage(answer)[2])
        assert got[0] == got[1] == 0 and got[2] > 0
    finally:
        assert s.stop() == 0
