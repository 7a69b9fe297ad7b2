#!/usr/bin/env python3
"""Makes tests/golden/lora/llama_qv/dpo.safetensors: the loss of DPO and its gradients by transformers and peft.

usage: tools/dpo_golden.py

The model is tests/golden/models/llama with the adapter of tests/golden/lora/llama_qv; the reference of DPO is the model
without it. Needs torch, transformers, peft and safetensors (tools/fixtures/requirements.txt). The file has

    ids          [2, length] i32: a prompt and the better answer, the prompt and the worse one
    n_prompt     [1] i32: tokens of the prompt
    loss         [1] f32: -log sigmoid(beta ((log p(better) - log ref(better)) - (log p(worse) - log ref(worse))))
    beta         [1] f32
    grad.NAME    the gradient of the loss by the adapter's array NAME, under peft's names
"""
import os

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
ADAPTER = os.path.join(GOLDEN, "lora", "llama_qv")
N_PROMPT, LENGTH, BETA = 7, 19, 0.3


def answer_log_probability(model, ids):
    logits = model(input_ids=ids).logits[:, :-1].double()
    chosen = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    return chosen[:, N_PROMPT - 1:].sum(1)


def main():
    torch.manual_seed(11)
    torch.set_num_threads(1)
    base = AutoModelForCausalLM.from_pretrained(os.path.join(GOLDEN, "models", "llama"), dtype=torch.float32,
                                                attn_implementation="eager")
    model = PeftModel.from_pretrained(base, ADAPTER, is_trainable=True)
    ids = torch.randint(1, model.config.vocab_size, (2, LENGTH))
    ids[1, :N_PROMPT] = ids[0, :N_PROMPT]
    with torch.no_grad(), model.disable_adapter():
        reference = answer_log_probability(model, ids)
    gain = answer_log_probability(model, ids) - reference
    loss = -torch.nn.functional.logsigmoid(BETA * (gain[0] - gain[1]))
    loss.backward()
    out = {"ids": ids.to(torch.int32), "n_prompt": torch.tensor([N_PROMPT], dtype=torch.int32),
           "loss": loss.detach().float().reshape(1), "beta": torch.tensor([BETA])}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            out["grad." + name.replace("base_model.model.", "").replace(".default", "")] = parameter.grad.float()
    save_file(out, os.path.join(ADAPTER, "dpo.safetensors"))
    print(f"loss {loss.item():.6f}, {len(out) - 4} gradients")


if __name__ == "__main__":
    main()
