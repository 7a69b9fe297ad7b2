"""langchain-anthropic: ChatAnthropic with tools bound to it."""
from typing import Literal

import anthropic
import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, City, check_cancelled,
                          check_city, check_loop, check_plain, check_usage)


@pytest.fixture(scope="module")
def model(server):
    return ChatAnthropic(model=server.name, base_url=server.url, api_key="none", temperature=0, max_retries=0,
                         max_tokens=MAX_TOKENS, timeout=120)


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
    check_plain(answer.text, [chunk.text for chunk in model.stream(PLAIN)])
    assert joined.text == answer.text and usage(joined) == usage(answer)
    assert answer.response_metadata["stop_reason"] == joined.response_metadata["stop_reason"] == "end_turn"


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(model, way):
    tools = {name: tool(function) for name, function in FUNCTIONS.items()}
    with_tools, messages = model.bind_tools(list(tools.values())), [HumanMessage(QUESTION)]
    for _ in range(2):
        message = way(with_tools, messages)
        usage(message)
        messages.append(message)
        (call,) = message.tool_calls
        assert not message.invalid_tool_calls and message.response_metadata["stop_reason"] == "tool_use"
        messages.append(tools[call["name"]].invoke(call))
    message = way(with_tools, messages)
    assert not message.tool_calls
    check_loop(message.text)


def test_structured(model):
    check_city(model.with_structured_output(City, method="function_calling").invoke(DESCRIBE))


def test_form(model):
    """The library leaves bounds of numbers out of the schema that it sends, so this one has none."""
    class Place(pydantic.BaseModel):
        name: Literal["Paris", "Rome", "Lisbon"]
        capital: bool

    place = model.with_structured_output(Place, method="json_schema").invoke(DESCRIBE)
    assert isinstance(place, Place) and place.name in ("Paris", "Rome", "Lisbon")


def test_errors(model):
    with pytest.raises(anthropic.BadRequestError):
        model.invoke(TOO_LONG)
    with pytest.raises(anthropic.BadRequestError):
        list(model.stream(TOO_LONG))


def test_cancellation(model, server):
    def read_some():
        stream = model.model_copy(update={"max_tokens": 2000}).stream(LONG)
        next(chunk for chunk in stream if chunk.text)
        stream.close()

    check_cancelled(server, read_some)
