"""GGUF models that are split: the quantisation picks the set, all parts come, and the commands see one model."""
import json
import os
import signal
import socket
import subprocess

import pytest

from gguf_split import part_names, split_gguf
from hub_help import (GGUF, Made, answer, call, fetches, hub, pull, pull_json, refused, start, tree,  # noqa: F401
                      wait_until)
from support import QUERN, fixture

MIB = 1 << 20
NAMES = part_names("Q8_0/llama-Q8_0", 3)


def whole():
    with open(fixture("quant/gguf_models/llama-Q8_0.gguf"), "rb") as f:
        return f.read()


def parts(names=NAMES, **options):
    return dict(zip(names, split_gguf(whole(), len(names), **options)))


def made(stem, n, size, first=0):
    """Parts that are fetched and not computed with."""
    return {name: Made(size, GGUF, first + i) for i, name in enumerate(part_names(stem, n))}


def blobs(tmp_path, repo="org--split"):
    return os.listdir(tmp_path / f"hf/hub/models--{repo}/blobs")


@pytest.mark.parametrize("first_is_empty", [False, True])
def test_the_quantisation_picks_the_set(hub, tmp_path, first_is_empty):
    files = parts(first_is_empty=first_is_empty)
    others = {"llama-F16.gguf": Made(1 << 20, GGUF), **made("Q4_0/llama-Q4_0", 2, 1000)}
    hub.add("org/split", {**others, **files, "README.md": b"# no"})
    env = hub.env(tmp_path)
    alone = tmp_path / "whole.gguf"
    alone.write_bytes(whole())
    want = answer(env, alone)
    got = call(env, "run", "hf:org/split:Q8_0", "-p", "Hello", "-n", "4", "--json", "--temp", "0")
    assert got.code == 0 and json.loads(got.out)["ids"] == want and "fetched and checked" in got.err, got
    path = pull(env, "org/split:q8_0")
    assert path.endswith("/Q8_0/llama-Q8_0-00001-of-00003.gguf")
    assert sorted(os.listdir(os.path.dirname(path))) == [os.path.basename(name) for name in NAMES]
    n = len(hub.log)
    assert answer(env, path) == answer(env, "hf:org/split") == answer(env, "hf:org/split:Q8_0") == want
    assert len(hub.log) == n and hub.sent() == sum(map(len, files.values()))


@pytest.mark.parametrize("pick", [
    "Q8_0", "llama-Q8_0-00001-of-00003.gguf", "llama-Q8_0-00002-of-00003.gguf", NAMES[0], NAMES[2]])
def test_any_part_means_all(hub, tmp_path, pick):
    hub.add("org/split", parts())
    got = pull_json(hub.env(tmp_path), "org/split:" + pick)
    assert [f["path"] for f in got["files"]] == NAMES and got["path"].endswith(NAMES[0])


def test_a_makers_name_of_a_quantisation(hub, tmp_path):
    ours = made("UD-Q4_K_XL/m-UD-Q4_K_XL", 2, 1000)
    hub.add("org/split", {**ours, "m-Q4_K_M.gguf": Made(500, GGUF)})
    got = pull_json(hub.env(tmp_path), "org/split:UD-Q4_K_XL", "--dry-run")
    assert [f["path"] for f in got["files"]] == list(ours)


def test_memory_chooses_by_all_parts(hub, tmp_path):
    large, small = made("m-Q8_0", 3, 3000), made("m-Q4_K_M", 2, 1000)
    hub.add("org/split", {**large, **small})
    env, half = hub.env(tmp_path), 512 * MIB
    got = pull_json(env, "org/split", "--dry-run", "--memory", str(2 * (half + 12000)))
    assert [f["path"] for f in got["files"]] == list(large) and got["size_bytes"] == 9000
    assert "of 2 files m-Q8_0-00001-of-00003.gguf (9.0 kB in 3 parts) is the largest" in got["why"]
    got = pull_json(env, "org/split", "--dry-run", "--memory", str(2 * (half + 9000)))
    assert [f["path"] for f in got["files"]] == list(small)
    assert tree(tmp_path) == [] and fetches(hub) == []


def test_dry_run_shows_the_whole(hub, tmp_path):
    hub.add("org/split", made("m-Q8_0", 3, 3000))
    env = hub.env(tmp_path)
    lines = call(env, "pull", "org/split:Q8_0", "--dry-run").out.splitlines()
    assert [line.split() for line in lines] == [["3.0", "kB", name] for name in part_names("m-Q8_0", 3)] + [
        ["9.0", "kB", "in", "all,", "0", "B", "of", "it", "here"]]


