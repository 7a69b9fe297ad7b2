"""quern run --image: golden ids, forms of the same picture, several pictures, and what is refused by name."""
import json
import os
import struct

import numpy as np
import pytest

from picture_help import MODEL, png, tensors
from support import call, call_json, fixture, read_json, read_safetensors

EXACT = ["--precision", "exact", "--ignore-eos"]


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def refused(*args, words, **options):
    out = call("run", *args, **options)
    said = out.stderr.decode()
    assert out.returncode == 1 and words in said and said.count("\n") == 1 and not out.stdout, said


@pytest.fixture(scope="module")
def golden():
    return tensors()


@pytest.fixture(scope="module")
def picture(golden, tmp_path_factory):
    return write(tmp_path_factory.mktemp("images"), "picture.png", png(golden["image.rgb"]))


def ask(picture_paths, *args):
    images = [a for p in picture_paths for a in ("--image", p)]
    return call_json("run", fixture(MODEL), *images, "--json", "--max-tokens", "16", *EXACT, *args)


def test_golden_ids(golden, picture):
    """The prompt of the reference, its image tokens already repeated or one for the image."""
    ids = golden["image.ids"].tolist()
    token = read_json(fixture(f"{MODEL}/config.json"))["image_token_id"]
    once = [i for k, i in enumerate(ids) if i != token or ids[k - 1] != token]
    assert len(once) < len(ids)
    for prompt in ids, once:
        for chunk_size in "1", "7", "256":
            got = call_json("run", fixture(MODEL), "--image", picture, "--ids", "-", "--max-tokens", "16", *EXACT,
                            "--chunk", chunk_size, stdin={"ids": [prompt]})
            assert got["ids"] == [golden["image.greedy"].tolist()]
            assert got["n_prompt_tokens"] == len(ids)


def test_logits(golden, picture, tmp_path):
    """Logits of the reference's prompt, whose ids have a token for each place; other counts are refused."""
    ids = golden["image.ids"].tolist()
    out = str(tmp_path / "logits.safetensors")
    args = ["logits", fixture(MODEL), "--ids", "-", "-o", out, "--precision", "exact"]
    call_json(*args, "--image", picture, "--json", stdin={"ids": [ids]})
    got = read_safetensors(out)["logits.0"]
    assert len(got) == len(ids)
    assert np.abs(got - golden["image.logits"]).max() <= 2e-4
    token = read_json(fixture(f"{MODEL}/config.json"))["image_token_id"]
    first, n = ids.index(token), ids.count(token)
    for wrong, words in [
            ([ids[:first] + ids[first + 1:]],
             f"image 1 has {n} tokens (2 rows of 3), but the prompt has {n - 1} image tokens in its place"),
            ([ids[:first + 1] + ids[first + n:]], f"the row has {len(ids)} tokens, but it has {len(ids) - n + 1}"),
            ([ids, ids], "has 2 rows: with --image it must have one")]:
        said = call(*args, "--image", picture, stdin={"ids": wrong}).stderr.decode()
        assert words in said and said.count("\n") == 1, said


def test_raw_text_with_special_tokens(golden, picture):
    text = read_json(fixture(f"{MODEL}/expected.json"))["image"]["text"]
    got = ask([picture], "--raw", "--special", "-p", text)
    assert got["ids"] == [golden["image.greedy"].tolist()]


def test_chat(golden, picture, tmp_path):
    """The template puts the image before the text; files with the same pixels give the same answer."""
    answer = ask([picture], "-p", "Describe the image.")
    with_alpha = write(tmp_path, "alpha.png", png(golden["image.rgb"], alpha=True))
    assert ask([with_alpha], "-p", "Describe the image.")["ids"] == answer["ids"]
    other = write(tmp_path, "other.png", png(255 - golden["image.rgb"]))
    assert ask([other], "-p", "Describe the image.")["ids"] != answer["ids"]
    plain = call_json("run", fixture(MODEL), "-p", "Describe the image.", "--json", "--max-tokens", "1", *EXACT)
    assert answer["n_prompt_tokens"] == plain["n_prompt_tokens"] + 2 + len(golden["image.features"])
    out = call("run", fixture(MODEL), "--image", "-", "-p", "Describe the image.", "--max-tokens", "16", *EXACT,
               stdin=png(golden["image.rgb"]))
    assert out.returncode == 0 and out.stdout.decode().rstrip("\n") == answer["text"][0].rstrip("\n")


def test_several_images_in_order(golden, picture, tmp_path):
    other = write(tmp_path, "other.png", png(golden["image.rgb"][::-1, ::-1]))
    one, two = ask([picture, other], "-p", "x"), ask([other, picture], "-p", "x")
    assert one["n_prompt_tokens"] == two["n_prompt_tokens"] and one["ids"] != two["ids"]


def test_jpeg_and_other_sizes(golden):
    for name in "plain.jpg", "turned6.jpg", "cmyk.jpg", "palette4_transparent.png":
        got = ask([f"tests/golden/media/{name}"], "-p", "x")
        assert len(got["ids"][0]) == 16


