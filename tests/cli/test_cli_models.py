"""quern models: what lies below a folder, in the layouts that are met, and what broken ones say."""
import ctypes
import json
import os
import shutil
import struct
import subprocess

import pytest

from support import QUERN, call, call_json, fixture, read_json


def listing(path, *options):
    out = call_json("models", path, "--json", *options)
    assert out["n_models"] == len(out["models"])
    assert out["n_unusable"] == sum(m["status"] != "QN_OK" for m in out["models"])
    return out


def paths(out, root):
    return [os.path.relpath(m["path"], root) for m in out["models"]]


@pytest.fixture
def gguf():
    return fixture("quant/gguf_models/llama-Q8_0.gguf")


def test_every_fixture_model_is_found():
    root = fixture("models")
    names = sorted(n for n in os.listdir(root) if os.path.exists(os.path.join(root, n, "config.json")))
    out = listing(root)
    assert paths(out, root) == names and out["problems"] == []
    for m in out["models"]:
        config = read_json(os.path.join(m["path"], "config.json"))
        assert m["format"] == "safetensors" and m["error"] == "" or m["status"] != "QN_OK"
        if "model_type" in config:
            assert m["model_type"] == config["model_type"]
        weights = [f for f in os.listdir(m["path"]) if f.startswith("model") and f.endswith(".safetensors")]
        assert m["n_files"] == len(weights)
        assert m["size_bytes"] == sum(os.path.getsize(os.path.join(m["path"], f)) for f in weights)
    by_name = {m["name"]: m for m in out["models"]}
    assert (by_name["llama"]["quant"], by_name["llama"]["quant_bits"]) == ("bf16", 16)


def test_type_of_weights_and_family_without_a_name():
    f16, unnamed = fixture("models/llama_head_dim"), fixture("models/qwen3_no_model_type")
    assert listing(f16)["models"][0]["quant"] == "f16"
    assert listing(unnamed)["models"][0]["model_type"]


def test_quantised_models():
    out = {m["name"]: m for m in listing(fixture("quant/gguf_models"))["models"]}
    for name, m in out.items():
        assert m["format"] == "gguf" and m["n_files"] == 1
        family, quant = name[:-len(".gguf")].split("-")
        assert (m["model_type"], m["quant"]) == (family, quant)
        assert m["quant_bits"] == int(quant.lstrip("QF").split("_")[0])
    out = {m["name"]: m for m in listing(fixture("quant/mlx_models"))["models"]}
    assert (out["qwen3-4bit-g64"]["quant"], out["qwen3-4bit-g64"]["quant_bits"]) == ("mlx affine 4 g64", 4)
    assert (out["gemma3_text-8bit-g32"]["quant"], out["gemma3_text-8bit-g32"]["quant_bits"]) == ("mlx affine 8 g32", 8)
    assert (out["qwen2-mxfp4"]["quant"], out["qwen2-mxfp4"]["quant_bits"]) == ("mlx mxfp4 g32", 4)
    assert all(m["status"] == "QN_OK" for m in out.values()), out


def test_bits_are_those_of_the_name(tmp_path, gguf):
    """A mixture is called by its small type, also where most of its weights are of another; unknown: no number."""
    with open(gguf, "rb") as f:
        data = f.read()
    key = b"general.file_type" + struct.pack("<I", 4)
    assert data.count(key + struct.pack("<I", 7)) == 1
    (tmp_path / "m.gguf").write_bytes(data.replace(key + struct.pack("<I", 7), key + struct.pack("<I", 15)))
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    m = listing(tmp_path)["models"][0]
    assert (m["quant"], m["quant_bits"], m["status"]) == ("Q4_K_M", 4, "QN_OK")
    good, bad = [line.split() for line in call("models", tmp_path).stdout.decode().splitlines()[1:3]]
    assert good[1:3] == ["Q4_K_M", "4"] and bad[:4] == ["-", "4", "B", "1"]


