"""Vision towers in GGUF files: --mmproj, a tower beside the model, and what is refused by name."""
import json
import os
import shutil

import numpy as np
import pytest

import gguf_help
from gguf_help import write_pair, write_text, write_tower
from picture_help import png
from support import call, call_json, fixture, read_safetensors

EXACT = ["--precision", "exact", "--ignore-eos", "--max-tokens", "16"]


@pytest.fixture(scope="module")
def golden():
    return read_safetensors(fixture(f"{gguf_help.MODEL}/expected.safetensors"))


@pytest.fixture(scope="module")
def picture(golden, tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "picture.png"
    path.write_bytes(png(golden["image.rgb"]))
    return str(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A folder with a model and its tower, and the path of the model. Tests change copies of it."""
    folder = tmp_path_factory.mktemp("pair")
    return str(folder), write_pair(str(folder))


def ask(model, picture, golden, *args):
    return call_json("run", model, "--image", picture, "--ids", "-", *EXACT, *args,
                     stdin={"ids": [golden["image.ids"].tolist()]})


def see(model, picture, golden, *args):
    assert ask(model, picture, golden, *args)["ids"] == [golden["image.greedy"].tolist()]


def refused(model, picture, golden, *args, code=1):
    out = call("run", model, "--image", picture, "--ids", "-", *EXACT, *args,
               stdin={"ids": [golden["image.ids"].tolist()]})
    assert out.returncode == code and not out.stdout, out.stderr
    return out.stderr.decode()


def test_beside(pair, picture, golden):
    """By the model's path and by its folder."""
    folder, model = pair
    see(model, picture, golden)
    see(folder, picture, golden)


def test_doctor(pair):
    out = call("doctor", pair[1]).stdout.decode()
    assert "pictures are seen by the vision tower" in out and "mmproj-model-F16.gguf" in out


def test_named(picture, golden, tmp_path):
    model, tower = write_text(str(tmp_path / "t.gguf")), str(tmp_path / "elsewhere" / "tower.gguf")
    os.mkdir(tmp_path / "elsewhere")
    write_tower(tower)
    see(model, picture, golden, "--mmproj", tower)
    assert "takes no images" in refused(model, picture, golden)
    assert ask(model, picture, golden, "--mmproj", tower)["model"]["mmproj"] == tower


def test_none(pair, picture, golden):
    said = refused(pair[1], picture, golden, "--mmproj", "none")
    assert "the model takes no images" in said


def test_several(picture, golden, tmp_path):
    """Of files that differ in their type alone F16 is taken; of others the one that is named after the model."""
    model = write_pair(str(tmp_path), "tiny")
    write_tower(str(tmp_path / "mmproj-tiny-F32.gguf"), change=lambda keys, tensors: tensors.clear())
    see(model, picture, golden)
    write_tower(str(tmp_path / "mmproj-other-F16.gguf"), change=lambda keys, tensors: tensors.clear())
    see(model, picture, golden)
    os.rename(model, tmp_path / "second.gguf")
    said = refused(tmp_path / "second.gguf", picture, golden)
    assert "3 vision towers lie beside the model" in said and "--mmproj names one" in said


def test_quantised_swapped_names(picture, golden, tmp_path):
    """Older files have the names of the matrices of the MLP the other way round, and no width of it."""
    def swap(keys, tensors):
        del keys["clip.vision.feed_forward_length"]
        for name in [n for n in tensors if ".ffn_up." in n]:
            other = name.replace("ffn_up", "ffn_down")
            tensors[name], tensors[other] = tensors[other], tensors[name]

    tower = write_tower(str(tmp_path / "tower.gguf"), change=swap)
    see(write_text(str(tmp_path / "t.gguf")), picture, golden, "--mmproj", tower)


def change_key(name, value):
    def change(keys, _):
        keys[name] = (keys.get(name, ("string",))[0], value)
    return change


def sound_alone(keys, _):
    del keys["clip.has_vision_encoder"]
    keys["clip.has_audio_encoder"] = ("bool", True)


def more(_, tensors):
    tensors["v.blk.0.unknown.weight"] = np.zeros((2, 2), np.float32)


def fewer(_, tensors):
    del tensors["v.blk.1.attn_qkv.weight"]


def wider(_, tensors):
    tensors["mm.2.weight"] = np.zeros((50, 128), np.float32)


@pytest.mark.parametrize("change, words", [
    (change_key("clip.vision.projection_dim", 64),
     ["tower.gguf: the vision tower gives vectors of 64 numbers", "the embeddings of", "t.gguf have 48"]),
    (change_key("general.architecture", "llama"), ['tower.gguf: this is no vision tower', '"llama", expected "clip"']),
    (change_key("clip.projector_type", "mystery"), ['clip.projector_type is "mystery"', "known: qwen3vl_merger"]),
    (sound_alone, ["this tower hears and does not see"]),
    (more, ["tensor v.blk.0.unknown.weight does not belong to a vision tower"]),
    (fewer, ["tower.gguf: tensor v.blk.1.attn_qkv.weight is missing, expected with shape [96, 32]"]),
    (wider, ["tensor mm.2.weight: shape [50, 128], expected [48, 128]"]),
    (change_key("clip.vision.block_count", 0), ["clip.vision.block_count is 0"]),
])
def test_refused(change, words, picture, golden, tmp_path):
    tower = write_tower(str(tmp_path / "tower.gguf"), change=change)
    said = refused(write_text(str(tmp_path / "t.gguf")), picture, golden, "--mmproj", tower)
    assert all(w in said for w in words) and said.count("\n") == 1, said


def test_damaged(picture, golden, tmp_path):
    """A file that was named is refused; one that was found leaves the text, and a note says why."""
    model, tower = write_text(str(tmp_path / "t.gguf")), str(tmp_path / "mmproj-t.gguf")
    with open(write_tower(tower), "rb") as f:
        half = f.read()[:5000]
    with open(tower, "wb") as f:
        f.write(half)
    assert tower in refused(model, picture, golden, "--mmproj", tower)
    assert "is not used" in refused(model, picture, golden)
    out = call("run", model, "-p", "hi", "--raw", *EXACT)
    assert out.returncode == 0 and b"the vision tower beside the model is not used" in out.stderr, out.stderr


def test_tower_as_model(pair, tmp_path):
    tower = shutil.copy(os.path.join(pair[0], "mmproj-model-F16.gguf"), tmp_path)
    for model in tower, str(tmp_path):
        out = call("run", model, "-p", "hi", "--raw")
        assert out.returncode == 1 and b"only the tower that a model sees with" in out.stderr, out.stderr
    assert b"/mmproj" not in call("models", pair[0]).stdout


def test_not_a_gguf(pair, picture, golden):
    said = refused(fixture(gguf_help.MODEL), picture, golden, "--mmproj",
                   os.path.join(pair[0], "mmproj-model-F16.gguf"))
    assert "is for a GGUF" in said


def test_pack(pair, picture, golden, tmp_path):
    """Packed weights have the tower's too."""
    model = shutil.copy(pair[1], tmp_path)
    shutil.copy(os.path.join(pair[0], "mmproj-model-F16.gguf"), tmp_path)
    assert call("pack", model).returncode == 0
    got = ask(model, picture, golden)
    assert got["ids"] == [golden["image.greedy"].tolist()] and got["model"]["packed"], json.dumps(got["model"])
