"""litellm's other dialects: Anthropic's messages through completion() and its own anthropic interface, and
Responses."""
import asyncio
import json

import litellm
import pytest

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, TOOLS, City,
                          check_cancelled, check_city, check_loop, check_plain, check_usage)


@pytest.fixture(scope="module")
def fields(server):
    return {"model": "anthropic/" + server.name, "api_base": server.url, "api_key": "none", "temperature": 0,
            "max_tokens": MAX_TOKENS, "timeout": 120, "max_retries": 0}


@pytest.fixture(scope="module")
def responses(server):
    return {"model": "openai/" + server.name, "api_base": server.url + "/v1", "api_key": "none", "temperature": 0,
            "max_output_tokens": MAX_TOKENS, "timeout": 120}


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


def test_errors(fields, responses):
    with pytest.raises(litellm.BadRequestError):
        whole([{"role": "user", "content": TOO_LONG}], **fields)
    with pytest.raises(litellm.BadRequestError):
        litellm.responses(input=TOO_LONG, **responses)


def test_cancellation(fields, server):
    async def run():
        stream = await litellm.acompletion(messages=[{"role": "user", "content": LONG}], stream=True,
                                           **{**fields, "max_tokens": 2000})
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.aclose()

    check_cancelled(server, lambda: asyncio.run(run()))


def test_messages(fields):
    own = {k: v for k, v in fields.items() if k not in ("max_retries",)}
    answer = asyncio.run(litellm.anthropic.messages.acreate(messages=[{"role": "user", "content": PLAIN}], **own))
    assert "Paris" in answer["content"][0]["text"] and answer["stop_reason"] == "end_turn"


def test_responses(responses):
    answer = litellm.responses(input=PLAIN, **responses)
    events = list(litellm.responses(input=PLAIN, stream=True, **responses))
    text = "".join(p.text for item in answer.output if item.type == "message" for p in item.content)
    check_plain(text, [e.delta for e in events if e.type == "response.output_text.delta"])
    assert events[-1].type == "response.completed"
    check_usage(answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens)


@pytest.mark.parametrize("is_stream", [False, True])
def test_responses_with_tools(responses, is_stream):
    """A loop of tools through Responses, whose items go back as they came."""
    tools = [{"type": "function", **t["function"]} for t in TOOLS]
    history = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        answer = litellm.responses(input=history, tools=tools, stream=is_stream, **responses)
        if is_stream:
            answer = [e for e in answer if e.type == "response.completed"][-1].response
        (call,) = [item for item in answer.output if item.type == "function_call"]
        history.append({"type": "function_call", "call_id": call.call_id, "name": call.name,
                        "arguments": call.arguments})
        history.append({"type": "function_call_output", "call_id": call.call_id,
                        "output": FUNCTIONS[call.name](**json.loads(call.arguments))})
    answer = litellm.responses(input=history, tools=tools, **responses)
    check_loop("".join(p.text for item in answer.output if item.type == "message" for p in item.content))


def test_responses_with_a_form(responses):
    form = {"format": {"type": "json_schema", "name": "city", "schema": City.model_json_schema(), "strict": True}}
    answer = litellm.responses(input=DESCRIBE, text=form, **responses)
    check_city("".join(p.text for item in answer.output if item.type == "message" for p in item.content))
