"""How `quern serve` begins and ends: prompts kept over a restart, the seed without MODEL, a context that rotates."""
import os
import signal

from server_help import Server
from support import fixture

PROMPT = "The mill by the river turns all day, and the miller counts his sacks. " * 4


def complete(server, **fields):
    status, _, body = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, **fields})
    assert status == 200, body
    return body


def cached(body):
    return body["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def ended(server, number=signal.SIGTERM):
    """Exit status and what it said on standard error."""
    server.process.send_signal(number)
    said = server.process.stderr.read().decode()
    return server.stop(), said


def test_prompts_outlive_the_server(tmp_path):
    cache = tmp_path / "prompts"
    model = fixture("models/llama")
    first = Server(model, "--prompt-cache", cache)
    before = complete(first)
    assert cached(before) == 0 and not cache.exists()
    assert first.stop() == 0
    assert cache.exists()
    second = Server(model, "--prompt-cache", cache)
    after = complete(second)
    assert cached(after) > len(PROMPT) // 8
    assert after["choices"][0]["text"] == before["choices"][0]["text"]
    assert second.stop() == 0


def test_prompts_are_saved_when_asked(tmp_path):
    cache = tmp_path / "prompts"
    model = fixture("models/llama")
    server = Server(model, "--prompt-cache", cache, "--api-key", "k")
    key = {"Authorization": "Bearer k"}
    assert server.request("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, key)[0] == 200
    assert server.request("POST", "/prompt-cache")[0] == 401
    assert server.request("GET", "/prompt-cache", headers=key)[0] == 405
    assert server.request("POST", "/prompt-cache", {}, key)[::2] == (200, {"status": "saved"})
    assert cache.exists()
    server.process.kill()  # it saves nothing at the end
    server.stop()
    again = Server(model, "--prompt-cache", cache, "--api-key", "k")  # prompts are kept for each key apart
    assert cached(again.request("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, key)[2]) > 0
    assert again.stop() == 0


def test_no_prompt_cache(tmp_path):
    server = Server("mock", "--backend", "mock")
    status, _, body = server.post("/prompt-cache", {})
    assert status == 400 and "--prompt-cache" in body["error"]["message"]
    assert server.stop() == 0


def test_a_file_that_is_something_else_stays(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("These are my notes.\n")
    server = Server(fixture("models/llama"), "--prompt-cache", notes)
    complete(server)
    status, _, body = server.post("/prompt-cache", {})
    assert status >= 400 and "left unchanged" in body["error"]["message"], body
    code, said = ended(server)
    assert code == 1 and "left unchanged" in said
    assert notes.read_text() == "These are my notes.\n"


def test_a_place_that_cannot_be_written(tmp_path):
    server = Server(fixture("models/llama"), "--prompt-cache", tmp_path / "missing" / "prompts")
    complete(server)
    status, _, body = server.post("/prompt-cache", {})
    assert status == 500, body
    code, said = ended(server)
    assert code == 1 and "missing" in said


def test_the_seed_without_a_model():
    server = Server()
    assert server.name == "seed"
    status, _, body = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}],
                                                           "max_tokens": 3})
    assert status == 200 and body["model"] == "seed" and body["choices"][0]["message"]["content"]
    code, said = ended(server)
    assert code == 0 and "the seed answers" in said and "quern serve MODEL" in said


def test_a_model_that_does_not_open(tmp_path):
    server = Server(tmp_path / "nothing", wait=False)
    said = server.process.stderr.read().decode()
    assert server.stop() == 1 and "nothing" in said


def test_a_context_that_rotates():
    server = Server(fixture("models/llama"), "--context", 48, "--rotate")
    body = complete(server, prompt="The mill", max_tokens=100, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 100 and body["choices"][0]["finish_reason"] == "length"
    for tokens, truncated in ((20, False), (100, True)):
        own = server.post("/completion", {"prompt": "The mill", "n_predict": tokens, "ignore_eos": True})[2]
        assert own["tokens_predicted"] == tokens and own["truncated"] == truncated
    assert server.stop() == 0
    plain = Server(fixture("models/llama"), "--context", 48)
    assert complete(plain, prompt="The mill", max_tokens=100, ignore_eos=True)["usage"]["completion_tokens"] < 48
    asked = complete(plain, prompt="The mill", max_tokens=100, ignore_eos=True, truncation="auto")
    assert asked["choices"][0]["text"] == body["choices"][0]["text"]
    status, _, refused = plain.post("/v1/completions", {"prompt": "x", "truncation": "middle"})
    assert status == 400 and refused["error"]["param"] == "truncation"
    status, _, refused = plain.post("/v1/completions", {"prompt": PROMPT, "truncation": "auto"})
    assert status == 400 and refused["error"]["code"] == "context_length_exceeded"
    assert plain.stop() == 0


def test_no_file_is_left_behind(tmp_path):
    cache = tmp_path / "prompts"
    server = Server(fixture("models/llama"), "--prompt-cache", cache)
    complete(server)
    assert server.post("/prompt-cache", {})[0] == 200
    assert server.stop() == 0
    assert os.listdir(tmp_path) == ["prompts"]
