"""quern fuse: the fused model's logits, its report, and what is refused."""
import os

import numpy as np
import pytest

from support import call, call_json, fixture, logits, read_json, read_safetensors


def base_of(name):
    return fixture(f"models/{read_json(fixture(f'lora/{name}/expected.json'))['base']}")


@pytest.mark.parametrize("name", ["llama_all", "gemma3_text_qv"])
def test_logits_are_the_reference_s(name, tmp_path):
    adapter, out = fixture(f"lora/{name}"), str(tmp_path / "fused")
    report = call_json("fuse", base_of(name), "--adapter", adapter, "-o", out, "--type", "f32", "--json")
    assert report["output"] == out and report["merged"] > 0 and report["tensors"] > report["merged"]
    assert report["check"]["n_tokens"] > 10 and report["check"]["n_same_best"] >= 0.9 * report["check"]["n_tokens"]
    assert abs(report["check"]["kl"]) < 1e-3
    expected = read_safetensors(f"{adapter}/expected.safetensors")
    got = logits(out, [expected["prompt1.ids"].tolist()], tmp_path, "--precision", "exact")[0]
    assert np.abs(got - expected["prompt1.logits"]).max() < 2e-4


def failure(status, *args):
    got = call("fuse", *args)
    assert got.returncode == status, got.stderr.decode()
    return got.stderr.decode()


def test_says_what_it_did(tmp_path):
    out = str(tmp_path / "fused")
    args = [base_of("llama_qv"), "--adapter", fixture("lora/llama_qv"), "-o", out]
    text = call("fuse", *args).stdout.decode()
    assert out in text and "KL" in text and "merged" in text
    assert "config.json" in os.listdir(out)
    assert "not empty" in failure(1, *args)


def test_refusals(tmp_path):
    base, adapter, out = base_of("llama_qv"), fixture("lora/llama_qv"), str(tmp_path / "x")
    assert "-o PATH" in failure(2, base, "--adapter", adapter)
    assert "bf16" in failure(1, base, "--adapter", adapter, "-o", out, "--type", "q4_0")
    assert "adapter_config.json" in failure(1, base, "--adapter", base, "-o", out)
    assert not os.listdir(tmp_path)
