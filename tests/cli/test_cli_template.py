"""quern template: every chat case of the tokenizer fixtures and every real template, through the command line."""
import json
import os

import pytest

from support import ROOTS, call, each, fixture, mismatches, read_json
from test_cli_tokenize import NAMES


def render(request, *args):
    """(exit status, printed JSON)"""
    out = call("template", *args, "--json", stdin=request)
    try:
        return out.returncode, json.loads(out.stdout.decode())
    except ValueError:
        return out.returncode, {"printed": out.stdout.decode(), "stderr": out.stderr.decode()}


@pytest.mark.parametrize("name", NAMES)
def test_renders_every_chat_case(name):
    cases = fixture(f"tokenizers/{name}/chat_cases.json")
    folder, d = os.path.dirname(cases), read_json(cases)

    def one(c):
        status, got = render({"messages": c["messages"], "now": d["now"], **c["options"]}, folder)
        if "error" in c:
            words = c["error"].split(":", 1)[-1].strip()
            return c["name"], (status, words in got.get("error", "")), (1, True)
        return c["name"], (status, got.get("text"), got.get("ids")), (0, c["text"], c["ids"])

    mismatches(each(one, d["cases"]))


def real_templates():
    for root in ROOTS:
        folder = os.path.join(root, "templates")
        if os.path.isdir(folder):
            return sorted(f[:-len(".cases.json")] for f in os.listdir(folder) if f.endswith(".cases.json"))
    return []


@pytest.mark.parametrize("name", real_templates() or ["none here"])
def test_renders_a_real_template(name):
    template = fixture(f"templates/{name}.jinja")
    d = read_json(fixture(f"templates/{name}.cases.json"))

    def one(c):
        status, got = render({"now": d["clock"], **c["context"]}, "--file", template)
        if "error" in c:
            if not c["error"]["raised_by_template"]:  # a type error and the like: leniency is a choice
                return c["name"], status in (0, 1), True
            return c["name"], (status, c["error"]["message"] in got.get("error", "")), (1, True)
        return c["name"], (status, got.get("text")), (0, c["text"])

    mismatches(each(one, d["cases"]))


@pytest.mark.parametrize("builtin, text", [
    ("gemma", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"),
    ("qwen", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    ("llama3", "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n"),
])
def test_built_in_formats(builtin, text):
    status, got = render({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
                         "--builtin", builtin)
    assert status == 0 and got["text"].endswith(text), got


@pytest.mark.parametrize("unit, times, words", [
    ("{% for i in range(10**9) %}{% endfor %}", 1, "line 1: a range has more than 100000 numbers"),
    ("a\n{{ 'x'*10**9 }}", 1, "line 2: more than 8388608 bytes of output"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 1,
     "line 1: the template nests or recurses deeper than 1000 levels"),
    ("{{ ''.__class__.__mro__ }}", 1, "line 1: access to attribute '__class__' of 'str' object is unsafe"),
    ("{{ '{0.__class__}'.format('') }}", 1, "line 1: access to attribute '__class__' of 'str' object is unsafe"),
    ("{% include '/etc/passwd' %}", 1, "line 1: 'include' is not allowed in a chat template"),
    ("{{ [[[[", 2000, "line 1: brackets nest too deeply"),
    ("{% if 1 %}", 5000, "line 1: nested more than 160 levels deep"),
    (" ", 1048577, "the template has 1048577 bytes, at most 1048576 are allowed"),
])
def test_hostile_templates(unit, times, words, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text(unit * times)
    status, got = render({"messages": [{"role": "user", "content": "Hi"}]}, "--file", path)
    assert status == 1 and got["error"] == f"{path}: {words}", got


@pytest.mark.parametrize("text, words", [
    ("x", "standard input: line 1 column 1: "),
    ("[]", "standard input: the request is not a JSON object"),
    ('{"messages":[{"role":1}]}', "messages[0].role: expected a string"),
    ('{"messages":[{"role":"user","content":NaN}]}', "standard input: line 1 column 41: "),
    ('{"messages":[{"role":"user","content":"\\ud800"}]}', "standard input: line 1 column 46: "),
    (b'{"messages":[{"role":"user","content":"\xff"}]}', "standard input: line 1 column 39: "),
    ('{"messages":' + "[" * 3000, "standard input: "),
])
def test_requests_that_are_none(text, words):
    out = call("template", fixture("models/llama"), "--json", stdin=text)
    assert out.returncode == 1 and json.loads(out.stdout)["error"].startswith(words), out.stdout


def test_provenance_and_generation_prompt_are_what_run_feeds():
    """The request of README's example."""
    model, prompt = fixture("models/llama"), "Hello <s> there"
    request = {"messages": [{"role": "user", "content": prompt}], "add_generation_prompt": True}
    ids = render(request, model, "--provenance")[1]["ids"]
    out = call("run", model, "-p", prompt, "-n", 1, "--json")
    assert json.loads(out.stdout)["n_prompt_tokens"] == len(ids)
    del request["add_generation_prompt"]
    assert len(render(request, model, "--provenance")[1]["ids"]) < len(ids)  # false by default


def test_a_message_cannot_forge_special_tokens():
    model = fixture("models/llama")
    special = [t for t in read_json(f"{model}/tokenizer.json")["added_tokens"] if t["special"]]
    ids = {t["id"] for t in special}

    def count(content):
        status, got = render({"messages": [{"role": "user", "content": content}]}, model, "--provenance")
        assert status == 0, got
        return sum(i in ids for i in got["ids"])

    assert special and count("".join(t["content"] for t in special)) == count("x")
