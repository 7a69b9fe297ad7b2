"""Log-probabilities of prompts over HTTP: `echo` with `logprobs` as OpenAI has it, `prompt_logprobs` as vLLM has it."""
import json

import pytest

from server_help import Server, server  # noqa: F401
from support import fixture

HELLO = [{"role": "user", "content": "Hello"}]


def complete(server, **body):
    status, _, got = server.post("/v1/completions", body)
    assert status == 200, got
    return got


def refused(got, param):
    error = got[2]["error"]
    assert got[0] == 400 and error["param"] == param, got
    return error["message"]


def events(server, body):
    text = server.post("/v1/completions", {**body, "stream": True})[2]
    return [json.loads(e[6:]) for e in text.split("\n\n") if e and e != "data: [DONE]"]


@pytest.fixture(scope="module")
def answer(server):
    """What the model goes on with, token by token, and its figures."""
    got = complete(server, prompt="The mill", max_tokens=12, temperature=0, logprobs=3, return_token_ids=True,
                   ignore_eos=True)["choices"][0]
    return {"ids": got["prompt_token_ids"] + got["token_ids"], "n": len(got["prompt_token_ids"]), **got["logprobs"]}


def test_echo(server, answer):
    """What was said once has the same figures, bit by bit, when it is a prompt; also when the cache has it."""
    n = answer["n"]
    for most in (0, 2, 0):
        got = complete(server, prompt=answer["ids"], max_tokens=most, temperature=0, logprobs=3, echo=True,
                       ignore_eos=True)
        lists = got["choices"][0]["logprobs"]
        assert {len(lists[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {n + 12 + most}
        assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
        assert lists["token_logprobs"][n:n + 12] == answer["token_logprobs"]
        assert lists["top_logprobs"][n:n + 12] == answer["top_logprobs"]
        assert lists["tokens"][n:n + 12] == answer["tokens"]
        for token, logprob, top in zip(lists["tokens"][1:], lists["token_logprobs"][1:], lists["top_logprobs"][1:]):
            # Parts of characters have one text, and so one key.
            assert (top[token] == logprob or token == "\ufffd") and len(top) in (2, 3, 4)
        assert got["usage"]["completion_tokens"] == most and got["choices"][0]["finish_reason"] == "length"
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = complete(server, prompt=answer["ids"], max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_echo_of_text(server):
    got = complete(server, prompt="The mill grinds", max_tokens=0, logprobs=0, echo=True)["choices"][0]
    lists = got["logprobs"]
    assert got["text"] == "The mill grinds" and lists["top_logprobs"] is None
    assert "".join(lists["tokens"][1:]) == got["text"] and lists["tokens"][0] == "<|begin_of_text|>"
    at = [len("".join(lists["tokens"][1:i])) for i in range(1, len(lists["tokens"]))]
    assert lists["text_offset"] == [0, *at]


@pytest.mark.parametrize("most", (0, 3))
def test_echo_in_streams(server, most):
    body = {"prompt": ["The mill", "A mill"], "n": 2, "max_tokens": most, "logprobs": 2, "echo": True, "seed": 3,
            "ignore_eos": True, "return_token_ids": True}
    whole = complete(server, **body)["choices"]
    chunks = [c for e in events(server, body) for c in e["choices"]]
    for choice in whole:
        mine = [c for c in chunks if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert sum((c["logprobs"][k] for c in mine if c["logprobs"]), []) == choice["logprobs"][k]
        assert sum((c.get("token_ids", []) for c in mine), []) == choice["token_ids"]
        assert len(choice["token_ids"]) == most


def check_positions(positions, ids, n_top, tokens):
    assert len(positions) == len(ids) and positions[0] is None
    for i, entries in zip(ids[1:], positions[1:]):
        own = entries[str(i)]
        assert next(iter(entries)) == str(i) and set(own) == {"logprob", "rank", "decoded_token"}
        assert own["decoded_token"] == tokens[i]
        ranks = sorted(e["rank"] for e in entries.values())
        assert ranks[:n_top] == list(range(1, n_top + 1)) and len(entries) == n_top + (own["rank"] > n_top)
        by_rank = sorted(entries.values(), key=lambda e: e["rank"])
        assert all(a["logprob"] >= b["logprob"] for a, b in zip(by_rank, by_rank[1:]))


@pytest.mark.parametrize("n_top", (0, 1, 5, 20))
def test_prompt_logprobs(server, answer, n_top):
    """The prompt is what the model said, so each of its tokens is the likeliest, with the figures from before."""
    tokens = dict(zip(answer["ids"][answer["n"]:], answer["tokens"]))
    got = complete(server, prompt=[answer["ids"], answer["ids"][:1]], n=2, max_tokens=1, prompt_logprobs=n_top)
    for choice in got["choices"][:2]:
        positions = choice["prompt_logprobs"]
        said = positions[answer["n"]:]
        assert [p[str(i)]["logprob"] for p, i in zip(said, answer["ids"][answer["n"]:])] == answer["token_logprobs"]
        assert all(p[str(i)]["rank"] == 1 for p, i in zip(said, answer["ids"][answer["n"]:]))
        check_positions([None, *said], [0, *answer["ids"][answer["n"]:]], n_top, tokens)
        assert len(positions) == len(answer["ids"]) and positions[0] is None
    assert [c["prompt_logprobs"] for c in got["choices"][2:]] == [[None], [None]]


def test_prompt_logprobs_of_chats(server):
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, "n": 2,
                                                          "prompt_logprobs": 2, "return_token_ids": True})
    assert status == 200, got
    assert len(got["prompt_logprobs"]) == got["usage"]["prompt_tokens"] == len(got["prompt_token_ids"])
    for i, entries in list(zip(got["prompt_token_ids"], got["prompt_logprobs"]))[1:]:
        assert str(i) in entries and len(entries) in (2, 3)
    assert "prompt_logprobs" not in got["choices"][0]


def test_both_at_once(server):
    """Each has as many as were asked for, though both come of one computation."""
    got = complete(server, prompt="The mill", max_tokens=0, echo=True, logprobs=1, prompt_logprobs=4)["choices"][0]
    assert all(len(p) in (4, 5) for p in got["prompt_logprobs"][1:])
    assert all(len(t) in (1, 2) for t in got["logprobs"]["top_logprobs"][1:])


def test_what_is_refused(server):
    for value in (-1, 21, 1.5, True, "1"):
        refused(server.post("/v1/completions", {"prompt": "a", "prompt_logprobs": value}), "prompt_logprobs")
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HELLO})):
        refused(server.post(path, {**body, "prompt_logprobs": 1, "stream": True}), "prompt_logprobs")
    refused(server.post("/v1/completions", {"prompt": "a", "max_tokens": 0, "logprobs": 1}), "max_tokens")
    ignored = {"prompt": "a", "max_tokens": 1, "prompt_logprobs": 0, "stream": True}
    assert server.post("/v1/completions", ignored)[0] == 200


def test_prompts_without_room():
    """A prompt that fills the context, and figures that take more memory than there is for requests."""
    s = Server(fixture("models/llama"), "--context", 64)
    try:
        ids = [5] * 64
        assert "64 tokens: it fills the context" in refused(
            s.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}), "echo")
        assert "64 tokens" in refused(s.post("/v1/completions", {"prompt": ids, "prompt_logprobs": 1}),
                                      "prompt_logprobs")
        got = complete(s, prompt=ids[1:], prompt_logprobs=1, max_tokens=1)["choices"][0]
        assert len(got["prompt_logprobs"]) == 63
    finally:
        assert s.stop() == 0
