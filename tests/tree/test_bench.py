"""The programs of bench/ around speed, without a look at the clock: models that are made open and compute, limits are
what their definition says, the page of figures is the one that the results make."""
import csv
import importlib.machinery
import importlib.util
import json
import math
import os
import struct
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


@pytest.mark.parametrize("kind", ["q4_k_m", "mlx4"])
def test_models_of_pieces_compute(tmp_path, kind):
    """--alike: the same tensors; large matrices repeat a piece. This shape has a head of its own."""
    names = ("a", "b") if kind == "mlx4" else ("a.gguf", "b.gguf")
    for name, more in zip(names, ([], ["--alike"])):
        generate("llama-3.1-8b", kind, tmp_path / name, "--layers", "1", "--vocab", "600", *more)
    a, b = (costs.Model(str(tmp_path / name)) for name in names)
    assert (a.weight_bytes, a.head_macs, a.n_parameters) == (b.weight_bytes, 600 * 4096, b.n_parameters)
    out = call("run", str(tmp_path / names[1]), "--raw", "-p", "hello", "-n", "3", "--json", "--ignore-eos")
    assert out.returncode == 0, out.stderr.decode()


def test_the_bench_of_cards_runs_without_one(tmp_path):
    command = [os.path.join("bench", "cuda", "run"), "--device", "cpu", "--tiny", "--no-peer", "--rounds", "1",
               "--kit", "", "--models", str(tmp_path), "--only", "0.6b-q4_0"]
    out = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert out.returncode == 0 and "not measured" not in out.stdout, out.stdout + out.stderr
    for work in ("decode", "prefill", "first", "batch"):
        assert f"| {work}-0.6b-q4_0 | " in out.stdout


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
    row = {"phase": "decode", "precision": "fast", "sequences": 1, "n_prompt": 1, "threads": 2, "set": "avx512",
           "limit": "read", "ratio": (1.2, 1.3), "share": (0.81, 0.9), "speed": (500, 520)}
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
    speed, what = costs.limit(Peak, m, "prefill", "fast", 512, 128)
    assert what == "int8" and speed == pytest.approx(469e9 * 512 / m.prompt_macs(512))
    assert costs.limit(Peak, m, "prefill", "high", 512, 128)[0] == pytest.approx(speed / 2)
    # Blocks of 34 bytes for 32 weights, and the norms as float32.
    norms = 4 * (1024 + 2 * (2 * 1024 + 2 * 128))
    assert m.weight_bytes == pytest.approx((2 * layer + head) * 34 / 32 + norms, abs=64 * 32)
    assert costs.limit(Peak, m, "decode", "fast", 512, 128) == (63e9 / m.weight_bytes, "read")
    assert m.kv_bytes(4096) == 4096 * 2 * 2 * 1024 * 2


def test_directories_cost_what_files_do(tmp_path):
    """MLX's affine types in groups of 64: 4 bits and two 16-bit numbers a group; two planes of activations in fast."""
    generate("qwen3-0.6b", "mlx4", tmp_path / "mlx", *SMALL)
    generate("qwen3-0.6b", "q4_0", tmp_path / "m.gguf", *SMALL)
    m, gguf = costs.Model(str(tmp_path / "mlx")), costs.Model(str(tmp_path / "m.gguf"))
    for same in ("layer_macs", "head_macs", "n_parameters", "operands", "windows", "attention_widths", "kv_values"):
        assert getattr(m, same) == getattr(gguf, same), same
    assert (m.type, m.planes("fast"), m.planes("high"), m.planes("exact")) == ("MLX affine 4", 2, 2, 1)
    norms = 2 * (1024 + 2 * (2 * 1024 + 2 * 128))
    assert m.weight_bytes == (m.layer_macs + m.head_macs) * 36 // 64 + norms
    assert costs.limit(Peak, m, "prefill", "fast", 512, 128)[0] == pytest.approx(
        costs.limit(Peak, gguf, "prefill", "high", 512, 128)[0])


def directory(path, config, shapes):
    """A model's directory that can be counted: the headers and as many zeros."""
    sizes = {"U32": 4, "BF16": 2, "F16": 2}
    header, end = {}, 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + sizes[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.mkdir()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    (path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 64,
                                                  **config}))
    return str(path)


def test_modules_have_bits_of_their_own(tmp_path):
    affine = {"group_size": 64, "bits": 4, "model.layers.0.mlp.up_proj": {"group_size": 64, "bits": 8}}
    groups = ["BF16", [64, 1]]
    shapes = {"model.embed_tokens.weight": ["U32", [64, 8]], "model.embed_tokens.scales": groups,
              "model.embed_tokens.biases": groups, "model.layers.0.mlp.up_proj.weight": ["U32", [64, 16]],
              "model.layers.0.mlp.up_proj.scales": groups, "model.layers.0.mlp.up_proj.biases": groups,
              "model.layers.0.conv.weight": ["BF16", [64, 1, 4]]}
    m = costs.Model(directory(tmp_path / "m", {"quantization": affine}, shapes))
    assert (m.head_macs, m.layer_macs, m.operands) == (64 * 64, 64 * 64 + 64 * 4, "int8")
    assert m.weight_bytes == m.file_bytes == 64 * (36 + 68 + 8)


