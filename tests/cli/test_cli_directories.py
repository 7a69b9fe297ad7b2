"""What a path may hold, as a user meets it: directories made up of a small model's files, each with its answer."""
import json
import os
import shutil

import pytest

from support import call, call_json, fixture, read_safetensors

IDS = {"ids": [[3, 4, 5, 6], [7, 8]]}


def link(source, folder, *names):
    os.makedirs(folder, exist_ok=True)
    for name in names:
        os.symlink(os.path.abspath(os.path.join(source, name)), os.path.join(folder, name))
    return str(folder)


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps(IDS))
    return path


@pytest.fixture
def logits(tmp_path, ids):
    """logits(MODEL, options) -> the last logits of the first row, as bytes."""
    def run(model, *options):
        out = tmp_path / "out.safetensors"
        done = call("logits", model, "--ids", ids, "-o", out, "--positions", "last", *options)
        assert done.returncode == 0, done.stderr.decode()
        return read_safetensors(out)["logits.0"].tobytes()
    return run


def refused(model, ids, *words, options=()):
    done = call("run", model, "--ids", ids, "-n", 1, *options)
    message = done.stderr.decode()
    assert done.returncode == 1 and done.stdout == b"", message
    assert message.count("\n") == 1
    for word in words:
        assert str(word) in message, f"{word!r} is not in {message!r}"


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


def test_shards_and_their_index(tmp_path, ids, logits):
    tied = fixture("models/llama_rope3_tied")
    expected = logits(tied)
    without = link(tied, tmp_path / "without", "config.json", *SHARDS)
    assert logits(without) == expected
    one = link(tied, tmp_path / "one", "config.json", SHARDS[0])
    refused(one, ids, one, f"{SHARDS[1]} is missing", "download the file again")
    indexed = link(tied, tmp_path / "indexed", "config.json", SHARDS[0], INDEX)
    refused(indexed, ids, f"{indexed}/{SHARDS[1]}", INDEX, "download the file again")
    spare = link(tied, tmp_path / "spare", "config.json", *SHARDS, INDEX)
    shutil.copy(os.path.join(tied, SHARDS[0]), os.path.join(spare, "model-spare.safetensors"))
    assert logits(spare) == expected  # the index counts
    os.remove(os.path.join(spare, INDEX))
    refused(spare, ids, "is in two files", "model-00001-of-00002.safetensors", "model-spare.safetensors", "--file")


@pytest.mark.parametrize("place", ["../other.safetensors", "/etc/hostname", "sub/x.safetensors"])
def test_index_that_leads_out(tmp_path, ids, place):
    folder = link(fixture("models/llama"), tmp_path / "m", "config.json", "model.safetensors")
    with open(os.path.join(folder, INDEX), "w") as f:
        json.dump({"weight_map": {"model.norm.weight": place}}, f)
    refused(folder, ids, INDEX, "model.norm.weight", place, "is not the name of a file in the same folder")


def test_index_of_a_tensor_that_its_file_lacks(tmp_path, ids):
    folder = link(fixture("models/llama"), tmp_path / "m", "config.json", "model.safetensors")
    with open(os.path.join(folder, INDEX), "w") as f:
        json.dump({"weight_map": {"model.extra.weight": "model.safetensors"}}, f)
    refused(folder, ids, INDEX, "tensor model.extra.weight is not in", "model.safetensors")


def test_two_formats_and_the_file_option(tmp_path, ids, logits):
    gguf = fixture("quant/gguf_models/llama-F32.gguf")
    folder = link(fixture("models/llama"), tmp_path / "m", "config.json", "model.safetensors", "tokenizer.json")
    expected = logits(folder)
    os.symlink(os.path.abspath(gguf), os.path.join(folder, "other.gguf"))
    refused(folder, ids, folder, "holds both GGUF and safetensors", "other.gguf", "model.safetensors", "--file")
    assert logits(folder, "--file", "model.safetensors") == expected
    for name in ("../m/model.safetensors", ".."):
        refused(folder, ids, folder, f'--file "{name}" is not the name of a file in this folder',
                options=("--file", name))
    refused(folder, ids, "absent.gguf: No such file", options=("--file", "absent.gguf"))
    refused(gguf, ids, "--file other.gguf selects a file in a folder, but this is a file",
            options=("--file", "other.gguf"))


def test_several_gguf_files(tmp_path, ids, logits):
    folder = tmp_path / "m"
    folder.mkdir()
    models = [fixture(f"quant/gguf_models/llama-{kind}.gguf") for kind in ("F32", "Q8_0")]
    for i, path in enumerate(models):
        os.symlink(os.path.abspath(path), folder / f"{i}.gguf")
    refused(folder, ids, folder, "holds several GGUF files: 0.gguf, 1.gguf", "--file")
    assert logits(folder, "--file", "1.gguf") == logits(models[1])
    os.remove(folder / "0.gguf")
    assert logits(folder) == logits(models[1])


