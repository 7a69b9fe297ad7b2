"""llm: the command-line program and library of that name, with its plugin for Ollama."""
import os
import tempfile

# Before the library is imported: its settings and caches lie there.
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp(prefix="quern-llm-")

import llm
import ollama
import pytest

from clients_help import (DESCRIBE, FUNCTIONS, LONG, MAX_TOKENS, PLAIN, QUESTION, TOO_LONG, City, check_cancelled,
                          check_city, check_loop, check_plain)


@pytest.fixture(scope="module")
def model(server):
    patch = pytest.MonkeyPatch()
    patch.setenv("OLLAMA_HOST", server.url)
    (found,) = [m.model for m in llm.get_models_with_aliases() if m.model.model_id.startswith("ollama/" + server.name)]
    yield found
    patch.undo()


def test_plain(model):
    whole = model.prompt(PLAIN, stream=False, temperature=0, num_predict=MAX_TOKENS).text()
    check_plain(whole, list(model.prompt(PLAIN, stream=True, temperature=0, num_predict=MAX_TOKENS)))


def test_conversation(model):
    talk = model.conversation()
    assert "Paris" in talk.prompt(PLAIN, temperature=0, num_predict=MAX_TOKENS).text()
    assert talk.prompt("And of Italy?", temperature=0, num_predict=MAX_TOKENS).text()


def test_errors(model):
    with pytest.raises(ollama.ResponseError):
        model.prompt(TOO_LONG, temperature=0, num_predict=MAX_TOKENS).text()


def test_form(model):
    check_city(model.prompt(DESCRIBE, schema=City, stream=False, temperature=0, num_predict=MAX_TOKENS).text())


def test_loop(model):
    chain = model.chain(QUESTION, tools=list(FUNCTIONS.values()), stream=False,
                        options={"temperature": 0, "num_predict": MAX_TOKENS})
    check_loop(chain.text())


def test_cancellation(model, server):
    def read_some():
        pieces = iter(model.prompt(LONG, stream=True, temperature=0, num_predict=2000))
        next(pieces)
        pieces.close()

    check_cancelled(server, read_some)
