"""The device mlx through the front ends: what they print on it is what they print on the CPU, in exact arithmetic.

Left out where libquern-mlx is not (make test-mlx builds it).
"""
import json
import os
import re
import subprocess
import threading

import pytest

from server_help import Server
from support import QUERN, call, call_json, fixture, leave_out

DEVICES = ("cpu", "mlx")
EXACT = ["--precision", "exact"]


@pytest.fixture(scope="module", autouse=True)
def device():
    out = subprocess.run([QUERN, "run", fixture("models/llama"), "--device", "mlx", "-p", "a", "-n", "1"],
                         capture_output=True, text=True)
    if out.returncode and "cannot be loaded" in out.stderr:
        leave_out(out.stderr.strip())


def on_both(*args):
    """What a command prints on each device."""
    said = []
    for name in DEVICES:
        out = call(*args, *EXACT, "--device", name)
        assert out.returncode == 0, out.stderr.decode()
        said.append(out.stdout)
    return said


def refusal(*args, env=None):
    """Why a command fails."""
    out = call(*args, env=env)
    assert out.returncode == 1, out.stdout
    return out.stderr.decode()


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen3_next", "deepseek_v3", "gpt_oss"])
def test_run(model):
    cpu, mlx = on_both("run", fixture(f"models/{model}"), "-p", "Hello, world", "-n", "16", "--ignore-eos")
    assert cpu == mlx


@pytest.mark.parametrize("command", [["classify", "--choices", "yes,no,maybe"], ["classify"],
                                     ["batch", "-n", "6", "--temp", "0", "--slots", "3"]])
def test_lists(command, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one prompt\nanother, which is longer\na third\n")
    cpu, mlx = on_both(command[0], fixture("models/qwen3"), "-f", str(prompts), *command[1:])
    assert cpu == mlx


def test_encoder(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("A cat.\nOne more sentence, which is longer.\nno\n")
    cpu, mlx = ([json.loads(line)["embedding"] for line in said.splitlines()]
                for said in on_both("embed", fixture("families2/modernbert"), "-f", str(texts)))
    assert len(cpu) == len(mlx) == 3
    assert all(abs(a - b) < 1e-4 for x, y in zip(cpu, mlx) for a, b in zip(x, y))


def test_attention():
    cpu, mlx = on_both("inspect", fixture("models/qwen3"), "--attention", "-p", "one two three")
    assert cpu == mlx


def test_adapter():
    cpu, mlx = on_both("run", fixture("models/llama"), "--adapter", fixture("lora/llama_all"), "-p", "Hello", "-n",
                       "12", "--ignore-eos")
    assert cpu == mlx
    alone, _ = on_both("run", fixture("models/llama"), "-p", "Hello", "-n", "12", "--ignore-eos")
    assert cpu != alone


def test_training(tmp_path):
    data = tmp_path / "train.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i * i}"}]}
             for i in range(8)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    losses = []
    for name in DEVICES:
        run = call_json("train", fixture("models/qwen3"), data, "-o", tmp_path / name, "--steps", "3", "--lr", "1e-3",
                        "--mask", "all", "--json", *EXACT, "--device", name)
        assert run["device"] == name
        evaluated = call_json("eval", fixture("models/qwen3"), data, "--adapter", tmp_path / name / "last",
                              "--mask", "all", "--json", *EXACT, "--device", name)
        losses.append((run["loss"], evaluated["loss"]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_serving():
    """Several clients at a time, and one after them that finds their prefix."""
    texts = {}
    for name in DEVICES:
        server = Server(fixture("models/qwen3"), "--slots", "3", *EXACT, "--device", name)
        try:
            said = [None] * 4

            def ask(i):
                body = {"messages": [{"role": "user", "content": f"tell me about {i % 3}"}], "max_tokens": 10,
                        "temperature": 0}
                status, _, answer = server.request("POST", "/v1/chat/completions", body)
                assert status == 200, answer
                said[i] = answer["choices"][0]["message"]["content"]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            ask(3)
            texts[name] = said
        finally:
            server.stop()
    assert texts["cpu"] == texts["mlx"]
    assert texts["mlx"][0] == texts["mlx"][3]


def test_refusals(tmp_path):
    run = ["run", fixture("models/llama"), "-p", "a", "--device"]
    assert "--kv-type f16" in refusal(*run, "mlx", "--kv-type", "q8_0")
    assert re.search("'tpu'.*mlx", refusal(*run, "tpu"))
    nowhere = {"QUERN_MLX_LIBRARY": str(tmp_path / "none.so")}
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "a line of text"}\n')
    train = ["train", run[1], data, "--mask", "all", "-o", tmp_path / "out", "--device"]
    for command in (run, ["eval", run[1], data, "--mask", "all", "--device"], train):
        assert re.search("cannot be loaded.*pip install mlx", refusal(*command, "mlx", env=nowhere))


def test_packed_weights_are_of_the_cpu(tmp_path):
    """A packed file is ignored, with a sentence only where it was asked for."""
    model, packed = fixture("models/llama"), tmp_path / "model.qpack"
    assert call("pack", model, "-o", packed).returncode == 0
    run = ["run", model, "-p", "a", "-n", "2", "--device", "mlx"]
    asked, not_asked = call(*run, "--packed", packed), call(*run)
    assert asked.returncode == 0 and b"does not use packed weights" in asked.stderr
    assert not_asked.returncode == 0 and b"packed" not in not_asked.stderr
