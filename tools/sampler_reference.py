#!/usr/bin/env python3
"""The sampler chain in numpy, after the papers; writes tests/golden/ops/chains.json.

    tools/sampler_reference.py [OUT]

Sources: typical_p: Meister et al. 2022, arXiv 2202.00666. mirostat: Basu et al. 2020, arXiv 2007.14966 (version 2: the
authors' repository). top_n_sigma: Tang et al. 2024, arXiv 2411.07641. dry, xtc: p-e-w, text-generation-webui,
pull requests 5677 and 6335. Dynamic temperature: llama.cpp. Everything is float64, with logits and options
rounded to float32 first. Where a paper leaves ties open, src/engine/sample says how they are decided, and this file
does the same.
"""
import json
import os
import sys

import numpy as np

GONE = -np.inf


def f32(x):
    return float(np.float32(x))


def softmax(x):
    w = np.exp(x - x.max())
    return w / w.sum()


def entropy(p):
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


# ---- steps: logits to logits, -inf is gone ----

def in_falling_order(x):
    """Ids, the larger logit first, the lower id first on a tie."""
    return np.lexsort((np.arange(len(x)), -x))[: int((x > GONE).sum())]


def keep_only(x, mask):
    return np.where(mask, x, GONE)


def top_k(x, k):
    order = in_falling_order(x)
    return x if k >= len(order) else keep_only(x, x >= x[order[k - 1]])


def top_p(x, p):
    order, probabilities = in_falling_order(x), softmax(x)
    above = np.concatenate(([0], np.cumsum(probabilities[order])[:-1]))
    mask = np.zeros(len(x), bool)
    mask[order[above < p]] = True
    return keep_only(x, mask)


def min_p(x, m):
    probabilities = softmax(x)
    return keep_only(x, probabilities >= m * probabilities.max())


def typical_p(x, mass):
    p = softmax(x)
    there = x > GONE
    distance = np.full(len(x), np.inf)
    distance[there] = np.abs(-np.log(p[there]) - entropy(p))
    mask = np.zeros(len(x), bool)
    nearer = 0.0
    for d in np.unique(distance[there]):
        if nearer >= mass:
            break
        mask |= distance == d
        nearer += p[distance == d].sum()
    return keep_only(x, mask)


def top_n_sigma(x, n):
    return keep_only(x, x >= x.max() - n * x[x > GONE].std())


def xtc(x, threshold):
    order, p = in_falling_order(x), softmax(x)
    above = [i for i in order if p[i] >= threshold]
    x = x.copy()
    x[above[:-1]] = GONE
    return x


def repeat_penalty(x, tokens, r):
    x = x.copy()
    for i in set(tokens):
        x[i] = x[i] * r if x[i] < 0 else x[i] / r
    return x


def dry_losses(tokens, multiplier, base, allowed_length, breakers=()):
    """{token: loss}, by the definition and not by an algorithm that is fast."""
    lengths = {}
    for i in range(len(tokens) - 1):
        n = 0
        while n <= i and tokens[i - n] == tokens[-1 - n] and tokens[-1 - n] not in breakers:
            n += 1
        if n and tokens[i + 1] not in breakers:
            lengths[tokens[i + 1]] = max(n, lengths.get(tokens[i + 1], 0))
    return {t: multiplier * base ** (n - allowed_length) for t, n in lengths.items() if n >= allowed_length}


def temperature(x, o):
    t, spread = o.get("temperature", 1.0), o.get("dynatemp_range", 0.0)
    n = int((x > GONE).sum())
    if spread > 0:
        low, high = max(t - spread, 0.0), t + spread
        share = entropy(softmax(x)) / np.log(n) if n > 1 else 0.0
        t = low + (high - low) * share ** o.get("dynatemp_exponent", 1.0)
    return x / t


def mirostat_k(x, mu):
    """Equations 2 and 30 of the paper."""
    p = np.sort(softmax(x))[::-1][: int((x > GONE).sum())]
    n, m = len(p), min(100, len(p) - 1)
    if n < 2:
        return 1
    t = np.log((np.arange(m) + 2) / (np.arange(m) + 1))
    b = np.log(p[:m] / p[1 : m + 1])
    s = (t * b).sum() / (t * t).sum()
    with np.errstate(divide="ignore", over="ignore"):  # where the largest are equal s is 0
        k = ((s - 1) * 2.0**mu / (1 - float(n) ** (1 - s))) ** (1 / s)
    return n if k >= n else max(1, int(round(k)))


