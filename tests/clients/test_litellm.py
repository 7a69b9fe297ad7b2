"""litellm: its own types over OpenAI's, and its builder that joins the events of a stream."""
import asyncio
import json

import litellm
import pytest

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, TOOLS, City,
                          check_cancelled, check_city, check_loop, check_plain, check_usage)


@pytest.fixture(scope="module")
def fields(server):
    return {"model": "openai/" + server.name, "api_base": server.url + "/v1", "api_key": "none", "temperature": 0,
            "max_tokens": MAX_TOKENS, "timeout": 120, "max_retries": 0}


def whole(messages, **fields):
    return litellm.completion(messages=messages, **fields)


def streamed(messages, **fields):
    chunks = list(litellm.completion(messages=messages, stream=True, stream_options={"include_usage": True}, **fields))
    return litellm.stream_chunk_builder(chunks, messages=messages)


def usage(answer):
    u = answer.usage
    check_usage(u.prompt_tokens, u.completion_tokens, u.total_tokens)
    return u.prompt_tokens, u.completion_tokens


def test_plain(fields):
    messages = [{"role": "user", "content": PLAIN}]
    answer, joined = whole(messages, **fields), streamed(messages, **fields)
    text = answer.choices[0].message.content
    check_plain(text, [c.delta.content for chunk in litellm.completion(messages=messages, stream=True, **fields)
                       for c in chunk.choices])
    assert joined.choices[0].message.content == text and usage(joined) == usage(answer)
    assert answer.choices[0].finish_reason == joined.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(fields, way):
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        answer = way(messages, tools=TOOLS, **fields)
        usage(answer)
        assert answer.choices[0].finish_reason == "tool_calls"
        message = answer.choices[0].message
        messages.append(message)
        (call,) = message.tool_calls
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"tool_call_id": call.id, "role": "tool", "name": call.function.name, "content": result})
    message = way(messages, tools=TOOLS, **fields).choices[0].message
    assert not message.tool_calls
    check_loop(message.content)


def test_form(fields):
    answer = whole([{"role": "user", "content": DESCRIBE}], response_format=City, **fields)
    check_city(answer.choices[0].message.content)


def test_errors(fields):
    with pytest.raises(litellm.BadRequestError, match="context"):
        whole([{"role": "user", "content": TOO_LONG}], **fields)
    with pytest.raises(litellm.BadRequestError, match="context"):
        streamed([{"role": "user", "content": TOO_LONG}], **fields)


def test_cancellation(fields, server):
    async def run():
        stream = await litellm.acompletion(messages=[{"role": "user", "content": LONG}], stream=True,
                                           **{**fields, "max_tokens": 2000})
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.aclose()

    check_cancelled(server, lambda: asyncio.run(run()))
