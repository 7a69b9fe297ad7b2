"""pydantic-ai: an agent, with tools as it makes them by itself, and its ways to structured output."""
import asyncio

import pytest
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, City, check_cancelled,
                          check_city, check_loop, check_plain, check_usage)

SETTINGS = {"temperature": 0, "max_tokens": MAX_TOKENS, "timeout": 120}


@pytest.fixture
def model(server):
    return OpenAIChatModel(server.name, provider=OpenAIProvider(base_url=server.url + "/v1", api_key="none"))


def whole(agent, question):
    """The answer, its pieces (one), and the usage."""
    result = agent.run_sync(question)
    return result.output, [result.output], result.usage


def streamed(agent, question):
    async def run():
        async with agent.run_stream(question) as result:
            pieces = [text async for text in result.stream_text(delta=True, debounce_by=None)]
            return await result.get_output(), pieces, result.usage

    return asyncio.run(run())


def usage(u):
    check_usage(u.input_tokens, u.output_tokens, u.total_tokens)
    return u.input_tokens, u.output_tokens


def test_plain(model):
    agent = Agent(model, model_settings=SETTINGS)
    text, _, used = whole(agent, PLAIN)
    again, pieces, used_again = streamed(agent, PLAIN)
    check_plain(text, pieces)
    assert again == text and usage(used_again) == usage(used)


@pytest.mark.parametrize("instructions", [None, "Answer with the help of your tools."])
@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(model, way, instructions):
    agent = Agent(model, tools=list(FUNCTIONS.values()), instructions=instructions, model_settings=SETTINGS)
    text, pieces, used = way(agent, QUESTION)
    check_loop(text)
    assert "".join(pieces) == text and (used.requests, used.tool_calls) == (3, 2)
    assert used.input_tokens > used.output_tokens > 20


@pytest.mark.parametrize("output", [City, ToolOutput(City), NativeOutput(City), PromptedOutput(City)],
                         ids=["plain", "tool", "native", "prompted"])
def test_output(model, output):
    agent = Agent(model, output_type=output, model_settings=SETTINGS, retries=0)
    try:
        check_city(agent.run_sync(DESCRIBE).output)
    except Exception:
        # A prompt alone, with any JSON object, is not held to the schema.
        if not isinstance(output, PromptedOutput):
            raise


def test_output_streamed(model):
    async def run():
        async with Agent(model, output_type=City, model_settings=SETTINGS).run_stream(DESCRIBE) as result:
            return await result.get_output()

    check_city(asyncio.run(run()))


@pytest.mark.parametrize("way", [whole, streamed])
def test_errors(model, way):
    with pytest.raises(ModelHTTPError) as caught:
        way(Agent(model, model_settings=SETTINGS), TOO_LONG)
    assert caught.value.status_code == 400


def test_cancellation(model, server):
    async def run():
        agent = Agent(model, model_settings={**SETTINGS, "max_tokens": 2000})
        async with agent.run_stream(LONG) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break

    check_cancelled(server, lambda: asyncio.run(run()))
