"""POST /v1/decisions, as the openai client calls it: exact probabilities of answers to questions about an input."""
import math

import pytest

from server_help import Server, client, openai
from support import fixture

QUESTIONS = [
    {"type": "predicate", "name": "sunny", "instructions": "It is sunny."},
    {"type": "choice", "instructions": "Which colour?", "choices": [
        {"value": "red"}, {"value": "green", "description": "as grass"}, {"value": True}, {"value": "true"}]},
    {"type": "score", "name": "mood", "instructions": [{"type": "input_text", "text": "How good?"}],
     "levels": [{"label": "bad"}, {"label": "fair"}, {"label": "good", "description": "very"}]},
    {"type": "choice", "instructions": "Which number?", "choices": [{"value": str(i)} for i in range(255)]},
]


@pytest.fixture(scope="module")
def server():
    s = Server(fixture("models/llama"), "--model-name", "llama")
    yield s
    assert s.stop() == 0


def ask(server, **fields):
    return server.post("/v1/decisions", {"model": "llama", "input": "The sky is blue.", "questions": QUESTIONS[:3],
                                         **fields})


def test_answers(server):
    status, _, got = ask(server)
    assert status == 200, got
    sunny, colour, mood = got["answers"]
    assert got["model"] == "llama" and got["usage"]["input_tokens"] == got["usage"]["total_tokens"] > 0
    assert sunny["type"] == "predicate" and sunny["name"] == "sunny" and 0 < sunny["probability"] < 1
    assert colour["type"] == "choice" and colour["name"] is None
    assert [p["value"] for p in colour["probabilities"]] == ["red", "green", True, "true"]
    best = max(colour["probabilities"], key=lambda p: p["probability"])
    assert colour["choice"] == best["value"] and type(colour["choice"]) is type(best["value"])
    assert colour["confidence"] == best["probability"]
    assert mood["type"] == "score" and [p["label"] for p in mood["probabilities"]] == ["bad", "fair", "good"]
    assert [p["value"] for p in mood["probabilities"]] == [1, 2, 3]
    assert math.isclose(mood["score"], sum(p["value"] * p["probability"] for p in mood["probabilities"]))
    for a in (colour, mood):
        assert math.isclose(sum(p["probability"] for p in a["probabilities"]), 1, abs_tol=1e-9)
    # Each question is by itself: the others change no bit.
    for i in range(3):
        assert ask(server, questions=[QUESTIONS[i]])[2]["answers"] == [got["answers"][i]]


def test_many_choices(server):
    error = ask(server, input="x", questions=[QUESTIONS[3]])[2]["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "input"
    s = Server("mock", "--backend", "mock", "--context", 8192)
    try:
        status, _, got = s.post("/v1/decisions", {"model": s.name, "input": "x", "questions": [QUESTIONS[3]]})
        assert status == 200, got
        assert len({p["value"] for p in got["answers"][0]["probabilities"]}) == 255
        assert math.isclose(sum(p["probability"] for p in got["answers"][0]["probabilities"]), 1, abs_tol=1e-9)
    finally:
        assert s.stop() == 0


def test_messages(server):
    """Messages, calls and their outputs; a text in parts is the same as whole."""
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\": \"sky\"}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "blue"}]}
    status, _, got = ask(server, input=[
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Look."}, call, output,
        {"role": "assistant", "content": [{"type": "output_text", "text": "It is blue."}]}])
    assert status == 200, got
    whole = ask(server, input=[{"role": "user", "content": "a\n{\"b\":0.1}"}])[2]["answers"]
    parts = ask(server, input=[{"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"b": 0.1}}]}])[2]["answers"]
    assert whole == parts


@pytest.mark.parametrize("fields, param", [
    ({"input": []}, "input"), ({"input": 1}, "input"), ({"input": None}, "input"), ({"questions": []}, "questions"),
    ({"questions": None}, "questions"), ({"questions": [QUESTIONS[0]] * 401}, "questions"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input[0]"), ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": "a", "colour": 1}]}, "input[0].colour"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
    ({"questions": [{"type": "essay", "instructions": "a"}]}, "questions[0].type"),
    ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
    ({"questions": [{"type": "choice", "instructions": "a", "choices": [{"value": "x"}]}]}, "questions[0].choices"),
    ({"questions": [{"type": "choice", "instructions": "a", "choices": [{"value": "x"}, {"value": "x"}]}]},
     "questions[0].choices[1]"),
    ({"questions": [{"type": "score", "instructions": "a", "levels": [{"label": "x"}, {"value": "y"}]}]},
     "questions[0].levels[1].value"),
    ({"temperature": 1}, "temperature")])
def test_refused(server, fields, param):
    status, _, got = ask(server, **fields)
    assert status == 400 and got["error"]["param"] == param, got


def test_client(server):
    if not hasattr(openai(), "decisions"):
        pytest.skip("the installed openai has no decisions")
    got = client(server).decisions.create(model="llama", input="The sky is blue.", questions=QUESTIONS[:3])
    assert [a.type for a in got.answers] == ["predicate", "choice", "score"]
