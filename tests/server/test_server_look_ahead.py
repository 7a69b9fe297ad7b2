"""What the next turn of a chat will begin with is computed in idle time where the template writes history in another
way than the model said it; and nobody suffers from that."""
import json
import signal
import time

import pytest

from server_help import MODEL, THOUGHT, Server, begin, parrot, read_all, stable, until, wait_for
from support import fixture

ASKED = [{"role": "system", "content": "Be brief, and say what the mill does."}, {"role": "user", "content": "Hello"}]
NEXT = [{"role": "user", "content": "Next one"}]
# It shouts what the assistant has said, but not what it says.
LOUD = """{% for m in messages %}<{{ m.role }}> {{ m.content | upper if m.role == 'assistant' else m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"""
LONG = {"prompt": " bubi xubi", "max_tokens": 100000, "ignore_eos": True, "seed": 1}


# And here every turn is another text from its first character on.
NUMBERED = "{{ messages | length }} " + LOUD


@pytest.fixture
def numbered(tmp_path):
    file = tmp_path / "template"
    file.write_text(NUMBERED)
    return file


@pytest.fixture
def loud(tmp_path):
    file = tmp_path / "template"
    file.write_text(LOUD)
    return file


def chat(server, messages, key=None, **fields):
    """(what a client sends back, usage)"""
    body = {"messages": messages, "seed": 1, **fields}
    status, _, got = server.request("POST", "/v1/chat/completions", body,
                                    {"Authorization": f"Bearer {key}"} if key else {})
    assert status == 200, got
    message = got["choices"][0]["message"]
    return {k: message[k] for k in ("role", "content", "tool_calls") if k in message}, got["usage"]


def streamed(server, messages, **fields):
    status, _, text = server.post("/v1/chat/completions", {"messages": messages, "seed": 1, "stream": True, **fields})
    assert status == 200 and text.endswith("data: [DONE]\n\n")
    deltas = [c["delta"] for e in text.split("\n\n")[:-2] for c in json.loads(e[6:])["choices"] if c["index"] == 0]
    return {"role": "assistant", "content": "".join(d.get("content", "") for d in deltas)}, None


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def count(server, key=None):
    status, _, text = server.request("GET", "/metrics", None, {"Authorization": f"Bearer {key}"} if key else {})
    assert status == 200
    return next(int(line.split()[1]) for line in text.split("\n") if line.startswith("quern_look_aheads_total "))


def is_quiet(server):
    m = server.metrics()
    return m["quern_sequences_active"] == 0 and m["quern_sequences_queued"] == 0 and m["quern_requests_running"] == 1


@pytest.mark.parametrize("options, ask", [([], chat), ([], streamed), (["--no-look-ahead"], chat)])
def test_reasoning_that_is_left_out(tmp_path, options, ask):
    """The template takes the reasoning out of history: with all up to the new message known, or nothing behind it."""
    model = parrot(tmp_path, THOUGHT)
    s = Server(model, *options)
    try:
        first, _ = ask(s, ASKED, temperature=0)
        assert first["content"].strip() == "It grinds corn."
        wanted = stable(model, [*ASKED, first])
        until(lambda: is_quiet(s))
        if options:
            time.sleep(0.2)
            assert count(s) == 0
        else:
            until(lambda: count(s) == 1)
        second, usage = chat(s, [*ASKED, first, *NEXT], temperature=0)
        assert second == first
        assert (cached(usage) >= wanted) == (not options), (usage, wanted)
    finally:
        assert s.stop() == 0


