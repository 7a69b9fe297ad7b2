#!/usr/bin/env python3
"""Fine-tuning a quantised model beside peft on the same weights in 32 bits: a part of `make test-peft`.

usage: tools/finetune_check.py FINETUNE_REAL_TEST [PRECISION...]

The test program trains LoRA factors on SmolLM2-135M (Q4_1) for 100 steps on tests/golden/orders, answers notes that it
never saw before and after, and leaves its batches, losses and adapters. peft begins with the same factors on the
dequantised weights, takes the same batches with torch's AdamW, and must lose the same within 1% at each step, in exact
and in high, the default. (fast rounds activations to 8 bits: its losses are others, its answers as good.) The
model comes from tools/fetch-models. Not for CI.
"""
import json
import os
import subprocess
import sys
import tempfile

from peft_check import in_venv

TOLERANCE = 0.01


def load_base(path):
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.disable_progress_bar()
    folder, name = os.path.split(path)
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation="sdpa")


def padded(batch):
    """ids, attention mask and labels (-100: none) [sequences, longest] of a batch of ragged rows."""
    import torch
    begin = batch["row_begin"]
    shape = len(begin) - 1, max(b - a for a, b in zip(begin, begin[1:]))
    ids, mask, targets = torch.zeros(shape, dtype=torch.long), torch.zeros(shape), torch.full(shape, -100)
    target_of = dict(zip(batch["rows"], batch["targets"]))
    for s, (first, end) in enumerate(zip(begin, begin[1:])):
        ids[s, :end - first] = torch.tensor(batch["ids"][first:end])
        mask[s, :end - first] = 1
        for row in range(first, end):
            targets[s, row - first] = target_of.get(row, -100)
    return ids, mask, targets


def mean_loss(model, batch):
    import torch
    ids, mask, targets = padded(batch)
    hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    keep = targets != -100
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[keep]), targets[keep])


def peft_losses(run, start, batches):
    """Losses of peft's steps, and the model after them."""
    import torch
    from peft import PeftModel
    model = PeftModel.from_pretrained(load_base(run["model"]), start, is_trainable=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=run["lr"], betas=run["betas"],
                                  eps=run["eps"], weight_decay=run["weight_decay"])
    losses = []
    for batch in batches:
        loss = mean_loss(model.base_model.model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_losses(program, precision, folder, theirs):
    """What is wrong with a run, "" when nothing. theirs: peft's losses of an earlier one, or None; returns them too."""
    env = dict(os.environ, QUERN_FINETUNE=folder, QUERN_FINETUNE_PRECISION=precision)
    result = subprocess.run([program], env=env, capture_output=True, text=True)
    said = [line for line in result.stdout.splitlines() if line.startswith(("loss", "skipped"))]
    if result.returncode or not said or said[0].startswith("skipped"):
        sys.exit(f"{program}: {result.stdout}{result.stderr}")
    print(f"{precision}: {said[0]}", flush=True)
    with open(os.path.join(folder, "run.jsonl"), encoding="utf-8") as f:
        run, *batches = map(json.loads, f)
    theirs = theirs or peft_losses(run, os.path.join(folder, "start"), batches)
    off = [abs(b["loss"] - t) / t for b, t in zip(batches, theirs)]
    worst = max(range(len(off)), key=off.__getitem__)
    print(f"{precision}: {len(off)} losses, {theirs[0]:.4f} to {theirs[-1]:.4f} by peft, differ by at most "
          f"{100 * off[worst]:.3f}% (step {worst + 1}), {100 * sum(off) / len(off):.3f}% on average", flush=True)
    return ("" if off[worst] <= TOLERANCE else f"{precision}: step {worst + 1}: {batches[worst]['loss']}, by peft "
            f"{theirs[worst]}"), theirs


def main():
    program, *precisions = sys.argv[1:]
    if not os.environ.get("QUERN_IN_PEFT"):
        in_venv(sys.argv)
    wrong, theirs = [], None
    with tempfile.TemporaryDirectory() as folder:
        for precision in precisions or ["exact", "high"]:
            fault, theirs = check_losses(program, precision, folder, theirs)
            wrong.append(fault)
    if any(wrong):
        sys.exit("\n".join(filter(None, wrong)))


if __name__ == "__main__":
    main()
