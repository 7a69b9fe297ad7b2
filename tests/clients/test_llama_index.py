"""llama-index-llms-openai-like: chat with tools, whole and streamed, and its agent, which streams."""
import asyncio

import pytest

from clients_help import (DESCRIBE, FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, City, check_city, check_loop, check_plain,
                          check_usage, use_openai_2)

use_openai_2()

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

ASKED = [ChatMessage(role="user", content=PLAIN)]


@pytest.fixture(scope="module")
def model(server):
    return OpenAILike(model=server.name, api_base=server.url + "/v1", api_key="none", is_chat_model=True,
                      is_function_calling_model=True, context_window=8192, temperature=0, max_tokens=MAX_TOKENS,
                      timeout=120, max_retries=0, additional_kwargs={"stream_options": {"include_usage": True}})


@pytest.fixture(scope="module")
def tools():
    return {name: FunctionTool.from_defaults(function) for name, function in FUNCTIONS.items()}


def whole(model, tools, history):
    return model.chat_with_tools(tools, chat_history=history)


def streamed(model, tools, history):
    """Each event has all that came so far."""
    *_, last = model.stream_chat_with_tools(tools, chat_history=history)
    return last


def usage(answer):
    u = answer.additional_kwargs
    check_usage(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"])
    return u["prompt_tokens"], u["completion_tokens"]


def test_plain(model):
    answer, events = model.chat(ASKED), list(model.stream_chat(ASKED))
    check_plain(answer.message.content, [e.delta for e in events])
    assert events[-1].message.content == answer.message.content and usage(events[-1]) == usage(answer)


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(model, tools, way):
    history = [ChatMessage(role="user", content=QUESTION)]
    for _ in range(2):
        answer = way(model, list(tools.values()), history)
        usage(answer)
        history.append(answer.message)
        (call,) = model.get_tool_calls_from_response(answer)
        result = tools[call.tool_name](**call.tool_kwargs)
        history.append(ChatMessage(role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id}))
    answer = way(model, list(tools.values()), history)
    assert not model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    check_loop(answer.message.content)


@pytest.mark.parametrize("streaming", [True, False])
def test_agent(model, tools, streaming):
    async def run():
        agent = FunctionAgent(tools=list(tools.values()), llm=model, streaming=streaming)
        return await agent.run(QUESTION)

    check_loop(str(asyncio.run(run())))


def test_structured(model):
    """By a call that must come."""
    check_city(model.as_structured_llm(City).chat([ChatMessage(role="user", content=DESCRIBE)]).raw)


def test_required(model, tools):
    answer = model.chat_with_tools(list(tools.values()), chat_history=ASKED, tool_required=True)
    assert model.get_tool_calls_from_response(answer)
