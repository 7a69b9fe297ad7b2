"""Embeddings of n-grams: a table in several tensors; the numbers of the hash in the files, or made of config.json."""
import os
import shutil

import numpy as np
import pytest

from support import call, fixture, logits, read_safetensors, rewrite_safetensors

KIND = "families2/qwen4_exp"
PLACE = "model.language_model.layers.0.ple.ple_embedding."
TABLE = PLACE + "ngram_embedding.shard_0.weight"
BY, SIZES, OFFSETS = (PLACE + name for name in ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"])


def model_with(change, tmp_path):
    """A copy of the model; change(tensors) edits them in place."""
    folder, to = fixture(KIND), str(tmp_path / "changed")
    os.mkdir(to)
    for name in os.listdir(folder):
        if not name.startswith(("expected.", "model.safetensors")):
            shutil.copyfile(f"{folder}/{name}", f"{to}/{name}")
    rewrite_safetensors(f"{folder}/model.safetensors", f"{to}/model.safetensors", change)
    return to


def split(*ranges):
    """The table's rows in a tensor for each range."""
    def change(tensors):
        dtype, shape, data = tensors.pop(TABLE)
        width = len(data) // shape[0]
        for i, (begin, end) in enumerate(ranges):
            name = TABLE.replace("shard_0", f"shard_{i}")
            tensors[name] = [dtype, [end - begin, shape[1]], data[begin * width:end * width]]
    return change


def joined(tensors):
    tensors[TABLE.replace("shard_0.", "")] = tensors.pop(TABLE)


def without_lists(tensors):
    for name in (BY, SIZES, OFFSETS):
        del tensors[name]


def numbers(name, values, dtype="I64"):
    def change(tensors):
        raw = np.array(values, "<i8" if dtype == "I64" else "<i4").tobytes()
        tensors[name] = [dtype, [len(values)], raw]
    return change


def prompt_logits(model, tmp_path):
    ids = read_safetensors(f"{fixture(KIND)}/expected.safetensors")["prompt0.ids"]
    return np.array(logits(model, [ids], tmp_path)[0], np.float32)


@pytest.mark.parametrize("change", [split((0, 150), (150, 300), (300, 408)), split((0, 1), (1, 408)), joined,
                                    without_lists])
def test_same_bits(change, tmp_path):
    want, got = prompt_logits(fixture(KIND), tmp_path), prompt_logits(model_with(change, tmp_path), tmp_path)
    assert (want.view(np.uint32) == got.view(np.uint32)).all()


def test_numbers_of_the_files_count(tmp_path):
    want = prompt_logits(fixture(KIND), tmp_path)
    assert np.abs(want - prompt_logits(model_with(numbers(BY, [3, 5, 7]), tmp_path), tmp_path)).max() > 2e-2


@pytest.mark.parametrize("change, words", [
    (split((0, 150), (150, 300)), "shard_0.weight on have 300 rows together, expected 408"),
    (split((0, 150), (150, 408), (0, 8)), "shard_2.weight: shape [8, 4], expected at most [0, 4]"),
    (numbers(BY, [3, -1, 7]), "layer_multipliers[1] is -1, expected 0 to"),
    (numbers(BY, [3, 1]), "layer_multipliers: shape [2], expected [3]"),
    (numbers(BY, [3, 1, 5], "I32"), "layer_multipliers: type I32, expected I64"),
    (numbers(SIZES, [0, 1, 1, 1]), "ngram_heads_vocab_sizes[0] is 0, expected 1 to 408"),
    (numbers(OFFSETS, [0, 1, 2, 400]), "ngram_heads_offsets[3] is 400, expected 0 to 301")])
def test_refusals(change, words, tmp_path):
    done = call("run", model_with(change, tmp_path), "-p", "a", "-n", 1)
    assert done.returncode != 0 and words in done.stderr.decode(), done.stderr.decode()
