"""Streams with calls of tools, event by event: what OpenAI's clients rely on when they join them.

An entry of delta.tool_calls opens a call (id, type, name) or continues one (arguments). An event has at most one entry
for an index. The event with finish_reason has an empty delta. The models say what they were made to say
(server_help.parrot), so their calls are not held to the tools' schemas; test_server_forms.py has those that are.
"""
import json
import os

import pytest

from server_help import Server, parrot

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}
    for name in ("get_weather", "get_time")]
ZURICH, ROME = {"city": "Zurich", "days": 3}, {"city": "Rome"}

# form: the chat template (None: the model's, which is Hermes), what the model says, the calls in it
FORMS = {
    "hermes": (None, [
        "I look ", "it up.", "\n\n", "<tool_call>", "\n{\"na", "me\": \"get_weather\", ", "\"argu",
        "ments\": {\"ci", "ty\": ", "\"Zu", "rich", "\", \"days\": ", "3}", "}\n", "</tool_call>"],
        [("get_weather", ZURICH)]),
    "hermes, two calls": (None, [
        "<tool_call>", "\n{\"name\": \"get_weather\", ", "\"arguments\": ", "{\"city\": ", "\"Zurich", "\", ",
        "\"days\": 3}}\n", "</tool_call>", "\n<tool_", "call>\n", "{\"name\": \"get_time\", ", "\"arguments\":",
        " {\"ci", "ty\":", " \"Ro", "me\"}", "}\n</tool_", "call>"], [("get_weather", ZURICH), ("get_time", ROME)]),
    "hermes, odd spaces": (None, [
        "<tool_call>", "{\"name\" :", "\"get_weather\",", "\"arguments\"\n", ":{\n  ", "\"city\" : ", "\"Zu\\u007",
        "2ich\",\n  ", "\"days\":3\n", "  }}\n\n", "</tool_call>"], [("get_weather", ZURICH)]),
    "hermes, name last": (None, [
        "<tool_call>", "\n{\"arguments\": ", "{\"city\": \"", "Zurich\",", " \"days\": 3", "}, \"name\":",
        " \"get_weather\"}", "\n</tool_call>"], [("get_weather", ZURICH)]),
    "mistral": ("[TOOL_CALLS]", [
        "[TOOL_CALLS]", " [{\"name\"", ": \"get_weather\", ", "\"arguments\": {", "\"city\": \"Zu", "rich\"",
        ", \"days\"", ": 3", "}}, ", "{\"name\": \"get_time\", \"arg", "uments\": {\"city", "\": \"Ro", "me\"}", "}]"],
        [("get_weather", ZURICH), ("get_time", ROME)]),
    "llama3": ("<|start_header_id|> \"parameters\":", [
        "{\"name\": ", "\"get_weather\", ", "\"parameters\": ", "{\"city\"", ": \"Zu", "rich\", ",
        "\"days\": ", "3}", "}\n"], [("get_weather", ZURICH)]),
    "qwen_coder": ("<tool_call> <function=", [
        "<tool_call>", "\n<function=", "get_weather>\n", "<parameter=city>\n", "Zu", "rich", "\n</parameter>\n",
        "<parameter=days>", "\n3\n", "</parameter>", "\n</function>", "\n</tool_call>"], [("get_weather", ZURICH)]),
    "lfm2": ("<|tool_call_start|>", [
        "I look. ", "<|tool_call_", "start|>[", "get_weather", "(city=", "'Zu", "rich', ", "days", "=3", "), ",
        "get_time(", "city=\"Ro", "me\"", ")]", "<|tool_call_end|>"], [("get_weather", ZURICH), ("get_time", ROME)]),
    "olmo3": ("<function_calls>", [
        "<function_calls>", "\nget_weather(", "city=\"Zu", "rich\"", ", days=", "3)\n", "get_time(city='Ro", "me", "')",
        "\n</function_", "calls>"], [("get_weather", ZURICH), ("get_time", ROME)]),
}
# The name comes first, and the arguments are JSON: they can leave before the call is complete.
EARLY_FORMS = ("hermes", "hermes, two calls", "hermes, odd spaces", "mistral", "llama3", "lfm2", "olmo3")
# Refuses ids as the templates of Mistral's models do.
MISTRAL_IDS = """[TOOL_CALLS]{% for m in messages %}{{ m.content }}
{%- for id in [m.tool_call_id] if m.role == "tool" and id | length != 9 %}{{ raise_exception(id) }}{% endfor %}
{%- for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception(c.id) }}{% endif %}
{%- for x in c.id if x.lower() not in "abcdefghijklmnopqrstuvwxyz0123456789" %}{{ raise_exception(c.id) }}{% endfor %}
{{- c.function | tojson }}{% endfor %}{% endfor %}"""