def test_calls_that_are_rewritten(tmp_path):
    """Behind calls a tool speaks next; its conversation is known as well."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    pieces = ["<think>", "\nWhere is ", "it warm?", "\n", "</think>", "\n\n", "<tool_call>", "\n{\"name\":",
              "\"get_weather\",", "\"arguments\":", "{\"city\":\"", "Zurich\"}}", "\n ", "</tool_call>"]
    model = parrot(tmp_path, pieces)
    s = Server(model, "--free-tool-calls")
    try:
        first, _ = chat(s, ASKED, temperature=0, tools=tools)
        (each,) = first["tool_calls"]
        until(lambda: count(s) == 1)
        told = {"role": "tool", "tool_call_id": each["id"]}
        function = {**each["function"], "arguments": json.loads(each["function"]["arguments"])}
        sent = {**first, "content": "", "tool_calls": [{**each, "function": function}]}
        _, usage = chat(s, [*ASKED, first, {**told, **NEXT[0], "role": "tool"}], temperature=0, tools=tools)
        assert cached(usage) >= stable(model, [*ASKED, sent], told, tools=tools), usage
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_5"])
def test_other_ways_to_rewrite(kind, loud):
    """Models with full attention, with windows, and with recurrent layers."""
    model = fixture(f"models/{kind}")
    s = Server(model, "--template", loud)
    try:
        first, _ = chat(s, ASKED, max_tokens=24, temperature=1)
        assert first["content"] != first["content"].upper()
        until(lambda: count(s) == 1)
        _, usage = chat(s, [*ASKED, first, *NEXT], max_tokens=2)
        # What is new are these characters, a token each at most; one may be joined with what stands before it.
        assert usage["prompt_tokens"] - cached(usage) <= len("Next one\n<assistant> ") + 1, usage
        _, alone = chat(s, [*ASKED, first, *NEXT], max_tokens=2, cache_salt="alone")
        assert cached(alone) == 0
    finally:
        assert s.stop() == 0


def test_nothing_to_gain(tmp_path):
    """Where the next turn goes on from what was said nothing is computed ahead."""
    file = tmp_path / "template"
    file.write_text(LOUD.replace(" | upper", ""))
    s = Server("mock", "--backend", "mock", "--template", file)
    try:
        messages = list(ASKED)
        for turn in range(3):
            first, usage = chat(s, messages, max_tokens=20, temperature=1)
            assert turn == 0 or usage["prompt_tokens"] - cached(usage) < 40
            messages += [first, *NEXT]
        until(lambda: is_quiet(s))
        time.sleep(0.1)
        assert count(s) == 0
    finally:
        assert s.stop() == 0


def test_whose_it_is(loud):
    """Salt and key as of the request: nobody else finds what was computed ahead."""
    s = Server("mock", "--backend", "mock", "--template", loud, "--api-key", "a", "--api-key", "b")
    try:
        first, _ = chat(s, ASKED, "a", max_tokens=30, cache_salt="x", temperature=1)
        until(lambda: count(s, "a") == 1)
        more = [*ASKED, first, *NEXT]
        for key, salt, known in (("b", "x", False), ("a", "y", False), ("a", None, False), ("a", "x", True)):
            usage = chat(s, more, key, max_tokens=1, cache_salt=salt)[1]
            assert (usage["prompt_tokens"] - cached(usage) < 40) == known, (key, salt, usage)
        chat(s, ASKED, "a", max_tokens=30, cache_prompt=False, temperature=1)
        time.sleep(0.2)
        assert count(s, "a") == 1  # one token is not worth it, and the last one wanted no prefixes
    finally:
        assert s.stop() == 0


def test_adapters(loud):
    names = [x for name in ("qv", "all") for x in ("--adapter", f"{name}=" + fixture(f"lora/llama_{name}"))]
    s = Server(fixture(MODEL), "--template", loud, *names)
    try:
        first, _ = chat(s, ASKED, max_tokens=24, model="llama+all", temperature=1)
        until(lambda: count(s) == 1)
        for model, known in (("llama", False), ("llama+all", True)):
            usage = chat(s, [*ASKED, first, *NEXT], max_tokens=1, model=model)[1]
            is_known = usage["prompt_tokens"] - cached(usage) <= len("Next one\n<assistant> ") + 1
            assert is_known == known, (model, usage)
    finally:
        assert s.stop() == 0


# ---- it is in nobody's way ----

def test_requests_come_first(numbered):
    """One that arrives while much is computed ahead is answered at once, and then it goes on."""
    s = Server("mock", "--backend", "mock", "--template", numbered, "--context", 20000)
    try:
        body = {"prompt": " bubi kaju", "max_tokens": 30, "seed": 7, "temperature": 1}
        wanted = s.post("/v1/completions", body)[2]["choices"]
        asked = [{"role": "user", "content": " bubi kaju tebo xufi" * 4000}]
        first, _ = chat(s, asked, max_tokens=4, temperature=1)
        until(lambda: s.metrics()["quern_sequences_active"] == 1)
        assert s.post("/v1/completions", body)[2]["choices"] == wanted
        assert count(s) == 0
        until(lambda: count(s) == 1, 60)
        usage = chat(s, [*asked, first, *NEXT], max_tokens=1)[1]
        assert usage["prompt_tokens"] - cached(usage) < 40
    finally:
        assert s.stop() == 0


def test_at_most_a_few(loud):
    """While a stream runs they wait; of many the youngest are left."""
    s = Server("mock", "--backend", "mock", "--template", loud)
    try:
        answers = []
        with begin(s, {**LONG, "stream": True}) as running:
            wait_for(running, b'"text":" ')
            for i in range(7):
                asked = [{"role": "user", "content": f"{i} {i} {i} {i} {i} {i} {i} {i}"}]
                answers.append([*asked, chat(s, asked, max_tokens=30, temperature=1)[0], *NEXT])
            assert count(s) == 0
        until(lambda: count(s) == 4)
        until(lambda: is_quiet(s))
        assert count(s) == 4
        usages = [chat(s, a, max_tokens=1, temperature=0)[1] for a in answers]
        known = [u["prompt_tokens"] - cached(u) < 40 for u in usages]
        assert known == [False] * 3 + [True] * 4
    finally:
        assert s.stop() == 0


# ---- when it fails ----

def test_templates_that_refuse_the_next_turn(tmp_path):
    file = tmp_path / "template"
    file.write_text("{% if messages | length > 1 %}{{ raise_exception('one turn is enough') }}{% endif %}"
                    "{{ messages[0].content }}")
    s = Server("mock", "--backend", "mock", "--template", file)
    try:
        asked = [{"role": "user", "content": " bubi"}]
        wanted = chat(s, asked, max_tokens=20, temperature=1)[0]
        for _ in range(5):
            assert chat(s, asked, max_tokens=20, temperature=1)[0] == wanted
        until(lambda: is_quiet(s))
        assert count(s) == 0
        assert s.post("/v1/chat/completions", {"messages": [*asked, wanted, *NEXT]})[0] == 400
    finally:
        assert s.stop() == 0


def test_contexts_that_are_full(loud):
    """The answer takes all of the context: there is no room for a next turn, and that is no fault."""
    s = Server(fixture(MODEL), "--template", loud, "--context", 100)
    try:
        asked = [{"role": "user", "content": "Hi"}]
        wanted, usage = chat(s, asked, temperature=1, ignore_eos=True)
        assert usage["total_tokens"] >= 99
        assert chat(s, asked, temperature=1, ignore_eos=True)[0] == wanted
        until(lambda: is_quiet(s))
        assert s.metrics()["quern_sequences_failed_total"] == 0
    finally:
        assert s.stop() == 0


# ---- the end ----

@pytest.mark.parametrize("running", [False, True])
def test_end_while_it_is_pending(numbered, running):
    """SIGTERM while it waits, or is computed: it is dropped, and the end is that of what was asked."""
    s = Server("mock", "--backend", "mock", "--template", numbered, "--context", 20000)
    body = {"prompt": " bubi", "max_tokens": 2000, "seed": 3}
    held = begin(s, {**body, "stream": True}) if running else None
    if held:
        got = wait_for(held, b'"text":" ')
    asked = [{"role": "user", "content": " bubi kaju tebo xufi" * 4000}]
    chat(s, asked, max_tokens=4, temperature=1)
    s.process.send_signal(signal.SIGTERM)
    if held:
        got += read_all(held)
        assert b"[DONE]" in got
        held.close()
    began = time.monotonic()
    assert s.process.wait(10) == 0 and time.monotonic() - began < 5
    assert s.stop() == 0
