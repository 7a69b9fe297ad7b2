"""The two real models against transformers in float32 on the same weights (fixtures real/)."""
import numpy as np
import pytest

from support import fixture, greedy, logits, read_safetensors, real_model

# name, reference, llama.cpp's KL on the same file
MODELS = [("smollm2", "smollm2", 4.9e-3), ("gemma3-270m", "gemma3_270m", 7.8e-3)]


def figures(got, t):
    """KL, share of equal top-1, top-1 that differ beyond a tie, mean |difference| of the stored logits, mean
    negative log-likelihood; row by row, since all of it is large."""
    n = len(got)
    ids, top_ids = t["ids"], t["top_ids"]
    top, lse = t["top_logits"].astype(np.float64), t["logsumexp"].astype(np.float64)
    kl, equal, wrong_far, difference, nll = 0.0, 0, 0, 0.0, 0.0
    for i in range(n):
        row = np.asarray(got[i], np.float64)
        own_lse = row.max() + np.log(np.exp(row - row.max()).sum())
        p, q = np.exp(top[i] - lse[i]), np.exp(row[top_ids[i]] - own_lse)
        p_rest, q_rest = max(1 - p.sum(), 1e-12), max(1 - q.sum(), 1e-12)
        kl += (p * np.log(p / np.maximum(q, 1e-300))).sum() + p_rest * np.log(p_rest / q_rest)
        same = int(row.argmax() == top_ids[i][0])
        equal += same
        wrong_far += (not same) and top[i][0] - top[i][1] > 1e-3
        difference += np.abs(row[top_ids[i]] - top[i]).mean()
        if i + 1 < n:
            nll += own_lse - row[ids[i + 1]]
    return kl / n, equal / n, int(wrong_far), difference / n, nll / (n - 1)


@pytest.mark.parametrize("precision", ["exact", "high", "fast"])
@pytest.mark.parametrize("name, file, peer_kl", MODELS)
def test_agrees_with_float32(name, file, peer_kl, precision, tmp_path):
    model, t = real_model(name), read_safetensors(fixture(f"real/{file}.safetensors"))
    got = logits(model, [t["ids"]], tmp_path, "--precision", precision)[0]
    kl, top1, wrong_far, difference, nll = figures(got, t)
    reference = float(t["__metadata__"]["mean_nll"])
    print(f"{name} {precision}: KL {kl:.2e}, top-1 {top1:.4f}, mean |d| {difference:.2e}, NLL {nll:.5f} "
          f"({reference:.5f})")
    (tmp_path / "out.safetensors").unlink()
    if precision == "exact":
        assert wrong_far == 0 and difference <= 1e-3
    elif precision == "high":
        assert kl <= 1e-5 and top1 >= 0.995
    else:
        assert kl <= 6e-3 and kl <= peer_kl and top1 >= 0.93
        assert abs(np.exp(nll - reference) - 1) <= 0.012


@pytest.mark.parametrize("name, file, peer_kl", MODELS)
def test_greedy_follows_float32(name, file, peer_kl, tmp_path):
    model, t = real_model(name), read_safetensors(fixture(f"real/{file}.safetensors"))
    rows = [t["ids"][:n] for n in t["greedy_len"]]
    for got, expected, margins in zip(greedy(model, rows, 64, tmp_path, "--precision", "exact"), t["greedy"],
                                      t["greedy_margin"]):
        close = np.nonzero(margins < 1e-2)[0]  # from there on a faithful engine may branch off
        n = int(close[0]) if len(close) else 64
        assert got[:n] == expected[:n].tolist()