def test_cache_of_hugging_face(tmp_path):
    """Snapshots of links into blobs are models; blobs, refs and hidden folders are not."""
    repository = tmp_path / "hub" / "models--tiny-org--Tiny--1B"
    snapshot, blobs = repository / "snapshots" / "0a1b2c", repository / "blobs"
    snapshot.mkdir(parents=True), blobs.mkdir(), (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0a1b2c")
    for i, name in enumerate(sorted(os.listdir(fixture("models/llama")))):
        shutil.copy(os.path.join(fixture("models/llama"), name), blobs / f"blob{i}")
        (snapshot / name).symlink_to(f"../../blobs/blob{i}")
    shutil.copytree(snapshot, tmp_path / "hub" / ".locks" / "model")
    for root in (tmp_path, snapshot):
        out = listing(root)
        assert [m["path"] for m in out["models"]] == [str(snapshot)]
        assert out["models"][0]["name"] == "tiny-org/Tiny--1B" and out["models"][0]["status"] == "QN_OK"
    assert len(listing(tmp_path / "hub" / ".locks")["models"]) == 1, "a hidden folder as the root is looked into"


def test_several_gguf_and_split_ones(tmp_path, gguf):
    for name in ("b.gguf", "a.gguf", "big-00002-of-00002.gguf", "big-00001-of-00002.gguf", "cut-00002-of-00003.gguf",
                 "x-00001-of-0002.gguf", ".hidden.gguf"):
        shutil.copy(gguf, tmp_path / name)
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "folder.gguf").mkdir()
    out = listing(tmp_path)
    assert paths(out, tmp_path) == ["a.gguf", "b.gguf", "big-00001-of-00002.gguf", "cut-00002-of-00003.gguf",
                                    "x-00001-of-0002.gguf"]
    big, cut = out["models"][2], out["models"][3]
    assert big["n_files"] == 2 and big["size_bytes"] == 2 * os.path.getsize(gguf)
    assert cut["status"] == "QN_E_NOT_FOUND" and "1 of its 3 parts" in cut["error"]
    part = listing(tmp_path / "big-00002-of-00002.gguf")["models"][0]
    assert part["path"].endswith("big-00002-of-00002.gguf") and part["size_bytes"] == big["size_bytes"]


def test_gguf_beside_safetensors(tmp_path, gguf):
    """Each is reported by a path that opens it."""
    shutil.copytree(fixture("models/llama"), tmp_path / "one")
    shutil.copytree(fixture("models/llama_rope3_tied"), tmp_path / "sharded")
    for folder in ("one", "sharded"):
        shutil.copy(gguf, tmp_path / folder / "q8.gguf")
    out = listing(tmp_path)
    assert paths(out, tmp_path) == ["one/model.safetensors", "one/q8.gguf", "sharded/model.safetensors.index.json",
                                    "sharded/q8.gguf"]
    assert [out["models"][i]["status"] for i in (0, 2)] == ["QN_OK", "QN_OK"] and out["models"][2]["n_files"] == 2


def test_shard_that_was_not_downloaded(tmp_path):
    model = shutil.copytree(fixture("models/llama_rope3_tied"), tmp_path / "m")
    (model / "model-00002-of-00002.safetensors").unlink()
    m = listing(tmp_path)["models"][0]
    assert m["status"] != "QN_OK" and "model-00002-of-00002.safetensors" in m["error"]
    assert (m["model_type"], m["n_files"]) == ("llama", 1)


def test_broken_ones_are_listed_and_do_not_stop_it(tmp_path, gguf):
    for i, what in enumerate(("truncated", "no-config", "bad-config", "no-weights-behind-link", "unknown-family")):
        shutil.copytree(fixture("models/llama"), tmp_path / what)
    os.truncate(tmp_path / "truncated" / "model.safetensors", 5000)
    os.remove(tmp_path / "no-config" / "config.json")
    (tmp_path / "bad-config" / "config.json").write_text("{]")
    link = tmp_path / "no-weights-behind-link" / "model.safetensors"
    link.unlink(), link.symlink_to("nowhere")
    (tmp_path / "unknown-family" / "config.json").write_text('{"model_type": "per\\u001b[31mceptron"}')
    (tmp_path / "zz.gguf").write_bytes(open(gguf, "rb").read()[:1000])
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    out = {m["name"]: m for m in listing(tmp_path)["models"]}
    wanted = {"truncated": "model.safetensors", "no-config": "config.json is missing", "bad-config": "config.json",
              "no-weights-behind-link": "model.safetensors", "unknown-family": "not supported", "zz.gguf": "zz.gguf",
              "pickled": "no .safetensors"}
    assert sorted(out) == sorted(wanted)
    for name, words in wanted.items():
        assert out[name]["status"] != "QN_OK" and words in out[name]["error"], out[name]
    assert out["pickled"]["format"] == "pytorch"
    assert out["truncated"]["model_type"] == "llama", "config.json speaks though the weights are broken"
    text = call("models", tmp_path)
    assert text.returncode == 0 and b"\x1b" not in text.stdout and b"per\\x1b[31m" in text.stdout
    assert text.stdout.count(b"not usable: ") == len(wanted)


