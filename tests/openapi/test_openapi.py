"""/openapi.json: valid OpenAPI 3.1, and kept by the server: `make test-schemathesis`.

schemathesis makes requests of the description, good ones and bad ones, and looks at each answer: no status of 500 or
more, no content type, status, header or object that is not described, nothing accepted that violates a schema. The
model is a toy.
"""
import os
import re
import subprocess
import sys

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

sys.path.insert(1, os.path.join(os.path.dirname(__file__), "..", "support"))
from server_help import Server

HERE = os.path.dirname(__file__)
MODEL = os.path.join(HERE, "..", "golden", "models", "llama")
N = int(os.environ.get("QUERN_SCHEMATHESIS_N", "15"))
KEY = "anna"


SERVERS = {"": [], "store": [], "keys": ["--api-key", KEY]}


@pytest.fixture(params=SERVERS)
def server(request, tmp_path):
    options = SERVERS[request.param]
    slots = tmp_path / "slots"
    slots.mkdir()
    s = Server(MODEL, "--slot-save-path", slots, *options,
               *(["--store", tmp_path / "store"] if request.param else []))
    s.headers = {"Authorization": "Bearer " + KEY} if options else {}
    yield s
    assert s.stop() == 0


def test_valid(server):
    status, headers, got = server.request("GET", "/openapi.json", None, server.headers)
    assert status == 200 and headers["content-type"] == "application/json"
    OpenAPIV31SpecValidator(got).validate()
    assert got["openapi"].startswith("3.1.") and len(got["paths"]) > 40


def test_schemathesis(server, tmp_path):
    # One worker: Python 3.11's module ast fails in threads beside each other, and hypothesis uses it.
    run = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "st"), "--config-file", os.path.join(HERE, "schemathesis.toml"),
         "run", server.url + "/openapi.json", "--workers", "1", "--max-examples", str(N), "--continue-on-failure",
         "--request-timeout", "60", "--no-color",
         *(x for name, value in server.headers.items() for x in ("-H", f"{name}: {value}"))],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    print(run.stdout)
    assert run.returncode == 0 and int(re.search(r"Tested: +(\d+)", run.stdout)[1]) > 40
    assert server.request("GET", "/health")[0] == 200
