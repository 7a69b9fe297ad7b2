"""openai-agents with its defaults: the Responses API, tools that are strict, instructions, its runner."""
import asyncio

import openai
import pytest
from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, City, check_cancelled,
                          check_city, check_loop, check_plain, check_usage)

set_tracing_disabled(True)


def agent(server, tools=()):
    set_default_openai_client(AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120),
                              use_for_tracing=False)
    return Agent(name="Weather", model=server.name, instructions="You are a helpful assistant.",
                 model_settings=ModelSettings(temperature=0, max_tokens=MAX_TOKENS),
                 tools=[function_tool(f) for f in tools])


def whole(agent, question):
    """The answer, its pieces (one), and the usage."""
    result = asyncio.run(Runner.run(agent, question))
    return result.final_output, [result.final_output], result.context_wrapper.usage


def streamed(agent, question):
    async def run():
        result, pieces = Runner.run_streamed(agent, question), []
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                pieces.append(event.data.delta)
        return result.final_output, pieces, result.context_wrapper.usage

    return asyncio.run(run())


def usage(u):
    check_usage(u.input_tokens, u.output_tokens, u.total_tokens)
    return u.input_tokens, u.output_tokens


def test_plain(server):
    text, _, used = whole(agent(server), PLAIN)
    again, pieces, used_again = streamed(agent(server), PLAIN)
    check_plain(text, pieces)
    assert again == text and usage(used_again) == usage(used)


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(server, way):
    text, pieces, used = way(agent(server, FUNCTIONS.values()), QUESTION)
    check_loop(text)
    assert "".join(pieces) == text and used.requests == 3
    assert used.input_tokens > used.output_tokens > 20


@pytest.mark.parametrize("way", [whole, streamed])
def test_output_type(server, way):
    a = agent(server)
    a.output_type = City
    check_city(way(a, DESCRIBE)[0])


@pytest.mark.parametrize("way", [whole, streamed])
def test_errors(server, way):
    with pytest.raises(openai.BadRequestError):
        way(agent(server), TOO_LONG)


def test_cancellation(server):
    async def run():
        a = agent(server)
        a.model_settings.max_tokens = 2000
        result = Runner.run_streamed(a, LONG)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                result.cancel()

    check_cancelled(server, lambda: asyncio.run(run()))