def test_no_model(tmp_path, ids):
    folder = tmp_path / "m"
    folder.mkdir()
    refused(folder, ids, f"{folder}: there is no model in this folder")
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    refused(folder, ids, "pytorch_model.bin: convert the model to safetensors or GGUF")
    (folder / "pytorch_model.bin").rename(folder / "consolidated.00.pth")
    refused(folder, ids, "consolidated.00.pth: convert")
    link(fixture("models/llama"), folder / "original", "config.json", "model.safetensors")
    refused(folder, ids, "Folders in it hold models: original")
    (folder / "adapter_config.json").write_text("{}")
    refused(folder, ids, folder, "an adapter (adapter_config.json), not a model", "--adapter")
    (folder / "config.json").write_text("{}")
    refused(folder / "config.json", ids, "config.json: not a model: give the folder that contains it")
    refused(tmp_path / "absent", ids, f"{tmp_path}/absent: No such file or directory")


def test_weights_without_a_config(tmp_path, ids):
    folder = link(fixture("models/llama"), tmp_path / "m", "model.safetensors", "tokenizer.json")
    refused(folder, ids, f"{folder}: config.json is missing")


def test_dangling_link(tmp_path, ids):
    folder = link(fixture("models/llama"), tmp_path / "m", "config.json")
    os.symlink("nowhere", os.path.join(folder, "model.safetensors"))
    refused(folder, ids, f"{folder}/model.safetensors: No such file")


def test_a_model_without_a_tokenizer(tmp_path, ids, logits):
    whole = fixture("models/qwen2")
    folder = link(whole, tmp_path / "m", "config.json", "generation_config.json", "model.safetensors")
    assert logits(folder) == logits(whole)
    options = ("--ids", ids, "-n", 8, "--json", "--ignore-eos")
    got, expected = call_json("run", folder, *options), call_json("run", whole, *options)
    assert got["ids"] == expected["ids"]
    assert got["text"] == ["", ""]
    wants_text = [call("run", folder, "-p", "Hi"), call("run", folder, "--raw", "-p", "Hi"),
                  call("run", folder, "--ids", ids, "--stop", "x"), call("chat", folder, stdin="Hi\n"),
                  call("tokenize", folder, "--json", stdin="Hi")]
    for done in wants_text:
        assert done.returncode == 1
        assert "tokenizer.json" in done.stderr.decode() and folder in done.stderr.decode()


def test_the_tokenizer_of_another_model(tmp_path, ids):
    folder = link(fixture("models/qwen2"), tmp_path / "m", "config.json", "model.safetensors")
    shutil.copy(fixture("models/gemma/tokenizer.json"), folder)  # 768 tokens; 512 rows
    refused(folder, ids, f"{folder}/tokenizer.json: token 512", "beyond the 512 rows", "another model")


def test_another_list_of_tokens_beside_a_gguf(tmp_path, ids):
    folder = tmp_path / "m"
    folder.mkdir()
    shutil.copy(fixture("quant/gguf_models/qwen3-F16.gguf"), folder / "m.gguf")
    alone = call("run", folder, "--ids", ids, "-n", 1)
    assert alone.returncode == 0 and b"another model" not in alone.stderr
    shutil.copy(fixture("models/deepseek_r1_distill/tokenizer.json"), folder)
    with open(folder / "tokenizer.json") as f:
        other = json.load(f)
    other["model"]["vocab"] = {t: i for t, i in other["model"]["vocab"].items() if i < 512}
    other["model"]["merges"], other["post_processor"] = [], None
    other["added_tokens"] = [t for t in other["added_tokens"] if t["id"] < 512]
    with open(folder / "tokenizer.json", "w") as f:
        json.dump(other, f)
    done = call("run", folder, "--ids", ids, "-n", 1)
    assert done.returncode == 0
    message = done.stderr.decode()
    assert f"{folder}/tokenizer.json: " in message and f"tokens differ from those in {folder}/m.gguf" in message


@pytest.mark.parametrize("kind, family, words", [
    ("qwen2", "qwen2", "self_attn.q_proj.bias exists, self_attn.q_norm does not"),
    ("qwen3", "qwen3", "self_attn.q_norm exists")])
def test_files_that_name_no_family(tmp_path, ids, logits, kind, family, words):
    whole = fixture(f"models/{kind}")
    folder = link(whole, tmp_path / "m", "model.safetensors", "tokenizer.json")
    with open(os.path.join(whole, "config.json")) as f:
        config = json.load(f)
    del config["model_type"], config["architectures"]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    info = call_json("run", folder, "--ids", ids, "-n", 1, "--json")["model"]
    assert info["architecture"] == family
    assert f"the tensors match {family}: {words}" in info["notes"]
    assert logits(folder) == logits(whole)


def test_a_built_in_format_is_said(tmp_path):
    source = fixture("models/gemma3_text")
    model = link(source, tmp_path / "m", "config.json", "model.safetensors", "tokenizer.json")
    done = call("run", model, "-p", "hi", "-n", 1)
    assert done.returncode == 0
    assert "no chat template; the built-in format gemma" in done.stderr.decode()
    done = call("run", source, "-p", "hi", "-n", 1)
    assert done.returncode == 0 and b"built-in" not in done.stderr
