"""Answers with a form: every field that asks for one, whole and streamed; what is refused, and why.

The backend mock says anything, so an answer that has the form has it because it was held to it.
"""
import json
import pathlib
import re
import shutil

import pytest

from server_help import Server, client, openai
from support import fixture, read_json

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {
    "name": {"enum": ["Ada", "Grace"]}, "born": {"type": "integer", "minimum": 1800, "maximum": 1999},
    "tags": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 3}},
    "required": ["name", "born", "tags"], "additionalProperties": False}
GBNF = 'root ::= "yes" | "no" ("!" | "?")'
LARK = 'start: "yes" | "no" ("!" | "?")'


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--context", 4096)
    yield s
    assert s.stop() == 0


def is_schema(text):
    value = json.loads(text)
    assert list(value) == ["name", "born", "tags"] and value["name"] in ("Ada", "Grace")
    assert value["born"] == int(value["born"]) and 1800 <= value["born"] <= 1999
    assert len(value["tags"]) <= 3 and set(value["tags"]) <= {"x", "yy"}


def matches(pattern):
    def check(text):
        assert re.fullmatch(pattern, text), text
    return check


def is_object(text):
    """A model that says anything seldom ends a string: then the text is cut."""
    assert text.startswith("{")
    if not text.endswith("}"):
        return
    assert isinstance(json.loads(text), dict)


YES = matches("yes|no[!?]")
FIELDS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
     is_schema),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, is_schema),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, is_schema),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"json_schema": SCHEMA}, is_schema),
    ({"json_schema": json.dumps(SCHEMA)}, is_schema),
    ({"guided_json": SCHEMA}, is_schema),
    ({"guided_json": json.dumps(SCHEMA)}, is_schema),
    ({"structured_outputs": {"json": SCHEMA}}, is_schema),
    ({"structured_outputs": {"json_object": True}}, is_object),
    ({"regex": "[a-c]{4,6}x"}, matches("[a-c]{4,6}x")),
    ({"guided_regex": "[a-c]{4,6}x"}, matches("[a-c]{4,6}x")),
    ({"structured_outputs": {"regex": "[a-c]{4,6}x", "choice": None}}, matches("[a-c]{4,6}x")),
    ({"choice": ["red", "green"]}, matches("red|green")),
    ({"guided_choice": ["red", "green"]}, matches("red|green")),
    ({"structured_outputs": {"choice": ["red", "green"]}}, matches("red|green")),
    ({"grammar": GBNF}, YES),
    ({"grammar": LARK}, YES),
    ({"ebnf": GBNF}, YES),
    ({"guided_grammar": GBNF}, YES),
    ({"structured_outputs": {"grammar": LARK}}, YES),
]


def texts_of(server, path, body, ends):
    """The text of an answer, whole and of a stream."""
    status, _, got = server.post(path, body)
    assert status == 200, got
    assert got["choices"][0]["finish_reason"] in ends, got
    status, _, stream = server.post(path, {**body, "stream": True})
    assert status == 200
    events = [json.loads(e[6:]) for e in stream.split("\n\n") if e and e != "data: [DONE]"]
    if path.endswith("/chat/completions"):
        return (got["choices"][0]["message"]["content"],
                "".join(c["delta"].get("content") or "" for e in events for c in e["choices"]))
    return got["choices"][0]["text"], "".join(c["text"] for e in events for c in e["choices"])


@pytest.mark.parametrize("fields, check", FIELDS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fields(server, path, fields, check):
    asked = {"messages": HELLO} if "chat" in path else {"prompt": "Hello"}
    for seed in range(3):
        whole, streamed = texts_of(server, path, {**asked, "max_tokens": 2000, "seed": seed, **fields},
                                   ["stop", "length"] if check is is_object else ["stop"])
        check(whole)
        assert streamed == whole


def test_same_bits(server):
    """n choices, log-probabilities, and a limit that comes first."""
    body = {"messages": HELLO, "max_tokens": 500, "seed": 3, "json_schema": SCHEMA}
    one = server.post("/v1/chat/completions", body)[2]["choices"][0]["message"]["content"]
    many = server.post("/v1/chat/completions", {**body, "n": 3})[2]["choices"]
    assert many[0]["message"]["content"] == one
    for c in many:
        is_schema(c["message"]["content"])
    entries = server.post("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 2})[2]["choices"][0]
    assert entries["message"]["content"] == one
    assert "".join(e["token"] for e in entries["logprobs"]["content"]) == one
    assert all(e["logprob"] <= 0 and len(e["top_logprobs"]) == 2 for e in entries["logprobs"]["content"])
    cut = server.post("/v1/chat/completions", {**body, "max_tokens": 5})[2]["choices"][0]
    assert cut["finish_reason"] == "length" and one.startswith(cut["message"]["content"])


@pytest.mark.parametrize("fields, param", [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "size": 1}}},
     "response_format.json_schema.size"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}}, "response_format"),
    ({"json_schema": {"type": "string", "pattern": "("}}, "json_schema"),
    ({"guided_json": "{"}, "guided_json"),
    ({"regex": "(a"}, "regex"), ({"regex": "a", "choice": ["b"]}, "choice"),
    ({"regex": "a", "json_schema": {}}, "json_schema"),
    ({"grammar": "root"}, "grammar"), ({"grammar": "root ::= x"}, "grammar"), ({"grammar": "start: x"}, "grammar"),
    ({"ebnf": LARK}, "ebnf"), ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"tag": 1}}, "structured_outputs.tag"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice")])
