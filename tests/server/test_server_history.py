"""Conversations as clients send them back: ids of other servers, arguments that are no JSON, system messages anywhere,
an answer that the client has begun. What the model's template does not take is changed and told, or refused by a
sentence that names the message.

Most of it runs on the backend mock with templates that a test writes; prompts are compared by their tokens.
"""
import json

import pytest

from server_help import MODEL, Server, parrot, stable, until
from support import call_json, fixture

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "a": {"type": "string"}}}}}]
USER = {"role": "user", "content": "bubi kaju"}

# Roles must alternate, ids have nine letters, one system message in front.
STRICT = """{%- if messages[0].role == 'system' %}<S>{{ messages[0].content }}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- set ns = namespace(asks=true) %}
{%- for m in rest %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != ns.asks %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.asks = not ns.asks %}<{{ m.role }}>{{ m.content }}
{%- elif m.role == 'assistant' %}{% for c in m.tool_calls %}
{%- if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
{#- #}<call {{ c.id }}>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine letters') }}
{%- endif %}<result {{ m.tool_call_id }}>{{ m.content }}
{%- else %}{{ raise_exception('a role that is not known: ' + m.role) }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""

# No system message, no calls, no results: what it does not know it leaves out.
PLAIN = """{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""

# Arguments are an object, or it fails; and one call is all that it shows.
PAIRS = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}
{%- for k, v in m.tool_calls[0].function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def on(template, tmp_path_factory, *options):
    file = tmp_path_factory.mktemp("template") / "template"
    file.write_text(template)
    return Server("mock", "--backend", "mock", "--template", file, "--no-look-ahead", *options)


@pytest.fixture(scope="module", name="strict")
def strict_server(tmp_path_factory):
    s = on(STRICT, tmp_path_factory)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module", name="plain")
def plain_server(tmp_path_factory):
    s = on(PLAIN, tmp_path_factory)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module", name="pairs")
def pairs_server(tmp_path_factory):
    s = on(PAIRS, tmp_path_factory)
    yield s
    assert s.stop() == 0


def ask(server, messages, **fields):
    return server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0, **fields})


def chat(server, messages, **fields):
    """(the text, tokens of the prompt, {param: sentence} of the warnings)"""
    status, _, got = ask(server, messages, **fields)
    assert status == 200, got
    warnings = {w["param"]: w["message"] for w in got.get("warnings", []) if w["param"] != "tools"}
    return got["choices"][0]["message"]["content"], got["usage"]["prompt_tokens"], warnings


def refused(server, messages, param, *words, **fields):
    status, _, got = ask(server, messages, **fields)
    assert status == 400, got
    assert got["error"]["param"] == param and all(w in got["error"]["message"] for w in words), got
    return got["error"]["message"]


def same(server, messages, others, *params, **fields):
    """Both are the same prompt; the first one has these warnings, the second none."""
    text, n, warnings = chat(server, messages, **fields)
    assert sorted(warnings) == sorted(params), warnings
    assert chat(server, others, **fields) == (text, n, {})
    return warnings


def call(id="abcde1234", arguments='{"a": "bubi"}', name="f"):
    function = {"name": name, **({} if arguments is ... else {"arguments": arguments})}
    return {"type": "function", "function": function, **({} if id is None else {"id": id})}


