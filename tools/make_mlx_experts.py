#!/usr/bin/env python3
"""Makes tests/golden/mlx/gemma4_moe-4bit: a Gemma 4 with experts as mlx_lm quantises it, and mlx_lm's logits.

make_mlx_experts.py SOURCE OUT [--layers N]: SOURCE is the directory gemma4_moe of the fixtures. Its first N layers (3)
are kept; experts get rows and columns of zeros until groups of 32 fit into them, which changes no result.
mlx_lm.convert makes 4 bits in groups of 32 of all matrices but the routers, which its own rule for this model gives 8
bits in groups of 64. expected.safetensors: `ids` [24], `logits` [24, vocab] in float32 arithmetic on the stored values,
`greedy` [16] from the first 12 ids.

Needs mlx[cpu], mlx-lm 0.32 or later (one that knows gemma4_text) and numpy.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

import mlx.core as mx
import numpy as np
from mlx_lm import convert, load

GROUP, BITS, N_IDS, N_PROMPT, N_GREEDY, MARGIN = 32, 4, 24, 12, 16, 4e-3


def cut(source, target, n_layers):
    """The first layers of a model, their experts filled up with zeros."""
    with open(f"{source}/config.json") as f:
        config = json.load(f)
    width = config["moe_intermediate_size"]
    more = -width % GROUP
    tensors = {}
    for name, x in mx.load(f"{source}/model.safetensors").items():
        if ".layers." in name and int(name.split(".layers.")[1].split(".")[0]) >= n_layers:
            continue
        if name.endswith("experts.gate_up_proj"):
            halves = [mx.pad(h, [(0, 0), (0, more), (0, 0)]) for h in mx.split(x, 2, axis=1)]
            x = mx.concatenate(halves, axis=1)
        elif name.endswith("experts.down_proj"):
            x = mx.pad(x, [(0, 0), (0, 0), (0, more)])
        tensors[name] = x
    config.update(num_hidden_layers=n_layers, layer_types=config["layer_types"][:n_layers],
                  moe_intermediate_size=width + more)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(f"{source}/{name}", f"{target}/{name}")
    with open(f"{target}/config.json", "w") as f:
        json.dump(config, f, indent=1)
    mx.save_safetensors(f"{target}/model.safetensors", tensors, metadata={"format": "pt"})


def logits_of(model, ids):
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def expected(folder, vocabulary=1000):
    model, _ = load(folder)
    model.set_dtype(mx.float32)
    rng = np.random.default_rng(20)
    ids = [int(i) for i in rng.integers(3, vocabulary, N_IDS)]
    logits = logits_of(model, ids)
    text, gap = ids[:N_PROMPT], np.inf
    for _ in range(N_GREEDY):
        last = logits_of(model, text)[-1]
        second, best = np.sort(last)[-2:]
        gap = min(gap, float(best - second))
        text.append(int(last.argmax()))
    if gap < MARGIN:
        sys.exit(f"the two best logits of a greedy step are only {gap} apart: rounding would decide; take other ids")
    return {"ids": mx.array(ids, mx.int32), "logits": mx.array(logits), "greedy": mx.array(text[N_PROMPT:], mx.int32)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=3)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, quantised = f"{folder}/plain", f"{folder}/quantised"
        os.mkdir(plain)
        cut(o.source, plain, o.layers)
        convert(plain, mlx_path=quantised, quantize=True, q_bits=BITS, q_group_size=GROUP)
        values = expected(quantised)
        os.makedirs(o.out, exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(f"{quantised}/{name}", f"{o.out}/{name}")
        mx.save_safetensors(f"{o.out}/expected.safetensors", values)


if __name__ == "__main__":
    main()