def say(folder, pieces, template=None):
    options = []
    if template:
        options = ["--template", os.path.join(folder, "template.jinja")]
        with open(options[1], "w") as f:
            f.write(template if "{%" in template else "{#- " + template + " -#}{{ messages | tojson }} Say it:")
    return Server(parrot(folder, pieces), "--free-tool-calls", *options)


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    """The server, what the model says, the calls in it, whether it is of EARLY_FORMS."""
    template, pieces, calls = FORMS[request.param]
    s = say(str(tmp_path_factory.mktemp("model")), pieces, template)
    yield s, pieces, calls, request.param in EARLY_FORMS
    assert s.stop() == 0


def ask(server, **fields):
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "temperature": 0, **fields})
    assert status == 200, got
    return got


def events(server, **fields):
    """[(delta, finish_reason), ...] of each choice."""
    text = ask(server, stream=True, **fields)
    *pieces, end, empty = text.split("\n\n")
    assert (end, empty) == ("data: [DONE]", "")
    found = {}
    for piece in pieces:
        for c in json.loads(piece.removeprefix("data: "))["choices"]:
            found.setdefault(c["index"], []).append((c["delta"], c["finish_reason"]))
    return [found[i] for i in sorted(found)]


def entries(choice):
    """The entries for calls of all events, which must have one for an index at most."""
    found = []
    for delta, _ in choice:
        indices = [entry["index"] for entry in delta.get("tool_calls", [])]
        assert len(indices) == len(set(indices)), delta
        found += delta.get("tool_calls", [])
    return found


def joined(choice):
    """The message that the deltas of a choice add up to, without ids, and its reason."""
    message = {"content": "", "reasoning": "", "calls": []}
    for delta, _ in choice:
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning_content") or ""
        for entry in delta.get("tool_calls", []):
            if entry["index"] == len(message["calls"]):
                message["calls"].append([entry["function"]["name"], ""])
            message["calls"][entry["index"]][1] += entry["function"].get("arguments", "")
    return message, choice[-1][1]


def plain(choice):
    """The same of a choice that came whole."""
    message = choice["message"]
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])]
    return {"content": message["content"] or "", "reasoning": message.get("reasoning_content", ""),
            "calls": calls}, choice["finish_reason"]


def check_end(choice):
    """The reason comes once, in the last event, which says nothing else."""
    assert [reason for _, reason in choice[:-1]] == [None] * (len(choice) - 1)
    assert choice[-1][1] and choice[-1][0] == {}


# ---- calls ----

def test_whole(form):
    server, _, calls, _ = form
    message, reason = plain(ask(server, tools=TOOLS)["choices"][0])
    assert [(name, json.loads(arguments)) for name, arguments in message["calls"]] == calls and reason == "tool_calls"


def test_entries(form):
    """The first entry of a call has all but the arguments, which may begin in it; later ones continue them."""
    server, _, calls, _ = form
    (choice,) = events(server, tools=TOOLS)
    known = 0
    for entry in entries(choice):
        assert type(entry["function"]["arguments"]) is str
        if entry["index"] == known:
            assert set(entry) == {"index", "id", "type", "function"} and entry["type"] == "function" and entry["id"]
            assert set(entry["function"]) == {"name", "arguments"} and entry["function"]["name"] == calls[known][0]
            known += 1
        else:
            assert entry["index"] == known - 1
            assert set(entry) == {"index", "function"} and set(entry["function"]) == {"arguments"}
    assert known == len(calls)


def test_arguments_as_they_are_written(form):
    """Arguments leave token by token, not when the call has ended."""
    server, _, calls, is_early = form
    (choice,) = events(server, tools=TOOLS)
    got = entries(choice)
    for i in range(len(calls)):
        pieces = [entry["function"]["arguments"] for entry in got if entry["index"] == i]
        assert sum(bool(piece) for piece in pieces) > (2 if is_early else 0)


@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": False}, {"n": 2}, {"tool_choice": "none"}])
def test_joined(form, fields):
    server = form[0]
    whole = ask(server, tools=TOOLS, **fields)["choices"]
    streamed = events(server, tools=TOOLS, **fields)
    assert [joined(choice) for choice in streamed] == [plain(choice) for choice in whole]
    assert len(whole) == fields.get("n", 1)


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"tool_choice": "none"}])
def test_end(form, fields):
    for choice in events(form[0], tools=TOOLS, **fields):
        check_end(choice)


