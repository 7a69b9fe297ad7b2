"""What goes wrong inside the server: a model with one token that makes its logits no numbers. That request gets 500,
whole or streamed, and nobody else notices, nor who builds on the same prefix later."""
import os
import shutil
import threading

import numpy as np
import pytest

from server_help import Server, client, openai, read_all
from support import fixture, read_json, rewrite_safetensors
from test_server_load import begin

GOOD = {"prompt": [5, 6, 7, 8], "max_tokens": 200, "seed": 3, "temperature": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """(server, the token)"""
    source, target = fixture("models/llama"), tmp_path_factory.mktemp("model") / "broken"
    shutil.copytree(source, target)
    config = read_json(os.path.join(source, "config.json"))
    assert not config["tie_word_embeddings"]
    bad, width = config["vocab_size"] - 1, config["hidden_size"]

    def change(tensors):
        dtype, shape, raw = tensors["model.embed_tokens.weight"]
        assert dtype == "BF16" and shape[1] == width
        rows = np.frombuffer(raw, np.uint16).reshape(shape).copy()
        rows[bad] = 0x7fc0  # NaN
        tensors["model.embed_tokens.weight"][2] = rows.tobytes()

    os.remove(target / "model.safetensors")
    rewrite_safetensors(os.path.join(source, "model.safetensors"), target / "model.safetensors", change)
    s = Server(target, "--parallel", 3)
    yield s, bad
    assert s.stop() == 0


def test_500(broken):
    s, bad = broken
    for body in ({"prompt": [5, bad], "max_tokens": 3}, {"prompt": [[5, 6], [bad]], "max_tokens": 3, "n": 2}):
        status, headers, got = s.post("/v1/completions", body)
        error = got["error"]
        assert status == 500 and error["type"] == "server_error" and error["code"] == "internal_error", got
        assert set(error) == {"message", "type", "param", "code", "request_id"} and "finite" in error["message"]
        assert error["request_id"] == headers["x-request-id"]
    status, _, got = s.post("/v1/embeddings", {"input": [[5, bad]]})
    assert status == 500 and got["error"]["type"] == "server_error"
    package = openai()
    with pytest.raises(package.InternalServerError) as caught:
        client(s).completions.create(model=s.name, prompt=[5, bad], max_tokens=3)
    assert caught.value.request_id.startswith("req_")


def test_stream(broken):
    """The answer has begun: the error is an event, and there is no [DONE]."""
    s, bad = broken
    with begin(s, {"prompt": [[5, 6, 7, 8], [bad]], "max_tokens": 300, "stream": True, "ignore_eos": True}) as c:
        got = read_all(c)
    assert got.startswith(b"HTTP/1.1 200 ") and b'data: {"error":{' in got and b"[DONE]" not in got
    with pytest.raises(openai().APIError):
        for _ in client(s).completions.create(model=s.name, prompt=[5, bad], max_tokens=3, stream=True):
            pass


def test_nobody_else_notices(broken):
    s, bad = broken
    wanted = s.post("/v1/completions", GOOD)[2]["choices"]
    got = {}

    def ask(i):
        got[i] = s.post("/v1/completions", {**GOOD, "cache_prompt": i % 2 == 0})[2]["choices"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    n = 0
    while any(t.is_alive() for t in threads) or n < 5:
        prompt = [*GOOD["prompt"], *[9] * (n % 40), bad]
        assert s.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})[0] == 500
        n += 1
    for t in threads:
        t.join()
    assert [got[i] == wanted for i in range(4)] == [True] * 4
    # What came before the bad token is of use all the same, what came behind it is not found.
    assert s.post("/v1/completions", {"prompt": [*GOOD["prompt"], bad], "max_tokens": 2})[0] == 500
    assert s.post("/v1/completions", GOOD)[2]["choices"] == wanted
    m = s.metrics()
    assert m["quern_sequences_failed_total"] > n and m["quern_sequences_active"] == m["quern_sequences_queued"] == 0
