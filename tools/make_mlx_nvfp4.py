#!/usr/bin/env python3
"""Makes tests/golden/mlx/qwen3-nvfp4: a tiny Qwen3 as mlx_lm quantises it to nvfp4, and what MLX makes of it.

make_mlx_nvfp4.py SOURCE OUT: SOURCE is tests/golden/models/qwen3. mlx_lm.convert makes nvfp4 of all matrices.
expected.safetensors: `ids` [24], `logits` [24, vocab] in float32 arithmetic on the stored values, `greedy` [16] from
the first 12 ids; `all.weight`, `all.scales`: a matrix with every code under every scale, and `all.values` [256, 32],
mlx.core.dequantize in float32.

Needs mlx[cpu], mlx-lm 0.32 or later and numpy.
"""
import argparse
import os
import shutil
import sys
import tempfile

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import mlx.core as mx
import numpy as np
from make_mlx_experts import expected
from mlx_lm import convert

VOCABULARY = 500


def all_values():
    """Row s: scale s, then scale 255 - s, over the codes 0 to 15."""
    words = [sum((8 * w + i) << 4 * i for i in range(8)) for w in range(2)]
    weight = mx.array(np.tile(np.array(words, np.uint32), (256, 2)))
    scales = mx.array(np.array([[s, 255 - s] for s in range(256)], np.uint8))
    values = mx.dequantize(weight, scales, group_size=16, bits=4, mode="nvfp4", dtype=mx.float32)
    return {"all.weight": weight, "all.scales": scales, "all.values": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        quantised = f"{folder}/quantised"
        convert(o.source, mlx_path=quantised, quantize=True, q_mode="nvfp4")
        values = expected(quantised, VOCABULARY) | all_values()
        os.makedirs(o.out, exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(f"{quantised}/{name}", f"{o.out}/{name}")
        mx.save_safetensors(f"{o.out}/expected.safetensors", values)


if __name__ == "__main__":
    main()
