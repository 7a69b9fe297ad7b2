"""anthropic, the official client: whole answers, raw events, the helper that joins them, counting, errors."""
import anthropic
import pytest

from clients_help import (DESCRIBE, FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, TOOLS, City, check_city, check_loop,
                          check_plain, check_usage)

OWN_TOOLS = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
             for f in (tool["function"] for tool in TOOLS)]


@pytest.fixture(scope="module")
def asked(server):
    """The client, and the fields of a request."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client, {"model": server.name, "max_tokens": MAX_TOKENS, "extra_body": {"temperature": 0}}


def hello(text):
    return [{"role": "user", "content": text}]


def whole(client, **fields):
    return client.messages.create(**fields)


def by_helper(client, **fields):
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


WAYS = [whole, by_helper]


def usage(message):
    u = message.usage
    prompt = u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens
    check_usage(prompt, u.output_tokens, prompt + u.output_tokens)
    return prompt, u.output_tokens


def test_plain(asked):
    client, fields = asked
    fields = {**fields, "messages": hello(PLAIN)}
    answer = whole(client, **fields)
    with client.messages.stream(**fields) as stream:
        check_plain(answer.content[0].text, list(stream.text_stream))
        joined = stream.get_final_message()
    assert [b.text for b in joined.content] == [b.text for b in answer.content] and usage(joined) == usage(answer)
    assert answer.stop_reason == joined.stop_reason == "end_turn" and answer._request_id
    kinds = [e.type for e in client.messages.create(**fields, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    count = client.messages.count_tokens(model=fields["model"], messages=fields["messages"])
    assert count.input_tokens == usage(answer)[0]


@pytest.mark.parametrize("way", WAYS)
def test_loop(asked, way):
    client, fields = asked
    messages, ids = hello(QUESTION), []
    for turn in range(3):
        message = way(client, messages=messages, tools=OWN_TOOLS, **fields)
        messages.append({"role": "assistant", "content": message.content})
        if turn == 2:
            break
        assert message.stop_reason == "tool_use"
        (call,) = (b for b in message.content if b.type == "tool_use")
        ids.append(call.id)
        result = FUNCTIONS[call.name](**call.input)
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": result}]})
    assert message.stop_reason == "end_turn" and len(set(ids)) == 2
    check_loop(message.content[0].text)


def test_the_runner_of_tools(asked):
    client, fields = asked
    tools = [anthropic.beta_tool(f) for f in FUNCTIONS.values()]
    last = client.beta.messages.tool_runner(messages=hello(QUESTION), tools=tools, **fields).until_done()
    check_loop(last.content[0].text)


def test_stop_sequences(asked):
    client, fields = asked
    text = whole(client, messages=hello(PLAIN), **fields).content[0].text
    answer = whole(client, messages=hello(PLAIN), stop_sequences=["never", "Paris"], **fields)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")
    assert answer.content[0].text == text[:text.index("Paris")]


def test_system_prompts_and_answers_that_are_begun(asked):
    client, fields = asked
    begun = [*hello(PLAIN), {"role": "assistant", "content": "The capital of France is"}]
    answer = whole(client, messages=begun, system=[{"type": "text", "text": "Be short.", "cache_control": {
        "type": "ephemeral"}}], **fields)
    assert "Paris" in answer.content[0].text
    assert answer.usage.cache_creation_input_tokens + answer.usage.cache_read_input_tokens > 10


def test_models(asked):
    client, fields = asked
    (model,) = client.models.list()
    assert model.id == client.models.retrieve(model.id).id == fields["model"] and model.type == "model"
    assert model.created_at.year > 2020


def test_form(asked):
    client, fields = asked
    form = {"format": {"type": "json_schema", "schema": City.model_json_schema()}}
    fields = {**fields, "extra_body": {**fields.get("extra_body", {}), "output_config": form}}
    check_city(whole(client, messages=hello(DESCRIBE), **fields).content[0].text)


def test_forced(asked):
    client, fields = asked
    answer = whole(client, messages=hello(PLAIN), tools=OWN_TOOLS, tool_choice={"type": "any"}, **fields)
    assert answer.stop_reason == "tool_use" and answer.content[-1].name in FUNCTIONS


def test_errors(asked):
    client, fields = asked
    with pytest.raises(anthropic.BadRequestError) as caught:
        whole(client, messages=[], **fields)
    assert caught.value.body["error"]["type"] == "invalid_request_error" and caught.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        whole(client, messages=hello(PLAIN), tools=OWN_TOOLS, tool_choice={"type": "tool", "name": "nobody"}, **fields)
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/nothing", cast_to=object)


def test_cancellation(asked, server):
    client, fields = asked
    gone = server.metrics()["quern_clients_gone_total"]
    with client.messages.create(messages=hello("Tell a very long story."), stream=True, **{
            **fields, "max_tokens": 2000}) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                break
    assert server.metrics()["quern_clients_gone_total"] == gone + 1
