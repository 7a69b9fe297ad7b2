"""bench/quality without llama.cpp: its distances are what their definitions say, its bars are those of the tests, and
the logits that it reads are those that were asked for."""
import importlib.machinery
import importlib.util
import os
import sys

import numpy as np
import pytest

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("quality", os.path.join("bench", "quality"))
quality = importlib.util.module_from_spec(importlib.util.spec_from_loader("quality", loader))
loader.exec_module(quality)
MODEL = "tests/golden/models/llama"


def distance_of(reference, other):
    return quality.distances(reference, {"it": other})["it"]


def test_the_same_logits_are_no_distance_apart():
    rows = np.random.default_rng(1).normal(size=(5, 300)).astype(np.float32)
    d = distance_of(rows, rows + 7)  # a constant changes no probability
    assert max(map(abs, d.kl + d.coarse)) < 1e-7 and d.top() == 1


def test_divergence_of_known_distributions():
    p, q = np.full(100, 0.5 / 99), np.full(100, 0.75 / 99)
    p[3], q[3] = 0.5, 0.25
    d = distance_of(np.log([p]).astype(np.float32), np.log([q]).astype(np.float32))
    expected = (p * np.log(p / q)).sum()
    assert d.kl[0] == pytest.approx(expected, rel=1e-5)
    # Whatever is not among the 64 best has the same ratio here: counted as one it makes no difference.
    assert d.coarse[0] == pytest.approx(expected, rel=1e-5)


def test_beyond_is_more_than_chance():
    near, far, alike = quality.Distance(), quality.Distance(), quality.Distance()
    near.kl, far.kl, alike.kl = [1, 2, 3, 2] * 20, [2, 3, 4, 3.1] * 20, [2, 1, 3, 2.1] * 20
    assert far.is_beyond(near) and not near.is_beyond(far) and not alike.is_beyond(near)


def test_bars_are_those_of_the_tests():
    bars = quality.bars()
    assert set(bars) == {(m, p) for m in ("smollm2", "gemma3-270m") for p in ("high", "fast")}
    assert all(kl < 0.01 and 0.9 < top <= 1 for kl, top in bars.values())


def test_precisions_of_a_small_model(tmp_path):
    ids = [1, 5, 9, 30, 2, 17]
    quality.QUERN = os.environ.get("QUERN", quality.QUERN)
    exact = quality.own_logits(MODEL, ids, str(tmp_path), 1, "--precision", "exact")
    high = quality.own_logits(MODEL, ids, str(tmp_path), 1, "--precision", "high")
    assert exact.shape == high.shape and len(exact) == len(ids)
    d = distance_of(exact, high)
    assert 0 <= np.mean(d.kl) < 1e-4 and not os.path.exists(tmp_path / "logits.safetensors")
