"""openai-agents: its runner over the model class for chat completions; tools are strict unless it is told otherwise."""
import asyncio

import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from clients_help import (DESCRIBE, FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, City, check_city, check_loop, check_plain,
                          check_usage)

set_tracing_disabled(True)


def agent(server, tools=(), strict=True, **options):
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    return Agent(name="Weather", model=OpenAIChatCompletionsModel(model=server.name, openai_client=client),
                 model_settings=ModelSettings(temperature=0, max_tokens=MAX_TOKENS, include_usage=True),
                 instructions="You are a helpful assistant.",
                 tools=[function_tool(f, strict_mode=strict) for f in tools], **options)


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


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(server, way, strict):
    text, pieces, used = way(agent(server, FUNCTIONS.values(), strict), QUESTION)
    check_loop(text)
    assert "".join(pieces) == text and used.requests == 3
    assert used.input_tokens > used.output_tokens > 20


@pytest.mark.parametrize("way", [whole, streamed])
def test_output_type(server, way):
    check_city(way(agent(server, output_type=City), DESCRIBE)[0])
    # Beside tools an answer is a call, or in the form.
    check_city(way(agent(server, FUNCTIONS.values(), output_type=City), DESCRIBE)[0])


def test_forced(server):
    """A tool that must be called; its result is the answer."""
    a = agent(server, FUNCTIONS.values(), tool_use_behavior="stop_on_first_tool")
    a.model_settings.tool_choice = "get_weather"
    assert whole(a, PLAIN)[0] in ("unknown", "sunny, 24 degrees")
