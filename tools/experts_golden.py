#!/usr/bin/env python3
"""Makes tests/golden/lora_experts: losses and gradients of adapters on matrices of experts, by transformers and peft.

usage: tools/experts_golden.py MODELS

MODELS is the folder of the fixtures' models. Needs torch, transformers 5, peft 0.21 and safetensors. The experts of
layer 1 get factors of rank 2, alpha 6, through target_parameters. Numbers and ids follow from formulas that the test
has, too. Of each kind of model there is a file with

    losses       [STEPS] f32: mean losses of the batch before each of some steps of plain gradient descent
    NAME         the first gradient by quern's array NAME: [experts, rank, in] and [experts, out, rank], gate above up
"""
import os
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "lora_experts")
KINDS = {"qwen3_moe": False, "gpt_oss": True}  # whether gate and up take turns in the rows of a parameter
ROWS, LENGTH, RANK, ALPHA, STEPS, RATE = 2, 12, 2, 6, 4, 0.05
PREFIX = "model.layers.1.mlp.experts."


def numbers(salt, n):
    """n numbers between -0.1 and 0.1."""
    i = torch.arange(n, dtype=torch.int64)
    return (((i * 7919 + salt * 104729) % 2003).double() / 2003 - 0.5).mul(0.2).float()


def to_quern(a, b, experts, turns):
    """peft's A [experts rank, in] and B [out, rank experts] as quern has them."""
    a = a.reshape(experts, RANK, -1)
    b = b.reshape(b.shape[0], RANK, experts).permute(2, 0, 1)
    if turns:
        b = torch.cat([b[:, 0::2], b[:, 1::2]], 1)
    return a.contiguous(), b.contiguous()


def from_quern(a, b, turns):
    if turns:
        half = b.shape[1] // 2
        b = torch.stack([b[:, :half], b[:, half:]], 2).reshape(b.shape)
    return a.reshape(-1, a.shape[-1]), b.permute(1, 2, 0).reshape(b.shape[1], -1)


def make(models, kind, turns):
    base = AutoModelForCausalLM.from_pretrained(os.path.join(models, kind), dtype=torch.float32,
                                                attn_implementation="eager")
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=[],
                        target_parameters=[PREFIX + "gate_up_proj", PREFIX + "down_proj"])
    model = get_peft_model(base, config).eval()
    arrays = dict(model.named_parameters())
    stem = "base_model.model." + PREFIX
    pairs = {name: (arrays[stem + inner + "lora_A.default.weight"], arrays[stem + inner + "lora_B.default.weight"])
             for name, inner in (("down_proj", ""), ("gate_up_proj", "base_layer."))}
    experts = pairs["down_proj"][0].shape[0] // RANK
    with torch.no_grad():
        for salt, (name, (a, b)) in enumerate(sorted(pairs.items())):
            own = to_quern(a, b, experts, turns and name == "gate_up_proj")
            first = [numbers(2 * salt + k, x.numel()).reshape(x.shape) for k, x in enumerate(own)]
            for to, x in zip((a, b), from_quern(*first, turns and name == "gate_up_proj")):
                to.copy_(x)
    ids = torch.arange(ROWS * LENGTH).mul(37).add(11).remainder(model.config.vocab_size).reshape(ROWS, LENGTH)
    out, losses = {}, []
    for step in range(STEPS):
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        for name, (a, b) in pairs.items():
            if step == 0:
                of_a, of_b = to_quern(a.grad, b.grad, experts, turns and name == "gate_up_proj")
                out[PREFIX + name + ".lora_A.weight"], out[PREFIX + name + ".lora_B.weight"] = of_a, of_b
            with torch.no_grad():
                for x in (a, b):
                    x -= RATE * x.grad
    out["losses"] = torch.tensor(losses)
    os.makedirs(GOLDEN, exist_ok=True)
    save_file(out, os.path.join(GOLDEN, kind + ".safetensors"))
    print(f"{kind}: losses {losses}")


def main():
    torch.set_num_threads(1)
    for kind, turns in KINDS.items():
        make(sys.argv[1], kind, turns)


if __name__ == "__main__":
    main()
