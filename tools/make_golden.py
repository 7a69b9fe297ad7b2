#!/usr/bin/env python3
"""A tiny golden model of a family, with random weights, and what transformers computes of it in float32.

    python3 tools/make_golden.py granite [--out tests/golden/models] [--seed N]

Needs torch and transformers (pip). The tokenizer, its template and the prompts' ids are those of
tests/golden/models/llama. docs/adding-a-model.md says what a golden model must be able to tell; tests/golden/README.md
which tensors it has. Seeds are tried in order until the best two logits of each greedy step lie far enough apart.
"""
import argparse
import json
import os
import shutil
import sys
import zlib

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENIZER = "tests/golden/models/llama"
GREEDY, MARGIN = 32, 4e-3
ATTENTION_LAYERS = (0, -1)

# The family's config.json as published, with sizes that differ from each other and multipliers that do something.
FAMILIES = {
    "granite": {
        "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_multiplier": 0.15, "embedding_multiplier": 3.0, "hidden_act": "silu", "hidden_size": 48,
        "initializer_range": 0.02, "intermediate_size": 80, "logits_scaling": 2.0, "max_position_embeddings": 512,
        "mlp_bias": False, "model_type": "granite", "num_attention_heads": 6, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "residual_multiplier": 0.4, "rms_norm_eps": 1e-5, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True},
}


def fill(model, seed):
    """Every parameter from its name and the seed alone, rounded to bfloat16."""
    for name, p in model.named_parameters():
        g = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ (seed * 2654435761 & 0x7FFFFFFF))
        r = torch.randn(p.shape, generator=g)
        if p.dim() == 1:
            v = 1 + 0.2 * r
            if name == "model.norm.weight":  # or a tied head would mostly repeat the token that it got
                v = v * torch.where(torch.rand(p.shape, generator=g) < 0.5, -1.0, 1.0)
        elif "embed_tokens" in name or "lm_head" in name:
            v = r * 3 * getattr(model.config, "logits_scaling", 1) * p.shape[1] ** -0.5
        else:
            v = 1.5 * r * p.shape[1] ** -0.5
        p.data.copy_(v.to(torch.bfloat16).float())


def kept_positions(n):
    return sorted(set(range(0, n, 32)) | set(range(max(0, n - 8), n)))


@torch.no_grad()
def expect(model, prompts):
    """The tensors of expected.safetensors and expected.json's part for each prompt; None: a near tie."""
    tensors, about = {}, []
    for i, prompt in enumerate(prompts):
        ids = list(prompt["ids"])
        logits = model(torch.tensor([ids])).logits[0]
        keep = kept_positions(len(ids))
        new, margins = [], []
        for _ in range(GREEDY):
            step = model(torch.tensor([ids + new])).logits[0, -1]
            best = torch.topk(step, 2)
            margins.append(float(best.values[0] - best.values[1]))
            new.append(int(best.indices[0]))
        if min(margins) < MARGIN:
            return None
        tensors[f"prompt{i}.ids"] = torch.tensor(ids, dtype=torch.int32)
        tensors[f"prompt{i}.positions"] = torch.tensor(keep, dtype=torch.int32)
        tensors[f"prompt{i}.logits"] = logits[keep].contiguous()
        tensors[f"prompt{i}.greedy"] = torch.tensor(new, dtype=torch.int32)
        about.append({"name": prompt["name"], "text": prompt["text"], "ids": ids, "greedy": new,
                      "greedy_margins": [round(m, 6) for m in margins]})
    out = model(torch.tensor([prompts[3]["ids"]]), output_hidden_states=True, output_attentions=True, use_cache=True)
    for i, h in enumerate(out.hidden_states):
        tensors[f"hidden.{i}"] = h[0].contiguous()
    for i in range(model.config.num_hidden_layers):
        tensors[f"keys.{i}"] = out.past_key_values.layers[i].keys[0].contiguous()
    for i in ATTENTION_LAYERS:
        i %= model.config.num_hidden_layers
        tensors[f"attention.{i}"] = out.attentions[i][0].contiguous()
    print(f"logits: standard deviation {tensors['prompt2.logits'].std():.2f}")
    return tensors, about


def main():
    p = argparse.ArgumentParser()
    p.add_argument("family", choices=FAMILIES)
    p.add_argument("--out", default="tests/golden/models")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    folder = os.path.join(o.out, o.family)
    if os.path.exists(folder):
        sys.exit(f"{folder} is there already: a golden model is not changed")
    with open(f"{TOKENIZER}/config.json") as f:
        tokens = {k: v for k, v in json.load(f).items() if k in ("vocab_size", "bos_token_id", "eos_token_id")}
    with open(f"{TOKENIZER}/expected.json") as f:
        prompts = json.load(f)["prompts"]
    config = {**FAMILIES[o.family], **tokens}
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager").float().eval()
    for seed in range(o.seed, o.seed + 1000):
        fill(model, seed)
        made = expect(model, prompts)
        if made:
            break
    tensors, about = made
    os.makedirs(folder)
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=1)
    tied = config["tie_word_embeddings"]
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()
               if not (tied and k == "lm_head.weight")}, f"{folder}/model.safetensors", metadata={"format": "pt"})
    save_file(tensors, f"{folder}/expected.safetensors")
    with open(f"{folder}/expected.json", "w") as f:
        json.dump({"kind": o.family, "seed": seed, "stored_dtype": "bfloat16", "computed_in": "float32",
                   "attention": "eager", "prompts": about}, f, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(f"{TOKENIZER}/{name}", folder)


if __name__ == "__main__":
    main()
