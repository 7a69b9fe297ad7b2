"""The form of answers on the command line: run, batch, chat; what is refused."""
import json
import re

import pytest

from support import call, fixture

MODEL = "models/llama"
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer", "minimum": 0,
          "maximum": 99}}, "required": ["a", "b"], "additionalProperties": False}
GRAMMARS = ['root ::= "yes" | "no" ("!" | "?")', 'start: "yes" | "no" ("!" | "?")']


def run(*options, **more):
    return call("run", fixture(MODEL), "--raw", "-p", "Hello", "-n", 300, *options, **more)


def text(out):
    assert out.returncode == 0, out.stderr
    return out.stdout.decode()[:-1]


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refused(out, *words, status=1):
    said = out.stderr.decode()
    assert out.returncode == status and not out.stdout, said
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("seed", range(3))
def test_run(seed, tmp_path):
    options = ("--temp", 1, "--seed", seed + 1)
    value = json.loads(text(run("--json-schema", write(tmp_path / "s.json", SCHEMA), *options)))
    assert list(value) == ["a", "b"] and value["a"] in ("x", "yy") and 0 <= value["b"] <= 99
    assert re.fullmatch("[ab]{3,5}c", text(run("--regex", "[ab]{3,5}c", *options)))
    assert text(run("--choices", "red,green,blue", *options)) in ("red", "green", "blue")
    assert text(run("--choices", '["a,b", "c"]', *options)) in ("a,b", "c")
    for grammar in GRAMMARS:
        assert re.fullmatch("yes|no[!?]", text(run("--grammar", write(tmp_path / "g", grammar), *options)))


def test_a_schema_from_standard_input():
    value = json.loads(text(run("--json-schema", "-", "--temp", 0, stdin=json.dumps(SCHEMA))))
    assert list(value) == ["a", "b"]


def test_refusals(tmp_path):
    refused(run("--json-schema", tmp_path / "absent"), "absent")
    refused(run("--json-schema", write(tmp_path / "s", "{")), "s")
    refused(run("--json-schema", write(tmp_path / "s", {"properties": {"a": {"pattern": "(?<=b)\\1"}}})),
            "/properties/a", "pattern")
    refused(run("--grammar", write(tmp_path / "g", "no rules")), "g", "neither")
    refused(run("--grammar", write(tmp_path / "g", "")), "g")
    refused(run("--regex", "(a"), "--regex")
    refused(run("--choices", "[1]"), "--choices")
    refused(run("--regex", "a", "--choices", "b"), "--regex", "--choices", status=2)


def test_batch(tmp_path):
    lines = [{"prompt": "a", "regex": "x{2}"}, {"prompt": "b", "choices": ["q", "rr"]}, {"prompt": "c"},
             {"prompt": "d", "json_schema": SCHEMA}, {"prompt": "e", "grammar": GRAMMARS[0]},
             {"prompt": "f", "json_schema": json.dumps(SCHEMA)}]
    path = write(tmp_path / "in.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    out = call("batch", fixture(MODEL), "--raw", "--jsonl", "-f", path, "-n", 300, "--temp", 1, "--seed", 3,
               "--choices", "one,two")
    assert out.returncode == 0, out.stderr
    got = [json.loads(line)["text"] for line in out.stdout.decode().splitlines()]
    assert got[0] == "xx" and got[1] in ("q", "rr") and got[2] in ("one", "two")
    assert list(json.loads(got[3])) == list(json.loads(got[5])) == ["a", "b"] and re.fullmatch("yes|no[!?]", got[4])
    for line, word in (({"prompt": "a", "regex": "("}, "line 1"), ({"prompt": "a", "regex": 1}, "regex"),
                       ({"prompt": "a", "regex": "a", "choices": ["b"]}, "one form"),
                       ({"prompt": "a", "regex": "a", "grammar": "b"}, "one form")):
        path = write(tmp_path / "in.jsonl", json.dumps(line))
        refused(call("batch", fixture(MODEL), "--raw", "--jsonl", "-f", path, "-n", 3), word)
    path = write(tmp_path / "in.jsonl", json.dumps({"prompt": "a", "regex": "b"}))
    refused(call("score", fixture(MODEL), "--jsonl", "-f", path), "regex", "generates none")


def test_chat(tmp_path):
    write(tmp_path / "s.json", SCHEMA)
    lines = f"""/format choices yes,no
one?
/format
/format schema {tmp_path}/s.json
two?
/format json
/format regex [a-c]{{4}}
three?
/format off
"""
    out = call("chat", fixture(MODEL), "--json", "--temp", 0, "-n", 300, stdin=lines)
    assert out.returncode == 0, out.stderr
    answers = [json.loads(line) for line in out.stdout.decode().splitlines()]
    texts = [a["content"] for a in answers]
    assert texts[0] in ("yes", "no") and list(json.loads(texts[1])) == ["a", "b"]
    assert re.fullmatch("[a-c]{4}", texts[2])
    assert "answers have the form: choices yes,no" in out.stderr.decode()
    for wrong in ("/format xml", "/format schema", "/format regex (", "/format choices"):
        out = call("chat", fixture(MODEL), "--json", stdin=wrong + "\n")
        assert out.returncode == 1, wrong
    out = call("chat", fixture(MODEL), "--json", "--temp", 0, "--choices", "aa,bb", stdin="one?\n")
    assert json.loads(out.stdout)["content"] in ("aa", "bb")
