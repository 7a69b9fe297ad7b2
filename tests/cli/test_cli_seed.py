"""The seed, the toy model inside quern: what commands do without a model, and with its name."""
import os
import subprocess

from support import QUERN, call, call_json

QUESTION = "What is quern?"
ANSWER = ("Quern is a program and a small C library that runs language models on your own computer, without Python "
          "and without the network.\n")


def expect_seed(out):
    assert out.returncode == 0, out.stderr
    assert out.stdout.decode() == ANSWER
    note = out.stderr.decode()
    assert "the seed answers" in note and "toy" in note and "parameters" in note and "quern run MODEL" in note


def test_it_answers_where_no_model_is_named():
    expect_seed(call("run", QUESTION))
    expect_seed(call("run", "-p", QUESTION))
    expect_seed(call("run", stdin=QUESTION + "\n"))


def test_a_question_may_have_a_slash():
    out = call("run", "How much is 1/2 and 1/4?", "-n", 5)
    assert out.returncode == 0 and out.stdout and b"the seed answers" in out.stderr


def test_its_name_is_a_model():
    for name in ("seed", "seed:"):
        out = call("run", name, "-p", QUESTION)
        assert (out.returncode, out.stdout.decode(), out.stderr) == (0, ANSWER, b"")


def test_the_same_text_on_any_number_of_threads():
    texts = {call("run", "seed", "-t", n, "-p", "Tell me a story.", "-n", 120).stdout for n in (1, 2, 3)}
    assert len(texts) == 1 and len(texts.pop()) > 100


def test_a_path_that_is_missing_is_no_question(tmp_path):
    for path in ("nowhere", "no where/model", str(tmp_path / "my model")):
        out = call("run", path, "-p", QUESTION)
        assert out.returncode == 1 and out.stdout == b"" and b"No such file" in out.stderr, out
    out = call("run", str(tmp_path / "my model"))
    assert out.returncode == 1 and b"No such file" in out.stderr


def test_a_file_of_that_name_wins(tmp_path):
    (tmp_path / "seed").write_bytes(b"no model")
    out = subprocess.run([os.path.abspath(QUERN), "run", "seed", "-p", QUESTION], cwd=tmp_path, capture_output=True)
    assert out.returncode == 1 and b"not a model" in out.stderr
    out = subprocess.run([os.path.abspath(QUERN), "run", "seed:", "-p", QUESTION], cwd=tmp_path, capture_output=True)
    assert out.stdout.decode() == ANSWER


def test_nothing_lies_beside_it(tmp_path):
    def quern(*args):
        return subprocess.run([os.path.abspath(QUERN), *args], cwd=tmp_path, capture_output=True)

    (tmp_path / "seed:.qpack").write_bytes(b"nothing of it")
    out = quern("run", "seed", "-p", QUESTION)
    assert (out.returncode, out.stdout.decode(), out.stderr) == (0, ANSWER, b"")
    out = quern("pack", "seed")
    assert out.returncode == 1 and b"need a path" in out.stderr and b"-o" in out.stderr
    assert quern("pack", "seed", "-o", "own.qpack").returncode == 0
    out = quern("run", "seed", "-p", QUESTION, "--packed", "own.qpack")
    assert (out.returncode, out.stdout.decode(), out.stderr) == (0, ANSWER, b"")


def test_all_commands_take_it():
    ids = call_json("tokenize", "seed", "--json", stdin="a mill")["ids"]
    assert call("tokenize", "seed", "--decode", stdin={"ids": [ids]}).stdout.decode().strip() == "a mill"
    assert call_json("inspect", "seed", "--json")["files"][0]["size_bytes"] > 1000000
    found = call_json("models", "seed:", "--json")["models"]
    assert [(m["path"], m["model_type"], m["status"]) for m in found] == [("seed:", "llama", "QN_OK")]
    assert call("doctor", "seed").returncode == 0
    assert call("score", "seed", stdin="In the beginning God created the heaven and the earth.").returncode == 0
    assert b"Quern is a program" in call("chat", "seed", "--temp", 0, stdin=QUESTION + "\n").stdout


def test_the_first_token_comes_at_once():
    stats = call_json("run", "seed", "-p", QUESTION, "--json")
    assert stats["metrics"]["load_total_ms"] < 5000
