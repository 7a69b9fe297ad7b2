"""openai's Responses: whole answers, raw events, the helper that joins them, counting, errors."""
import json

import openai
import pytest

from clients_help import (DESCRIBE, FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, TOOLS, City, check_city, check_loop,
                          check_plain, check_usage)

OWN_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module")
def asked(server):
    """The client, and the fields of a request."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client, {"model": server.name, "max_output_tokens": MAX_TOKENS, "temperature": 0}


def whole(client, **fields):
    return client.responses.create(**fields)


def by_hand(client, **fields):
    *_, last = client.responses.create(**fields, stream=True)
    assert last.type == "response.completed"
    return last.response


def by_helper(client, **fields):
    with client.responses.stream(**fields) as stream:
        return stream.get_final_response()


WAYS = [whole, by_hand, by_helper]


def usage(response):
    u = response.usage
    check_usage(u.input_tokens, u.output_tokens, u.total_tokens)
    return u.input_tokens, u.output_tokens


def test_plain(asked):
    client, fields = asked
    fields = {**fields, "input": PLAIN}
    answer = whole(client, **fields)
    pieces = [e.delta for e in client.responses.create(**fields, stream=True) if e.type == "response.output_text.delta"]
    check_plain(answer.output_text, pieces)
    assert by_hand(client, **fields).output_text == by_helper(client, **fields).output_text == answer.output_text
    assert usage(by_helper(client, **fields)) == usage(answer) and answer.status == "completed"
    count = client.responses.input_tokens.count(model=fields["model"], input=PLAIN)
    assert count.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize("way", WAYS)
def test_loop(asked, way):
    client, fields = asked
    items = [{"role": "user", "content": QUESTION}]
    for turn in range(3):
        response = way(client, input=items, tools=OWN_TOOLS, store=False, **fields)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        if turn == 2:
            break
        (call,) = (item for item in response.output if item.type == "function_call")
        result = FUNCTIONS[call.name](**json.loads(call.arguments))
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    assert all(item.type != "function_call" for item in response.output)
    check_loop(response.output_text)


def test_events_of_the_helper(asked):
    client, fields = asked
    with client.responses.stream(input=PLAIN, **fields) as stream:
        got = list(stream)
    assert [e.sequence_number for e in got] == list(range(len(got)))
    pieces = [e for e in got if e.type == "response.output_text.delta"]
    assert pieces[-1].snapshot == "".join(e.delta for e in pieces)


def test_parse(asked):
    client, fields = asked
    check_city(client.responses.parse(input=DESCRIBE, text_format=City, **fields).output_parsed)


def test_errors(asked):
    client, fields = asked
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        whole(client, input=PLAIN, previous_response_id="resp_1", **fields)
    with pytest.raises(openai.BadRequestError, match="text.format"):
        whole(client, input=PLAIN, text={"format": {"type": "xml"}}, **fields)
    with pytest.raises(openai.NotFoundError, match="stores no responses"):
        client.responses.retrieve(whole(client, input=PLAIN, **fields).id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_1")


def test_cancellation(asked, server):
    client, fields = asked
    gone = server.metrics()["quern_clients_gone_total"]
    with client.responses.create(input="Tell a very long story.", stream=True, **{
            **fields, "max_output_tokens": 2000}) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    assert server.metrics()["quern_clients_gone_total"] == gone + 1
