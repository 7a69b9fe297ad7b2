#!/usr/bin/env python3
"""Golden data of rope_scaling and rope_parameters side by side, as transformers 5 reads them:
tests/golden/rope_sets.json. tools/rope_sets_golden.py"""
import itertools, json, os, tempfile

from transformers import AutoConfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCALINGS = [None, {}, {"rope_type": "linear", "factor": 8.0}, {"type": "linear", "factor": 2.0, "rope_theta": 3e5},
            {"rope_type": "default"}, {"factor": 3.0}]
FULL = [{"rope_type": "default"}, {"rope_type": "default", "rope_theta": 7e5},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 6e5}]
LOCAL = [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 2e4}]


def sets():
    yield None
    yield {}
    for f in FULL:
        yield f
        yield {"full_attention": f}
        for s in LOCAL:
            yield {"full_attention": f, "sliding_attention": s}
    for s in LOCAL:
        yield {"sliding_attention": s}


def facts(p):
    return {"type": p.get("rope_type"), "theta": float(p["rope_theta"]), "factor": float(p.get("factor", 1))}


def main():
    base = json.load(open(os.path.join(ROOT, "tests/golden/models/gemma3_text/config.json")))
    cases = []
    for params, scaling, thetas in itertools.product(sets(), SCALINGS, (0, 1)):
        patch = {"rope_parameters": params, "rope_scaling": scaling,
                 "rope_theta": 5e5 if thetas else None, "rope_local_base_freq": 5e3 if thetas else None}
        config = {k: v for k, v in {**base, **patch}.items() if not (k in patch and v is None)}
        with tempfile.TemporaryDirectory() as d:
            json.dump(config, open(d + "/config.json", "w"))
            try:
                rope = AutoConfig.from_pretrained(d).rope_parameters
                case = {"patch": patch, "full": facts(rope["full_attention"]),
                        "sliding": facts(rope["sliding_attention"])}
            except Exception:
                continue  # the reference takes no such file
        cases.append(case)
    with open(os.path.join(ROOT, "tests/golden/rope_sets.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
