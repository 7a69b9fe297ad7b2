"""haystack-ai: its generator of chats, and its agent, which runs the tools."""
import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from clients_help import (DESCRIBE, FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, City, check_city, check_loop, check_plain,
                          check_usage)


def generator(server, **fields):
    return OpenAIChatGenerator(api_key=Secret.from_token("none"), model=server.name, api_base_url=server.url + "/v1",
                               generation_kwargs={"temperature": 0, "max_tokens": MAX_TOKENS, **fields}, timeout=120,
                               max_retries=0)


def usage(message):
    u = message.meta["usage"]
    check_usage(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"])
    return u["prompt_tokens"], u["completion_tokens"]


def test_plain(server):
    asked, pieces = [ChatMessage.from_user(PLAIN)], []
    (answer,) = generator(server).run(asked)["replies"]
    (joined,) = generator(server, stream_options={"include_usage": True}).run(
        asked, streaming_callback=lambda chunk: pieces.append(chunk.content))["replies"]
    check_plain(answer.text, pieces)
    assert joined.text == answer.text and usage(joined) == usage(answer)
    assert answer.meta["finish_reason"] == joined.meta["finish_reason"] == "stop"


@pytest.mark.parametrize("streaming", [False, True])
def test_loop(server, streaming):
    chunks = []
    agent = Agent(chat_generator=generator(server), tools=[create_tool_from_function(f) for f in FUNCTIONS.values()],
                  streaming_callback=chunks.append if streaming else None, max_agent_steps=4,
                  raise_on_tool_invocation_failure=True)
    messages = agent.run(messages=[ChatMessage.from_user(QUESTION)])["messages"]
    check_loop(messages[-1].text)
    assert [len(m.tool_calls) for m in messages] == [0, 1, 0, 1, 0, 0]
    if streaming:
        assert sum(bool(c.tool_calls) for c in chunks) > 4  # two calls, in pieces
        assert "".join(c.content or "" for c in chunks if not c.tool_call_result).endswith(messages[-1].text)


def test_structured(server):
    (reply,) = generator(server, response_format=City).run([ChatMessage.from_user(DESCRIBE)])["replies"]
    check_city(reply.text)


def test_strict_tools(server):
    tools = [create_tool_from_function(f) for f in FUNCTIONS.values()]
    (reply,) = generator(server, tool_choice="required").run(
        [ChatMessage.from_user(QUESTION)], tools=tools, tools_strict=True)["replies"]
    assert reply.tool_calls[0].tool_name == "find_capital" and reply.tool_calls[0].arguments == {"country": "Portugal"}
