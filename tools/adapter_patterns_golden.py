#!/usr/bin/env python3
"""Golden data of keys of rank_pattern and alpha_pattern, as peft matches them: tests/golden/adapter_patterns.json.
Needs peft alone (no torch): tools/adapter_patterns_golden.py"""
import ast, json, os, random, re

import importlib.util

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load_function():
    """peft's own get_pattern_key, without importing what needs torch."""
    path = os.path.join(os.path.dirname(importlib.util.find_spec("peft").origin), "utils/other.py")
    tree = ast.parse(open(path).read())
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "get_pattern_key")
    space = {"re": re}
    exec("from typing import Sequence\n" + ast.unparse(node), space)
    return space["get_pattern_key"]


MODULES = ["lm_head", "model.embed_tokens"] + [
    f"model.layers.{i}.{part}" for i in (0, 1, 2, 9, 10, 11, 19, 21, 31)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj",
                 "mlp.experts.3.gate_proj")]
KEYS = ["q_proj", "^q_proj", "^model.layers.0.mlp.up_proj", r"model\.layers\.\d+\.self_attn\.q_proj",
        r"model\.layers\.([0-9]|1[0-5])\..*q_proj", r".*\.layers\.(0|1)\..*", r"layers\.[12]\.mlp\.(up|down)_proj",
        r"(q|v)_proj", r"[qv]_proj", r"self_attn\..*", r".*", r"mlp", r"lm_head$", r"^lm_head", r"\w+_proj",
        r"(?:model\.)?layers\.(?:0|2)\.\w+\.q_proj", r"layers\.\d{2}\..+", r"layers\.(?!0)\d+\.self_attn\.v_proj",
        r"(?P<x>q|k)_proj", r"experts\.[0-9]+\.gate_proj", r".*mlp.*(?<!up)_proj", r"layers.0", r"o_pro", r"Q_PROJ",
        r"(?i:Q_PROJ)", r"model\.layers\.(?:[1-9]|[12][0-9])\.self_attn\.(?:q|v)_proj", r"up_proj|down_proj",
        r"^model\.layers\.1.*|lm_head", r"((q))_proj", r"layers\.\d+?\.mlp\.up_proj", r"layers\.[^01]\..*", r"",
        r"(q_proj", r"[q_proj", r"*q_proj", r"q_proj)", r"(?P<x>q)(?P<x>v)", r"q{2,1}", r"\bq_proj\b",
        r"model\..*\.(q_proj)"]


def main():
    find = load_function()
    r = random.Random(7)
    cases = []
    for key in KEYS:
        try:
            cases.append({"keys": [key], "first": [find([key], m) if find([key], m) == key else None for m in MODULES]})
        except re.error:
            cases.append({"keys": [key], "first": None})
    good = [c["keys"][0] for c in cases if c["first"] is not None]
    for _ in range(60):
        keys = r.sample(good, r.randint(2, 5))
        first = [find(keys, m) for m in MODULES]
        cases.append({"keys": keys, "first": [k if k in keys else None for k in first]})
    with open(os.path.join(ROOT, "tests/golden/adapter_patterns.json"), "w") as f:
        f.write(json.dumps({"modules": MODULES, "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
