"""quern inspect --attention: the tensors are the fixtures', the picture is one, wrong use is said."""
import json
import os
import stat
import struct
import zlib

import numpy as np
import pytest

from support import call, call_json, fixture, read_safetensors

TOLERANCE = 1e-4  # of a tensor's largest value, the fixtures' README


def png(path):
    """[height, width, 3]: only what quern writes, 8 bits of RGB."""
    data, at, pixels, chunks = path.read_bytes(), 8, b"", []
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        assert struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0] == zlib.crc32(kind + body)
        chunks.append(kind)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert (depth, colour) == (8, 2)
        if kind == b"IDAT":
            pixels += body
        at += 12 + n
    assert chunks[-1] == b"IEND"
    rows = np.frombuffer(zlib.decompress(pixels), np.uint8).reshape(height, 1 + 3 * width)
    assert set(rows[:, 0]) <= {0, 1, 2, 3, 4}
    return height, width


def ids_file(tmp_path, ids):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps({"ids": [int(i) for i in ids]}))
    return path


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gemma4_text", "deepseek_v3", "gpt_oss", "qwen3_next"])
def test_the_fixtures_tensors(name, tmp_path):
    folder, out = fixture(f"models/{name}"), tmp_path / "out.safetensors"
    expected = read_safetensors(f"{folder}/expected.safetensors")
    ids = ids_file(tmp_path, expected["prompt3.ids"])
    report = call_json("inspect", folder, "--attention", "--ids", ids, "-o", out,
                       "--queries", "--hidden", "--precision", "exact", "--png", tmp_path / "out.png", "--json")
    got = read_safetensors(out)
    stored = [k for k in expected if k.split(".")[0] in ("keys", "attention", "hidden")]
    assert len(stored) > 4 and set(stored) <= set(got)
    for k in stored:
        assert got[k].shape == expected[k].shape and got[k].dtype == np.float32
        assert np.abs(got[k] - expected[k]).max() <= TOLERANCE * np.abs(expected[k]).max(), k
    assert set(k for k in got if k.startswith("keys.")) == set(k for k in expected if k.startswith("keys."))
    assert got["ids"].tolist() == expected["prompt3.ids"].tolist() == report["ids"]
    assert report["seq_len"] == len(got["ids"]) and report["output"] == str(out)
    for i, layer in enumerate(report["layers"]):
        assert (layer["kv_layer"] >= 0) == (f"attention.{i}" in got)
        if f"queries.{i}" in got:
            assert got[f"queries.{i}"].shape == (layer["num_attention_heads"], report["seq_len"], layer["query_dim"])
    height, width = png(tmp_path / "out.png")
    assert height > 200 and width > 400


def test_text_chat_and_layers(tmp_path):
    folder, out = fixture("models/llama"), tmp_path / "out.safetensors"
    plain = call_json("inspect", folder, "--attention", "-p", "Hello there", "-o", out, "--layer", 2, "--layer", 0,
                      "--json")
    got = read_safetensors(out)
    tokens = json.loads(got.pop("__metadata__")["tokens"])
    assert set(got) == {"ids", "keys.0", "keys.2", "attention.0", "attention.2"}
    assert len(tokens) == plain["seq_len"] and "ello" in "".join(tokens)
    chat = call_json("inspect", folder, "--attention", "-p", "Hello there", "--chat", "--json")
    assert chat["seq_len"] > plain["seq_len"] and chat["output"] is None
    table = call("inspect", folder, "--attention", "-p", "Hello there").stdout.decode()
    assert f"{plain['seq_len']} tokens, {plain['n_layers']} layers" in table
    assert not stat.S_IMODE(os.stat(out).st_mode) & 0o111


def test_pictures(tmp_path):
    folder = fixture("models/llama")
    sizes = []
    for options in ([], ["--mean"], ["--layer", 1]):
        path = tmp_path / "map.png"
        path.unlink(missing_ok=True)
        out = call("inspect", folder, "--attention", "-p", "A heat map", "--png", path, *options)
        assert out.returncode == 0, out.stderr.decode()
        sizes.append(png(path))
    assert sizes[0][0] > sizes[2][0] and sizes[0][1] > sizes[1][1]
    assert os.listdir(tmp_path) == ["map.png"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat(tmp_path / "map.png").st_mode) == 0o666 & ~mask


def test_wrong_use(tmp_path):
    folder = fixture("models/llama")
    ids = ids_file(tmp_path, [1, 2])
    for args, said in ((["--attention"], b"--attention needs --prompt or --ids"),
                       (["--attention", "-p", "x", "--ids", ids], b"--ids cannot be used with --prompt"),
                       (["--attention", "-p", "x", "--tensors"], b"--attention cannot be used with --tensors"),
                       (["-p", "x"], b"--prompt needs --attention"), (["--mean"], b"--mean needs --attention"),
                       (["--use", "a", "--layer", "1"], b"--layer needs --attention"),
                       (["--attention", "-p", "x", "--chat", "--special"], b"--chat cannot be used with --special"),
                       (["--attention", "-p", "x", "--layer", "y"], b"--layer"),
                       (["--attention", "--ids", ids, "--chat"], b"--ids cannot be used with --chat")):
        out = call("inspect", folder, *args)
        assert out.returncode == 2 and said in out.stderr, (args, out.stderr)
    for args, said in ((["-p", "x", "--layer", "99"], b"99"), (["-p", "x", "-o", tmp_path / "no" / "x"], b"no/x"),
                       (["-p", "x", "--png", tmp_path / "no" / "x.png"], b"x.png"), (["-p", "x", "--use", "a"], b"a"),
                       (["-p", "x", "--memory-limit", "1K"], b"memory")):
        out = call("inspect", folder, "--attention", *args)
        assert out.returncode == 1 and said in out.stderr, (args, out.stderr)
    if os.path.exists("/dev/full"):
        out = call("inspect", folder, "--attention", "-p", "x", "--png", "/dev/full")
        assert out.returncode == 1 and b"/dev/full" in out.stderr
    assert os.listdir(tmp_path) == ["ids.json"]
    ids.write_text('{"ids":[[1,2],[3]]}')
    assert call("inspect", folder, "--attention", "--ids", ids).returncode == 1
    ids.write_text('{"ids":[]}')
    assert call("inspect", folder, "--attention", "--ids", ids).returncode == 1
    model = fixture("models/llama/model.safetensors")
    assert call("inspect", model, "--file", "x").returncode in (0, 1)
