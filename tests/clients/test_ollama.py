"""ollama: the official client of Ollama's API, whole and streamed, with tools, thinking left to the model, errors."""
import ollama
import pytest

from clients_help import DESCRIBE, FUNCTIONS, MAX_TOKENS, PLAIN, QUESTION, City, check_city, check_loop, check_plain
from server_help import until

OPTIONS = {"temperature": 0, "num_predict": MAX_TOKENS}
GONE = "quern_clients_gone_total"


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=server.url, timeout=120)


def check_counts(response):
    assert response.prompt_eval_count > 10 and 2 < response.eval_count <= MAX_TOKENS and response.total_duration > 0


def test_plain(client, server):
    messages = [{"role": "user", "content": PLAIN}]
    whole = client.chat(model=server.name, messages=messages, options=OPTIONS)
    chunks = list(client.chat(model=server.name, messages=messages, options=OPTIONS, stream=True))
    check_plain(whole.message.content, [chunk.message.content for chunk in chunks])
    for last in (whole, chunks[-1]):
        assert last.done and last.done_reason == "stop"
        check_counts(last)


def test_generate(client, server):
    whole = client.generate(model=server.name, prompt=PLAIN, options=OPTIONS)
    chunks = list(client.generate(model=server.name, prompt=PLAIN, options=OPTIONS, stream=True))
    check_plain(whole.response, [chunk.response for chunk in chunks])
    check_counts(chunks[-1])


def streamed(client, **fields):
    """The message that chunks add up to."""
    content, calls = "", []
    for chunk in client.chat(stream=True, **fields):
        content += chunk.message.content or ""
        calls += chunk.message.tool_calls or []
    return ollama.Message(role="assistant", content=content, tool_calls=calls or None)


def whole(client, **fields):
    return client.chat(**fields).message


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(client, server, way):
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        # The client makes tools of functions.
        message = way(client, model=server.name, messages=messages, tools=list(FUNCTIONS.values()), options=OPTIONS)
        (call,) = message.tool_calls
        messages += [message, {"role": "tool", "tool_name": call.function.name,
                               "content": FUNCTIONS[call.function.name](**call.function.arguments)}]
    message = way(client, model=server.name, messages=messages, tools=list(FUNCTIONS.values()), options=OPTIONS)
    assert not message.tool_calls
    check_loop(message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_form(client, server, stream):
    fields = {"model": server.name, "format": City.model_json_schema(), "options": OPTIONS, "stream": stream}
    chat = client.chat(messages=[{"role": "user", "content": DESCRIBE}], **fields)
    text = client.generate(prompt=DESCRIBE, **fields)
    check_city("".join(c.message.content for c in chat) if stream else chat.message.content)
    check_city("".join(c.response for c in text) if stream else text.response)


def test_models(client, server):
    (model,) = client.list().models
    assert model.model == server.name + ":latest" and model.details.family
    assert client.ps().models[0].model == model.model
    shown = client.show(model.model)
    assert "completion" in shown.capabilities and "tools" in shown.capabilities
    assert client.chat(model=model.model, messages=[{"role": "user", "content": PLAIN}], options=OPTIONS).done


def test_vectors(client, server):
    vectors = client.embed(model=server.name, input=["mill", "grain"]).embeddings
    assert len(vectors) == 2 and sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-3)
    assert list(client.embeddings(model=server.name, prompt="mill").embedding) == list(vectors[0])


def test_errors(client, server):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model=server.name, messages=[{"role": "user", "content": PLAIN}], options={"num_ctx": 10**9})
    assert caught.value.status_code == 400 and "num_ctx" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        list(client.generate(model=server.name, prompt="word " * 20000, stream=True))
    assert caught.value.status_code == 400 and "context" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        client.pull("llama3.2")
    assert caught.value.status_code == 501 and "quern serve" in caught.value.error


def test_cancelled(client, server):
    before = server.metrics()[GONE]
    stream = client.generate(model=server.name, prompt="Count.", raw=True, stream=True, options={"num_predict": -1})
    next(stream)
    stream.close()
    until(lambda: server.metrics()[GONE] == before + 1)