@pytest.mark.parametrize("config, what", [({"quantization": {"mode": "mxfp4", "bits": 4}}, "quantization.mode mxfp4"),
                                          ({"n_routed_experts": 8}, "experts are counted in GGUF files alone")])
def test_directories_that_are_not_counted_are_refused(tmp_path, config, what):
    with pytest.raises(ValueError, match=what):
        costs.Model(directory(tmp_path / "m", config, {}))


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
    row = {"phase": "prefill", "precision": "fast", "sequences": 1, "n_prompt": 512, "threads": 2, "set": "avx512",
           "limit": "int8", "ratio": (2.5, 2.6), "share": (0.5, 0.56), "speed": (500, 520)}
    found = {g.name: g.met for g in goals.goals_of(row, m, None)}
    assert found == {"share of the limit (int8)": False, "ratio to llama.cpp": True,
                     "ratio to ik_llama.cpp (derived)": True}
    high = dict(row, precision="high", ratio=(1.2, 1.3), speed=(260, 270))
    assert [g.met for g in goals.goals_of(high, m, row)] == [False, True]
    one_thread = {g.name for g in goals.goals_of(dict(row, threads=1), m, None)}
    assert one_thread == {"share of the limit (int8)", "ratio to llama.cpp"}  # nobody measured ik_llama.cpp's there
    impossible = dict(row, phase="decode", n_prompt=1, ratio=(1.1, 1.1), share=(1.04, 1.2))
    assert [g.met for g in goals.goals_of(impossible, m, None)] == [False, False]
    batch = dict(row, phase="batch", ratio=(2.6, 2.6))
    met = {n: [g.met for g in goals.goals_of(dict(batch, sequences=n), m, None)] for n in (2, 4, 8, 16)}
    assert met == {2: [], 4: [True], 8: [False], 16: [False, False]}


def test_goals_of_long_contexts(tmp_path):
    """Each round is judged by its own limits; where the long work is not slower there is nothing to judge."""
    generate("qwen3-0.6b", "q4_0", tmp_path / "m.gguf", *SMALL)
    m = costs.Model(str(tmp_path / "m.gguf"))

    class Slow(Peak):
        read = 30e9

    read = m.kv_bytes(4096 + 16) - m.kv_bytes(1 + 64)
    short = {"n_prompt": 1, "n_generate": 128, "kv": "bf16", "phase": "decode", "speeds": [100, 100, 100]}
    # 0.9, 0.5 and 0.6 of what each round's machine reads
    speeds = [1 / (0.01 + read / share / machine.read)
              for share, machine in ((0.9, Peak), (0.5, Slow), (0.6, Peak))]
    long = dict(short, n_prompt=4096, n_generate=32, speeds=speeds, machines=[Peak, Slow, Peak])
    goal, = goals.context_goals(m, short, long)
    assert (goal.value, goal.best, goal.met) == (pytest.approx(0.6), pytest.approx(0.9), False)
    assert goals.context_goals(m, short, dict(long, speeds=[50, 100.5, 50])) == []


def test_goals_of_the_start():
    assert [goals.start_ms(b) for b in (50e6, 98e6, 253e6, 1200e6, 2400e6)] == [300, 300, 600, 1500, 3000]
    assert 600 < goals.start_ms(335e6) < 700

    class Small:
        file_bytes = 98e6

    ready, fits = goals.start_goals(Small, [200, 310, 320, 290], 100e6, 0)
    assert (ready.value, ready.met, fits.met) == (pytest.approx(1.0), True, True)
    assert [g.met for g in goals.start_goals(Small, [310, 310], 140e6, 0)] == [False, False]


def test_newest_rows_of_a_work_are_shown(tmp_path):
    """Other numbers of tokens and types of keys are other works; names with and without Instruct are the same."""
    loader = importlib.machinery.SourceFileLoader("plots", os.path.join("bench", "plots"))
    plots = importlib.util.module_from_spec(importlib.util.spec_from_loader("plots", loader))
    loader.exec_module(plots)
    row = {"model": "a-Instruct.Q4_1", "threads": 2, "set": "avx512", "phase": "decode", "n_prompt": 1,
           "n_generate": 128, "sequences": 1, "precision": "fast", "kv": "bf16", "stolen_percent": 0,
           "others_percent": 1, "date": "first"}
    rows = [row, dict(row, model="a.Q4_1", date="second"), dict(row, n_generate=32, date="short"),
            dict(row, kv="q8_0", date="q8_0"), dict(row, kv="q4_0", date="q4_0"),
            dict(row, date="disturbed", others_percent=30)]
    with open(tmp_path / "m.csv", "w", newline="") as f:
        out = csv.DictWriter(f, row)
        out.writeheader()
        out.writerows(rows)
    assert sorted(r["date"] for r in plots.read(tmp_path / "m.csv")) == ["q4_0", "q8_0", "second"]


def test_page_is_what_the_results_make():
    out = subprocess.run([sys.executable, os.path.join("bench", "plots"), "--check"], capture_output=True, text=True)
    assert out.returncode == 0, f"run bench/plots: {out.stdout}{out.stderr}"
