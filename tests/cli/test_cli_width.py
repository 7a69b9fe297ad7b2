"""Help, tables and messages fit the terminal: on a pty of 60, 80 and 200 columns no line is wider and no word is cut.
In a pipe help has 80 columns, and a row of a table stays one line, for programs."""
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import unicodedata

import pytest

from support import QUERN, call, fixture

WIDTHS = [60, 80, 200]


def columns(line):
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def on_terminal(width, *args, env=None):
    """The lines that quern shows on a terminal, without styles and without what was written over."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    own = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    p = subprocess.Popen([QUERN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                         env={**own, "TERM": "xterm-256color", **(env or {})})
    os.close(slave)
    out = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    os.close(master)
    p.wait(timeout=60)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.decode().replace("\r\n", "\n"))
    return [part for line in text.split("\n") for part in line.split("\r") if part.strip()]


def check(lines, width, whole=()):
    """whole: words that may be wider than a line: paths, which are copied."""
    assert lines
    for line in lines:
        fits = columns(line) <= width or any(line.strip() == w or line.strip() == f"{w}:" for w in whole)
        assert fits, (width, columns(line), line)


def commands():
    text = call("--help").stdout.decode()
    return re.findall(r"^  (\w+) ", text.split("Commands:\n")[1], re.M)


@pytest.fixture(scope="module", name="models")
def models_folder(tmp_path_factory):
    """A folder of models, one of them with a long name, one broken."""
    folder = tmp_path_factory.mktemp("m")
    for name in ("llama", "qwen3"):
        shutil.copytree(fixture("models/" + name), folder / name)
    shutil.copytree(fixture("models/llama"), folder / ("a-long-name-of-a-model-" * 3 + "it"))
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "broken" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{      }")
    return folder


@pytest.mark.parametrize("width", WIDTHS)
def test_help(width):
    words = {tuple(" ".join(on_terminal(200, c, "--help", "all")).split()) for c in commands()}
    check(on_terminal(width, "--help"), width)
    for command in commands():
        for more in ((), ("all",)):
            lines = on_terminal(width, command, "--help", *more)
            check(lines, width)
            if more and width >= 80:
                assert tuple(" ".join(lines).split()) in words, command


def test_help_in_a_pipe():
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    for args in (["--help"], *([c, "--help", "all"] for c in commands())):
        shown = [subprocess.run([QUERN, *args], capture_output=True, env={**env, **more}, text=True).stdout.split("\n")
                 for more in ({}, {"COLUMNS": "60"}, {"COLUMNS": "no"})]
        assert max(map(len, shown[0])) <= 80 and max(map(len, shown[1])) <= 60 and shown[2] == shown[0], args


@pytest.mark.parametrize("width", WIDTHS)
def test_tables(width, models):
    paths = [str(models / name) for name in os.listdir(models)]
    lines = on_terminal(width, "models", models)
    check(lines, width, paths)
    assert all(any(line.strip().endswith(p) for line in lines) for p in paths)
    assert not any(line.endswith(" ") for line in lines)
    for model in ("llama", "qwen3"):
        files = [str(models / model / "model.safetensors")]
        check(on_terminal(width, "inspect", models / model), width, files)
        check(on_terminal(width, "doctor", models / model), width)
    check(on_terminal(width, "doctor", models / "broken"), width)
    check(on_terminal(width, "--version"), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_of_tensors(width, models):
    """Each value stands under its heading, whatever the layout."""
    lines = on_terminal(width, "inspect", models / "qwen3", "--tensors")
    at = lines.index("tensors") + 1
    is_split = lines[at].strip() == "name"
    head = lines[at + is_split]
    starts = [head.index(w) for w in ("type", "shape")]
    ends = [head.index(w) + len(w) for w in ("bytes", "offset")]
    rows = [line for line in lines[at + 1 + is_split:lines.index("types")] if "[" in line]
    assert len(rows) == 47
    for row in rows:
        assert row[starts[0]:].startswith(("BF16", "F32")) and row[starts[1]] == "[", (head, row)
        assert all(row[e - 1].isdigit() and (e == len(row) or row[e] == " ") for e in ends), (head, row)


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_and_messages(width, models, tmp_path):
    data, model = tmp_path / "d.jsonl", models / "qwen3"
    talk = {"messages": [{"role": "user", "content": "What turns?"}, {"role": "assistant", "content": "The mill."}]}
    data.write_text((json.dumps(talk) + "\n") * 10)
    check(on_terminal(width, "bench", model, "--precision", "high", "--prompt-tokens", 16, "--decode-tokens", 4), width)
    check(on_terminal(width, "train", model, data, "-o", tmp_path / "out", "--epochs", 2), width,
          [str(tmp_path / "out"), f"quern chat {model} \\", f"--adapter {tmp_path / 'out' / 'last'}",
           str(tmp_path / "out" / "last")])
    adapter, fused = tmp_path / "out" / "last", tmp_path / "fused"
    check(on_terminal(width, "fuse", model, "--adapter", adapter, "-o", fused), width, [str(fused)])
    for args in (("train", model, data, "--dry-run"), ("eval", model, data), ("score", model, "-p", "The mill"),
                 ("classify", model, "-p", "The", "--choices", "a,b"), ("run", model, "--no-such-option"),
                 ("rnu",), ("run", model, "-p", "x", "--temp", "-1"), ("train", model), ("bench", models / "broken")):
        lines = on_terminal(width, *args)
        check(lines, width, [str(models / "broken"), str(model)])


def test_pipes_have_whole_rows(models):
    """What programs read does not depend on a width."""
    for args in (("models", models), ("doctor", models / "llama", "--no-compute"), ("--version",)):
        shown = [call(*args, env={"COLUMNS": c}).stdout for c in ("40", "500")]
        assert shown[0] == shown[1]
    assert str(models / "llama") in call("models", models).stdout.decode()
