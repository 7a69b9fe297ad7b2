"""Adapters that are loaded and unloaded while the server runs: who may, from where, and what requests under way see."""
import json
import os
import shutil
import threading
import time

import pytest

from server_help import MODEL, Server, begin, until, wait_for
from support import fixture

ADMIN = {"Authorization": "Bearer the-admin"}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("adapters")
    root = top / "root"
    (root / "team").mkdir(parents=True)
    shutil.copytree(fixture("lora/llama_qv"), root / "qv")
    shutil.copytree(fixture("lora/llama_all"), root / "team/all")
    shutil.copytree(fixture("lora/llama_all"), top / "outside")
    (root / "out").symlink_to(top / "outside")
    (root / "inner").symlink_to("qv")
    (root / "leaks").mkdir()
    for name in os.listdir(top / "outside"):
        (root / "leaks" / name).symlink_to(top / "outside" / name)
    (root / "empty").mkdir()
    shutil.copytree(fixture("lora/llama_qv"), root / "broken")
    (root / "broken/adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (top / "admin").write_text("the-admin\n")
    (top / "keys").write_text("mill\nbakery\n")
    return top


def options(folder, *more):
    return ["--model-name", "mill", "--admin-key-file", folder / "admin", "--adapter-folder", folder / "root", *more]


@pytest.fixture(scope="module")
def admin(folder):
    s = Server(fixture(MODEL), *options(folder))
    yield s
    assert s.stop() == 0


def load(server, **body):
    return server.request("POST", "/v1/adapters", body, ADMIN)


def unload(server, name, headers=ADMIN):
    return server.request("DELETE", f"/v1/adapters/{name}", None, headers)


def refused(got, status, param, code):
    error = got[2]["error"]
    assert got[0] == status and error["param"] == param and error["code"] == code and error["message"], got
    return error["message"]


def names(server):
    return [a["id"] for a in server.request("GET", "/v1/adapters")[2]["data"]]


def answer(server, model, **body):
    status, _, got = server.post("/v1/chat/completions", {"messages": HELLO, "model": model, "max_tokens": 6,
                                                          "temperature": 0, "logprobs": True, **body})
    assert status == 200, got
    return got["choices"][0]["logprobs"], got


def test_life(admin):
    """Load, list, use by both names, unload; and what it computes is what `--adapter` computes."""
    before = admin.metrics()
    plain, _ = answer(admin, "mill")
    status, _, got = load(admin, path="qv")
    assert status == 200 and got["id"] == "qv" and got["model"] == "mill+qv" and got["object"] == "adapter"
    assert got["layout"] == "peft" and got["scale"] == 1 and not got["is_default"] and got["n_matrices"] > 0
    assert admin.request("GET", "/v1/adapters/qv")[2] == got and names(admin) == ["qv"]
    assert [m["id"] for m in admin.request("GET", "/v1/models")[2]["data"]] == ["mill", "mill+qv", "mill+none"]
    during = admin.metrics()
    assert during["quern_adapters"] == 1 and during["quern_adapters_bytes"] == got["size_bytes"]
    with_it, whole = answer(admin, "mill+qv")
    assert with_it != plain and whole["model"] == "mill+qv"
    bare, whole = answer(admin, "qv")
    assert bare == with_it and "warnings" not in whole
    assert answer(admin, "mill")[0] == plain
    status, _, got = unload(admin, "qv")
    assert status == 200 and got == {"id": "qv", "object": "adapter", "deleted": True}
    assert names(admin) == [] and admin.request("GET", "/v1/adapters/qv")[0] == 404
    assert [m["id"] for m in admin.request("GET", "/v1/models")[2]["data"]] == ["mill"]
    refused(admin.post("/v1/chat/completions", {"messages": HELLO, "model": "mill+qv"}), 404, "model",
            "model_not_found")
    after = admin.metrics()
    assert after["quern_adapters"] == 0 and answer(admin, "mill")[0] == plain
    assert after['quern_memory_bytes{entry="weights"}'] == before['quern_memory_bytes{entry="weights"}']
    s = Server(fixture(MODEL), "--model-name", "mill", "--adapter", "qv=" + fixture("lora/llama_qv"))
    try:
        assert answer(s, "mill+qv")[0] == with_it
    finally:
        assert s.stop() == 0


def test_names_and_scales(admin):
    try:
        assert load(admin, path="team/all")[2]["id"] == "all"
        assert load(admin, path="team/all", name="half", scale=0.5)[2]["scale"] == 0.5
        assert load(admin, path="inner", name="linked")[0] == 200
        assert sorted(names(admin)) == ["all", "half", "linked"]
        assert len({json.dumps(answer(admin, f"mill+{n}")[0]) for n in ("all", "half", "linked", "none")}) == 4
        got = admin.request("GET", "/lora-adapters")[2]
        assert [a["id"] for a in got] == [0, 1, 2] and all(a["scale"] == 0 for a in got)
        got = admin.request("POST", "/lora-adapters", [{"id": 0, "scale": 0.5}])
        assert got[0] == 501 and "/v1/adapters" in got[2]["error"]["message"]
    finally:
        for name in names(admin):
            assert unload(admin, name)[0] == 200


@pytest.mark.parametrize("body, status, param, code", [
    ({}, 400, "path", "missing_parameter"),
    ({"path": 3}, 400, "path", None),
    ({"path": "qv", "nmae": "x"}, 400, "nmae", None),
    ({"path": "missing"}, 404, "path", "not_found"),
    ({"path": "/etc"}, 400, "path", "invalid_value"),
    ({"path": "../outside"}, 400, "path", "invalid_value"),
    ({"path": "qv/../../outside"}, 400, "path", "invalid_value"),
    ({"path": "out"}, 400, "path", "invalid_value"),
    ({"path": "leaks"}, 400, "path", "invalid_value"),
    ({"path": "qv/adapter_config.json", "name": "x"}, 400, "path", "invalid_value"),
    ({"path": "empty"}, 404, "path", "not_found"),
    ({"path": "broken"}, 400, "path", "invalid_value"),
    ({"path": "qv", "name": "none"}, 400, "name", "invalid_value"),
    ({"path": "qv", "name": "a/b"}, 400, "name", "invalid_value"),
    ({"path": "qv", "name": "mill"}, 400, "name", "invalid_value"),
    ({"path": "qv", "name": ""}, 400, "name", "invalid_value"),
    ({"path": "qv", "scale": 0}, 400, "scale", "invalid_value"),
    ({"path": "qv", "scale": 1e9}, 400, "scale", None),
])
def test_refused(admin, body, status, param, code):
    got = admin.request("POST", "/v1/adapters", body, ADMIN)
    assert got[0] == status and got[2]["error"]["param"] == param, got
    assert code is None or got[2]["error"]["code"] == code
    assert names(admin) == []


def test_taken_and_unknown(admin):
    assert load(admin, path="qv")[0] == 200
    try:
        refused(load(admin, path="team/all", name="qv"), 409, "name", "adapter_exists")
        refused(unload(admin, "vq"), 404, None, "adapter_not_found")
        refused(unload(admin, "none"), 404, None, "adapter_not_found")
    finally:
        assert unload(admin, "qv")[0] == 200


def test_vllm(admin):
    """vLLM's two routes, whose clients look at the status."""
    try:
        got = admin.request("POST", "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "qv"}, ADMIN)
        assert got[0] == 200 and names(admin) == ["sql"]
        assert answer(admin, "sql")[1]["model"] == "sql"
        refused(admin.request("POST", "/v1/load_lora_adapter", {"lora_path": "qv"}, ADMIN), 400, "lora_name",
                "missing_parameter")
        refused(admin.request("POST", "/v1/load_lora_adapter",
                              {"lora_name": "sql", "lora_path": "qv", "load_inplace": True}, ADMIN), 400,
                "load_inplace", "unsupported_parameter")
        refused(admin.request("POST", "/v1/unload_lora_adapter", {"lora_name": "x"}, ADMIN), 404, "lora_name",
                "adapter_not_found")
        refused(admin.request("POST", "/v1/unload_lora_adapter", {}, ADMIN), 400, "lora_name", "missing_parameter")
    finally:
        got = admin.request("POST", "/v1/unload_lora_adapter", {"lora_name": "sql", "lora_int_id": 1}, ADMIN)
        assert got[0] == 200 and [w["param"] for w in got[2]["warnings"]] == ["lora_int_id"]
    assert names(admin) == []


def test_in_use(admin):
    """A request under way keeps its adapter, and ends well; afterwards the adapter can go."""
    assert load(admin, path="qv")[0] == 200
    busy = begin(admin, {"model": "mill+qv", "prompt": "Hello", "max_tokens": 100000, "ignore_eos": True, "seed": 1,
                         "stream": True, "truncation": "auto"})
    try:
        wait_for(busy, b"data: ")
        assert "in use" in refused(unload(admin, "qv"), 409, None, "adapter_in_use")
        assert answer(admin, "mill+qv")
    finally:
        busy.close()
    assert unload(admin, "qv")[0] == 200
    for _ in range(5):  # right behind the last byte of an answer
        assert load(admin, path="qv")[0] == 200
        answer(admin, "qv")
        assert unload(admin, "qv")[0] == 200


def test_loads_beside_requests(admin):
    """Nothing that is loaded or unloaded changes or ends requests of others."""
    plain, _ = answer(admin, "mill", max_tokens=40)
    end, wrong = time.monotonic() + 3, []

    def ask():
        while time.monotonic() < end and not wrong:
            if answer(admin, "mill", max_tokens=40)[0] != plain:
                wrong.append("another answer")

    def use():
        while time.monotonic() < end and not wrong:
            status = admin.post("/v1/chat/completions", {"messages": HELLO, "model": "mill+qv", "max_tokens": 8})[0]
            if status not in (200, 404):
                wrong.append(status)

    threads = [threading.Thread(target=t) for t in (ask, ask, use, use)]
    for t in threads:
        t.start()
    seen = set()
    while time.monotonic() < end:
        seen.add((load(admin, path="qv")[0], unload(admin, "qv")[0]))
    for t in threads:
        t.join()
    assert not wrong and seen <= {(200, 200), (200, 409), (409, 200), (409, 409)} and (200, 200) in seen
    until(lambda: unload(admin, "qv")[0] == 404)
    m = admin.metrics()
    assert m["quern_adapters"] == 0 and answer(admin, "mill", max_tokens=40)[0] == plain


def test_default_goes(folder):
    """The adapter of --adapter can go too; then requests that name none use none."""
    s = Server(fixture(MODEL), *options(folder, "--adapter", "all=" + fixture("lora/llama_all")))
    try:
        (got,) = s.request("GET", "/v1/adapters")[2]["data"]
        assert got["is_default"] and s.request("GET", "/lora-adapters")[2] == [{"id": 0, "path": "all", "scale": 1}]
        none = answer(s, "mill+none")[0]
        assert answer(s, "mill")[0] != none
        assert unload(s, "all")[0] == 200 and answer(s, "mill")[0] == none
    finally:
        assert s.stop() == 0


def test_keys(folder):
    """Admin keys open all routes; other keys look, and change nothing."""
    s = Server(fixture(MODEL), *options(folder, "--api-key-file", folder / "keys"))
    user = {"Authorization": "Bearer mill"}
    try:
        routes = (("POST", "/v1/adapters"), ("DELETE", "/v1/adapters/qv"), ("POST", "/v1/load_lora_adapter"))
        for method, path in routes:
            body = {"path": "qv"} if method == "POST" else None
            refused(s.request(method, path, body), 401, None, "missing_api_key")
            assert "--admin-key-file" in refused(s.request(method, path, body, user), 403, None, "not_admin")
            refused(s.request(method, path, body, {"x-api-key": "nobody"}), 401, None, "invalid_api_key")
        assert s.request("POST", "/v1/adapters", {"path": "qv"}, {"x-api-key": "the-admin"})[0] == 200
        assert s.request("GET", "/v1/adapters")[0] == 401
        for headers in (user, ADMIN):
            assert len(s.request("GET", "/v1/adapters", None, headers)[2]["data"]) == 1
            status, _, got = s.request("POST", "/v1/chat/completions",
                                       {"messages": HELLO, "model": "qv", "max_tokens": 2}, headers)
            assert status == 200, got
    finally:
        assert s.stop() == 0


def test_options(folder):
    s = Server(fixture(MODEL))
    try:
        for method, path in (("POST", "/v1/adapters"), ("DELETE", "/v1/adapters/x"), ("POST", "/v1/load_lora_adapter"),
                             ("POST", "/v1/unload_lora_adapter")):
            got = s.request(method, path, {} if method == "POST" else None, ADMIN)
            assert "--admin-key-file" in refused(got, 403, None, "no_admin_key")
        assert s.request("GET", "/v1/adapters")[2] == {"object": "list", "data": []}
    finally:
        assert s.stop() == 0
    s = Server(fixture(MODEL), "--admin-key-file", folder / "admin")
    try:
        got = s.request("POST", "/v1/adapters", {"path": "qv"}, ADMIN)
        assert "--adapter-folder" in refused(got, 403, None, "no_adapter_folder")
    finally:
        assert s.stop() == 0
