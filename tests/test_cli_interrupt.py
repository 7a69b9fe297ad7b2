"""Ctrl-C: it ends a run that has not begun to answer, and logits leave nothing behind."""
import json
import signal
import subprocess
import time

from support import QUERN, fixture


def interrupt(args, ready):
    """Sends Ctrl-C as soon as ready() holds; returns the exit status."""
    process = subprocess.Popen([QUERN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(6000):
        if ready() or process.poll() is not None:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return process.returncode


def test_run_before_its_first_token():
    # A shell shows 130 for both.
    status = interrupt(["run", fixture("models/llama"), "--raw", "-p", "hi", "--ignore-eos", "--rotate"], lambda: True)
    assert status in (130, -signal.SIGINT)


def test_logits_leave_nothing_behind(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps({"ids": [[i % 600 for i in range(512)]] * 200}))
    args = ["logits", fixture("models/llama"), "--ids", ids, "-o", folder / "o.safetensors", "--slots", 1]
    assert interrupt(args, lambda: any(folder.iterdir())) == 130
    assert not list(folder.iterdir())
