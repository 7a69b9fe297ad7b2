"""Integers beyond 64 bits reach chat templates as Python's json reads them: through every dialect, the command line and
training data. A field that takes a number refuses them."""
import json
import shutil

import pytest

from server_help import Server
from support import call, fixture

BIG = [2**63, -2**63 - 1, 2**64, 10**30, -10**40, 123456789012345678901234567890]
VALUES = {"list": BIG, "inner": {"x": BIG[3], "text": "10000000000000000000000", "pair": [None, "1"]}, "f": 0.1,
          "i": 2**63 - 1}
SHOW = """{%- for m in messages %}[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls or [] %}
{{- c.function.arguments | tojson }}{{ c.function.arguments }}{% endfor %}{% endfor -%}
{{ tools | tojson if tools else '' }}{{ x }}{{ x | tojson if x else '' }}"""
USER = {"role": "user", "content": "hi"}


def answered(arguments):
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"}]


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}


@pytest.fixture(scope="module", name="server")
def show_server(tmp_path_factory):
    file = tmp_path_factory.mktemp("template") / "template"
    file.write_text(SHOW)
    s = Server("mock", "--backend", "mock", "--template", file, "--no-look-ahead")
    yield s
    assert s.stop() == 0


def rendered(server, **body):
    status, _, got = server.post("/apply-template", body)
    assert status == 200, got
    return got["prompt"]


@pytest.mark.parametrize("as_text", [False, True])
def test_arguments(server, as_text):
    arguments = json.dumps(VALUES) if as_text else VALUES
    assert json.dumps(VALUES) + str(VALUES) in rendered(server, messages=answered(arguments))


def test_variables(server):
    text = rendered(server, messages=[USER], chat_template_kwargs={"x": VALUES})
    assert text.endswith(str(VALUES) + json.dumps(VALUES))
    assert rendered(server, messages=[USER], chat_template_kwargs={"x": BIG[0]}).endswith(str(BIG[0]) * 2)


def test_parameters(server):
    parameters = {"type": "object", "properties": {"n": {"type": "integer", "maximum": BIG[3], "enum": BIG[:3]}}}
    sent = tool(parameters)
    assert json.dumps([sent]) in rendered(server, messages=[USER], tools=[sent])


@pytest.mark.parametrize("field", ["seed", "max_tokens", "temperature", "stop", "messages", "tools", "n", "logit_bias",
                                   "chat_template_kwargs", "response_format", "model", "stream"])
def test_fields_refuse_them(server, field):
    for big in BIG:
        status, _, got = server.post("/v1/chat/completions", {"messages": [USER], field: big})
        assert status == 400 and got["error"]["param"] == field, (field, got)
        assert "beyond 64 bits" in got["error"]["message"], got


@pytest.mark.parametrize("body, param", [
    ({"messages": [{"role": "user", "content": BIG[0]}]}, "messages[0].content"),
    ({"messages": [BIG[0]]}, "messages[0]"),
    ({"messages": [{"role": BIG[0], "content": "a"}]}, "messages[0].role"),
    ({"messages": [USER], "tools": [BIG[0]]}, "tools[0]"),
    ({"messages": [USER], "tools": [tool(BIG[0])]}, "tools[0].function.parameters"),
    ({"messages": [USER], "stop": ["a", BIG[0]]}, "stop"),
    ({"messages": [USER], "logit_bias": {"1": BIG[0]}}, "logit_bias"),
])
def test_members_refuse_them(server, body, param):
    status, _, got = server.post("/v1/chat/completions", body)
    assert status == 400 and got["error"]["param"].startswith(param), got


def test_too_many_digits(server):
    digits = "7" * 4300
    body = '{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": %s}}'
    status, _, got = server.post("/apply-template", (body % digits).encode(), **{"Content-Type": "application/json"})
    assert status == 200 and got["prompt"].endswith(digits * 2)
    status, _, got = server.post("/apply-template", (body % (digits + "7")).encode(),
                                 **{"Content-Type": "application/json"})
    assert status == 400 and "an integer has more than 4300 digits" in got["error"]["message"], got


def test_command_line(tmp_path):
    file = tmp_path / "show.jinja"
    file.write_text(SHOW)
    request = {"messages": answered(VALUES), "x": VALUES}
    out = call("template", "--file", file, stdin=request)
    assert out.returncode == 0, out.stderr
    text = out.stdout.decode()
    assert json.dumps(VALUES) + str(VALUES) in text and text.rstrip("\n").endswith(str(VALUES) + json.dumps(VALUES))


def test_training_data(tmp_path):
    """What would be trained, as --show-batch prints it."""
    model, data = tmp_path / "model", tmp_path / "data.jsonl"
    shutil.copytree(fixture("models/qwen3"), model)
    (model / "chat_template.jinja").write_text(SHOW)
    data.write_text(json.dumps({"messages": [*answered(json.dumps({"n": BIG[3]})),
                                             {"role": "assistant", "content": "It is done."}]}) + "\n")
    out = call("train", model, data, "--show-batch")
    assert out.returncode == 0, out.stderr
    assert str({"n": BIG[3]}) in out.stdout.decode(), out.stdout.decode()
