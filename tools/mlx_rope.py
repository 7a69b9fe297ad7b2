#!/usr/bin/env python3
"""Whether the device mlx should turn rows by MLX's own rope: how far it is from the shared table, and its time.

usage: mlx_rope.py, with a Python that has mlx and numpy

Rows of 16 heads of 128, theta 10^6, at random positions below a limit. The table is what src/device/mlx/norm.cpp
computes once a step: cosines and sines of position * frequency in float32, as on the CPU. mlx.core.fast.rope takes the
reciprocals of frequencies. Differences are the largest of turned values (of normal numbers).
"""
import time

import mlx.core as mx
import numpy as np

HEADS, DIMS, ROWS, ROUNDS = 16, 128, 256, 9


def turned(x, cosines, sines):
    a, b = x[..., :DIMS // 2], x[..., DIMS // 2:]
    return mx.concatenate([a * cosines - b * sines, b * cosines + a * sines], -1)


def table(positions, frequencies):
    angles = mx.expand_dims(positions.astype(mx.float32), 1) * mx.expand_dims(frequencies, 0)
    return mx.expand_dims(mx.cos(angles), 1), mx.expand_dims(mx.sin(angles), 1)


def by_mlx(x, positions, reciprocals):
    return mx.fast.rope(mx.expand_dims(x, 2), DIMS, traditional=False, base=None, scale=1.0, offset=positions,
                        freqs=reciprocals)[:, :, 0]


def microseconds(f, n):
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(n):
            mx.eval(f())
        times.append((time.perf_counter() - start) / n * 1e6)
    return f"{sorted(times)[ROUNDS // 2]:.0f} ({min(times):.0f} to {max(times):.0f})"


def main():
    rng = np.random.default_rng(1)
    f = (1e6 ** (-np.arange(0, DIMS, 2, dtype=np.float64) / DIMS)).astype(np.float32)
    frequencies, reciprocals = mx.array(f), mx.array(np.float32(1) / f)
    same = int((np.float32(1) / (np.float32(1) / f) == f).sum())
    print(f"MLX {mx.__version__}: {same} of {len(f)} frequencies are the reciprocal of their reciprocal")
    for limit in (300, 4096, 32768, 131072):
        positions = mx.array(rng.integers(0, limit, ROWS).astype(np.int32))
        x = mx.array(rng.standard_normal((ROWS, HEADS, DIMS)).astype(np.float32))
        ours = turned(x, *table(positions, frequencies))
        print(f"positions below {limit}: {mx.abs(ours - by_mlx(x, positions, reciprocals)).max().item():.1e} apart")
    for n_rows in (1, 128):
        positions = mx.arange(1000, 1000 + n_rows)
        x = mx.array(rng.standard_normal((n_rows, HEADS, DIMS)).astype(np.float32))
        cosines, sines = table(positions, frequencies)
        mx.eval(cosines, sines)
        runs = 200 if n_rows == 1 else 20
        print(f"{n_rows} rows, microseconds: {microseconds(lambda: turned(x, cosines, sines), runs)} with the table, "
              f"{microseconds(lambda: by_mlx(x, positions, reciprocals), runs)} by mlx.core.fast.rope")


if __name__ == "__main__":
    main()
