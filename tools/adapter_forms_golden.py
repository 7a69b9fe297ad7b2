#!/usr/bin/env python3
"""Adapters of every form that peft writes, and the logits that models have with them: tests/golden/adapter_forms.json.

usage: tools/adapter_forms_golden.py [--check QUERN]

Needs torch, transformers and peft. Each form is a LoraConfig on a model of tests/golden/models. The numbers of its
tensors are a formula (numbers below), which tests repeat, so that the file holds names and shapes alone. --check writes
nothing: it compares all logits of `quern logits` with peft's, which `make test-peft` does.
"""
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", PYTHONWARNINGS="ignore")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests/golden/adapter_forms.json")
IDS = [17, 5, 301, 44, 5, 260, 9, 133, 301]
KEPT = 4  # logits of the last row that are stored
TOLERANCE = 3e-4
QV = ["q_proj", "v_proj"]
ONE = dict(layers_to_transform=[1])  # keeps files short
PREFIX = "base_model.model."
# Fields that are stored.
KEYS = ("peft_type", "r", "lora_alpha", "target_modules", "exclude_modules", "bias", "lora_bias", "modules_to_save",
        "use_dora", "use_rslora", "trainable_token_indices", "ensure_weight_tying", "layers_to_transform",
        "layers_pattern")
# Forms that --check alone looks at: golden data are to be small.
CHECKED_ALONE = {"all-linear", "excluded", "excluded by an expression", "layers", "fan_in_fan_out", "patterns",
                 "one layer", "embedding and head", "lora_bias beside bias", "bias lora_only", "saved head",
                 "saved embedding tied", "tokens tied", "embedding and head tied", "expression", "saved norms",
                 "saved both tied", "head tied"}


def forms():
    """Name, model, the configuration, and what is changed in the saved one."""
    yield "embedding", "llama", dict(target_modules=["embed_tokens"]), {}
    yield "embedding tied", "gemma3_text", dict(target_modules=["embed_tokens"], r=3), {}
    yield "embedding dora", "llama", dict(target_modules=["embed_tokens"], use_dora=True), {}
    yield "head", "llama", dict(target_modules=["lm_head"], use_rslora=True), {}
    yield "head tied", "granite", dict(target_modules=["lm_head"]), {}
    yield "embedding and head", "llama", dict(target_modules=["lm_head", "embed_tokens"]), {}
    yield "bias all", "bias", dict(target_modules=QV, bias="all"), {}
    yield "bias lora_only", "bias", dict(target_modules=QV, bias="lora_only"), {}
    yield "lora_bias", "llama", dict(target_modules=["q_proj", "down_proj"], **ONE, lora_bias=True), {}
    yield "lora_bias beside bias", "bias", dict(target_modules=QV, lora_bias=True, bias="all"), {}
    yield "saved head", "llama", dict(target_modules=QV, **ONE, modules_to_save=["lm_head"]), {}
    yield "saved embedding", "llama", dict(target_modules=QV, **ONE, modules_to_save=["embed_tokens"]), {}
    yield "saved head tied", "granite", dict(target_modules=QV, **ONE, modules_to_save=["lm_head"]), {}
    yield "saved embedding tied", "granite", dict(target_modules=QV, **ONE, modules_to_save=["embed_tokens"]), {}
    yield "saved both tied", "granite", dict(target_modules=QV, **ONE, modules_to_save=["embed_tokens"],
                                            ensure_weight_tying=True), {}
    yield "saved norms", "qwen3", dict(target_modules=QV, **ONE, modules_to_save=[
        "model.norm", "1.self_attn.q_norm", "0.input_layernorm"]), {}
    yield "saved norms with an offset", "gemma3_text", dict(target_modules=QV, **ONE, modules_to_save=[
        "model.norm", "2.self_attn.k_norm", "1.post_feedforward_layernorm"]), {}
    yield "saved block", "llama", dict(target_modules=QV, **ONE, modules_to_save=["layers.1.mlp"]), {}
    yield "tokens", "llama", dict(target_modules=QV, **ONE, trainable_token_indices=[5, 301, 2]), {}
    yield "tokens of a head", "llama", dict(target_modules=QV, **ONE, trainable_token_indices={
        "embed_tokens": [5, 9], "lm_head": [11]}), {}
    yield "tokens tied", "granite", dict(target_modules=QV, **ONE, trainable_token_indices=[5, 301, 2]), {}
    yield "embedding and head tied", "granite", dict(target_modules=["lm_head", "embed_tokens"]), {}
    yield "tokens tied, with a scale", "gemma3_text", dict(target_modules=QV, **ONE, trainable_token_indices=[17]), {}
    yield "all-linear", "llama", dict(target_modules="all-linear"), {}
    yield "expression", "llama", dict(target_modules=r".*\.3\.(self_attn\.[qk]|mlp\.up)_proj"), {}
    yield "excluded", "llama", dict(target_modules=QV, exclude_modules=["layers.2.self_attn.q_proj"]), {}
    yield "excluded by an expression", "llama", dict(target_modules=QV, exclude_modules=r".*\.[02]\..*"), {}
    yield "layers", "llama", dict(target_modules=QV, layers_to_transform=[1, 3], layers_pattern="layers"), {}
    yield "one layer", "llama", dict(target_modules=QV, layers_to_transform=2), {}
    yield "fan_in_fan_out", "llama", dict(target_modules=QV), {"fan_in_fan_out": True}
    yield "patterns", "llama", dict(target_modules=QV, use_rslora=True, rank_pattern={r"layers\.[01]\..*q_proj": 2},
                                    alpha_pattern={"v_proj": 5}), {}


