"""langchain-openai: ChatOpenAI with tools bound to it."""
import openai
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import LengthFinishReasonError

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, City, check_cancelled,
                          check_city, check_loop, check_plain, check_usage)


@pytest.fixture(scope="module")
def model(server):
    return ChatOpenAI(model=server.name, base_url=server.url + "/v1", api_key="none", temperature=0, max_retries=0,
                      max_tokens=MAX_TOKENS, timeout=120, stream_usage=True)


def whole(model, messages):
    return model.invoke(messages)


def streamed(model, messages):
    """Chunks of messages add up by +."""
    total = None
    for chunk in model.stream(messages):
        total = chunk if total is None else total + chunk
    return total


def usage(message):
    u = message.usage_metadata
    check_usage(u["input_tokens"], u["output_tokens"], u["total_tokens"])
    return u["input_tokens"], u["output_tokens"]


def test_plain(model):
    answer, joined = whole(model, PLAIN), streamed(model, PLAIN)
    check_plain(answer.content, [chunk.content for chunk in model.stream(PLAIN)])
    assert joined.content == answer.content and usage(joined) == usage(answer)
    assert answer.response_metadata["finish_reason"] == joined.response_metadata["finish_reason"] == "stop"


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(model, way):
    tools = {name: tool(function) for name, function in FUNCTIONS.items()}
    with_tools, messages = model.bind_tools(list(tools.values())), [HumanMessage(QUESTION)]
    for _ in range(2):
        message = way(with_tools, messages)
        usage(message)
        messages.append(message)
        (call,) = message.tool_calls
        assert not message.invalid_tool_calls and message.response_metadata["finish_reason"] == "tool_calls"
        messages.append(tools[call["name"]].invoke(call))
    message = way(with_tools, messages)
    assert not message.tool_calls
    check_loop(message.content)


@pytest.mark.parametrize("method, strict", [("json_schema", None), ("json_schema", True), ("function_calling", None),
                                            ("function_calling", True), ("json_mode", None)])
def test_structured(model, method, strict):
    if method == "json_mode":  # any JSON object, which is not held to the schema and may be long
        try:
            assert isinstance(model.with_structured_output(None, method=method).invoke(DESCRIBE), dict)
        except LengthFinishReasonError as e:
            assert e.completion.choices[0].message.content.startswith("{")
        return
    structured = model.with_structured_output(City, method=method, strict=strict)
    check_city(structured.invoke(DESCRIBE))
    *_, last = structured.stream(DESCRIBE)
    check_city(last)


def test_forced(model):
    tools = [tool(function) for function in FUNCTIONS.values()]
    message = model.bind_tools(tools, tool_choice="get_weather", strict=True).invoke(PLAIN)
    assert message.tool_calls[0]["name"] == "get_weather" and isinstance(message.tool_calls[0]["args"]["city"], str)
    message = model.bind_tools(tools, tool_choice="any").invoke(PLAIN)
    assert message.tool_calls


def test_errors(model):
    with pytest.raises(openai.BadRequestError):
        model.invoke(TOO_LONG)
    with pytest.raises(openai.BadRequestError):
        list(model.stream(TOO_LONG))


def test_cancellation(model, server):
    def read_some():
        stream = model.model_copy(update={"max_tokens": 2000}).stream(LONG)
        next(chunk for chunk in stream if chunk.text)
        stream.close()

    check_cancelled(server, read_some)