def test_refused_files(golden, picture, tmp_path):
    model, data = fixture(MODEL), png(golden["image.rgb"])
    bomb = data[:16] + struct.pack(">II", 50000, 50000) + data[24:]
    for name, content, words in [
            ("short.png", data[:200], "short.png: PNG: truncated: the file ends after 200 bytes"),
            ("bomb.png", bomb, "PNG: the picture is 50000 x 50000 = 2500000000 pixels, the limit is 67108864"),
            ("damaged.png", data[:60] + b"\xff" + data[61:], "damaged.png: PNG: damaged"),
            ("empty.png", b"", "empty.png: the image file is empty"),
            ("text.png", b"hello", "text.png: not an image"),
            ("a.gif", b"GIF89a" + bytes(20), "a.gif: the image is in the format GIF; PNG and JPEG are supported"),
            ("long.png", png(np.zeros((2, 500, 3), np.uint8)), "500 x 2 pixels: one side is more than 200 times")]:
        refused(model, "--image", write(tmp_path, name, content), "-p", "x", words=words)
    refused(model, "--image", str(tmp_path / "none.png"), "-p", "x", words="none.png: No such file")
    refused(model, "--image", str(tmp_path), "-p", "x", words="Is a directory")
    refused(model, "--image", "", "-p", "x", words="the name of an image file is empty")
    for address in "https://example.org/cat.png", "file:///cat.png", "data:image/png;base64," + "A" * 1000:
        refused(model, "--image", address, "-p", "x",
                words="this is an address, not an image file; quern downloads nothing")
    refused(model, "--image", "/dev/zero", "-p", "x", words="the image file is larger than the limit of 67108864 bytes")


def test_refused_prompts(golden, picture):
    model = fixture(MODEL)
    token = read_json(fixture(f"{MODEL}/config.json"))["image_token_id"]
    ids = lambda rows: {"stdin": {"ids": rows}}
    refused(model, "--image", picture, "--raw", "-p", "x",
            words="1 image(s) were given, but the prompt has places for 0")
    refused(model, "--image", picture, "--image", picture, "--ids", "-", **ids([[1, token]]),
            words="2 image(s) were given, but the prompt has places for 1")
    refused(model, "--image", picture, "--ids", "-", **ids([[1, token, token, 2]]),
            words="image 1 has 6 tokens (2 rows of 3), but the prompt has 2 image tokens in its place")
    refused(model, "--image", picture, "--ids", "-", **ids([[token], [1]]), words="with 2 rows")
    refused(model, "--image", picture, "-p", "x", "--context", "44",
            words="the prompt has 46 tokens (6 of images); the context holds 44")
    refused(fixture("models/llama"), "--image", picture, "-p", "x", words="the model takes no images: it is a llama")
    out = call("run", model, "--image", "-")
    assert out.returncode == 2 and b"standard input is one thing" in out.stderr


def test_a_tower_that_does_not_fit(picture, tmp_path):
    """Each is refused by the name of the field or tensor, when the model is opened."""
    source = fixture(MODEL)
    for change, words in [({"vision_config": {"num_heads": 3}}, "vision_config.embed_dim"),
                          ({"vision_config": {"hidden_act": "swoosh"}}, "vision_config.hidden_act is \"swoosh\""),
                          ({"vision_config": {"depth": 3}}, "visual.blocks.2.norm1.weight is missing"),
                          ({"vision_config": {"patch_size": 16}}, "preprocessor_config.json: patch_size is 14"),
                          ({"vision_config": {"hidden_size": 65}}, "vision_config.hidden_size is 65"),
                          ({"vision_config": {"in_channels": 4}}, "vision_config.in_channels is 4"),
                          ({"vision_config": {"mlp_ratio": 2}}, "fc1.weight: shape [128, 32], expected [64, 32]"),
                          ({"image_token_id": 512}, "image_token_id is 512"),
                          ({"rope_scaling": {"mrope_section": [2, 3, 4]}}, "mrope_section sums to 9, expected 8"),
                          ({"rope_scaling": {"mrope_section": [2, 6]}}, "mrope_section: expected an array of 3")]:
        config = read_json(f"{source}/config.json")
        for key, value in change.items():
            config[key] = {**config[key], **value} if isinstance(value, dict) else value
        for name in os.listdir(source):
            if name != "config.json" and not os.path.exists(tmp_path / name):
                os.symlink(os.path.abspath(f"{source}/{name}"), tmp_path / name)
        (tmp_path / "config.json").write_text(json.dumps(config))
        refused(str(tmp_path), "--image", picture, "-p", "x", words=words)


