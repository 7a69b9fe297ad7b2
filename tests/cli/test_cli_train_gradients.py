"""quern train: the gradients of the stored runs, seen through one step of SGD with rate 1, which subtracts them."""
import json
import shutil

import numpy as np
import pytest

from support import call, fixture, read_json, read_safetensors, rewrite_safetensors


def numbers(path):
    return {n: a for n, a in read_safetensors(path).items() if n != "__metadata__"}


@pytest.mark.parametrize("stored_as", ["adapter_grad", "grad0"])
@pytest.mark.parametrize("name", ["llama_qv", "llama_all", "gemma3_text_qv", "gemma3_text_all"])
def test_one_step_subtracts_the_gradient(name, stored_as, tmp_path):
    source = fixture(f"lora/{name}")
    expected, stored = read_json(f"{source}/expected.json"), read_safetensors(f"{source}/train.safetensors")
    start, out = str(tmp_path / "start"), str(tmp_path / "out")
    shutil.copytree(source, start)

    def begin(tensors):
        for n in tensors:
            tensors[n][2] = np.ascontiguousarray(stored[f"start.{n}"]).tobytes()
    if stored_as == "grad0":
        rewrite_safetensors(f"{source}/adapter_model.safetensors", f"{start}/adapter_model.safetensors", begin)
    lines = [{"ids": i.tolist(), "counts": m.tolist()} for i, m in zip(stored["ids"], stored["mask"])]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = call("train", fixture(f"models/{expected['base']}"), tmp_path / "train.jsonl", "-o", out, "--start", start,
               "--optimizer", "sgd", "--lr", 1, "--clip-norm", 0, "--batch-size", 16, "--in-order", "--steps", 1,
               "--precision", "exact")
    assert run.returncode == 0, run.stderr.decode()
    before, after = numbers(f"{start}/adapter_model.safetensors"), numbers(f"{out}/last/adapter_model.safetensors")
    assert before.keys() == after.keys()
    for n in before:
        want = stored[f"{stored_as}.{n}"]
        # Numbers themselves are rounded to f32 by the subtraction.
        off = np.abs(before[n] - after[n] - want).max()
        assert off <= 1e-4 * np.abs(want).max() + 1e-7 * np.abs(before[n]).max(), n