def test_refused(server, fields, param):
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5, **fields})
    assert status == 400 and got["error"]["param"] == param and got["error"]["message"], got


def test_refusals_say_where(server):
    """The JSON pointer and the keyword are in the message."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=b)\\1"}}}
    error = server.post("/v1/chat/completions", {"messages": HELLO, "json_schema": schema})[2]["error"]
    assert error["param"] == "json_schema" and "/properties/a" in error["message"] and "pattern" in error["message"]


def test_fields_left_out(server):
    for fields in ({"response_format": {"type": "text"}}, {"grammar": ""}, {"regex": ""}, {"json_schema": None},
                   {"structured_outputs": {}}, {"guided_json": None}):
        assert server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, **fields})[0] == 200


def test_annotations_are_reported(server):
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "colour", "maxLength": 3}},
              "required": ["a"], "additionalProperties": False}
    got = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 200, "json_schema": schema})[2]
    assert [w["param"] for w in got["warnings"]] == ["json_schema"]
    assert "/properties/a: format" in got["warnings"][0]["message"]


def test_parse(server):
    """The openai client's own .parse() and stream."""
    if not openai:
        pytest.skip("openai is not installed")
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=5)
        born: int = pydantic.Field(ge=1800, le=1999)

    api = client(server)
    got = api.chat.completions.parse(model="mill", messages=HELLO, response_format=Person, max_tokens=500, seed=1)
    assert 1800 <= got.choices[0].message.parsed.born <= 1999
    with api.chat.completions.stream(model="mill", messages=HELLO, response_format=Person, max_tokens=500, seed=1) as s:
        last = s.get_final_completion()
    assert last.choices[0].message.parsed == got.choices[0].message.parsed


# ---- calls of tools ----

def tool(name, strict=None, **properties):
    function = {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(properties),
                                             "additionalProperties": False}}
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


TOOLS = [tool("get_weather", city={"enum": ["Rome", "Paris"]}, days={"type": "integer", "minimum": 1, "maximum": 9}),
         tool("get_time", zone={"enum": ["CET", "UTC"]})]


@pytest.fixture(scope="module")
def caller():
    """A model whose template writes calls as Hermes does; it says anything."""
    s = Server(fixture("models/qwen3"), "--context", 4096)
    yield s
    assert s.stop() == 0


def calls_of(server, **fields):
    """The calls of an answer, whole and of a stream."""
    described = [{**t, "function": {"description": "Looks.", **t["function"]}} for t in TOOLS]
    body = {"messages": HELLO, "tools": described, "max_tokens": 600, **fields}
    status, _, got = server.post("/v1/chat/completions", body)
    assert status == 200, got
    choice = got["choices"][0]
    status, _, text = server.post("/v1/chat/completions", {**body, "stream": True})
    joined = {}
    for event in (json.loads(e[6:]) for e in text.split("\n\n") if e and e != "data: [DONE]"):
        for c in event["choices"]:
            for call in c["delta"].get("tool_calls") or []:
                known = joined.setdefault(call["index"], {"name": "", "arguments": ""})
                known["name"] += call["function"].get("name") or ""
                known["arguments"] += call["function"].get("arguments") or ""
    whole = [c["function"] for c in choice["message"].get("tool_calls") or []]
    assert [joined[i] for i in sorted(joined)] == whole
    return choice, whole


