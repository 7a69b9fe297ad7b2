"""quern eval: the loss of a data set, its lines, its splits, and what is refused."""
import json
import math
import os
import shutil

import pytest

from support import call, call_json, fixture, read_json, read_safetensors


@pytest.fixture(scope="module")
def model():
    return fixture("models/llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for n, name in enumerate(("train", "valid", "test"), 3):
        lines = [{"text": f"The {name} mill grinds {i} grains."} for i in range(n)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def lines_of(*args):
    out = call("eval", *args, "--json")
    assert out.returncode == 0, out.stderr.decode()
    return [json.loads(line) for line in out.stdout.decode().splitlines()]


def refused(*args, code=1):
    out = call("eval", *args)
    assert out.returncode == code and out.stderr.count(b"\n") == 1 and not out.stdout, out
    return out.stderr.decode()


def test_loss_is_the_reference_s(tmp_path):
    """Ids and masks of the fixture: the loss with its adapter, in one batch or many."""
    source = fixture("lora/llama_qv")
    expected, stored = read_json(f"{source}/expected.json"), read_safetensors(f"{source}/train.safetensors")
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"ids": i.tolist(), "counts": m.tolist()}) + "\n"
                            for i, m in zip(stored["ids"], stored["mask"])))
    args = [fixture(f"models/{expected['base']}"), file, "--adapter", source, "--precision", "exact"]
    whole = call_json("eval", *args, "--json")
    assert abs(whole["loss"] - expected["train"]["adapter_loss"]) < 2e-5
    assert whole["perplexity"] == pytest.approx(math.exp(whole["loss"]), rel=1e-4)
    assert whole["n_counted"] == int(stored["mask"][:, 1:].sum()) and whole["n_lines"] == len(stored["ids"])
    assert call_json("eval", *args, "--json", "--batch-tokens", 24)["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_lines_make_the_whole(model, data):
    *lines, whole = lines_of(model, data, "--lines")
    assert [r["line"] for r in lines] == [1, 2, 3, 4, 5]
    counted = sum(r["n_counted"] for r in lines)
    assert counted == whole["n_counted"] and sum(r["n_tokens"] for r in lines) == whole["n_tokens"]
    assert sum(r["loss"] * r["n_counted"] for r in lines) / counted == pytest.approx(whole["loss"], rel=1e-4)
    text = call("eval", model, data, "--lines").stdout.decode().splitlines()
    assert len(text) == 6 and text[0].split("\t")[0] == "1" and text[5].startswith("loss ")
    assert text[5].endswith("in 5 lines")


def test_splits(model, data, tmp_path):
    assert [call_json("eval", model, data, "--split", s, "--json")["n_lines"] for s in ("train", "valid", "test")] == [
        3, 4, 5]
    assert call_json("eval", model, data, "--json")["n_lines"] == 5
    assert call_json("eval", model, data / "valid.jsonl", "--json")["n_lines"] == 4
    assert call_json("eval", model, data, "--max-lines", 2, "--json")["n_lines"] == 2
    os.symlink(data / "train.jsonl", tmp_path / "train.jsonl")
    assert call_json("eval", model, tmp_path, "--json")["n_lines"] == 3
    assert "test" in refused(model, tmp_path, "--split", "test")


def test_bad_lines(model, data, tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text('{"text": "one"}\n{"txt": "two"}\n{"text": "three"}\n')
    whole = call_json("eval", model, file, "--json")
    assert whole["n_bad_lines"] == 1 and whole["n_lines"] == 3
    out = call("eval", model, file)
    assert "line 2: left out: " in out.stderr.decode() and "1 bad line left out" in out.stdout.decode()
    assert "error" in lines_of(model, file, "--lines")[1]
    assert "some.jsonl:2" in refused(model, file, "--strict")


def test_what_might_surprise(tmp_path):
    """What an adapter names and has not, and answers that the template does not show, are told."""
    source = fixture("lora/llama_qv")
    adapter = tmp_path / "adapter"
    shutil.copytree(source, adapter)
    config = {**read_json(f"{source}/adapter_config.json"), "target_modules": ["q_proj", "v_proj", "w_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    calls = [{"type": "function", "function": {"name": "grind", "arguments": "{}"}}]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": chat, "tools": [{**calls[0], "function": {"name": "grind"}}]}) + "\n")
    out = call("eval", fixture(f"models/{read_json(f'{source}/expected.json')['base']}"), file, "--adapter", adapter)
    assert out.returncode == 0 and "w_proj" in out.stderr.decode(), out.stderr
    words = "the longest line has 600 tokens, but the model's own context is 512: quality may suffer"
    ids = tmp_path / "ids.jsonl"
    ids.write_text(json.dumps({"ids": [7] * 600}) + "\n")
    assert words in call("eval", "seed", ids).stderr.decode()
    assert words in call("train", "seed", ids, "--dry-run").stderr.decode()
    assert "context" not in call("eval", "seed", ids, "--max-length", 512).stderr.decode()
    said = call("eval", "seed", file).stderr.decode()
    assert "1 answers do not count" in said and "1 lines have tools that the chat template does not show" in said


def test_refusals(model, data, tmp_path):
    assert "usage" in refused(model, code=2)
    assert "nowhere" in refused("nowhere", data)
    assert "nowhere" in refused(model, "nowhere")
    assert "adapter" in refused(model, data, "--adapter", tmp_path)
    assert "answers|last|all" in refused(model, data, "--mask", "some", code=2)
