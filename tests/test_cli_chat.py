"""quern chat from a pipe: every line is answered in turn, a failure ends the run, programs read nothing but answers."""
import json

from support import call, fixture


def chat(lines, *options):
    return call("chat", fixture("models/llama"), "-n", 4, "--temp", 0, *options, stdin=lines)


def test_json_is_one_line_per_answer():
    out = chat("hello\n/help\n\n/params\nand again\n", "--json")
    assert out.returncode == 0, out.stderr
    answers = [json.loads(line) for line in out.stdout.decode().splitlines()]
    assert [a["role"] for a in answers] == ["assistant"] * 2
    assert answers[0]["n_prompt_tokens"] < answers[1]["n_prompt_tokens"]
    assert b"/clear" in out.stderr and b"temperature 0" in out.stderr


def test_clear_forgets():
    first, _, again = (json.loads(line) for line in chat("hello\nmore\n/clear\nhello\n", "--json").stdout.splitlines())
    same = ("content", "n_prompt_tokens", "end")
    assert [first[key] for key in same] == [again[key] for key in same]


def test_help_is_the_result_without_json():
    assert b"/clear" in chat("/help\n").stdout


def test_a_failure_ends_the_run():
    for line, word in ((b"/nonsense\n", b"/nonsense"), (b"a\xff\n", b"UTF-8")):
        out = chat(line + b"hello\n", "--json")
        assert out.returncode == 1 and out.stdout == b"", out
        assert word in out.stderr and out.stderr.count(b"\n") == 1