def check_call(call):
    arguments = json.loads(call["arguments"])
    if call["name"] == "get_weather":
        assert set(arguments) == {"city", "days"} and arguments["city"] in ("Rome", "Paris")
        assert 1 <= arguments["days"] <= 9
    else:
        assert call["name"] == "get_time" and list(arguments) == ["zone"] and arguments["zone"] in ("CET", "UTC")


@pytest.mark.parametrize("seed", range(4))
def test_required(caller, seed):
    choice, calls = calls_of(caller, tool_choice="required", seed=seed, parallel_tool_calls=False)
    (call,) = calls
    check_call(call)
    assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"]
    choice, calls = calls_of(caller, tool_choice="required", seed=seed)
    for call in calls if choice["finish_reason"] == "tool_calls" else calls[:-1]:
        check_call(call)


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_by_name(caller, name):
    for seed in range(3):
        _, calls = calls_of(caller, tool_choice={"type": "function", "function": {"name": name}}, seed=seed)
        (call,) = calls
        assert call["name"] == name
        check_call(call)


def test_allowed_tools(caller):
    only = {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}}
    for seed in range(3):
        _, calls = calls_of(caller, tool_choice=only, seed=seed, parallel_tool_calls=False)
        assert [c["name"] for c in calls] == ["get_time"]


def test_auto(caller):
    """Free, until a call is opened: a model that is pushed to the mark goes on with one."""
    choice, calls = calls_of(caller, seed=1, max_tokens=30)
    assert choice["message"]["content"] or calls
    choice, calls = calls_of(caller, seed=1, tool_choice="none", max_tokens=30)
    assert not calls
    config = read_json(fixture("models/qwen3/tokenizer.json"))
    (mark,) = [t["id"] for t in config["added_tokens"] if t["content"] == "<tool_call>"]
    for seed in range(3):
        choice, calls = calls_of(caller, seed=seed, logit_bias={mark: 20}, parallel_tool_calls=False)
        check_call(calls[0])


@pytest.mark.parametrize("seed", range(4))
def test_a_call_or_a_form(caller, seed):
    """Beside response_format an answer is a call, or it has the form."""
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
    choice, calls = calls_of(caller, seed=seed, parallel_tool_calls=False, **fields)
    if calls:
        check_call(calls[0])
    elif choice["finish_reason"] == "stop":
        is_schema(choice["message"]["content"])
    choice, calls = calls_of(caller, seed=seed, tool_choice="required", parallel_tool_calls=False, **fields)
    check_call(calls[0])


def test_strict_and_not(caller):
    """A schema that cannot be enforced refuses a strict tool, and is reported of another one, which takes an object."""
    bad = {"type": "string", "pattern": "(?<=b)\\1"}
    body = {"messages": HELLO, "max_tokens": 300, "tool_choice": "required", "parallel_tool_calls": False, "seed": 2}
    status, _, got = caller.post("/v1/chat/completions", {**body, "tools": [TOOLS[1], tool("f", True, a=bad)]})
    assert status == 400 and got["error"]["param"].startswith("tools"), got
    assert "pattern" in got["error"]["message"]
    status, _, got = caller.post("/v1/chat/completions", {**body, "tools": [tool("f", False, a=bad)]})
    assert status == 200, got
    assert any(w["param"] == "tools" and "pattern" in w["message"] for w in got["warnings"]), got["warnings"]


