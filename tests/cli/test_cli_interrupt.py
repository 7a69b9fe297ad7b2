"""Ctrl-C: it ends a run that has not begun to answer; logits leave nothing behind, nor with SIGTERM and SIGHUP."""
import json
import signal
import subprocess
import time

import pytest

from support import QUERN, fixture, heed_interrupt


def start(*args, stdin=subprocess.DEVNULL):
    return subprocess.Popen([QUERN, *map(str, args)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=heed_interrupt)


def interrupt(args, ready, number=signal.SIGINT):
    """Sends the signal as soon as ready() holds; returns the exit status."""
    process = start(*args)
    for _ in range(6000):
        if ready() or process.poll() is not None:
            break
        time.sleep(0.005)
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


def test_run_before_its_first_token():
    # A shell shows 130 for both.
    status = interrupt(["run", fixture("models/llama"), "--raw", "-p", "hi", "--ignore-eos", "--rotate"], lambda: True)
    assert status in (130, -signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_logits_leave_nothing_behind(tmp_path, number):
    folder = tmp_path / "out"
    folder.mkdir()
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps({"ids": [[i % 600 for i in range(512)]] * 200}))
    args = ["logits", fixture("models/llama"), "--ids", ids, "-o", folder / "o.safetensors", "--slots", 1]
    assert interrupt(args, lambda: any(folder.iterdir()), number) == 130
    assert not list(folder.iterdir())


def test_chat_from_a_pipe():
    """Ctrl-C ends it where it waits for a line, and in an answer, whatever lines are left."""
    process = start("chat", fixture("models/llama"), "-n", "0", "--ignore-eos", "--rotate", stdin=subprocess.PIPE)
    process.stdin.write(b"hello\nmore\n")
    process.stdin.flush()
    assert process.stdout.read(50)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error == b"", error
    waiting = start("chat", fixture("models/llama"), "-n", "1", stdin=subprocess.PIPE)
    waiting.stdin.write(b"hello\n")
    waiting.stdin.flush()
    assert waiting.stdout.readline()  # it answered, and waits for the next line
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(timeout=60) == 130
