#!/usr/bin/env python3
"""What mlx_lm does with a model, for bench/mlx.

usage: mlx_worker.py MODEL batch N PROMPT GENERATE RUNS      N prompts together, by batch_generate
       mlx_worker.py MODEL classify N PROMPT RUNS            one forward of N rows, and the last row's probabilities
       mlx_worker.py MODEL first                             one token of a short prompt, from nothing

A line of JSON: tokens a second of prompt and answer, or milliseconds.
Medians of the runs; a first one does not count.
"""
import json
import statistics
import sys
import time

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import batch_generate, generate_step


def prompts_of(n, length):
    return [[20 + ((i + 1) * 17 + j * 7) % 220 for j in range(length)] for i in range(n)]


def batch(model, tokenizer, n, length, generate, runs):
    found = []
    for _ in range(runs + 1):
        stats = batch_generate(model, tokenizer, prompts_of(n, length), max_tokens=generate).stats
        found.append((stats.prompt_tps, stats.generation_tps))
    return [statistics.median(f[i] for f in found[1:]) for i in (0, 1)]


def classify(model, n, length, runs):
    rows, found = mx.array(prompts_of(n, length)), []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        logits = model(rows)[:, -1, :].astype(mx.float32)
        mx.eval(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        found.append((time.perf_counter() - begin) * 1e3)
    return [statistics.median(found[1:])]


def main():
    path, what, *numbers = sys.argv[1:]
    numbers = [int(n) for n in numbers]
    # No text ends an answer: every program generates as many tokens.
    model, tokenizer = load(path)
    tokenizer.eos_token_ids = set()
    if what == "batch":
        found = batch(model, tokenizer, *numbers)
    elif what == "classify":
        found = classify(model, *numbers)
    else:
        next(generate_step(mx.array([20, 37, 44, 51]), model, max_tokens=1))
        found = []
    print(json.dumps(found))


if __name__ == "__main__":
    main()
