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
    folder = fixture(f"tokenizers/{name}")
    d = read_json(f"{folder}/chat_cases.json")

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
