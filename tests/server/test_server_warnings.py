"""`warnings` in every dialect: in a whole answer a member of it, in a stream of the last event that has JSON."""
import json

import pytest

from server_help import Server

ASKED = {"model": "another", "temperature": 0}
HELLO = [{"role": "user", "content": "Hello"}]
STREAMS = {
    "chat": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}),
    "chat with usage": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "n": 2,
                                                 "stream_options": {"include_usage": True}}),
    "choices": ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "n": 2}),
    "completion with usage": ("/v1/completions", {"prompt": "a", "max_tokens": 3,
                                                  "stream_options": {"include_usage": True}}),
    "responses": ("/v1/responses", {"input": "Hello", "max_output_tokens": 3}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 3}),
    "ollama chat": ("/api/chat", {"messages": HELLO, "options": {"num_predict": 3, "temperature": 0}}),
    "ollama text": ("/api/generate", {"prompt": "a", "options": {"num_predict": 3, "temperature": 0}}),
    "llama.cpp": ("/completion", {"prompt": "a", "n_predict": 3}),
}


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--model-name", "mill")
    yield s
    assert s.stop() == 0


def has_warnings(event):
    """Responses have them in the response of their last event."""
    response = event.get("response")
    found = event.get("warnings") or (isinstance(response, dict) and response.get("warnings"))
    if found:
        assert [w["param"] for w in found] == ["model"], found
    return bool(found)


@pytest.mark.parametrize("kind", STREAMS)
def test_the_last_event_has_them(server, kind):
    path, body = STREAMS[kind]
    options = {"model": "another"} if "options" in body else ASKED
    status, _, whole = server.post(path, {**body, **options, "stream": False, "stream_options": None}
                                   if "stream_options" in body else {**body, **options, "stream": False})
    assert status == 200 and has_warnings(whole), whole
    status, _, text = server.post(path, {**body, **options, "stream": True})
    assert status == 200, text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: {", "{"))]
    events = [json.loads(line) for line in lines]
    assert len(events) > 2 and [has_warnings(e) for e in events] == [False] * (len(events) - 1) + [True], events
