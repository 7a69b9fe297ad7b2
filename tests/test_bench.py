"""The programs of bench/ around speed, without a look at the clock: models that are made open and compute, limits are
what their definition says, the page of figures is the one that the results make."""
import os
import subprocess
import sys

import pytest

from support import call

sys.path.insert(0, "bench")
import costs  # noqa: E402
import goals  # noqa: E402

GENERATE = os.path.join("bench", "generate")
SMALL = ["--layers", "2", "--vocab", "600"]


class Peak:
    """2 threads of two Zen 4 cores, as they were measured when nobody else was there."""
    read = 63e9
    peaks = {"int8": 469e9, "bf16": 227e9, "f32": 116e9}


def generate(*args):
    subprocess.run([sys.executable, GENERATE, *map(str, args)], check=True)


@pytest.mark.parametrize("shape", ["qwen3-0.6b", "llama-3.2-1b", "gemma-3-1b"])
@pytest.mark.parametrize("kind", ["q4_0", "q4_k_m", "q6_k", "bf16", "mlx4"])
def test_made_models_compute(tmp_path, shape, kind):
    path = tmp_path / ("model" if kind.startswith("mlx") else "model.gguf")
    generate(shape, kind, path, *SMALL)
    out = call("run", str(path), "--raw", "-p", "hello", "-n", "3", "--json", "--ignore-eos")
    assert out.returncode == 0, out.stderr.decode()


@pytest.mark.parametrize("shape, layers", [("qwen3-30b-a3b", 1), ("gemma-4-26b-a4b", 4)])
def test_made_experts_compute(tmp_path, shape, layers):
    path = tmp_path / "model.gguf"
    generate(shape, "q4_0", path, "--layers", layers, "--vocab", "600", "--experts", "8")
    out = call("run", str(path), "--raw", "-p", "hello", "-n", "3", "--json", "--ignore-eos")
    assert out.returncode == 0, out.stderr.decode()


def test_experts_cost_what_is_used_of_them(tmp_path):
    generate("qwen3-30b-a3b", "q4_0", tmp_path / "m.gguf", "--layers", "1", "--vocab", "600", "--experts", "12")
    m = costs.Model(str(tmp_path / "m.gguf"))
    attention, expert, router = 2 * 2048 * 4096 + 2 * 2048 * 512, 3 * 768 * 2048, 12 * 2048
    assert (m.n_experts, m.layer_macs, m.head_macs) == (12, attention + 8 * expert + router, 600 * 2048)
    assert m.n_parameters == pytest.approx(attention + 12 * expert + router + 2 * 600 * 2048, abs=3 * 2048 + 256)
    small = 4 * (router + 3 * 2048 + 2 * 128)
    assert m.weight_bytes == pytest.approx((attention + 8 * expert + 600 * 2048) * 18 / 32 + small, abs=64 * 32)
    row = {"phase": "decode", "precision": "fast", "sequences": 1, "n_prompt": 512, "set": "avx512", "limit": "read",
           "ratio": (1.2, 1.3), "share": (0.81, 0.9), "speed": (500, 520)}
    assert [g.met for g in goals.goals_of(row, m, None)] == [True, False]


def test_made_models_are_the_same_bytes(tmp_path):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        generate("qwen3-0.6b", "q5_k", tmp_path / name, *SMALL, "--seed", seed)
    a, b, c = ((tmp_path / n).read_bytes() for n in "abc")
    assert a == b and a != c


def test_costs(tmp_path):
    """Limits of the layers that are made, counted here by hand."""
    generate("qwen3-0.6b", "q8_0", tmp_path / "m.gguf", *SMALL)
    m = costs.Model(str(tmp_path / "m.gguf"))
    layer, head = 2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072, 600 * 1024
    assert (m.layer_macs, m.head_macs, m.type, m.operands) == (2 * layer, head, "Q8_0", "int8")
    attention = 2 * (512 * 513 // 2) * 2048 * 2
    assert m.prompt_macs(512) == 512 * 2 * layer + attention + head
    speed, what = costs.limit(Peak, m, "prefill", "fast", 512, 128, 1)
    assert what == "int8" and speed == pytest.approx(469e9 * 512 / m.prompt_macs(512))
    assert costs.limit(Peak, m, "prefill", "high", 512, 128, 1)[0] == pytest.approx(speed / 2)
    # Blocks of 34 bytes for 32 weights, and the norms as float32.
    norms = 4 * (1024 + 2 * (2 * 1024 + 2 * 128))
    assert m.weight_bytes == pytest.approx((2 * layer + head) * 34 / 32 + norms, abs=64 * 32)
    assert costs.limit(Peak, m, "decode", "fast", 512, 128, 1) == (63e9 / m.weight_bytes, "read")
    assert m.kv_bytes(4096) == 4096 * 2 * 2 * 1024 * 2


def test_windows_cost_no_more_than_they_see(tmp_path):
    generate("gemma-3-1b", "q4_0", tmp_path / "m.gguf", "--layers", "6", "--vocab", "600")
    m = costs.Model(str(tmp_path / "m.gguf"))
    assert m.windows == [512] * 5 + [0]
    assert m.kv_bytes(4096) == (5 * 512 + 4096) * 2 * 256 * 2
    n = 1000
    slides = sum(min(i + 1, 512) for i in range(n))
    assert m.attention_macs(n) == 2 * 1024 * (5 * slides + n * (n + 1) // 2)


def test_goals(tmp_path):
    generate("qwen3-0.6b", "q4_0", tmp_path / "qwen3-0.6b-q4_0.gguf", *SMALL)
    m = costs.Model(str(tmp_path / "qwen3-0.6b-q4_0.gguf"))
    row = {"phase": "prefill", "precision": "fast", "sequences": 1, "n_prompt": 512, "set": "avx512", "limit": "int8",
           "ratio": (2.5, 2.6), "share": (0.5, 0.56), "speed": (500, 520)}
    found = {g.name: g.met for g in goals.goals_of(row, m, None)}
    assert found == {"share of the limit (int8)": False, "ratio to llama.cpp": True,
                     "ratio to ik_llama.cpp (derived)": True}
    high = dict(row, precision="high", ratio=(1.2, 1.3), speed=(260, 270))
    assert [g.met for g in goals.goals_of(high, m, row)] == [False, True]


def test_page_is_what_the_results_make():
    out = subprocess.run([sys.executable, os.path.join("bench", "plots"), "--check"], capture_output=True, text=True)
    assert out.returncode == 0, f"run bench/plots: {out.stdout}{out.stderr}"
