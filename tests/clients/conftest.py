"""`quern serve` as it is called by the client libraries that people use: `make test-clients`.

One file for each library, written as its documentation says. Each asks for plain text and for an answer that needs two
tools one after the other, whole and streamed; the library runs the tools and sends their results back. The model is
SmolLM2-135M (tools/fetch-models) at temperature 0. It copies calls out of the examples in tools.jinja, and because it
computes the same bits each time, a loop that once worked stays so. mistral.jinja has the same examples in Mistral's
form and refuses ids that Mistral's templates refuse.

need_clients in tools/setup.sh installs the libraries; QUERN names the program. Each file runs alone (tests/run does
that), because two need another version of openai than the rest. A test fails if a library calls another machine:

    QUERN=build/release/quern ~/.cache/quern/clients/bin/python -m pytest tests/clients/test_openai.py
"""
import os
import sys

# Before any library is imported.
os.environ.update({
    "ANONYMIZED_TELEMETRY": "False", "DO_NOT_TRACK": "1", "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LANGCHAIN_TRACING_V2": "false", "LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False", "LOGFIRE_SEND_TO_LOGFIRE": "false", "NO_PROXY": "127.0.0.1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "OPENAI_API_KEY": "none", "OTEL_SDK_DISABLED": "true"})
sys.path.insert(1, os.path.join(os.path.dirname(__file__), "..", "support"))

import pytest

pytest.register_assert_rewrite("clients_help", "test_openai")

import clients_help
from server_help import Server
from support import real_model

elsewhere = []


def stay_here(event, args):
    """An audit hook: no connection to, and no look-up of, another machine."""
    if event == "socket.connect":
        host = args[1][0] if isinstance(args[1], tuple) else "localhost"
    elif event == "socket.getaddrinfo":
        host = args[0] or "localhost"
    else:
        return
    if host not in ("127.0.0.1", "localhost", "::1", b"127.0.0.1", b"localhost"):
        elsewhere.append(host)
        raise OSError(f"a client called {host}")


sys.addaudithook(stay_here)


@pytest.fixture(autouse=True)
def clean():
    clients_help.called.clear()
    yield
    assert not elsewhere


def serve(template):
    s = Server(real_model("smollm2"), "--template", os.path.join(os.path.dirname(__file__), template))
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="session")
def server():
    yield from serve("tools.jinja")


@pytest.fixture(scope="session")
def mistral():
    yield from serve("mistral.jinja")