def numbers(place, shape, add, amplitude):
    """Element i of tensor number `place`: add + amplitude (x / 2^24 - 1/2), x the upper 24 bits of a product."""
    import numpy as np
    i = np.arange(int(np.prod(shape)), dtype=np.uint64)
    x = ((i * np.uint64(2654435761) + np.uint64(place * 40503 + 12345)) & np.uint64(0xFFFFFFFF)) >> np.uint64(8)
    value = x.astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    return (np.float32(add) + np.float32(amplitude) * value).astype(np.float32).reshape(shape)


def kind_of(name, offset):
    """What is added, and how far numbers go, for a tensor of that name."""
    if "lora_A" in name or "lora_embedding" in name:
        return 0, 0.5
    if "lora_B" in name and not name.endswith("bias"):
        return 0, 0.25
    if "magnitude" in name:
        return 1, 0.5
    if "norm" in name:
        return 1 - offset, 0.6
    return 0, 0.3


def base(name):
    """The golden model of that name, in 32 bits; "bias": llama with biases everywhere, numbers by the formula."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.disable_progress_bar()
    if name != "bias":
        path = os.path.join(ROOT, "tests/golden/models", name)
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=320, attention_bias=True, mlp_bias=True,
                         tie_word_embeddings=False, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).float().eval()
    for i, (key, p) in enumerate(sorted(model.named_parameters())):
        p.data = torch.from_numpy(numbers(1000 + i, tuple(p.shape), *kind_of(key, 0)))
    return model


def bias_model():
    """What the model "bias" is made from."""
    model = base("bias")
    config = {k: v for k, v in model.config.to_dict().items() if k in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "attention_bias", "mlp_bias", "tie_word_embeddings", "max_position_embeddings", "model_type",
        "rms_norm_eps", "hidden_act", "bos_token_id", "eos_token_id")}
    return {"config": {**config, "architectures": ["LlamaForCausalLM"]},
            "tensors": [(k, list(p.shape), *kind_of(k, 0)) for k, p in sorted(model.named_parameters())]}


def make(folder, model, config, patch):
    """Writes the adapter; its tensors as (name, shape, add, amplitude)."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.numpy import save_file
    plain = base(model)
    offset = 1 if "gemma" in model else 0
    peft = get_peft_model(plain, LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **config}))
    state = get_peft_model_state_dict(peft)
    tensors = [(n, list(state[n].shape), *kind_of(n, offset)) for n in sorted(state)]
    save_file({n: numbers(i, s, add, amp) for i, (n, s, add, amp) in enumerate(tensors)},
              os.path.join(folder, "adapter_model.safetensors"))
    peft.peft_config["default"].save_pretrained(folder)
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        saved = {**json.load(f), **patch}
    for key in ("target_modules", "exclude_modules", "modules_to_save"):
        if isinstance(saved.get(key), list):
            saved[key].sort()
    with open(path, "w") as f:
        json.dump(saved, f)
    return {k: v for k, v in saved.items() if v not in (None, False, {}, [], "none") and k in KEYS}, tensors