FAMILIES = ["openai-gpt-oss-120b", "meetkai-functionary-medium-v3.2", "muse-glimmer", "google-gemma-4-31B-it",
            "ollama-gemma4_31b", "LFM2-8B-A1B"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """The same model with the template of a family that writes calls its own way."""
    template = fixture(f"templates/{request.param}.jinja")
    folder = tmp_path_factory.mktemp("family") / "model"
    shutil.copytree(fixture("models/qwen3"), folder)
    config = read_json(folder / "tokenizer_config.json")
    config["chat_template"] = "{%- set bos_token = '' -%}" + pathlib.Path(template).read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    s = Server(folder, "--context", 4096)
    yield s
    assert s.stop() == 0


def test_families_required(family):
    for seed in range(3):
        choice, calls = calls_of(family, tool_choice="required", seed=seed, parallel_tool_calls=False)
        if choice["finish_reason"] == "length":
            continue  # the model still reasons
        (call,) = calls
        check_call(call)
        assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"]


def test_families_by_name(family):
    n = 0
    for seed in range(10):
        only = {"type": "function", "function": {"name": "get_time"}}
        choice, calls = calls_of(family, tool_choice=only, seed=seed)
        if choice["finish_reason"] != "length":
            (call,) = calls
            assert call["name"] == "get_time"
            check_call(call)
            n += 1
    assert n


def test_families_auto(family):
    """Held to nothing but the form of calls, without a warning."""
    for seed in range(3):
        choice, calls = calls_of(family, seed=seed, max_tokens=40)
        assert choice["finish_reason"] == "length" or choice["message"]["content"] or calls
        for call in calls:
            assert call["name"] in ("get_weather", "get_time")
    described = [{**t, "function": {"description": "Looks.", **t["function"]}} for t in TOOLS]
    status, _, got = family.post("/v1/chat/completions", {"messages": HELLO, "tools": described, "max_tokens": 4})
    assert status == 200 and not [w for w in got.get("warnings", []) if "held" in w["message"]], got


def test_families_forms(family):
    """A form that is no call is a message of its own where messages have headers."""
    n = 0
    for seed in range(16):
        body = {"messages": HELLO, "max_tokens": 120, "temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0,
                "seed": seed,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
        status, _, got = family.post("/v1/chat/completions", body)
        assert status == 200, got
        choice = got["choices"][0]
        if choice["finish_reason"] == "stop":
            is_schema(choice["message"]["content"])
            n += 1
    assert n


def test_calls_that_cannot_be_forced(server):
    """The template of this model shows no form of calls."""
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"})
    assert status == 400 and got["error"]["param"] == "tool_choice", got
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "tools": [{**TOOLS[0], "function": {
        **TOOLS[0]["function"], "strict": True}}]})
    assert status == 400 and got["error"]["param"] == "tools", got


# ---- other dialects ----

def messages_of(server, **fields):
    """The blocks of an answer of Anthropic's Messages."""
    status, _, got = server.post("/v1/messages", {"messages": HELLO, "max_tokens": 300, **fields})
    assert status == 200, got
    return got["content"]


def responses_of(server, **fields):
    """The items of a response."""
    status, _, got = server.post("/v1/responses", {"input": "Hello", "max_output_tokens": 300, **fields})
    assert status == 200, got
    return got["output"]


def tool_of_messages(tool):
    function = tool["function"]
    return {"name": function["name"], "input_schema": function["parameters"], "strict": True}


def tool_of_responses(tool):
    return {"type": "function", **tool["function"], "strict": True}


def test_forms_of_other_dialects(server):
    (block,) = messages_of(server, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    is_schema(block["text"])
    (item,) = responses_of(server, text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})
    is_schema(item["content"][0]["text"])
    (item,) = responses_of(server, text={"format": {"type": "json_object"}})
    is_object(item["content"][0]["text"])
    for path, prompt, text_of in (("/api/chat", {"messages": HELLO}, lambda got: got["message"]["content"]),
                                  ("/api/generate", {"prompt": "Hello"}, lambda got: got["response"])):
        for form, check in ((SCHEMA, is_schema), ("json", is_object)):
            status, _, got = server.post(path, {**prompt, "model": "mill", "stream": False, "format": form,
                                                "options": {"num_predict": 300}})
            assert status == 200, got
            check(text_of(got))
    for form, check in (({"json_schema": SCHEMA}, is_schema), ({"grammar": GBNF}, YES)):
        status, _, got = server.post("/completion", {"prompt": "Hello", "n_predict": 300, **form})
        assert status == 200, got
        check(got["content"])


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_other_dialects(caller, seed):
    def is_call(name, arguments):
        if name == "get_time":
            assert list(arguments) == ["zone"] and arguments["zone"] in ("CET", "UTC")
        else:
            assert name == "get_weather" and arguments["city"] in ("Rome", "Paris") and 1 <= arguments["days"] <= 9

    tools = [tool_of_messages(t) for t in TOOLS]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_time"}):
        block = messages_of(caller, tools=tools, tool_choice=choice, top_k=seed + 1)[-1]
        assert block["type"] == "tool_use" and block["name"] in (choice.get("name"), "get_weather", "get_time")
        is_call(block["name"], block["input"])
    tools = [tool_of_responses(t) for t in TOOLS]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    for choice in ("required", {"type": "function", "name": "get_time"}, allowed):
        item = responses_of(caller, tools=tools, tool_choice=choice, parallel_tool_calls=False, top_p=1 - seed / 10,
                            reasoning={"effort": "none"})[-1]
        assert item["type"] == "function_call" and (choice == "required" or item["name"] == "get_time")
        is_call(item["name"], json.loads(item["arguments"]))