def mirostat(x, version, mu):
    if version == 1:
        return top_k(x, mirostat_k(x, mu))
    p = softmax(x)
    return keep_only(x, (p >= 2.0**-mu) | (x == x.max()))


DEFAULT_ORDER = ["repeat_penalty", "dry", "top_n_sigma", "typical_p", "top_p", "min_p", "top_k", "xtc", "temperature"]


def chain(x, o, tokens, n_prompt):
    """Probabilities after the options o; tokens[n_prompt:] were drawn."""
    x = x.copy()
    window = o.get("repeat_last_n", 0)
    begin = max(len(tokens) - window, 0) if window > 0 else 0
    drawn = tokens[max(begin, n_prompt):]
    for i in set(drawn):
        x[i] -= drawn.count(i) * o.get("frequency_penalty", 0.0) + o.get("presence_penalty", 0.0)
    if "allowed_ids" in o:
        x = keep_only(x, np.isin(np.arange(len(x)), o["allowed_ids"]))
    for word in o.get("bad_ids", []):
        if len(word) == 1 or tokens[-len(word) + 1:] == word[:-1]:
            x[word[-1]] = GONE
    for step in o.get("sampler_order", DEFAULT_ORDER):
        if step == "repeat_penalty" and "repeat_penalty" in o:
            x = repeat_penalty(x, tokens[begin:], o["repeat_penalty"])
        elif step == "dry" and "dry_multiplier" in o:
            last_n = o.get("dry_penalty_last_n", 0)
            last = tokens[-last_n:] if last_n > 0 else tokens
            losses = dry_losses(last, o["dry_multiplier"], o.get("dry_base", f32(1.75)), o.get("dry_allowed_length", 2))
            for i, loss in losses.items():
                x[i] -= loss
        elif step == "xtc" and "xtc_probability" in o:
            x = xtc(x, o.get("xtc_threshold", f32(0.1)))
        elif step == "temperature":
            x = temperature(x, o)
        elif step in o:
            x = globals()[step](x, o[step])
    return softmax(x)


# ---- cases ----