def test_cut_short(form):
    """Wherever max_tokens ends the answer, the events add up to what comes whole, and the last one is empty."""
    server, pieces, _, _ = form
    for n in range(1, len(pieces)):
        whole = ask(server, tools=TOOLS, max_tokens=n)["choices"][0]
        (choice,) = events(server, tools=TOOLS, max_tokens=n)
        assert joined(choice) == plain(whole), n
        check_end(choice)


def test_ids(form):
    """No two calls have the same id: not in an answer, not in choices, not in further requests."""
    server, _, calls, _ = form
    ids = [c["id"] for _ in range(3) for choice in ask(server, tools=TOOLS, n=2)["choices"]
           for c in choice["message"]["tool_calls"]]
    ids += [entry["id"] for _ in range(3) for choice in events(server, tools=TOOLS, n=2) for delta, _ in choice
            for entry in delta.get("tool_calls", []) if "id" in entry]
    assert len(ids) == len(set(ids)) == 12 * len(calls)


def test_ids_that_mistral_takes(tmp_path):
    """A loop of tools: the ids that the server made come back to it, and the template accepts them."""
    server = say(str(tmp_path), FORMS["mistral"][1], MISTRAL_IDS)
    try:
        for way in ("whole", "streamed"):
            if way == "whole":
                calls = ask(server, tools=TOOLS)["choices"][0]["message"]["tool_calls"]
            else:
                got = entries(events(server, tools=TOOLS)[0])
                calls = [{"id": e["id"], "type": e["type"], "function": {
                    "name": e["function"]["name"],
                    "arguments": "".join(o["function"]["arguments"] for o in got if o["index"] == e["index"])}}
                    for e in got if "id" in e]
            assert len(calls) == 2
            back = [*HELLO, {"role": "assistant", "content": None, "tool_calls": calls},
                    *({"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in calls)]
            ask(server, messages=back, tools=TOOLS)
    finally:
        assert server.stop() == 0


# ---- text that was held back ----

def test_calls_that_the_template_does_not_show(tmp_path):
    """The loop goes on with a template like LFM2's: calls go into the answer's text as the model writes them."""
    shown = "{#- <|tool_call_start|> -#}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %} Say it:"
    s = say(str(tmp_path), FORMS["lfm2"][1], shown)
    try:
        choice = ask(s, messages=HELLO, tools=TOOLS)["choices"][0]["message"]
        assert len(choice["tool_calls"]) == 2
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in choice["tool_calls"]]
        talk = {"messages": HELLO + [choice] + results, "tools": TOOLS}
        status, _, body = s.post("/apply-template", talk)
        assert status == 200
        assert ("<assistant>I look.\n<|tool_call_start|>[get_weather(city=\"Zurich\", days=3), get_time(city=\"Rome\")]"
                "<|tool_call_end|><tool>sunny<tool>sunny") in body["prompt"]
        warnings = ask(s, messages=talk["messages"], tools=TOOLS)["warnings"]
        assert any("shows no tool calls" in w["message"] for w in warnings)
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("stop, text", [
    (["corn. And"], "It grinds corn."), (["corn. And", "It grind"], ""), (["ds corn.\n\n"], "It grinds corn."),
    (["corn"], "It grinds "), (["Itch", "grinds corn?"], "It grinds corn.")])
def test_possible_stop_strings(tmp_path, stop, text):
    """What could have begun a stop string leaves before the last event, at the end and where max_tokens is."""
    server = say(str(tmp_path), ["It ", "grinds ", "corn."])
    try:
        for n in (1, 2, 3, 8):
            whole = ask(server, stop=stop, max_tokens=n)["choices"][0]
            (choice,) = events(server, stop=stop, max_tokens=n)
            assert joined(choice) == plain(whole)
            check_end(choice)
        assert joined(choice)[0]["content"] == text and choice[-1][1] == "stop"
    finally:
        assert server.stop() == 0


def test_possible_calls(tmp_path):
    """The same of what could have begun a call and did not."""
    pieces = ["A mill ", "<tool", "_ca", "ll grinds", "\n<tool_call>", "\nno", " call at all"]
    server = say(str(tmp_path), pieces)
    try:
        for n in range(1, len(pieces) + 2):
            whole = ask(server, tools=TOOLS, max_tokens=n)["choices"][0]
            (choice,) = events(server, tools=TOOLS, max_tokens=n)
            assert joined(choice) == plain(whole)
            check_end(choice)
        assert joined(choice)[0] == {"content": "".join(pieces), "reasoning": "", "calls": []}
    finally:
        assert server.stop() == 0
