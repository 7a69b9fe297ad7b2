"""A budget of reasoning over HTTP: after so many tokens the mark that ends it is forced, and the answer goes on."""
import json

import pytest

from server_help import THOUGHT, Server, parrot
from support import call, fixture

HELLO = [{"role": "user", "content": "What does a mill do?"}]
N_THOUGHT = THOUGHT.index("</think>") - 1
NAMES = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(parrot(tmp_path_factory.mktemp("model"), THOUGHT), "--model-name", "mill")
    yield s
    assert s.stop() == 0


def chat(server, **body):
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "temperature": 0, **body})
    assert status == 200, got
    return got


def parts(got):
    message = got["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"]


def streamed(server, **body):
    text = server.post("/v1/chat/completions", {"messages": HELLO, "temperature": 0, "stream": True, **body})[2]
    deltas = [c["delta"] for e in text.split("\n\n") if e.startswith("data: {")
              for c in json.loads(e[6:])["choices"]]
    return tuple("".join(d.get(k) or "" for d in deltas) for k in ("reasoning_content", "content"))


@pytest.mark.parametrize("n", range(N_THOUGHT + 2))
def test_every_budget(server, n):
    """The reasoning is cut after n tokens; the parrot goes on behind the mark as it always does."""
    got = chat(server, thinking_budget=n, max_tokens=30, return_token_ids=True)
    reasoning, content = parts(got)
    assert reasoning == "".join(THOUGHT[1:1 + min(n, N_THOUGHT)]).strip()
    assert content == "It grinds corn." and "warnings" not in got
    assert streamed(server, thinking_budget=n, max_tokens=30) == (reasoning, content)
    assert got["usage"]["completion_tokens_details"]["reasoning_tokens"] <= n + 1


def test_names(server):
    wanted = parts(chat(server, thinking_budget=2, max_tokens=30))
    assert all(parts(chat(server, max_tokens=30, **{name: 2})) == wanted for name in NAMES)
    assert parts(chat(server, max_tokens=30, reasoning={"max_tokens": 2})) == wanted
    free = parts(chat(server, max_tokens=30))
    assert all(parts(chat(server, max_tokens=30, **{name: -1})) == free for name in NAMES)
    status, _, got = server.post("/v1/messages", {"messages": HELLO, "max_tokens": 30, "temperature": 0,
                                                  "thinking": {"type": "enabled", "budget_tokens": 2}})
    assert status == 200 and "warnings" not in got, got
    assert (got["content"][0]["thinking"].strip(), got["content"][1]["text"]) == wanted


def test_message(server):
    got = chat(server, thinking_budget=1, reasoning_budget_message=" Time is up <think>.", max_tokens=40)
    reasoning, content = parts(got)
    assert reasoning.startswith(THOUGHT[1].strip()) and "Time is up" in reasoning and content.endswith("corn.")


def test_forms(server):
    """The form of an answer begins behind the forced end."""
    got = chat(server, thinking_budget=2, choice=["wheat", "rye"], max_tokens=60)
    reasoning, content = parts(got)
    assert reasoning == "".join(THOUGHT[1:3]).strip() and content in ("wheat", "rye")


def test_company(server):
    """Other requests, guesses and cached prefixes change nothing."""
    alone = chat(server, thinking_budget=3, max_tokens=30, logprobs=True)["choices"]
    many = chat(server, thinking_budget=3, max_tokens=30, logprobs=True, n=4)["choices"]
    assert all(c["message"] == alone[0]["message"] and c["logprobs"] == alone[0]["logprobs"] for c in many)


@pytest.mark.parametrize("field", NAMES)
def test_what_is_refused(server, field):
    for value in (-2, 1.5, True, "3", {}, 2**31):
        status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, field: value})
        assert status == 400 and got["error"]["param"] == field, got
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "reasoning": {"max_tokens": 1}, field: 2})
    assert status == 400 and "different values" in got["error"]["message"], got
    for reasoning, param in (({"max_tokens": -3}, "reasoning.max_tokens"), ({"mystery": 1}, "reasoning.mystery"),
                             ({"enabled": 1}, "reasoning.enabled"), ({"exclude": True}, "reasoning.exclude")):
        status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "reasoning": reasoning})
        assert status == 400 and got["error"]["param"] == param, got


def test_a_model_without_reasoning():
    s = Server(fixture("models/llama"))
    try:
        for field in NAMES:
            got = chat(s, max_tokens=2, **{field: 0})
            assert [w["param"] for w in got["warnings"]] == [field] and "no reasoning" in got["warnings"][0]["message"]
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("options, said", [
    ((), "".join(THOUGHT)),
    (("--reasoning-budget", "-1"), "".join(THOUGHT)),
    (("--reasoning-budget", "2"), "".join([*THOUGHT[:3], *THOUGHT[-4:]])),
    (("--reasoning-budget", "0", "--reasoning-message", " Enough."), "".join([THOUGHT[0], " Enough.", *THOUGHT[-4:]]))])
def test_the_command(tmp_path, options, said):
    """`quern run` has the same budget, and shows the marks as they are."""
    out = call("run", parrot(tmp_path, THOUGHT), "--prompt", "Hello", "-n", "30", *options)
    assert out.returncode == 0 and out.stdout.decode() == said + "\n"