def called(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(id="abcde1234", content="kaju"):
    return {"role": "tool", "content": content, **({} if id is None else {"tool_call_id": id})}


def said(role, content):
    return {"role": role, "content": content}


# ---- ids of calls ----

def test_ids_of_other_servers(strict):
    """The case of Mistral's templates: ids that are refused are replaced, alike in calls and results."""
    for id in ("call_94068ec57832460f_0_0", "call_0123456789abcdef01234567", "1", "toolu_é"):
        text, n, warnings = chat(strict, [USER, called(call(id)), result(id)], tools=TOOLS)
        assert list(warnings) == ["messages"] and "ids" in warnings["messages"]
        assert n == chat(strict, [USER, called(call()), result()], tools=TOOLS)[1]
    assert chat(strict, [USER, called(call()), result()], tools=TOOLS)[2] == {}
    for calls, results in (([call(None)], [result(None)]), ([call(None), call(None)], [result(None), result(None)])):
        assert list(chat(strict, [USER, called(*calls), *results], tools=TOOLS)[2]) == ["messages"]


def test_ids_that_any_template_takes(pairs):
    for id in ("call_94068ec57832460f_0_0", None, ""):
        assert chat(pairs, [USER, called(call(id)), result(id)], tools=TOOLS)[2] == {}
    assert chat(pairs, [USER, result("unknown")], tools=TOOLS)[2] == {}


def test_calls_of_old_clients(pairs):
    new = [USER, called(call(None)), {**result(None), "name": "f"}]
    old = [USER, {"role": "assistant", "content": None, "function_call": call()["function"]},
           {"role": "function", "name": "f", "content": "kaju"}]
    same(pairs, old, new)


# ---- arguments ----

@pytest.mark.parametrize("arguments", ['{"a": "bu', "[1, 2]", "7", "null", '"a"', '{"a": NaN}', '{"a": 1e999}',
                                       "[" * 3000, '{"a": 1} {"b": 2}', [1], 7, True, "\x00"])
def test_arguments_that_are_no_object(strict, pairs, arguments):
    """As text where the template writes any value, {} where it must have an object; and always told."""
    messages = [USER, called(call(), call("abcde5678", arguments)), result(), result("abcde5678")]
    _, n, warnings = chat(strict, messages, tools=TOOLS)
    assert list(warnings) == ["messages[1].tool_calls[1]"]
    assert n > chat(strict, [USER, called(call(), call("abcde5678", "{}")), result(), result("abcde5678")],
                    tools=TOOLS)[1] - 2
    messages = [USER, called(call("x", arguments)), result("x")]
    text, n, warnings = chat(pairs, messages, tools=TOOLS)
    assert list(warnings) == ["messages[1].tool_calls[0]"] and "empty" in warnings["messages[1].tool_calls[0]"]
    assert (text, n, {}) == chat(pairs, [USER, called(call("x", "{}")), result("x")], tools=TOOLS)


def test_arguments_that_say_nothing(pairs):
    for arguments in ("", "  \n", None, ..., {}, "{}"):
        same(pairs, [USER, called(call("x", arguments)), result("x")], [USER, called(call("x", "{}")), result("x")])
    # Of members with one key the last counts, as in Python.
    same(pairs, [USER, called(call("x", '{"a": "bubi", "a": "kaju"}')), result("x")],
         [USER, called(call("x", '{"a": "kaju"}')), result("x")])
    same(pairs, [USER, called(call("x", {"a": "kaju"})), result("x")],
         [USER, called(call("x", '{"a": "kaju"}')), result("x")])


def test_many_bad_arguments(pairs):
    messages = [USER] + [m for i in range(100) for m in (called(call(str(i), "{")), result(str(i)), USER)]
    status, _, got = ask(pairs, messages, tools=TOOLS)
    params = [w["param"] for w in got["warnings"] if w["param"] != "tools"]
    assert status == 200 and len(params) == 16
    assert params[0] == "messages[1].tool_calls[0]" and params[-1] == "messages"


def test_calls_made_together(pairs):
    """A template that shows one call of a message gets one message for each."""
    together = [USER, called(call("x"), call("y", '{"a": "tebo"}'), content="lumo"), result("y", "vevi"), result("x")]
    apart = [USER, called(call("x"), content="lumo"), result("x"), called(call("y", '{"a": "tebo"}'), content=""),
             result("y", "vevi")]
    warnings = same(pairs, together, apart, "messages", tools=TOOLS)
    assert "parallel calls" in warnings["messages"]


# ---- system messages ----

def test_several_system_messages(strict):
    first, second = said("system", "tebo"), said("developer", "vevi")
    whole = said("system", "tebo\n\nvevi")
    for messages, others in (([first, second, USER], [whole, USER]),
                             ([first, USER, said("assistant", "a"), second, USER],
                              [whole, USER, said("assistant", "a"), USER]),
                             ([USER, said("assistant", "a"), first, USER],
                              [first, USER, said("assistant", "a"), USER])):
        assert "joined" in same(strict, messages, others, "messages")["messages"]


def test_system_messages_where_they_are(pairs):
    """A template that takes them anywhere gets them so."""
    many = [said("system", "tebo"), USER, said("system", "vevi"), USER, said("system", "lumo")]
    chat_ = chat(pairs, many)
    assert chat_[2] == {} and chat_[1] != chat(pairs, [said("system", "tebo\n\nvevi\n\nlumo"), USER, USER])[1]


def test_no_system_message(plain):
    for messages in ([said("system", "tebo"), USER], [USER, said("system", "tebo")]):
        warnings = same(plain, messages, [said("user", "tebo\n\nbubi kaju")], "messages")
        assert "first user message" in warnings["messages"]
    same(plain, [said("system", "tebo"), said("system", "vevi"), USER], [said("user", "tebo\n\nvevi\n\nbubi kaju")],
         "messages")
    same(plain, [said("system", "tebo")], [said("user", "tebo")], "messages")


def test_neighbours(strict, plain):
    same(strict, [USER, USER, said("assistant", "a"), said("assistant", "b"), USER],
         [said("user", "bubi kaju\n\nbubi kaju"), said("assistant", "a\n\nb"), USER], "messages")
    assert chat(plain, [USER, USER])[2] == {}
    # Both at once: a system message that is moved makes neighbours.
    same(strict, [USER, said("system", "tebo"), USER], [said("system", "tebo"), said("user", "bubi kaju\n\nbubi kaju")],
         "messages")
    assert "alternate" in refused(strict, [said("assistant", "a"), USER], "messages")


def test_what_is_not_shown(plain, strict):
    refused(plain, [USER, called(call()), result()], "messages[1].tool_calls[0]", "messages[1].tool_calls[0]: ",
            "calls", tools=TOOLS)
    refused(plain, [USER, said("assistant", "a"), result()], "messages[2]", "messages[2]: ", "results", tools=TOOLS)
    refused(plain, [USER, said("assistant", "a"), {"role": "function", "name": "f", "content": "x"}], "messages[2]",
            "results")
    # What is beside calls is only told.
    _, _, warnings = chat(strict, [USER, called(call(), content="tebo"), result()], tools=TOOLS)
    assert list(warnings) == ["messages[1].content"]


def test_long_conversations(plain, strict):
    """4096 messages of one role are joined in little time."""
    messages = [said("user", "a")] * 4096
    status, _, got = ask(strict, messages)
    assert status in (200, 400), got
    assert status == 200 or got["error"]["code"] == "context_length_exceeded"
    refused(plain, [USER] * 4095 + [result()], "messages[4095]")


# ---- an answer that was begun ----

@pytest.fixture(scope="module", name="llama")
def llama_server():
    s = Server(fixture(MODEL))
    yield s
    assert s.stop() == 0


def rendered(messages, **variables):
    request = {"messages": messages, "add_generation_prompt": True, **variables}
    return call_json("template", fixture(MODEL), "--provenance", "--json", stdin=request)


CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize("content", ["The mill", "The mill ", " a\nb\n", "<|eot_id|>", "", [
    {"type": "text", "text": "The"}, {"type": "text", "text": "mill"}]])
@pytest.mark.parametrize("fields", [{}, {"continue_final_message": True}, {"add_generation_prompt": False}, CONTINUED])
def test_continued_answers(llama, content, fields):
    """The tokens are those that a completion of the open prompt brings, whole and streamed, and no more text."""
    messages = [said("system", "Be brief."), said("user", "Hello"), said("assistant", content)]
    flat = content if isinstance(content, str) else "\n".join(p["text"] for p in content)
    prompt = rendered([*messages[:-1], said("assistant", flat)], **CONTINUED)
    assert prompt["text"].rstrip().endswith(flat.strip())
    options = {"max_tokens": 8, "temperature": 0}
    status, _, whole = llama.post("/v1/completions", {"prompt": prompt["ids"], **options})
    assert status == 200
    text, n, warnings = chat(llama, messages, **fields, **options)
    assert (text, n, warnings) == (whole["choices"][0]["text"], len(prompt["ids"]), {})
    status, _, events = ask(llama, messages, stream=True, **fields, **options)
    deltas = [c["delta"].get("content", "") for e in events.split("\n\n")[:-2] for c in json.loads(e[6:])["choices"]]
    assert "".join(deltas) == text


def test_new_turns_after_an_answer(llama):
    messages = [said("user", "Hello"), said("assistant", "The mill")]
    for fields in ({"continue_final_message": False}, {"add_generation_prompt": True}):
        assert chat(llama, messages, **fields)[1] == len(rendered(messages)["ids"])


def test_continued_questions(llama):
    """As transformers does, a message of any role."""
    messages = [said("user", "Hello, I")]
    assert chat(llama, messages, continue_final_message=True)[1] == len(rendered(messages, **CONTINUED)["ids"])


def test_what_cannot_be_continued(llama, strict, tmp_path_factory):
    begun = [USER, said("assistant", "a")]
    refused(llama, begun, "continue_final_message", continue_final_message=True, add_generation_prompt=True)
    refused(llama, [USER], "add_generation_prompt", add_generation_prompt=False)
    refused(llama, begun, "add_generation_prompt", add_generation_prompt=False, continue_final_message=False)
    refused(llama, begun, "continue_final_message", continue_final_message="yes")
    refused(strict, [USER, called(call())], "messages[1].tool_calls", "continue_final_message", tools=TOOLS)
    assert chat(strict, [USER, called(call())], tools=TOOLS, continue_final_message=False)[2] == {}
    s = on("{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}", tmp_path_factory)
    try:
        refused(s, [USER, said("assistant", "tebo</think>vevi")], "messages", "cannot be continued")
        assert chat(s, [USER, said("assistant", "vevi")])[2] == {}
    finally:
        assert s.stop() == 0


def test_continued_after_changes(strict):
    """A conversation that does not fit is made to, and goes on from its last message."""
    same(strict, [USER, USER, said("assistant", "a"), said("assistant", "b")],
         [said("user", "bubi kaju\n\nbubi kaju"), said("assistant", "a\n\nb")], "messages")


def test_continued_reasoning(tmp_path):
    """What goes on from reasoning is reasoning up to the mark that closes it."""
    s = Server(parrot(tmp_path, ["grinds corn.", "\n</think>", "\n\n", "It grinds."]))
    try:
        for begin in ("<think>\nThe mill ", "<think>", "The user asks.\n<think>\nA mill "):
            status, _, got = ask(s, [USER, said("assistant", begin)], max_tokens=20)
            message = got["choices"][0]["message"]
            assert status == 200 and message["content"].strip() == "It grinds.", message
            assert message["reasoning_content"].strip() == "grinds corn."
        for messages in ([USER, said("assistant", "<think>\nx\n</think>\n\nThe")],
                         [said("user", "<think>"), said("assistant", "a")]):
            status, _, got = ask(s, messages, max_tokens=20)
            assert status == 200 and got["choices"][0]["message"]["content"].startswith("grinds corn."), got
    finally:
        assert s.stop() == 0


def test_next_turn_of_a_continued_answer(tmp_path):
    """The client sends begin and rest as one message, and that is what is computed ahead."""
    model = parrot(tmp_path, ["<think>", " A mill ", "</think>", "\n\n", "It grinds ", "corn."])
    s = Server(model)
    try:
        begin = "Well: "
        asked = [said("user", "What does it do?"), said("assistant", begin)]
        status, _, got = ask(s, asked, max_tokens=20)
        assert status == 200
        whole = [asked[0], said("assistant", begin + got["choices"][0]["message"]["content"])]
        until(lambda: s.metrics()["quern_sequences_active"] == 0 and s.metrics()["quern_requests_running"] == 1)
        wanted = stable(model, whole)
        status, _, got = ask(s, [*whole, said("user", "Next one")], max_tokens=1)
        assert status == 200 and got["usage"]["prompt_tokens_details"]["cached_tokens"] >= wanted - 1
    finally:
        assert s.stop() == 0