def test_list_show_and_rm_see_one_model(hub, tmp_path):
    files = parts()
    size = sum(map(len, files.values()))
    hub.add("org/split", files)
    env = hub.env(tmp_path)
    path = pull(env, "org/split:Q8_0")
    models = json.loads(call(env, "list", "--json").out)["models"]
    assert [(m["path"], m["n_files"], m["size_bytes"], m["status"]) for m in models] == [(path, 3, size, "QN_OK")]
    assert models[0]["name"] == "hf:org/split:" + NAMES[0]
    shown = json.loads(call(env, "show", "org/split:Q8_0", "--json").out)
    assert (shown["path"], shown["n_files"], shown["size_bytes"], shown["quant"]) == (path, 3, size, "Q8_0")
    assert shown == {**json.loads(call(env, "show", models[0]["name"], "--json").out), "name": shown["name"]}
    assert call(env, "inspect", models[0]["name"]).code == call(env, "doctor", "hf:org/split", "--no-compute").code == 0
    got = call(env, "rm", models[0]["name"], "--yes")
    assert got.code == 0 and tree(tmp_path) == [] and "removed" in got.err, got


def test_rm_leaves_the_other_quantisations(hub, tmp_path):
    tower = {"mmproj-F16.gguf": Made(9, GGUF, 5)}
    hub.add("org/split", {**made("m-Q8_0", 3, 3000), **made("m-Q4_K_M", 2, 1000, 3), **tower})
    env = hub.env(tmp_path)
    got = call(env, "pull", "org/split:Q8_0")
    assert "the vision tower mmproj-F16.gguf (9 B) comes with it" in got.err and len(blobs(tmp_path)) == 4
    pull(env, "org/split:Q4_K_M")
    got = call(env, "rm", "hf:org/split:m-Q8_0-00002-of-00003.gguf", "--yes")
    assert got.code == 0 and "9.0 kB freed" in got.err and len(blobs(tmp_path)) == 3, got
    assert call(env, "pull", "org/split:Q8_0", "--offline").code == 1
    assert call(env, "pull", "org/split", "--offline").out.endswith("/m-Q4_K_M-00001-of-00002.gguf\n")
    assert call(env, "rm", "hf:org/split:Q4_K_M", "--yes").code == 0 and tree(tmp_path) == []  # the tower too


def test_rm_removes_packed_weights_too(hub, tmp_path):
    with open(fixture("quant/gguf_models/llama-Q4_K_M.gguf"), "rb") as f:
        hub.add("org/split", {**parts(part_names("llama-Q8_0", 3)), "llama-Q4_K_M.gguf": f.read()})
    env = hub.env(tmp_path)
    for pick in ("Q8_0", "Q4_K_M"):
        path = pull(env, "org/split:" + pick)
        assert call(env, "pack", path).code == 0 and os.path.exists(path + ".qpack")
    assert call(env, "rm", "org/split:llama-Q8_0-00002-of-00003.gguf", "--yes").code == 0
    assert sorted(os.listdir(os.path.dirname(path))) == ["llama-Q4_K_M.gguf", "llama-Q4_K_M.gguf.qpack"]
    assert call(env, "rm", "org/split:Q4_K_M", "--yes").code == 0 and tree(tmp_path) == []


