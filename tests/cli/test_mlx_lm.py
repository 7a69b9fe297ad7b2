"""The backend mlx_lm: run, chat, bench and the server over it, and what is left of its process when one is killed.

tests/devices/fake_mlx stands in the place of the package and does what the prompt says; test_mlx_lm_real.py has
the real one.
"""
import os
import signal
import subprocess
import time

import pytest

from server_help import Server, client, openai
from support import QUERN, call, call_json, heed_interrupt

FAKE = {"PYTHONPATH": "tests/devices/fake_mlx"}


def bridges():
    """Processes of the bridge that run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            with open(f"/proc/{pid}/stat") as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z" and any(w.endswith(b"mlx_lm/bridge.py") for w in words):
            found.append(int(pid))
    return found


def none_left(seconds=3):
    end = time.monotonic() + seconds
    while bridges() and time.monotonic() < end:
        time.sleep(0.02)
    return not bridges()


@pytest.fixture(autouse=True)
def no_orphans():
    assert none_left()
    yield
    assert none_left(), "a process of the bridge is left"


def start(*args, env=None):
    return subprocess.Popen([QUERN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                            preexec_fn=heed_interrupt, env={**os.environ, **(env or {})})


def wait_for_text(process, n=5):
    got = b""
    while len(got) < n:
        piece = process.stdout.read(1)
        assert piece, process.stderr.read()
        got += piece
    return got


FAKE_RUN = ["run", "tests/golden/models/llama", "--backend", "mlx_lm"]


def test_front_ends():
    out = call(*FAKE_RUN, "-p", "say hello| world", env=FAKE)
    assert (out.returncode, out.stdout) == (0, b"hello world\n"), out.stderr
    out = call("chat", *FAKE_RUN[1:], stdin="say one|two\nsay three\n", env=FAKE)
    assert out.returncode == 0 and b"onetwo" in out.stdout and b"three" in out.stdout
    report = call_json("bench", *FAKE_RUN[1:], "--json", "-n", 16, "--runs", 1, "--prompt-tokens", 50, env=FAKE)
    assert len(report["results"]) == 1
    assert report["results"][0]["model"]["backend"] == "mlx_lm"


def test_refused(tmp_path):
    (tmp_path / "prompts.json").write_text('["x"]')
    for args, words in [(["classify", "-f", tmp_path / "prompts.json", "--choices", "a,b"], b"native"),
                        (["run", "-p", "x", "--kv-type", "q8_0"], b"native"),
                        (["run", "-p", "x", "--memory-limit", "1G"], b"native"),
                        (["run", "-p", "x", "--python", "/nonexistent/python"], b"--python")]:
        out = call(args[0], FAKE_RUN[1], *args[1:], "--backend", "mlx_lm", env=FAKE)
        assert out.returncode != 0 and words in out.stderr, (args, out.stderr)
    out = call(*FAKE_RUN, "-p", "x", env={"PYTHONPATH": "/nonexistent", "QUERN_PYTHON": "/usr/bin/python3"})
    assert out.returncode == 1 and b"-m pip install" in out.stderr


def test_server():
    openai()  # before there is a server to be left behind
    os.environ.update(FAKE)
    try:
        server = Server("tests/golden/models/llama", "--backend", "mlx_lm")
    finally:
        del os.environ["PYTHONPATH"]
    c = client(server)
    asked = {"model": server.name, "messages": [{"role": "user", "content": "say a|b|\u00e9|\u65e5"}]}
    assert c.chat.completions.create(**asked).choices[0].message.content == "ab\u00e9\u65e5"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in c.chat.completions.create(**asked, stream=True))
    assert text == "ab\u00e9\u65e5"
    with c.chat.completions.create(**{**asked, "messages": [{"role": "user", "content": "count 1000000"}]},
                                   stream=True) as stream:
        next(iter(stream))  # and the client leaves
    assert c.chat.completions.create(**asked).choices[0].message.content == "ab\u00e9\u65e5"
    with pytest.raises(Exception, match="does not want to"):
        c.chat.completions.create(**{**asked, "messages": [{"role": "user", "content": "throw"}]})
    assert server.stop() == 0


def test_killed_parent():
    for text in ("count 1000000", "deaf"):
        process = start(*FAKE_RUN, "-p", text, env=FAKE)
        if text != "deaf":
            wait_for_text(process)
        else:
            while not bridges():
                time.sleep(0.02)
        process.kill()
        process.wait()
        assert none_left()


def test_killed_child():
    process = start(*FAKE_RUN, "-p", "count 1000000", env=FAKE)
    wait_for_text(process)
    os.kill(bridges()[0], signal.SIGKILL)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == 1 and b"signal 9" in complaint
