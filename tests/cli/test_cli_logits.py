"""quern logits and quern run --ids: the golden models, the same bits in every company, variants of a directory."""
import json
import os
import shutil

import numpy as np
import pytest

from support import fixture, greedy, logits, read_json, read_safetensors, rewrite_safetensors

MODELS = ["llama", "llama_rope3_tied", "llama_head_dim", "mistral", "qwen2", "qwen2_yarn", "qwen2_window",
          "deepseek_r1_distill", "qwen3", "qwen3_tied", "qwen3_no_model_type", "gemma", "gemma2", "gemma3_text",
          "gemma3", "smollm3", "olmo2", "phi3", "phi3_longrope", "qwen2_vl", "gemma4_text", "gemma4", "gemma4_k_eq_v",
          "gemma4_moe", "qwen3_5", "qwen3_next", "deepseek_v3", "qwen3_moe", "mixtral", "gpt_oss", "granite"]
GGUF = ["llama-F32", "llama-Q4_K_M", "llama-Q8_0", "qwen2-Q5_K_M", "qwen3-F16", "qwen3-Q4_K_M", "gemma3-Q4_0",
        "gemma3-Q8_0"]
TOLERANCE = 2e-4  # of the fixtures' README, for float32 arithmetic


def tolerance(name):
    """Of the fixtures' README, as in tests/support/models/golden_states.c."""
    if name.startswith(("qwen3_next", "qwen3_5")):
        return 2e-3
    return 1e-3 if name.startswith("gemma4") else TOLERANCE


def prompts(folder):
    """[(ids, positions, logits at them, greedy ids)]"""
    t = read_safetensors(f"{folder}/expected.safetensors")
    return [(t[f"prompt{i}.ids"], t[f"prompt{i}.positions"], t[f"prompt{i}.logits"], t[f"prompt{i}.greedy"])
            for i in range(5) if f"prompt{i}.ids" in t]


def bits(array):
    return np.asarray(array, np.float32).view(np.uint32)


@pytest.mark.parametrize("name", MODELS)
def test_exact_logits(name, tmp_path):
    folder = fixture(f"models/{name}")
    cases = prompts(folder)
    got = logits(folder, [c[0] for c in cases], tmp_path, "--precision", "exact")
    for i, ((ids, positions, expected, _), rows) in enumerate(zip(cases, got)):
        assert rows.shape[0] == len(ids) and rows.dtype == np.float32
        error = np.abs(rows[positions][:, :expected.shape[1]] - expected).max()
        assert error <= tolerance(name), f"prompt {i}: {error}"


@pytest.mark.parametrize("name", MODELS)
def test_greedy_ids(name, tmp_path):
    folder = fixture(f"models/{name}")
    cases = prompts(folder)
    got = greedy(folder, [c[0] for c in cases], len(cases[0][3]), tmp_path, "--precision", "exact")
    for i, (case, ids) in enumerate(zip(cases, got)):
        assert ids == case[3].tolist(), f"prompt {i}"


@pytest.mark.parametrize("name", GGUF)
def test_gguf(name, tmp_path):
    model = fixture(f"quant/gguf_models/{name}.gguf")
    t = read_safetensors(fixture(f"quant/gguf_models/{name}.expected.safetensors"))
    ids, expected = t["input_ids"].reshape(-1), t["logits"]
    got = logits(model, [ids], tmp_path, "--precision", "exact")[0]
    assert np.abs(got - expected).max() <= 1e-3
    for precision in ("high", "fast"):
        got = logits(model, [ids], tmp_path, "--precision", precision)[0]
        nmse = ((got - expected) ** 2).mean() / (expected ** 2).mean()
        assert nmse <= 5e-3, f"{precision}: {nmse}"
    all_ids = t["greedy_ids"].reshape(-1).tolist()
    assert greedy(model, [all_ids[:12]], 16, tmp_path, "--precision", "exact") == [all_ids[12:]]


