"""The backend mlx_lm with the real package, in the Python that QUERN_MLX names (default: the one that `make test-mlx`
sets up in quern's cache folder).
"""
import json
import os
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from server_help import Server, client, openai
from support import call, call_json, fixture, leave_out, read_json, rewrite_safetensors
from test_mlx_lm import bridges, no_orphans, none_left, start, wait_for_text  # noqa: F401

own, xdg = os.environ.get("QUERN_CACHE"), os.environ.get("XDG_CACHE_HOME")
VENV = os.path.join(own or os.path.join(xdg or os.path.expanduser("~/.cache"), "quern"), "mlx")


PROMPTS = ["The licence grants", "A river begins", "def add(a, b):", "1, 2, 3", "\u00e9t\u00e9 \u65e5\u672c"]


@pytest.fixture(scope="module")
def python():
    path = os.environ.get("QUERN_MLX") or os.path.join(VENV, "bin", "python")
    if not os.path.exists(path):
        leave_out("no Python with mlx_lm (make test-mlx sets one up)")
    return path


def in_f32(kind, folder, context=None):
    """A fixture model with f32 weights: mlx_lm computes in the type of the weights."""
    source = fixture(f"models/{kind}")
    for name in os.listdir(source):
        if name.endswith(".json") and name != "config.json":
            os.symlink(os.path.abspath(os.path.join(source, name)), folder / name)
    config = read_json(os.path.join(source, "config.json"))
    config["torch_dtype"] = config["dtype"] = "float32"
    if context:
        config["max_position_embeddings"] = context
    (folder / "config.json").write_text(json.dumps(config))

    def widen(tensors):
        for t in tensors.values():
            if t[0] == "BF16":
                wide = np.frombuffer(t[2], np.uint16).astype(np.uint32) << 16
                t[0], t[2] = "F32", wide.astype("<u4").tobytes()

    rewrite_safetensors(os.path.join(source, "model.safetensors"), folder / "model.safetensors", widen)
    return str(folder)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_same_text(python, kind, tmp_path):
    """Greedy answers are the own engine's in exact arithmetic, from texts and from chats. Where random tokens make
    bytes that are no UTF-8, mlx_lm shows them in its own way: the ids must be the same, the text where it is text."""
    model = in_f32(kind, tmp_path)
    n_text = 0
    for how in (["--raw"], []):
        for prompt in PROMPTS:
            for n in (24, 3):
                args = ["run", model, "-p", prompt, "-n", n, "--json", *how]
                theirs = call_json(*args, "--backend", "mlx_lm", "--python", python)
                ours = call_json(*args, "--precision", "exact")
                assert theirs["ids"] == ours["ids"] and theirs["n_prompt_tokens"] == ours["n_prompt_tokens"]
                text = ours["text"][0]
                if "\ufffd" not in text and "\ufffd" not in theirs["text"][0]:
                    n_text += 1
                    # It takes a space off the beginning of what SentencePiece-like tokenizers give.
                    assert theirs["text"][0].lstrip(" ") == text.lstrip(" ")
    assert n_text


def test_cancel(python, tmp_path):
    """After 5 tokens of 10,000 an interrupt ends it within a second."""
    model = in_f32("qwen3", tmp_path, 20000)
    process = start("run", model, "--raw", "-p", "The", "-n", "10000", "--ignore-eos", "--backend", "mlx_lm",
                    "--python", python)
    wait_for_text(process)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode in (0, 130) and time.monotonic() - begin < 1


def test_real_killed(python, tmp_path):
    model = in_f32("qwen3", tmp_path, 20000)
    args = ["run", model, "--raw", "-p", "The", "-n", "10000", "--ignore-eos", "--backend", "mlx_lm",
            "--python", python]
    process = start(*args)
    wait_for_text(process)
    os.kill(bridges()[0], signal.SIGKILL)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == 1 and b"signal 9" in complaint
    process = start(*args)
    wait_for_text(process)
    process.kill()
    process.wait()
    assert none_left()


def test_long_prompt(python, tmp_path):
    """10 MB are refused by their tokens, not by a crash."""
    model = in_f32("qwen3", tmp_path)
    text = "river " * (10 * 1024 * 1024 // 6)
    out = call("run", model, "--raw", "--backend", "mlx_lm", "--python", python, stdin=text)
    assert out.returncode == 1 and re.search(rb"prompt has \d+ tokens, the context 512", out.stderr), out.stderr


def test_real_server(python, tmp_path):
    openai()  # before there is a server that would be left
    model = in_f32("llama", tmp_path)
    server = Server(model, "--backend", "mlx_lm", "--python", python)
    c = client(server)
    asked = {"model": server.name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12,
             "temperature": 0}
    whole = c.chat.completions.create(**asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in c.chat.completions.create(**asked, stream=True))
    assert text == whole.choices[0].message.content and whole.usage.completion_tokens == 12
    assert server.stop() == 0


def test_rounds(python, tmp_path):
    """20 models in one process, opened, used and closed: memory, threads and files as after the fifth."""
    model = in_f32("qwen3", tmp_path)
    program = "build/release/src/backend/mlx_lm/mlx_lm_test"
    if not os.path.exists(program):
        leave_out(f"{program} is not built (make test-mlx)")
    out = subprocess.run([program], capture_output=True, text=True, timeout=300, env={
        **os.environ, "QUERN_MLX_ROUNDS": "20", "QUERN_MLX_MODEL": model, "QUERN_PYTHON": python})
    assert out.returncode == 0, out.stdout + out.stderr
