"""quern bench: what its JSON holds, with a prompt and with random ids, and what is refused. No clock is judged."""
import json

import pytest

from support import call, call_json, fixture

LLAMA = "models/llama"
SMALL = ("--decode-tokens", 4, "--runs", 2, "--precision", "high")


def assert_spread(spread):
    assert 0 < spread["min"] <= spread["median"] <= spread["max"]


@pytest.mark.parametrize("model", [LLAMA, "models/gemma3_text"])
def test_everything_of_a_prompt(model):
    prompt = "The mill stands by the river and turns all day."
    out = call_json("bench", fixture(model), "--json", "-p", prompt, *SMALL)
    n = call_json("run", fixture(model), "--raw", "-p", prompt, "-n", 1, "--json")["n_prompt_tokens"]
    assert (out["prompt_tokens"], out["decode_tokens"], out["sequences"], out["runs"]) == (n, 4, 1, 2)
    [r] = out["results"]
    assert r["precision"] == r["model"]["precision"] == "high"
    for part, keys in ((r, ("prefill_tokens_per_sec", "decode_tokens_per_sec")),
                       (r["state"], ("save_ms", "restore_ms")),
                       (r["prompt_cache"], ("cold_first_token_ms", "warm_first_token_ms"))):
        for key in keys:
            assert_spread(part[key])
    assert 0 < r["active_memory_bytes"] <= r["peak_memory_bytes"]
    assert r["prompt_cache"]["hit_rate"] == pytest.approx((n - 1) / n)
    assert r["state"]["size_bytes"] > 4 * n and r["probes"]["events"] >= 4
    assert len(r["quality"]["answers"]) == 4 and all(len(a["ids"]) <= 16 for a in r["quality"]["answers"])
    checks = {c["name"]: c for c in r["checks"]}
    assert set(checks) == {"greedy_again", "greedy_together", "greedy_kept", "greedy_probed", "state_restored",
                           "perplexity"}
    assert all(c["passed"] and c["rule"] for name, c in checks.items() if name != "perplexity")
    assert checks["perplexity"]["value"] == r["quality"]["perplexity"]


def test_answers_are_those_of_run():
    [r] = call_json("bench", fixture(LLAMA), "--json", *SMALL, "--prompt-tokens", 4)["results"]
    for answer in r["quality"]["answers"]:
        run = call_json("run", fixture(LLAMA), "--raw", "-p", answer["prompt"], "-n", 16, "--temp", 0, "--json")
        assert run["ids"] == [answer["ids"]]


def test_only_speed_and_both_precisions():
    out = call_json("bench", fixture(LLAMA), "--json", "--only-speed", "--prompt-tokens", 9, "--decode-tokens", 3,
                    "--runs", 1, "--sequences", 3)
    assert (out["prompt_tokens"], out["sequences"]) == (9, 3)
    assert [r["precision"] for r in out["results"]] == ["high", "fast"]
    for r in out["results"]:
        assert set(r) == {"precision", "prefill_tokens_per_sec", "decode_tokens_per_sec", "peak_memory_bytes",
                          "active_memory_bytes", "metrics", "model"}


def test_bound_of_the_perplexity():
    def check(bound):
        args = ("bench", fixture(LLAMA), *SMALL, "--prompt-tokens", 4, "--max-perplexity", bound)
        out = call(*args, "--json")
        assert out.returncode == 0
        [found] = [c for c in json.loads(out.stdout)["results"][0]["checks"] if c["name"] == "perplexity"]
        return found["passed"], call(*args).stdout.decode()
    passed, text = check("1e30")
    assert passed and "failed" not in text and "checks: 6 of 6 passed" in text
    passed, text = check(1.5)
    assert not passed and "failed: perplexity" in text


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_types_of_keys_and_values(kv):
    [r] = call_json("bench", fixture(LLAMA), "--json", "--kv-type", kv, *SMALL, "--prompt-tokens", 33)["results"]
    assert r["model"]["kv_dtype"] == kv
    assert all(c["passed"] for c in r["checks"] if c["name"] != "perplexity")


@pytest.mark.parametrize("args, word", [
    (("-p", "A", "--prompt-tokens", 3), "--prompt-tokens"),
    (("--prompt-tokens", 1 << 20), "context"),
    (("--decode-tokens", 1), "--decode-tokens"),
    (("--kv-type", "q3"), "q4_0"),
    (("--prompt-tokens", 8, "--decode-tokens", 64, "--context", 12), "context of 12"),
])
def test_refused(args, word):
    out = call("bench", fixture(LLAMA), *args)
    assert out.returncode != 0 and word in out.stderr.decode()


def test_without_a_place_for_state(tmp_path):
    out = call("bench", fixture(LLAMA), *SMALL, "--prompt-tokens", 8, "--json", env={"TMPDIR": str(tmp_path / "none")})
    assert out.returncode == 0 and b"saving and restoring state is not measured" in out.stderr, out.stderr
    [r] = json.loads(out.stdout)["results"]
    assert r["prefill_tokens_per_sec"]["median"] > 0 and "state_restored" not in [c["name"] for c in r["checks"]]