def test_the_server_calls_it_by_the_name_of_the_whole(hub, tmp_path):
    hub.add("org/split", parts())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = hub.env(tmp_path)
    server = subprocess.Popen([QUERN, "serve", pull(env, "org/split"), "--port", str(port)], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline().startswith("listening") and server.stdout.readline() == "ready: llama-Q8_0\n"
    finally:
        server.terminate()
        server.communicate(timeout=60)


@pytest.mark.parametrize("name", ["org/split", "org/split:Q8_0", "org/split:m-Q8_0-00003-of-00003.gguf"])
def test_a_part_that_the_hub_lacks(hub, tmp_path, name):
    files = made("m-Q8_0", 3, 3000)
    del files["m-Q8_0-00002-of-00003.gguf"]
    hub.add("org/split", files)
    said = refused(hub.env(tmp_path), name)
    assert said.endswith("m-Q8_0-00002-of-00003.gguf is missing (parts that are there: 2 of 3)")
    assert tree(tmp_path) == [] and fetches(hub) == []


def test_memory_leaves_a_set_without_a_part_out(hub, tmp_path):
    files = made("m-Q8_0", 2, 3000)
    del files["m-Q8_0-00001-of-00002.gguf"]
    hub.add("org/split", {**files, "m-Q4_0.gguf": Made(100, GGUF)})
    got = call(hub.env(tmp_path), "pull", "org/split")
    assert got.out.endswith("/m-Q4_0.gguf\n")
    assert "m-Q8_0-00002-of-00002.gguf is left out (parts that are there: 1 of 2)" in got.err


def test_a_part_with_a_wrong_sum(hub, tmp_path):
    files = made("m-Q8_0", 2, 3000)
    hub.add("org/split", files, sums={"m-Q8_0-00002-of-00002.gguf": "0" * 64})
    said = refused(hub.env(tmp_path), "org/split:Q8_0")
    assert "m-Q8_0-00002-of-00002.gguf" in said
    assert "refs" not in os.listdir(tmp_path / "hf/hub/models--org--split")
    assert call(hub.env(tmp_path), "pull", "org/split:Q8_0", "--offline").code == 1


def cut_short(hub, env, name, n_bytes, end=signal.SIGKILL):
    """A pull that is ended when so many bytes were sent."""
    before, hub.pause = hub.sent(), 0.004
    first = start(env, "pull", name)
    wait_until(lambda: hub.sent() - before > n_bytes)
    first.send_signal(end)
    first.communicate(timeout=20)
    assert first.returncode != 0
    hub.pause = 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_pull_goes_on(hub, tmp_path, end):
    """With whole parts and a part of one here, nothing is a model, and what is here does not come again."""
    files = {**made("m-Q8_0", 2, MIB), "m-Q8_0-00002-of-00002.gguf": Made(100 * MIB, GGUF, 7)}
    hub.add("org/split", files)
    env = hub.env(tmp_path)
    cut_short(hub, env, "org/split:Q8_0", 30 * MIB, end)
    left = blobs(tmp_path)
    assert hub.repos["org/split"].files["m-Q8_0-00001-of-00002.gguf"].sum in left and len(left) == 2
    assert json.loads(call(env, "list", "--json").out)["models"] == []
    assert "is not on this machine" in call(env, "show", "org/split:Q8_0").err
    assert call(env, "run", "hf:org/split:Q8_0", "--offline", "-p", "x").code == 1
    before = hub.sent()
    got = pull_json(env, "org/split:Q8_0")
    assert hub.sent() - before < 80 * MIB and got["here_bytes"] == MIB and got["fetched_bytes"] == 100 * MIB


def test_rm_of_what_an_interrupted_pull_left(hub, tmp_path):
    """Parts that came whole go too; what another quantisation has stays."""
    hub.add("org/split", {**made("m-Q8_0", 2, MIB), "m-Q8_0-00002-of-00002.gguf": Made(100 * MIB, GGUF, 7),
                          "m-Q4_0.gguf": Made(1000, GGUF, 8)})
    env = hub.env(tmp_path)
    cut_short(hub, env, "org/split:Q8_0", 20 * MIB)
    assert call(env, "rm", "org/split", "--yes").code == 0 and tree(tmp_path) == []
    assert call(env, "rm", "org/split", "--yes").code == 1
    path = pull(env, "org/split:Q4_0")
    cut_short(hub, env, "org/split:Q8_0", 20 * MIB)
    assert len(blobs(tmp_path)) == 3
    got = call(env, "rm", "org/split:Q8_0", "--yes")
    assert got.code == 0 and " MB freed" in got.err and len(blobs(tmp_path)) == 1, got
    assert call(env, "pull", "org/split:Q4_0", "--offline").out.strip() == path
    assert call(env, "rm", "org/split:Q8_0", "--yes").code == 1


def test_a_link_that_is_missing_is_no_model(hub, tmp_path):
    """The process ended between two links while another quantisation had set the reference."""
    hub.add("org/split", parts())
    env = hub.env(tmp_path)
    path = pull(env, "org/split:Q8_0")
    os.remove(os.path.join(os.path.dirname(path), os.path.basename(NAMES[1])))
    assert call(env, "pull", "org/split:Q8_0", "--offline").code == 1
    models = json.loads(call(env, "list", "--json").out)["models"]
    assert [m["status"] for m in models] == ["QN_E_NOT_FOUND"]
    before = hub.sent()
    assert answer(env, "hf:org/split:Q8_0") and hub.sent() == before


def test_the_url_of_a_part_means_all(hub, tmp_path):
    files = parts(part_names("m-Q8_0", 2))
    env = {**hub.env(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}
    url = hub.url + "/files/m-Q8_0-00001-of-00002.gguf"
    hub.plain["m-Q8_0-00001-of-00002.gguf"] = files["m-Q8_0-00001-of-00002.gguf"]

    def fault(handler):  # the server of plain files has no page for what it lacks
        if "00002-of" in handler.path and "m-Q8_0-00002-of-00002.gguf" not in hub.plain:
            handler.say(404)
            return True
    hub.fault = fault
    said = refused(env, url)
    assert "/files/m-Q8_0-00002-of-00002.gguf: " in said and "no such thing (404)" in said and tree(tmp_path) == []
    hub.plain.update(files)
    path = pull(env, url)
    assert sorted(os.listdir(os.path.dirname(path))) == list(files) and path.endswith("00001-of-00002.gguf")
    sent = hub.sent()
    assert answer(env, url) == answer(env, path) and hub.sent() == sent
    models = json.loads(call(env, "list", "--json").out)["models"]
    assert [(m["name"], m["n_files"]) for m in models] == [(url, 2)]
    assert call(env, "rm", url, "--yes").code == 0 and tree(tmp_path / "own") == []


def test_the_hubs_own_url_of_a_part(hub, tmp_path):
    """The sums that the Hub states for each part are checked."""
    files = made("Q8_0/m-Q8_0", 2, 3000)
    hub.add("org/split", files)
    env = hub.env(tmp_path)
    got = pull_json(env, f"{hub.url}/org/split/resolve/main/Q8_0/m-Q8_0-00001-of-00002.gguf")
    sums = [f.sum for f in hub.repos["org/split"].files.values()]
    assert [f["sum"] for f in got["files"]] == sums and got["path"].endswith("/m-Q8_0-00001-of-00002.gguf")