def test_preprocessor_config(golden, picture, tmp_path):
    """What the file says counts: other limits of pixels, another mean; and nonsense is refused by name."""
    source = fixture(MODEL)
    for name in os.listdir(source):
        if name != "preprocessor_config.json":
            os.symlink(os.path.abspath(f"{source}/{name}"), tmp_path / name)
    say = lambda **fields: (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**read_json(f"{source}/preprocessor_config.json"), **fields}))
    run = lambda: call_json("run", tmp_path, "--image", picture, "-p", "x", "--json", "--max-tokens", "8", *EXACT)
    say()
    plain = run()
    say(min_pixels=28 * 28, max_pixels=28 * 28 * 2)
    assert run()["n_prompt_tokens"] == plain["n_prompt_tokens"] - 5
    say(min_pixels=None, max_pixels=None, size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 2})
    assert run()["n_prompt_tokens"] == plain["n_prompt_tokens"] - 5
    say(image_mean=[0.0, 0.0, 0.0])
    assert run()["ids"] != plain["ids"]
    for fields, words in [({"resample": 4}, "resample is 4"), ({"min_pixels": 10 ** 7, "max_pixels": 4}, "min_pixels"),
                          ({"image_std": [1, 0, 1]}, "image_std"), ({"image_mean": [1, 1]}, "image_mean"),
                          ({"merge_size": 3}, "merge_size is 3, but the vision tower has 2"),
                          ({"rescale_factor": "x"}, "rescale_factor")]:
        say(**fields)
        refused(str(tmp_path), "--image", picture, "-p", "x", words=words)
    whole = read_json(f"{source}/preprocessor_config.json")
    os.remove(tmp_path / "preprocessor_config.json")
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": whole}))
    assert run()["ids"] == plain["ids"]


def copy_model(folder, rename=lambda name: name, change=lambda config: config):
    """The fixture's model with other tensor names and another config.json."""
    source = fixture(MODEL)
    with open(f"{source}/model.safetensors", "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    names = json.dumps({rename(k): v for k, v in header.items()}).encode()
    names += b" " * (-len(names) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(names)) + names + data)
    (folder / "config.json").write_text(json.dumps(change(read_json(f"{source}/config.json"))))
    for name in os.listdir(source):
        if not os.path.exists(folder / name):
            os.symlink(os.path.abspath(f"{source}/{name}"), folder / name)
    return folder


def golden_prompt(golden, model, picture, *args):
    return call_json("run", model, "--image", picture, "--ids", "-", "--max-tokens", "16", *EXACT, *args,
                     stdin={"ids": [golden["image.ids"].tolist()]})["ids"][0]


def test_newer_names(golden, picture, tmp_path):
    """As transformers 5 writes it: model.visual.*, model.language_model.*, text_config."""
    def rename(name):
        for old, new in (("visual.", "model.visual."), ("model.", "model.language_model.")):
            if name.startswith(old):
                return new + name[len(old):]
        return name

    def nest(config):
        outside = {"architectures", "model_type", "vision_config", "image_token_id", "tie_word_embeddings"}
        text = {k: v for k, v in config.items() if k not in outside}
        return {**{k: v for k, v in config.items() if k in outside},
                "text_config": {**text, "model_type": "qwen2_vl_text"}}

    model = copy_model(tmp_path, rename, nest)
    assert golden_prompt(golden, model, picture) == golden["image.greedy"].tolist()


def test_packed(golden, picture, tmp_path):
    """The tower is in a file of packed weights, too, and its numbers are the same."""
    model, packed = copy_model(tmp_path), tmp_path / "packed"
    out = call("pack", model, "-o", packed)
    assert out.returncode == 0, out.stderr
    got = call_json("run", model, "--image", picture, "--ids", "-", "--max-tokens", "16", *EXACT, "--packed", packed,
                    stdin={"ids": [golden["image.ids"].tolist()]})
    assert got["ids"][0] == golden["image.greedy"].tolist()
    assert got["model"]["notes"] == call_json("run", model, "-p", "x", "--json", "--max-tokens", "1", "--packed",
                                              packed)["model"]["notes"] == ""
    out = call("run", model, "--packed", packed, "-p", "x", "--max-tokens", "1")
    assert b"ignored" not in out.stderr


def test_without_a_tower(picture, tmp_path):
    """Text goes on, images are refused by name."""
    source = fixture(MODEL)
    with open(f"{source}/model.safetensors", "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    kept, at = {}, 0
    parts = []
    for name, v in header.items():
        if name.startswith("visual.") or name == "__metadata__":
            continue
        begin, end = v["data_offsets"]
        parts.append(data[begin:end])
        kept[name] = {**v, "data_offsets": [at, at + end - begin]}
        at += end - begin
    names = json.dumps(kept).encode()
    names += b" " * (-len(names) % 8)
    copy_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(names)) + names + b"".join(parts))
    assert call("run", tmp_path, "-p", "x", "--max-tokens", "2").returncode == 0
    refused(str(tmp_path), "--image", picture, "-p", "x", words="the model takes no images: it is a qwen2_vl without")


def test_doctor_knows_the_tower():
    out = call("doctor", fixture(MODEL)).stdout.decode()
    assert "preprocessor_config.json" in out and "unused tensors" not in out