def test_files_that_would_block(tmp_path):
    """A FIFO in the place of a file is not waited for."""
    model = shutil.copytree(fixture("models/llama"), tmp_path / "m")
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    out = listing(tmp_path)
    assert out["models"][0]["status"] != "QN_OK" and "config.json" in out["models"][0]["error"]
    assert call("doctor", model, "--no-compute").returncode == 1
    assert call("inspect", model).returncode == 1


def test_what_is_no_model(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text("{}")
    (tmp_path / "adapter").mkdir()
    shutil.copy(fixture("models/llama/model.safetensors"), tmp_path / "adapter" / "adapter_model.safetensors")
    out = call("models", tmp_path)
    assert out.returncode == 0 and out.stdout == b"" and f"no models below {tmp_path}" in out.stderr.decode()


def test_links_to_folders_and_loops(tmp_path):
    shutil.copytree(fixture("models/llama"), tmp_path / "away" / "llama")
    root = tmp_path / "root"
    root.mkdir()
    (root / "again").symlink_to(root), (root / "one").symlink_to(tmp_path / "away")
    (root / "two").symlink_to(tmp_path / "away")
    assert paths(listing(root), root) == []
    assert paths(listing(root, "--follow-links"), root) == ["one/llama"], "each folder once"
    (tmp_path / "link").symlink_to(tmp_path / "away")
    assert len(listing(tmp_path / "link")["models"]) == 1, "the root itself may be a link"


def test_depth(tmp_path, gguf):
    folder = tmp_path
    for i in range(40):
        folder = folder / f"d{i}"
    folder.mkdir(parents=True)
    shutil.copy(gguf, folder / "deep.gguf")
    shutil.copy(gguf, tmp_path / "d0" / "m.gguf")
    out = listing(tmp_path)
    assert paths(out, tmp_path) == ["d0/m.gguf"]
    assert len(out["problems"]) == 1 and "deeper than 32" in out["problems"][0]["error"]
    assert len(listing(tmp_path, "--depth", 41)["models"]) == 2
    assert listing(tmp_path, "--depth", 1)["models"] == [] and listing(tmp_path, "--depth", 1)["problems"] == []
    assert call("models", tmp_path, "--depth", 0).returncode == 2


def test_a_folder_that_cannot_be_read(tmp_path, gguf):
    """A path longer than the system takes."""
    shutil.copy(gguf, tmp_path / "z.gguf")
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=fd)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    out = listing(tmp_path)
    assert paths(out, tmp_path) == ["z.gguf"]
    assert len(out["problems"]) == 1 and "too long" in out["problems"][0]["error"]
    text = call("models", tmp_path)
    assert text.returncode == 0 and b"too long" in text.stderr and b"z.gguf" in text.stdout


def heed_permissions():
    """For preexec_fn: root gives up reading everything (PR_CAPBSET_DROP: DAC_OVERRIDE, DAC_READ_SEARCH)."""
    if os.geteuid() == 0:
        for capability in (1, 2):
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


def test_no_permission(tmp_path, gguf):
    shutil.copy(gguf, tmp_path / "m.gguf")
    (tmp_path / "closed").mkdir(mode=0)
    done = subprocess.run([QUERN, "models", str(tmp_path), "--json"], capture_output=True, timeout=600,
                          preexec_fn=heed_permissions)
    out = json.loads(done.stdout)
    assert len(out["models"]) == 1 and "closed" in out["problems"][0]["path"]


def test_root_is_a_file_or_nothing(tmp_path, gguf):
    assert [m["path"] for m in listing(gguf)["models"]] == [gguf]
    out = call("models", tmp_path / "nowhere")
    assert out.returncode == 1 and "nowhere" in out.stderr.decode()


def test_hostile_names(tmp_path, gguf):
    """File names and metadata may not reach the terminal as they are."""
    name = "evil\x1b[2J\x9b\u202e\n.gguf"
    shutil.copy(gguf, tmp_path / name)
    out = call("models", tmp_path)
    text = out.stdout.decode()
    assert "evil\\x1b[2J\\u009b\\u202e\\n.gguf" in text
    assert not any(c in text for c in "\x1b\x9b\u202e") and text.count("\n") == 2
    out = call("models", tmp_path, "--json")
    assert json.loads(out.stdout)["models"][0]["name"] == name
    assert b"\x1b" not in out.stdout and "\x9b".encode() not in out.stdout


def test_many_entries(tmp_path):
    """Thousands of folders with a broken model each: all listed, in order."""
    for i in range(2000):
        (tmp_path / f"{i:05}").mkdir()
        (tmp_path / f"{i:05}" / "m.gguf").write_bytes(b"GGUF" + struct.pack("<I", 3))
    out = listing(tmp_path)
    assert paths(out, tmp_path) == [f"{i:05}/m.gguf" for i in range(2000)]