def made(n, step, modulus, divisor):
    """Logits by a formula that other programs can follow to the bit."""
    i = np.arange(n, dtype=np.int64)
    return (np.float32(i * step % modulus - modulus // 2) / np.float32(divisor)).astype(np.float64)


MADE = {
    "wide": [20011, 7919, 20011, 1500.0],  # no ties; more than a list of candidates holds
    "narrow": [20011, 7919, 20011, 9000.0],  # nearly flat
    "steps": [20011, 7919, 97, 12.0],  # 97 values, each of some 200 tokens
}

OPTIONS = [
    {"typical_p": 0.2}, {"typical_p": 0.9}, {"typical_p": 0.5, "temperature": 0.7},
    {"top_n_sigma": 0.5}, {"top_n_sigma": 1.5, "temperature": 2.0},
    {"xtc_probability": 1.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.02}, {"xtc_probability": 1.0, "top_k": 5},
    {"dynatemp_range": 0.5}, {"temperature": 0.8, "dynatemp_range": 1.2, "dynatemp_exponent": 2.5, "top_k": 20},
    {"dry_multiplier": 0.8}, {"dry_multiplier": 1.5, "dry_base": 1.2, "dry_allowed_length": 1},
    {"dry_multiplier": 0.8, "dry_allowed_length": 3, "dry_penalty_last_n": 9},
    {"repeat_penalty": 1.4, "repeat_last_n": 4}, {"repeat_penalty": 1.4},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repeat_last_n": 5},
    {"bad_ids": [[3], [4, 5, 6], [9, 8]], "top_k": 30}, {"allowed_ids": [2, 3, 50, 159], "bad_ids": [[50]]},
    {"typical_p": 0.8, "top_p": 0.9, "min_p": 0.02, "top_k": 40, "temperature": 1.2, "repeat_penalty": 1.2},
    {"typical_p": 0.6, "top_k": 25, "xtc_probability": 1.0, "xtc_threshold": 0.05, "dry_multiplier": 2.0,
     "dry_allowed_length": 1, "repeat_penalty": 1.3,
     "sampler_order": ["top_k", "xtc", "dry", "typical_p", "temperature", "repeat_penalty"]},
    {"top_n_sigma": 1.0, "typical_p": 0.7, "top_p": 0.95, "dynatemp_range": 0.3,
     "sampler_order": ["temperature", "top_p", "top_n_sigma", "typical_p"]},
]


def round_options(o):
    return {k: f32(v) if isinstance(v, float) else v for k, v in o.items()}


def history(rng, n_vocab):
    """Tokens that repeat themselves, ending within a repetition."""
    piece = [int(i) for i in rng.integers(0, n_vocab, 5)]
    return piece + [int(rng.integers(n_vocab))] + piece + [4, 9] + piece[:2] + [4, 5], 7


def to_case(name, o, tokens, n_prompt, p):
    kept = np.flatnonzero(p)
    c = {"logits": name, "options": o, "prompt": tokens[:n_prompt], "drawn": tokens[n_prompt:], "n_kept": len(kept)}
    some = kept if len(kept) <= 60 else np.union1d(kept[:: len(kept) // 12], np.intersect1d(kept, tokens))
    return c | {"ids": [int(i) for i in some], "p": [float(f"{p[i]:.9g}") for i in some]}


def trace(rng, logits, version, tau, eta, n):
    """Draws with mirostat: what stays, the token, and mu behind it."""
    mu, steps, names = 2 * tau, [], list(logits)
    for _ in range(n):
        name = names[rng.integers(len(names))]
        x = logits[name]
        before, p = softmax(x), softmax(mirostat(x, version, mu))
        id = int(rng.choice(len(p), p=p))
        mu -= eta * (-np.log2(before[id]) - tau)
        steps.append({"logits": name, "n_kept": int((p > 0).sum()), "id": id, "p": float(f"{p[id]:.9g}"),
                      "mu": float(f"{mu:.12g}")})
    return {"version": version, "tau": tau, "eta": eta, "steps": steps}


def repetitions(rng, n):
    """DRY alone, with breakers, over few tokens: many matches."""
    cases = []
    for _ in range(n):
        tokens = [int(i) for i in rng.integers(0, rng.integers(1, 5) + 1, rng.integers(1, 40))]
        o = {"multiplier": f32(rng.uniform(0.1, 2)), "base": f32(rng.uniform(1, 2)),
             "allowed_length": int(rng.integers(1, 5))}
        breakers = [int(i) for i in rng.integers(0, 8, rng.integers(0, 3))]
        losses = dry_losses(tokens, **o, breakers=breakers)
        ids = sorted(losses)
        cases.append(o | {"tokens": tokens, "breakers": breakers, "ids": ids,
                          "losses": [float(f"{losses[i]:.9g}") for i in ids]})
    return cases


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def main():
    usual = os.path.join(os.path.dirname(__file__), "../tests/golden/ops/chains.json")
    out = sys.argv[1] if len(sys.argv) > 1 else usual
    rng = np.random.default_rng(20241126)
    stored = {name: (rng.standard_normal(160) * spread).astype(np.float32) for name, spread in
              {"flat": 0.3, "usual": 2.0, "peaked": 5.0}.items()}
    logits = {name: x.astype(np.float64) for name, x in stored.items()}
    logits |= {name: made(*how) for name, how in MADE.items()}
    cases = []
    for i, options in enumerate(OPTIONS):
        for name in (list(stored)[i % 3], list(stored)[(i + 1) % 3], list(MADE)[i % 3]):
            o = round_options(options)
            tokens, n_prompt = history(rng, 160)
            cases.append(to_case(name, o, tokens, n_prompt, chain(logits[name], o, tokens, n_prompt)))
    traces = [trace(rng, logits, version, tau, f32(eta), 40)
              for version in (1, 2) for tau, eta in ((5.0, 0.1), (2.0, 0.5))]
    golden = {"logits": {name: [float(f"{v:.9g}") for v in x] for name, x in stored.items()}, "made": MADE,
              "cases": cases, "traces": traces, "repetitions": repetitions(rng, 80)}
    lines = ",\n".join(f"{json.dumps(key)}:" + (
        "[\n" + ",\n".join(compact(v) for v in value) + "\n]" if isinstance(value, list) else compact(value))
        for key, value in golden.items())
    with open(out, "w") as f:
        f.write("{\n" + lines + "\n}\n")


main()
