"""openai, the official client: whole answers, raw events joined by hand, and the helper that joins them."""
import json

import openai
import pytest
from openai import OpenAI, pydantic_function_tool

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, TOOLS, City, called,
                          check_cancelled, check_city, check_loop, check_plain, check_usage)


@pytest.fixture(scope="module", params=["server", "mistral"])
def asked(request):
    """The client, and the fields of a request."""
    s = request.getfixturevalue(request.param)
    with OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client.chat.completions, {"model": s.name, "temperature": 0, "max_tokens": MAX_TOKENS}


def hello(text):
    return [{"role": "user", "content": text}]


def whole(chat, **fields):
    """The message as it goes back to the server."""
    return chat.create(**fields).choices[0].message


def by_hand(chat, **fields):
    """Streamed, and joined as OpenAI's guide to function calling shows. It adds the first entry's arguments to
    themselves, so they must be empty there."""
    content, calls, finish = "", {}, None
    for chunk in chat.create(**fields, stream=True):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            if call.index not in calls:
                calls[call.index] = call
            calls[call.index].function.arguments += call.function.arguments
        finish = choice.finish_reason or finish
    assert finish == ("tool_calls" if calls else "stop")
    message = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = [{"id": c.id, "type": c.type, "function": c.function.model_dump()}
                                 for c in calls.values()]
    return message


def by_helper(chat, **fields):
    """Streamed, and joined by the client."""
    with chat.stream(**fields) as events:
        return events.get_final_completion().choices[0].message


WAYS = [whole, by_hand, by_helper]


def test_plain(asked):
    chat, fields = asked
    fields = {**fields, "messages": hello(PLAIN)}
    answer = chat.create(**fields)
    usage = answer.usage
    check_usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    chunks = list(chat.create(**fields, stream=True, stream_options={"include_usage": True}))
    text = answer.choices[0].message.content
    check_plain(text, [c.delta.content for chunk in chunks for c in chunk.choices])
    streamed = chunks[-1].usage
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert by_helper(chat, **fields).content == by_hand(chat, **fields)["content"] == text


@pytest.mark.parametrize("way", WAYS)
def test_loop(asked, way):
    chat, fields = asked
    messages, ids = hello(QUESTION), []
    for turn in range(3):
        message = way(chat, messages=messages, tools=TOOLS, **fields)
        messages.append(message)
        if not isinstance(message, dict):
            message = message.model_dump()
        if turn == 2:
            break
        (call,) = message["tool_calls"]
        assert call["type"] == "function"
        ids.append(call["id"])
        result = FUNCTIONS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    assert not message.get("tool_calls") and len(set(ids)) == 2
    check_loop(message["content"])


def test_events_of_the_helper(asked):
    """Text and arguments come in pieces, with what came so far; the end of either is told once."""
    chat, fields = asked
    for question, tools, kind in ((PLAIN, [], "content"), (QUESTION, TOOLS, "tool_calls.function.arguments")):
        with chat.stream(messages=hello(question), tools=tools, **fields) as events:
            got = [e for e in events if e.type.startswith(kind + ".")]
        *pieces, end = [e for e in got if e.type == kind + ".delta" or e.type == kind + ".done"]
        assert end.type == kind + ".done" and len(pieces) > 2
        if tools:
            assert end.name == "find_capital" and json.loads(end.arguments) == {"country": "Portugal"}
            assert "".join(e.arguments_delta for e in pieces) == pieces[-1].arguments == end.arguments
        else:
            assert "".join(e.delta for e in pieces) == pieces[-1].snapshot == end.content
    assert not called


def test_the_helper_as_the_others(asked):
    """The same message three times; only ids differ."""
    chat, fields = asked
    seen = []
    for way in WAYS:
        message = way(chat, messages=hello(QUESTION), tools=TOOLS, **fields)
        message = message if isinstance(message, dict) else message.model_dump()
        seen.append((message["content"] or "", [c["function"]["name"] + c["function"]["arguments"]
                                                for c in message["tool_calls"]]))
    assert seen[0] == seen[1] == seen[2]


def test_parse(asked):
    """Structured output by a pydantic model, whole and streamed."""
    chat, fields = asked
    fields = {**fields, "messages": hello(DESCRIBE), "response_format": City}
    parsed = chat.parse(**fields).choices[0].message.parsed
    check_city(parsed)
    with chat.stream(**fields) as events:
        assert events.get_final_completion().choices[0].message.parsed == parsed
    text = chat.create(**{**fields, "response_format": {"type": "json_object"}}).choices[0].message.content
    assert text.startswith("{")


def test_parse_strict_tools(asked):
    """A strict tool that must be called; its arguments are parsed."""
    chat, fields = asked
    fields = {**fields, "messages": hello(DESCRIBE), "tools": [pydantic_function_tool(City)]}
    for choice in ("required", {"type": "function", "function": {"name": "City"}}):
        message = chat.parse(**fields, tool_choice=choice).choices[0].message
        (call,) = message.tool_calls[:1]
        assert call.function.name == "City"
        check_city(call.function.parsed_arguments)
        with chat.stream(**fields, tool_choice=choice) as events:
            joined = events.get_final_completion().choices[0].message
        assert [c.function.arguments for c in joined.tool_calls] == [c.function.arguments for c in message.tool_calls]


@pytest.mark.parametrize("way", WAYS)
def test_forced(asked, way):
    """A tool that is named is called, whatever is asked; one call where only one may come."""
    chat, fields = asked
    choice = {"type": "function", "function": {"name": "get_weather"}}
    message = way(chat, messages=hello(PLAIN), tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, **fields)
    message = message if isinstance(message, dict) else message.model_dump()
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)
    assert not whole(chat, messages=hello(QUESTION), tools=TOOLS, tool_choice="none", **fields).tool_calls


def test_errors(asked):
    chat, fields = asked
    with pytest.raises(openai.BadRequestError) as caught:
        whole(chat, messages=hello(TOO_LONG), **fields)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        whole(chat, messages=hello(PLAIN), **{**fields, "temperature": 1000})
    with pytest.raises(openai.BadRequestError):
        next(iter(chat.create(messages=[], stream=True, **fields)))


def test_cancellation(asked, request):
    chat, fields = asked
    server = next(request.getfixturevalue(name) for name in ("server", "mistral")
                  if request.getfixturevalue(name).url in str(chat._client.base_url))

    def read_some():
        with chat.create(messages=hello(LONG), stream=True, **{**fields, "max_tokens": 2000}) as stream:
            next(chunk for chunk in stream if chunk.choices[0].delta.content)

    check_cancelled(server, read_some)