def logits(model, folder):
    import torch
    from peft import PeftModel
    with torch.no_grad():
        plain = base(model)
        bare = plain(torch.tensor([IDS])).logits[0].numpy()
        return PeftModel.from_pretrained(plain, folder).eval()(torch.tensor([IDS])).logits[0].numpy(), bare


def check(quern, name, model, folder, expected):
    """"" or what is wrong with quern's logits."""
    from safetensors.numpy import load_file
    path = os.path.join(ROOT, "tests/golden/models", model)
    if model == "bias":
        path = os.path.join(folder, "base")
        base(model).save_pretrained(path)
    rows, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.safetensors")
    with open(rows, "w") as f:
        json.dump({"ids": [IDS]}, f)
    worst = []
    for p in (path, os.path.join(folder, "model.gguf")):
        if p.endswith(".gguf"):
            made = subprocess.run([quern, "fuse", path, "-o", p, "--no-check"], capture_output=True, text=True)
            if made.returncode:
                print(f"  {name}: no GGUF file: {made.stderr.strip()[:100]}")
                continue
        result = subprocess.run([quern, "logits", p, "--adapter", folder, "--ids", rows, "-o", out, "--precision",
                                 "exact"], capture_output=True, text=True)
        if result.returncode:
            return f"{name}: {result.stderr.strip()}"
        worst.append(abs(load_file(out)["logits.0"] - expected).max())
    fused = os.path.join(folder, "fused")
    result = subprocess.run([quern, "fuse", path, "--adapter", folder, "-o", fused, "--type", "f32", "--no-check"],
                            capture_output=True, text=True)
    if result.returncode:
        print(f"  {name}: not fused: {result.stderr.strip()[:160]}")
    else:
        subprocess.run([quern, "logits", fused, "--ids", rows, "-o", out, "--precision", "exact"], check=True,
                       capture_output=True)
        worst.append(abs(load_file(out)["logits.0"] - expected).max())
    print(f"{name}: largest differences of logits " + ", ".join(f"{w:.1e}" for w in worst), flush=True)
    return "" if max(worst) <= TOLERANCE else f"{name}: {worst}"


def main():
    quern = sys.argv[2] if len(sys.argv) == 3 and sys.argv[1] == "--check" else None
    made, wrong = [], []
    only = os.environ.get("ONLY", "")
    for name, model, config, patch in forms():
        if only and not (quern and only in name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            saved, tensors = make(folder, model, config, patch)
            expected, bare = logits(model, folder)
            if abs(expected - bare).max() < 0.05:
                sys.exit(f"{name}: the adapter changes nothing")
            if quern:
                wrong.append(check(quern, name, model, folder, expected))
            if name not in CHECKED_ALONE:
                made.append({"name": name, "model": model, "config": saved,
                             "tensors": [(n.removeprefix(PREFIX), *more) for n, *more in tensors],
                             "logits": [float(f"{x:.6g}") for x in expected[-1][:KEPT]]})
    if quern:
        failed = [w for w in wrong if w]
        sys.exit("\n".join(failed) if failed else None)
    with open(OUT, "w") as f:
        f.write(json.dumps({"ids": IDS, "bias": bias_model(), "forms": made}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
