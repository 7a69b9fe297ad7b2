"""langchain-ollama: ChatOllama with tools bound to it, and vectors."""
import ollama
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, City, check_cancelled,
                          check_city, check_loop, check_plain, check_usage)


@pytest.fixture(scope="module")
def model(server):
    return ChatOllama(model=server.name, base_url=server.url, temperature=0, num_predict=MAX_TOKENS)


def whole(model, messages):
    return model.invoke(messages)


def streamed(model, messages):
    """Chunks of messages add up by +."""
    total = None
    for chunk in model.stream(messages):
        total = chunk if total is None else total + chunk
    return total


def test_plain(model):
    answer, joined = whole(model, PLAIN), streamed(model, PLAIN)
    check_plain(answer.content, [chunk.content for chunk in model.stream(PLAIN)])
    assert joined.content == answer.content
    for message in (answer, joined):
        u = message.usage_metadata
        check_usage(u["input_tokens"], u["output_tokens"], u["total_tokens"])
        assert message.response_metadata["done_reason"] == "stop"


@pytest.mark.parametrize("way", [whole, streamed])
def test_loop(model, way):
    tools = {name: tool(function) for name, function in FUNCTIONS.items()}
    with_tools, messages = model.bind_tools(list(tools.values())), [HumanMessage(QUESTION)]
    for _ in range(2):
        message = way(with_tools, messages)
        messages.append(message)
        (call,) = message.tool_calls
        messages.append(tools[call["name"]].invoke(call))
    message = way(with_tools, messages)
    assert not message.tool_calls
    check_loop(message.content)


def test_vectors(server):
    vectors = OllamaEmbeddings(model=server.name, base_url=server.url).embed_documents(["mill", "grain"])
    assert len(vectors) == 2 and sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-3)


def test_structured(model):
    """By its default, `format`: Ollama's API has no way to force a call."""
    check_city(model.with_structured_output(City).invoke(DESCRIBE))


def test_errors(model):
    with pytest.raises(ollama.ResponseError):
        model.invoke(TOO_LONG)
    with pytest.raises(ollama.ResponseError):
        list(model.stream(TOO_LONG))


def test_cancellation(model, server):
    def read_some():
        stream = model.model_copy(update={"num_predict": 2000}).stream(LONG)
        next(chunk for chunk in stream if chunk.text)
        stream.close()

    check_cancelled(server, read_some)