@pytest.mark.parametrize("precision", ["exact", "high", "fast"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text"])
def test_same_bits_in_any_company(name, precision, tmp_path):
    folder = fixture(f"models/{name}")
    rows = [c[0] for c in prompts(folder)]
    together = [bits(a).copy() for a in logits(folder, rows, tmp_path, "--precision", precision)]
    alone = logits(folder, [rows[2]], tmp_path, "--precision", precision)[0]
    assert (bits(alone) == together[2]).all(), "alone against a batch"
    for options in (["--chunk", 1], ["--chunk", 7, "--threads", 1], ["--chunk", 64, "--threads", 3], ["--chunk", 512],
                    ["--chunk", 2**31 - 1]):
        got = logits(folder, rows, tmp_path, "--precision", precision, *options)
        for i, a in enumerate(got):
            assert (bits(a) == together[i]).all(), f"{options}, row {i}"
    for i, a in enumerate(logits(folder, rows, tmp_path, "--precision", precision, "--positions", "last")):
        assert (bits(a[-1]) == together[i][-1]).all(), f"last, row {i}"


def variant(source, folder, change_config=None, change_weights=None):
    """A copy of a model directory with another config or other weights."""
    target = os.path.join(folder, "variant")
    shutil.copytree(source, target)
    if change_config:
        config = read_json(f"{target}/config.json")
        change_config(config)
        with open(f"{target}/config.json", "w") as f:
            json.dump(config, f)
    if change_weights:
        rewrite_safetensors(f"{source}/model.safetensors", f"{target}/model.safetensors", change_weights)
    return target


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "gemma3", "gemma4_text", "gemma4"])
def test_head_dim_comes_from_the_weights(name, tmp_path):
    folder = fixture(f"models/{name}")

    def without_head_dim(config):
        for c in (config, config.get("text_config", {})):
            c.pop("head_dim", None)

    ids = prompts(folder)[1][0]
    before = bits(logits(folder, [ids], tmp_path)[0]).copy()
    after = logits(variant(folder, tmp_path, without_head_dim), [ids], tmp_path)[0]
    assert (bits(after) == before).all()


def test_an_own_lm_head_is_used_where_the_config_ties(tmp_path):
    folder = fixture("models/gemma3_text")

    def add_head(tensors):
        name = next(n for n in tensors if n.endswith("embed_tokens.weight"))
        dtype, shape, raw = tensors[name]
        rows = np.frombuffer(raw, np.uint16).reshape(shape)
        tensors["lm_head.weight"] = [dtype, shape, np.roll(rows, 1, axis=0).tobytes()]

    ids = prompts(folder)[1][0]
    before = np.array(logits(folder, [ids], tmp_path, "--precision", "exact")[0])
    after = logits(variant(folder, tmp_path, change_weights=add_head), [ids], tmp_path, "--precision", "exact")[0]
    assert np.abs(after - np.roll(before, 1, axis=1)).max() <= TOLERANCE


def test_logits_are_not_written_half(tmp_path):
    from support import call
    folder, ids = fixture("models/llama"), tmp_path / "ids.json"
    ids.write_text('{"ids":[[1,2,3]]}')
    out = call("logits", folder, "--ids", ids, "-o", tmp_path / "absent" / "out.safetensors")
    assert out.returncode == 1 and b"out.safetensors" in out.stderr
    if os.path.exists("/dev/full"):
        out = call("logits", folder, "--ids", ids, "-o", "/dev/full")
        assert out.returncode == 1 and b"/dev/full" in out.stderr
    ids.write_text('{"ids":[[1,2,1000000]]}')
    out = call("logits", folder, "--ids", ids, "-o", tmp_path / "out.safetensors")
    assert out.returncode == 1 and b"1000000" in out.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_longrope_switches_while_generating(tmp_path):
    """Each token is what one pass over all before it gives: also behind the length where the factors change."""
    folder = fixture("models/phi3_longrope")
    original = read_json(f"{folder}/config.json")["original_max_position_embeddings"]
    ids = read_safetensors(f"{folder}/expected.safetensors")["prompt2.ids"].tolist()[:original - 10]
    got = greedy(folder, [ids], 20, tmp_path, "--precision", "exact")[0]
    for n in range(len(got)):
        last = logits(folder, [ids + got[:n]], tmp_path, "--precision", "exact")[0][-1]
        assert int(last.argmax()) == got[n], f"token {n}, at position {len(ids) + n} of {original}"
