"""openai's files, batches and responses that are stored (`quern serve --store`)."""
import json
import os
import time

import openai
import pytest
from openai import OpenAI

from clients_help import FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, TOOLS, check_loop
from server_help import Server
from support import real_model

OWN_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The client, and the fields of a request."""
    s = Server(real_model("smollm2"), "--template", os.path.join(os.path.dirname(__file__), "tools.jinja"),
               "--store", tmp_path_factory.mktemp("store"))
    with OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client, {"model": s.name, "max_output_tokens": MAX_TOKENS, "temperature": 0}
    assert s.stop() == 0


# ---- responses ----

@pytest.mark.parametrize("is_stream", [False, True])
def test_loop(asked, is_stream):
    """Each turn has only what is new, and names the response before it."""
    client, fields = asked
    items, previous = QUESTION, None
    for turn in range(3):
        response = client.responses.create(input=items, tools=OWN_TOOLS, previous_response_id=previous,
                                           stream=is_stream, **fields)
        if is_stream:
            *_, last = response
            response = last.response
        assert response.store is True and response.previous_response_id == previous
        if turn == 2:
            break
        (call,) = (item for item in response.output if item.type == "function_call")
        result = FUNCTIONS[call.name](**json.loads(call.arguments))
        items, previous = [{"type": "function_call_output", "call_id": call.call_id, "output": result}], response.id
    check_loop(response.output_text)
    shown = list(client.responses.input_items.list(response.id, order="asc", limit=2))  # pages by themselves
    assert [item.type for item in shown] == ["message", "function_call", "function_call_output", "function_call",
                                             "function_call_output"]


def test_retrieve_and_delete(asked):
    client, fields = asked
    answer = client.responses.create(input=PLAIN, **fields)
    got = client.responses.retrieve(answer.id)
    assert got.to_dict() == answer.to_dict()
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.create(input=PLAIN, previous_response_id=answer.id, **fields)
    unstored = client.responses.create(input=PLAIN, store=False, **fields)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_background(asked):
    client, fields = asked
    response = client.responses.create(input=PLAIN, background=True, **fields)
    assert response.status == "in_progress"
    end = time.monotonic() + 60
    while response.status == "in_progress" and time.monotonic() < end:
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    assert "Paris" in response.output_text
    long = client.responses.create(input="Tell a very long story.", background=True,
                                   **{**fields, "max_output_tokens": 2000})
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(response.id)


# ---- files ----

def test_files(asked, tmp_path):
    client, _ = asked
    path = tmp_path / "notes.txt"
    path.write_bytes(b"grain\r\n" * 100000)
    with open(path, "rb") as f:
        file = client.files.create(file=f, purpose="user_data")
    assert file.bytes == 700000 and file.filename == "notes.txt" and file.status == "processed"
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == path.read_bytes()
    assert file.id in [each.id for each in client.files.list(purpose="user_data")]
    assert client.files.wait_for_processing(file.id).id == file.id
    named = client.files.create(file=("a b.jsonl", b"{}"), purpose="batch",
                                expires_after={"anchor": "created_at", "seconds": 3600})
    assert named.filename == "a b.jsonl"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)
    with pytest.raises(openai.BadRequestError, match="purpose must be"):
        client.files.create(file=b"x", purpose="other")


# ---- batches ----

def test_batches(asked):
    client, fields = asked
    body = {"model": fields["model"], "messages": [{"role": "user", "content": PLAIN}], "max_tokens": MAX_TOKENS,
            "temperature": 0}
    rows = [{"custom_id": f"row {i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(4)]
    rows.append({**rows[0], "custom_id": "bad", "body": {**body, "temperature": -1}})
    file = client.files.create(file=("rows.jsonl", "\n".join(map(json.dumps, rows)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
                                  metadata={"of": "the mill"})
    assert batch.status == "in_progress" and batch.request_counts.total == 5
    end = time.monotonic() + 120
    while batch.status == "in_progress" and time.monotonic() < end:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.metadata == {"of": "the mill"}
    assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 1)
    got = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [row["custom_id"] for row in got] == [f"row {i}" for i in range(4)]
    for row in got:
        text = row["response"]["body"]["choices"][0]["message"]["content"]
        assert "Paris" in text
    (error,) = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert error["custom_id"] == "bad" and error["response"]["status_code"] == 400
    assert [each.id for each in client.batches.list(limit=1)][0] == batch.id
    with pytest.raises(openai.ConflictError, match="has ended"):
        client.batches.cancel(batch.id)


def test_cancel(asked):
    client, fields = asked
    rows = [{"custom_id": str(i), "method": "POST", "url": "/v1/responses",
             "body": {**fields, "max_output_tokens": 2000, "input": "Tell a very long story."}} for i in range(30)]
    file = client.files.create(file=("rows.jsonl", "\n".join(map(json.dumps, rows)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    assert client.batches.cancel(batch.id).status == "cancelling"
    end = time.monotonic() + 60
    while batch.status != "cancelled" and time.monotonic() < end:
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "cancelled" and batch.request_counts.completed + batch.request_counts.failed == 30
