"""Models by name: pull, list, show, rm, and names where MODEL stands, beside a server that speaks as the Hub does."""
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from gguf_split import part_names
from hub_help import (GGUF, Made, answer, call, fetches, hub, pull, pull_json, refused, start, tiny_files,  # noqa: F401
                      tree, wait_until)
from support import QUERN, fixture, leave_out

MIB = 1 << 20


def test_pull_lays_out_the_hubs_cache(hub, tmp_path):
    files = tiny_files()
    hub.add("org/tiny", {**files, "README.md": b"# no", "pytorch_model.bin": b"no", "onnx/model.onnx": b"no"})
    env = hub.env(tmp_path)
    path = pull(env, "org/tiny")
    repo = tmp_path / "hf/hub/models--org--tiny"
    assert path == str(repo / "snapshots" / ("a" * 40)) and (repo / "refs/main").read_text() == "a" * 40
    assert sorted(os.listdir(path)) == sorted(files)
    for name, data in files.items():
        link = os.readlink(os.path.join(path, name))
        sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        sum = hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else sha1
        assert link == f"../../blobs/{sum}" and (repo / "blobs" / sum).read_bytes() == data
    assert len(os.listdir(repo / "blobs")) == len(files)


def test_what_is_here_is_not_fetched_again(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    first = pull(env, "org/tiny")
    sent, n = hub.sent(), len(hub.log)
    assert pull(env, "org/tiny") == first and hub.sent() == sent
    n = len(hub.log)
    assert answer(env, "hf:org/tiny") == answer(env, first) and len(hub.log) == n
    os.remove(os.path.join(first, "tokenizer_config.json"))
    got = pull_json(env, "org/tiny")
    assert got["fetched_bytes"] == 0 and got["here_bytes"] == got["size_bytes"] and hub.sent() == sent
    assert os.path.exists(os.path.join(first, "tokenizer_config.json"))


def test_a_new_revision_fetches_what_changed_alone(hub, tmp_path):
    files = tiny_files()
    hub.add("org/tiny", files)
    env = hub.env(tmp_path)
    old = pull(env, "org/tiny")
    sent = hub.sent()
    new_config = json.dumps({**json.loads(files["generation_config.json"]), "temperature": 0.5}).encode()
    hub.add("org/tiny", {**files, "generation_config.json": new_config}, commit="b" * 40)
    new = pull(env, "org/tiny")
    assert new.endswith("b" * 40) and hub.sent() - sent == len(new_config)
    assert os.path.samefile(os.path.join(old, "model.safetensors"), os.path.join(new, "model.safetensors"))
    assert pull(env, "org/tiny@" + "b" * 40) == new


def test_a_branch_with_a_slash(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    path = pull(env, "org/tiny@pr/1")
    assert (tmp_path / "hf/hub/models--org--tiny/refs/pr/1").read_text() == "a" * 40
    assert call(env, "show", "hf:org/tiny@pr/1").code == 0 and call(env, "show", "hf:org/tiny").code == 1
    assert path.endswith("a" * 40)


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_lists_of_several_pages(hub, tmp_path, page):
    hub.page = page
    hub.add("org/tiny", tiny_files())
    assert len(os.listdir(pull(hub.env(tmp_path), "org/tiny"))) == len(tiny_files())


def test_run_chat_and_serve_fetch_at_start(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    for i, command in enumerate((["run", "hf:org/tiny", "-p", "Hello", "-n", "4"], ["chat", "hf:org/tiny", "-n", "4"])):
        folder = tmp_path / str(i)
        folder.mkdir()
        got = call(hub.env(folder), *command, stdin=b"Hello\n")
        assert "hf:org/tiny is not here yet: fetching it" in got.err and "fetched and checked" in got.err, got
        assert tree(folder / "hf/hub/models--org--tiny/snapshots")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    (tmp_path / "s").mkdir()
    server = subprocess.Popen([QUERN, "serve", "hf:org/tiny", "--port", str(port)], env=hub.env(tmp_path / "s"),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline().startswith("listening") and server.stdout.readline() == "ready: tiny\n"
        n = len(hub.log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as r:
            assert json.load(r)["data"][0]["id"] == "tiny"
        body = {"model": "hf:org/other", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request).read()
        except urllib.error.HTTPError:
            pass
        assert len(hub.log) == n  # nothing in a request fetches
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_other_commands_take_names_and_fetch_nothing(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    commands = (["tokenize", "hf:org/tiny"], ["inspect", "hf:org/tiny"], ["doctor", "hf:org/tiny", "--no-compute"],
                ["score", "hf:org/tiny"], ["template", "hf:org/tiny"], ["embed", "hf:org/tiny"])
    stdin = {"template": b'{"messages": [{"role": "user", "content": "x"}]}'}
    for command in commands:
        got = call(env, *command, stdin=stdin.get(command[0], b"Hello"))
        assert got.code == 1, got
        assert "hf:org/tiny is not on this machine; `quern pull hf:org/tiny` fetches it" in got.err, got
    assert hub.log == []
    pull(env, "org/tiny")
    n = len(hub.log)
    for command in commands:
        got = call(env, *command, stdin=stdin.get(command[0], b"Hello"))
        assert "not on this machine" not in got.err and (got.code == 0 or command[0] == "template"), got
    assert len(hub.log) == n


@pytest.mark.parametrize("by", ["--offline", "QUERN_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(hub, tmp_path, by):
    hub.add("org/tiny", tiny_files())
    env, more = hub.env(tmp_path), []
    if by == "--offline":
        more = [by]
    offline = env if more else {**env, by: "1"}
    sentence = f"quern: hf:org/tiny is not on this machine, and {by} forbids to fetch it\n"
    for command in (["pull", "org/tiny"], ["run", "hf:org/tiny", "-p", "x"]):
        got = call(offline, *command, *more)
        assert got.code == 1 and got.err == sentence, got
    assert hub.log == []
    path = pull(env, "org/tiny")
    n = len(hub.log)
    assert pull(offline, "org/tiny", *more) == path
    assert call(offline, "run", "hf:org/tiny", "-p", "x", "-n", "2", *more).code == 0 and len(hub.log) == n


def test_an_existing_path_wins(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    here = pull(env, "org/tiny")
    for name in ("hf:org/tiny", "qwen3", "org/tiny"):
        os.makedirs(tmp_path / os.path.dirname(name), exist_ok=True)
        os.symlink(here, tmp_path / name)
    n = len(hub.log)
    program = os.path.abspath(QUERN)
    for name in ("hf:org/tiny", "qwen3", "org/tiny"):
        got = subprocess.run([program, "run", name, "-p", "x", "-n", "1"], cwd=tmp_path, env=env, capture_output=True)
        assert got.returncode == 0, got
    assert len(hub.log) == n


def test_words_and_bare_names(hub, tmp_path):
    env = hub.env(tmp_path)
    assert "the seed answers" in call(env, "run", "What is a mill?", "-n", "4").err
    got = call(env, "run", "org/tiny", "-p", "x")
    assert got.code == 1 and "org/tiny: No such file" in got.err and "hf:org/tiny" in got.err, got
    assert hub.log == []


@pytest.mark.parametrize("name", [
    "hf:", "hf:/x", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b@", "hf:a/b@../x", "hf:a/b:", "hf:a/b:../../etc/passwd",
    "hf:a/b:/etc/passwd", "hf:a--b/c", "hf:.a/b", "hf:a/b@x y", "ollama:", "ollama:a:../b", "ollama:a/b/c",
    "http://", "http://x/y.bin", "https://user:secret@host/x.gguf", "http://x:0/y.gguf", "http://x/..gguf/", "a b/c"])
def test_bad_names(hub, tmp_path, name):
    said = refused(hub.env(tmp_path), name, code=2)
    assert said and "secret@" not in said.replace(name, "") and hub.log == [] and tree(tmp_path) == []


def test_short_names(hub, tmp_path):
    env = hub.env(tmp_path)
    rows = json.loads(call(env, "list", "--names", "--json").out)
    assert len({r["name"].split(":")[0] for r in rows}) >= 10
    for row in rows[:1] + rows[-1:]:
        hub.add(row["repository"], {f"m-{row['quant']}.gguf": Made(9, GGUF), "m-Q8_0.gguf": Made(12, GGUF, 2)})
        got = call(env, "pull", row["name"].split(":")[0])
        assert got.code == 0 and got.out.endswith(f"m-{row['quant']}.gguf\n"), got
        assert f"is hf:{row['repository']}:{row['quant']}\n" in got.err, got


def test_short_names_stand_in_the_page(hub, tmp_path):
    """docs/models.md has the table of the program."""
    rows = json.loads(call(hub.env(tmp_path), "list", "--names", "--json").out)
    with open("docs/models.md", encoding="utf-8") as f:
        row = r"^\| `([\w.:-]+)` \| (\S+) \| (\S+) \| ([\d.]+ [MG]B) \| ([\d.]+ [MG]B) \|$"
        shown = re.findall(row, f.read(), re.M)

    def size(n):
        return f"{n / 1e9:.1f} GB" if n >= 999.5e6 else f"{n / 1e6:.0f} MB"
    assert shown == [(r["name"], r["repository"], r["quant"], size(r["size_bytes"]), size(r["memory_bytes"]))
                     for r in rows]


# Which file.

FILES = {"m-Q8_0.gguf": 8, "m-Q4_K_M.gguf": 4, "m-Q2_K.gguf": 2, "m-f16.gguf": 16, "mmproj-m-f16.gguf": 1,
         "m-Q5_K_M-00001-of-00002.gguf": 3, "m-Q5_K_M-00002-of-00002.gguf": 3}


def many(hub, **more):
    hub.add("org/many", {n: Made(size * 1000, GGUF, i) for i, (n, size) in enumerate({**FILES, **more}.items())})


def file_for(env, name, *args):
    got = call(env, "pull", name, "--dry-run", "--json", *args)
    assert got.code == 0, got
    got = json.loads(got.out)
    files = [f["path"] for f in got["files"] if f["path"] != "mmproj-m-f16.gguf"]
    assert files == [os.path.basename(got["path"])] or "/sub/" in got["path"]
    return os.path.basename(got["path"]), got["why"]


def test_memory_chooses_the_file(hub, tmp_path):
    many(hub)
    env = hub.env(tmp_path)
    half = 512 * MIB  # what any model takes besides its weights
    enough, small = str(2 * (half + 20000)), str(2 * (half + 4600))
    assert file_for(env, "org/many", "--memory", enough)[0] == "m-Q8_0.gguf"
    name, why = file_for(env, "org/many", "--memory", small)
    assert name == "m-Q4_K_M.gguf" and "m-Q4_K_M.gguf" in why and "memory" in why
    name, why = file_for(env, "org/many", "--memory", str(half + 5000))
    assert name == "m-Q4_K_M.gguf" and "smallest" in why
    said = refused(env, "org/many", "--memory", "100M", "--dry-run")
    assert "even the smallest of 4 files" in said and "m-Q8_0.gguf" in said
    assert tree(tmp_path) == [] and fetches(hub) == []


@pytest.mark.parametrize("pick, file", [
    ("Q4_K_M", "m-Q4_K_M.gguf"), ("q4_k_m", "m-Q4_K_M.gguf"), ("m-f16.gguf", "m-f16.gguf"), ("F16", "m-f16.gguf"),
    ("Q2_K", "m-Q2_K.gguf")])
def test_a_file_can_be_named(hub, tmp_path, pick, file):
    many(hub)
    name, why = file_for(hub.env(tmp_path), "org/many:" + pick, "--memory", "1K")
    assert name == file and ("does not compute with Q2_K" in why) == (pick == "Q2_K")


@pytest.mark.parametrize("pick, said", [
    ("Q6_K", "there is no GGUF file 'Q6_K'"), ("nothing.gguf", "no GGUF file")])
def test_a_file_that_cannot_be_had(hub, tmp_path, pick, said):
    many(hub)
    got = refused(hub.env(tmp_path), "org/many:" + pick)
    assert said in got and "m-Q4_K_M.gguf" in got and "mmproj" not in got


def test_a_vision_tower_comes_with_its_model(hub, tmp_path):
    many(hub)
    env = hub.env(tmp_path)
    got = call(env, "pull", "org/many:Q8_0")
    folder = os.path.dirname(got.out.strip())
    assert "the vision tower mmproj-m-f16.gguf (1.0 kB) comes with it" in got.err
    assert sorted(os.listdir(folder)) == ["m-Q8_0.gguf", "mmproj-m-f16.gguf"]
    alone = {**hub.env(tmp_path), "HF_HOME": str(tmp_path / "alone"), "HF_HUB_CACHE": str(tmp_path / "alone")}
    folder = os.path.dirname(call(alone, "pull", "org/many:Q8_0", "--no-mmproj").out.strip())
    assert str(tmp_path / "alone") in folder and os.listdir(folder) == ["m-Q8_0.gguf"]


def test_a_name_that_means_two_files(hub, tmp_path):
    many(hub, **{"other/n-Q8_0.gguf": 8})
    said = refused(hub.env(tmp_path), "org/many:Q8_0")
    assert "several files" in said and "other/n-Q8_0.gguf" in said
    assert pull(hub.env(tmp_path), "org/many:other/n-Q8_0.gguf").endswith("/other/n-Q8_0.gguf")


def test_safetensors_or_gguf(hub, tmp_path):
    hub.add("org/both", {**tiny_files(), "m-Q4_0.gguf": Made(1000, GGUF)})
    env = hub.env(tmp_path)
    got = json.loads(call(env, "pull", "org/both", "--dry-run", "--json").out)
    assert got["path"].endswith("a" * 40) and "safetensors" in got["why"]
    assert file_for(env, "org/both:Q4_0")[0] == "m-Q4_0.gguf"
    less = str(512 * MIB + 450000)  # too little for the safetensors
    assert file_for(env, "org/both", "--memory", str(2 * int(less)))[0] == "m-Q4_0.gguf"


def test_both_in_one_snapshot(hub, tmp_path):
    """A folder of both kinds is no one model; each name still means its own."""
    env, made = hub.env(tmp_path), str(tmp_path / "made.gguf")
    assert call(env, "fuse", fixture("models/llama"), "-o", made, "--type", "q8_0", "--no-check").code == 0
    with open(made, "rb") as f:
        hub.add("org/both", {**tiny_files(), "llama-Q8_0.gguf": f.read()})
    alone = answer(env, pull(env, "org/both"))
    gguf = pull(env, "org/both:Q8_0")
    assert gguf.endswith(".gguf") and answer(env, gguf)
    path = pull(env, "org/both")
    assert answer(env, path) == answer(env, "hf:org/both") == alone
    assert json.loads(call(env, "show", "org/both", "--json").out)["format"] == "safetensors"
    assert call(env, "run", "hf:org/both", "--draft-model", "hf:org/both:Q8_0", "-p", "x", "-n", "2").code == 0


@pytest.mark.parametrize("files, said", [
    ({"pytorch_model.bin": b"x", "config.json": b"{}"}, "PyTorch's files must be converted"),
    ({"README.md": b"x"}, "neither safetensors nor GGUF"), ({}, "neither safetensors nor GGUF")])
def test_no_model(hub, tmp_path, files, said):
    hub.add("org/none", files)
    assert said in refused(hub.env(tmp_path), "org/none")


def test_a_gguf_file_runs(hub, tmp_path):
    with open(fixture("quant/gguf_models/llama-Q8_0.gguf"), "rb") as f:
        data = f.read()
    hub.add("org/g", {"llama-Q8_0.gguf": data, "llama-F16.gguf": Made(1 << 40, GGUF, 2)},
            sums={"llama-F16.gguf": "0" * 64})
    env = hub.env(tmp_path)
    assert answer(env, pull(env, "org/g:Q8_0")) == answer(env, "hf:org/g:q8_0") == answer(env, "hf:org/g")
    assert json.loads(call(env, "show", "org/g", "--json").out)["quant"] == "Q8_0"
    assert "hf:org/g:llama-Q8_0.gguf\n" in call(env, "list").out


# Ollama, and any URL.

def test_ollama(hub, tmp_path):
    data = GGUF + os.urandom(100000)
    hub.add_ollama("library/mill", [("model", data), ("template", b"{{ .Prompt }}"), ("params", b"{}")])
    hub.add_ollama("me/mill", [("model", data + b"x"), ("projector", b"p")])
    env = {**hub.env(tmp_path), "HF_TOKEN": "hf_secret"}
    path = pull(env, "ollama:mill")
    assert path.endswith("/mill-latest.gguf") and path.startswith(str(tmp_path / "own"))
    assert open(path, "rb").read() == data
    assert pull(env, "ollama:mill") == path and len(fetches(hub)) == 1
    got = call(env, "pull", "ollama:me/mill:3b")
    assert got.code == 0 and "the vision tower mmproj-mill-3b.gguf (1 B) comes with it" in got.err, got
    tower = os.path.join(os.path.dirname(got.out.strip()), "mmproj-mill-3b.gguf")
    assert open(tower, "rb").read() == b"p"
    assert all(s.auth is None for s in hub.log)  # it is the Hub's token
    assert "no such thing (404): manifest unknown" in refused(env, "ollama:none")
    listed = call(env, "list").out
    assert "ollama:mill\n" in listed and "ollama:me/mill:3b\n" in listed
    assert call(env, "rm", "ollama:me/mill:3b", "--yes").code == 0 and "me/mill" not in call(env, "list").out


@pytest.mark.parametrize("layers, said", [
    ([("model", b"a"), ("model", b"b")], "several files"), ([("model", b"a"), ("adapter", b"b")], "adapter"),
    ([("tensor; name=x", b"a")], "separate files"), ([("template", b"a")], "no layer is a model")])
def test_ollama_models_of_other_forms(hub, tmp_path, layers, said):
    hub.add_ollama("library/x", layers)
    assert said in refused(hub.env(tmp_path), "ollama:x")


def test_a_url(hub, tmp_path):
    hub.plain["m.gguf"] = Made(40 * MIB, GGUF)
    env = {**hub.env(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}
    url = hub.url + "/files/m.gguf"
    path = pull(env, url)
    assert os.path.getsize(path) == 40 * MIB and os.path.basename(path) == "m.gguf"
    sent = hub.sent()
    assert pull(env, url) == path and hub.sent() - sent <= MIB  # the headers are looked at again
    assert url in call(env, "list").out
    assert call(env, "rm", url, "--yes").code == 0 and tree(tmp_path / "own") == []


def test_a_url_of_the_hub_has_its_sum_and_token(hub, tmp_path):
    hub.add("org/many", {"m-Q8_0.gguf": Made(1000, GGUF)}, token="hf_secret")
    env = {**hub.env(tmp_path), "HF_TOKEN": "hf_secret"}
    path = pull(env, f"{hub.url}/org/many/resolve/main/m-Q8_0.gguf")
    assert os.path.basename(os.path.realpath(path)) == next(iter(hub.repos["org/many"].files.values())).sum
    assert all(s.auth is None for s in fetches(hub))


# Interrupted and at the same time.

def partial(tmp_path):
    found = [tmp_path / f for f in tree(tmp_path) if f.endswith(".quern.incomplete")]
    return found[0] if found else None


def bytes_kept(path, size, piece=16 * MIB):
    """What the table behind the bytes says (src/hub/store/partial.h)."""
    with open(path, "rb") as f:
        f.seek(size)
        magic, total, per_piece = f.read(8), *(int.from_bytes(f.read(8), "little") for _ in range(2))
        assert magic == b"QNPART1\0" and (total, per_piece) == (size, piece)
        return [int.from_bytes(f.read(8), "little") for _ in range(-(-size // piece))]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_pull_that_was_ended_goes_on(hub, tmp_path, end):
    """No byte that was written is asked for again: the ranges asked for are what the table said was missing."""
    size = 150 * MIB + 12345
    hub.add("org/large", {"m-Q8_0.gguf": Made(size, GGUF)})
    hub.pause = 0.004
    env = hub.env(tmp_path)
    first = start(env, "pull", "org/large")
    wait_until(lambda: hub.sent() > 60 * MIB)
    first.send_signal(end)
    out, err = first.communicate(timeout=20)
    assert out == b"" and first.returncode == (-9 if end == signal.SIGKILL else 130)
    if end != signal.SIGKILL:
        assert b"interrupted; what came is kept" in err and err.count(b"\n") == 1
    kept = bytes_kept(partial(tmp_path), size)
    assert sum(kept) > 40 * MIB and not (tmp_path / "hf/hub/models--org--large/refs").exists()
    hub.pause = 0
    hub.log.clear()
    path = pull(env, "org/large")
    asked = sorted(tuple(map(int, s.range.removeprefix("bytes=").split("-"))) for s in fetches(hub))
    expected = [(16 * MIB * i + n, min(size, 16 * MIB * (i + 1)) - 1) for i, n in enumerate(kept)
                if n < min(16 * MIB, size - 16 * MIB * i)]
    assert asked == expected and hub.sent() == size - sum(kept)
    with open(path, "rb") as f:
        assert hashlib.file_digest(f, "sha256").hexdigest() == hub.repos["org/large"].files["m-Q8_0.gguf"].sum
    assert partial(tmp_path) is None


def test_two_pulls_of_one_model(hub, tmp_path):
    size = 40 * MIB
    hub.add("org/large", {"m-Q8_0.gguf": Made(size, GGUF)})
    hub.pause = 0.001
    env = hub.env(tmp_path)
    both = [start(env, "pull", "org/large") for _ in range(2)]
    ends = [p.communicate(timeout=60) for p in both]
    assert [p.returncode for p in both] == [0, 0] and ends[0][0] == ends[1][0]
    assert hub.sent() == size
    assert sum(b"another quern is fetching this model" in err for _, err in ends) == 1


def test_several_files_and_pieces_at_once(hub, tmp_path):
    hub.add("org/shards", {"config.json": b"{}", **{f"model-0000{i}-of-00003.safetensors": Made(30 * MIB, seed=i)
                                                    for i in (1, 2, 3)}})
    open_now, most = [0], [0]

    def fault(handler):
        if handler.server.kind == "cdn":
            with hub.lock:
                open_now[0] += 1
                most[0] = max(most[0], open_now[0])
            try:
                handler.give(hub.blobs[handler.path.rpartition("/")[2]], {}, pause=0.002)
            finally:
                with hub.lock:
                    open_now[0] -= 1
            return True
    hub.fault = fault
    pull(hub.env(tmp_path), "org/shards")
    assert most[0] == 4 and hub.sent() == 90 * MIB + 2


def test_peak_memory(hub, tmp_path):
    """QUERN_HUB_BYTES=4294967296 for as much as one likes: it does not grow with the file."""
    size = int(os.environ.get("QUERN_HUB_BYTES", 300 * MIB))
    hub.add("org/large", {"m-Q8_0.gguf": Made(size, GGUF)})
    child, peak = subprocess.Popen([QUERN, "pull", "org/large"], env=hub.env(tmp_path), stdout=subprocess.DEVNULL), 0
    while child.poll() is None:  # getrusage would count Python's own memory, that of the fork
        with open(f"/proc/{child.pid}/status") as f:
            m = re.search(r"VmHWM:\s*(\d+) kB", f.read())
        peak = max(peak, int(m.group(1)) if m else 0)
        time.sleep(0.01)
    print(f"{size} bytes: peak memory {peak / 1024:.1f} MiB")
    assert child.returncode == 0 and 1000 < peak < 64e6 / 1024


# list, show, rm.

def test_rm_keeps_what_another_revision_has(hub, tmp_path):
    files = tiny_files()
    hub.add("org/tiny", files)
    env = hub.env(tmp_path)
    old = pull(env, "org/tiny")
    changed = {**files, "generation_config.json": b"{ }"}
    hub.add("org/tiny", changed, commit="b" * 40)
    new = pull(env, "org/tiny")
    names = re.findall(r"hf:org/tiny\S*", call(env, "list").out)
    assert sorted(names) == ["hf:org/tiny", "hf:org/tiny@" + "a" * 40]
    assert call(env, "rm", names[0] if "@" in names[0] else names[1], "--yes").code == 0
    assert not os.path.exists(old) and answer(env, "hf:org/tiny") == answer(env, new)
    blobs = os.listdir(tmp_path / "hf/hub/models--org--tiny/blobs")
    assert len(blobs) == len(changed)
    got = call(env, "rm", "org/tiny", "--yes")
    assert got.code == 0 and "freed" in got.err and tree(tmp_path) == []
    assert not (tmp_path / "hf/hub/models--org--tiny").exists()
    assert "is not on this machine" in call(env, "rm", "org/tiny", "--yes").err


def test_rm_of_one_file(hub, tmp_path):
    many(hub)
    env = hub.env(tmp_path)
    for pick in ("Q8_0", "Q4_K_M"):
        pull(env, "org/many:" + pick)
    assert call(env, "rm", "hf:org/many:Q8_0", "--yes").code == 0
    left = sorted(os.path.basename(f) for f in tree(tmp_path) if "snapshots" in f)
    assert left == ["m-Q4_K_M.gguf", "mmproj-m-f16.gguf"]
    assert len(os.listdir(tmp_path / "hf/hub/models--org--many/blobs")) == 2
    assert call(env, "pull", "org/many:Q4_K_M", "--offline").code == 0
    assert call(env, "rm", "hf:org/many:Q4_K_M", "--yes").code == 0 and tree(tmp_path) == []  # the tower too


def test_rm_asks(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    pull(env, "org/tiny")
    assert call(env, "rm", "org/tiny").code == 2
    for typed, is_there in (("n\n", True), ("\n", True), ("y\n", False)):
        main, sub = os.openpty()
        rm = subprocess.Popen([QUERN, "rm", "org/tiny"], env=env, stdin=sub, stderr=subprocess.PIPE, text=True)
        os.close(sub)
        os.write(main, typed.encode())
        assert "remove hf:org/tiny" in rm.communicate(timeout=20)[1]
        os.close(main)
        assert bool(tree(tmp_path)) == is_there and rm.returncode == (1 if is_there else 0)


def test_rm_of_what_an_interrupted_pull_left(hub, tmp_path):
    hub.add("org/large", {"m-Q8_0.gguf": Made(40 * MIB, GGUF)})
    hub.pause = 0.01
    env = hub.env(tmp_path)
    first = start(env, "pull", "org/large")
    wait_until(lambda: hub.sent() > 2 * MIB)
    first.kill()
    first.communicate()
    assert partial(tmp_path) and call(env, "rm", "org/large", "--yes").code == 0 and tree(tmp_path) == []


def test_show(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    assert "is not on this machine" in call(env, "show", "org/tiny").err
    path = pull(env, "org/tiny")
    got = call(env, "show", "org/tiny")
    assert got.code == 0 and all(w in got.out for w in ("hf:org/tiny", "a" * 40, path, "llama", "bf16", "tensors")), got
    shown = json.loads(call(env, "show", "org/tiny", "--json").out)
    assert (shown["model_type"], shown["quant"], shown["status"], shown["path"]) == ("llama", "bf16", "QN_OK", path)


def test_list(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    assert call(env, "list").code == 0
    pull(env, "org/tiny")
    got = json.loads(call(env, "list", "--json").out)
    assert [(m["name"], m["model_type"]) for m in got["models"]] == [("hf:org/tiny", "llama")]
    assert call(env, "run", got["models"][0]["name"], "-p", "x", "-n", "1").code == 0


# What is seen.

def test_quiet_when_piped(hub, tmp_path):
    hub.add("org/large", {"m-Q8_0.gguf": Made(40 * MIB, GGUF)})
    got = call(hub.env(tmp_path), "pull", "org/large")
    assert "\r" not in got.err and "\033" not in got.err and got.err.count("\n") == 1, got


@pytest.mark.parametrize("files", [["m-Q8_0.gguf"], part_names("m-Q8_0", 3)])
def test_progress_on_one_line_in_tmux(hub, tmp_path, files):
    """80 columns: the line is written over in its place, has share, bytes, rate and time left, and is gone then."""
    shutil.which("tmux") or leave_out("tmux is absent")
    hub.add("org/large", {name: Made(120 * MIB // len(files), GGUF, i) for i, name in enumerate(files)})
    hub.pause = 0.01
    env = {**hub.env(tmp_path), "TMUX_TMPDIR": str(tmp_path), "TERM": "xterm-256color"}
    env.pop("TMUX", None)
    command = f"{os.path.abspath(QUERN)} pull org/large; echo ended $?; sleep 60"
    tmux = ["tmux", "-f", "/dev/null"]
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", command], env=env, check=True)

    def screen():
        got = subprocess.run([*tmux, "capture-pane", "-p"], env=env, capture_output=True, text=True)
        return got.stdout.rstrip("\n")
    try:
        seen = []
        wait_until(lambda: "left" in screen())
        while "ended" not in (now := screen()):
            seen.append(now)
            time.sleep(0.1)
        assert len(seen) > 5
        for s in seen:
            lines = s.split("\n")
            assert len(lines) <= 2 and all(len(line) <= 79 for line in lines), s
        form = r" *\d+%  \[=*>? *\]  [\d.]+ [kM]?B of 126 MB  ([\d.]+ [kM]B/s  \d:\d\d left|checking the sum)"
        assert sum(bool(re.fullmatch(form, s.split("\n")[-1])) for s in seen) >= len(seen) - 3, seen[-3:]
        shares = [int(m.group(1)) for s in seen if (m := re.search(r"(\d+)%", s))]
        assert shares == sorted(shares) and shares[-1] > shares[0]
        assert "%" not in now and "126 MB fetched and checked" in now and "ended 0" in now
    finally:
        subprocess.run([*tmux, "kill-server"], env=env)
