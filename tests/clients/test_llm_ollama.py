"""llm: the command-line program and library of that name, with its plugin for Ollama."""
import os
import tempfile

# Before the library is imported: its settings and caches lie there.
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp(prefix="quern-llm-")

import llm
import ollama
import pytest

from clients_help import MAX_TOKENS, PLAIN, check_plain


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
        model.prompt("word " * 20000, temperature=0, num_predict=MAX_TOKENS).text()
