"""/v1/cache: figures, prompts that are kept ready, files, and why a prompt finds no more than it does."""
import pytest

from server_help import MODEL, Server
from support import fixture

ADMIN = {"Authorization": "Bearer the-admin"}
LONG = "The miller grinds corn, rye and spelt, day and night. " * 6
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("cache")
    (top / "states").mkdir()
    (top / "admin").write_text("the-admin\n")
    (top / "secret").write_text("x")
    (top / "states/link").symlink_to("../secret")
    (top / "states/other").write_text("no state\n")
    (top / "states/inner").mkdir()
    return top


def options(folder, *more):
    return ["--model-name", "mill", "--admin-key-file", folder / "admin", "--cache-folder", folder / "states",
            "--no-look-ahead", *more]


@pytest.fixture(scope="module")
def server(folder):
    s = Server(fixture(MODEL), *options(folder))
    yield s
    assert s.stop() == 0


def post(server, path, body, headers=ADMIN):
    return server.request("POST", "/v1/cache/" + path, body, headers)


def refused(got, status, param, code):
    error = got[2]["error"]
    assert got[0] == status and error["param"] == param and error["code"] == code and error["message"], got
    return error["message"]


def cached(server, path="/v1/completions", headers=None, **body):
    status, _, got = server.request("POST", path, {"max_tokens": 1, **body}, headers)
    assert status == 200, got
    details = got["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], got["usage"]["prompt_tokens"]


def explain(server, headers=None, **body):
    status, _, got = post(server, "explain", body, headers)
    assert status == 200, got
    return got


def test_figures(server):
    before = server.request("GET", "/v1/cache")[2]
    cached(server, prompt="Figures. " + LONG)
    cached(server, prompt="Figures. " + LONG)
    after = server.request("GET", "/v1/cache")[2]
    assert after["object"] == "cache" and after["now"]["tokens"] > before["now"]["tokens"]
    assert after["total"]["hits"] == before["total"]["hits"] + 1
    assert after["total"]["reused_tokens"] > before["total"]["reused_tokens"]
    assert 0 < after["now"]["bytes"] <= after["now"]["limit_bytes"]


def test_warm(server):
    prompt = "Kept ready. " + LONG
    status, _, got = post(server, "warm", {"name": "text", "prompt": prompt})
    assert status == 200 and got == {"name": "text", "object": "cache.prefix", "warm": True}
    got, n = cached(server, prompt=prompt)
    assert got == n - 1
    chat = {"messages": [{"role": "system", "content": "Kept, too. " + LONG}, *HELLO]}
    assert post(server, "warm", {"name": "chat", **chat})[0] == 200
    got, n = cached(server, "/v1/chat/completions", **chat)
    assert got > n - 20
    assert server.request("GET", "/v1/cache")[2]["now"]["warm"] == 2
    for name in ("text", "chat"):
        status, _, got = server.request("DELETE", "/v1/cache/warm/" + name, None, ADMIN)
        assert status == 200 and got == {"name": name, "object": "cache.prefix", "deleted": True}
    refused(server.request("DELETE", "/v1/cache/warm/text", None, ADMIN), 404, None, "not_found")
    assert server.request("GET", "/v1/cache")[2]["now"]["warm"] == 0


def test_warm_under_a_salt(server):
    prompt = "Salted. " + LONG
    assert post(server, "warm", {"name": "salted", "prompt": prompt, "cache_salt": "x"})[0] == 200
    assert cached(server, prompt=prompt)[0] < 10
    got, n = cached(server, prompt=prompt, cache_salt="x")
    assert got == n - 1
    assert server.request("DELETE", "/v1/cache/warm/salted", None, ADMIN)[0] == 200


@pytest.mark.parametrize("body, param, code", [
    ({"prompt": "a"}, "name", "missing_parameter"),
    ({"name": "a"}, "messages", "missing_parameter"),
    ({"name": "a/b", "prompt": "a"}, "name", "invalid_value"),
    ({"name": "", "prompt": "a"}, "name", "invalid_value"),
    ({"name": "x" * 200, "prompt": "a"}, "name", "invalid_value"),
    ({"name": "a", "prompt": "a", "messages": HELLO}, "prompt", "invalid_value"),
    ({"name": "a", "prompt": ["a", "b"]}, "prompt", "invalid_value"),
    ({"name": "a", "prompt": "word " * 5000}, "prompt", "invalid_value"),
    ({"name": "a", "messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
    ({"name": "a", "prompt": "a", "api_key": "k"}, "api_key", "invalid_value"),
    ({"name": "a", "prompt": "a", "colour": 1}, "colour", "unknown_parameter")])
def test_warm_refused(server, body, param, code):
    refused(post(server, "warm", body), 400, param, code)


def test_explain(server):
    begin = "Explained. " + LONG
    cached(server, prompt=begin + "And then he sleeps.")
    got = explain(server, prompt=begin + "And then he wakes.")
    assert got["object"] == "cache.explanation" and got["reason"] == "differs" and got["evicted"] is None
    assert 0 < got["known_tokens"] < got["prompt_tokens"] and got["cached_tokens"] <= got["known_tokens"]
    given, known = got["given"], got["known"]
    assert given["ids"][:given["first_different"]] == known["ids"][:known["first_different"]]
    assert given["ids"][given["first_different"]] != known["ids"][known["first_different"]]
    assert given["token"] in given["text"] and known["token"] in known["text"] and given["token"] != known["token"]
    assert explain(server, prompt=begin + "And then he sleeps.")["reason"] == "usable"
    assert explain(server, prompt=begin + "And then he sleeps. Later")["reason"] in ("ends", "differs")
    got = explain(server, prompt=begin, cache_salt="nobody's")
    assert got["reason"] == "unknown" and got["known_tokens"] == got["cached_tokens"] == 0 and got["known"]["ids"] == []
    before = server.request("GET", "/v1/cache")[2]["total"]
    explain(server, messages=HELLO)
    assert server.request("GET", "/v1/cache")[2]["total"] == before  # it changes nothing
    refused(post(server, "explain", {"prompt": "a", "name": "x"}, None), 400, "name", "unknown_parameter")
    refused(post(server, "explain", {}, None), 400, "messages", "missing_parameter")


def test_files(server, folder):
    prompt = "Saved. " + LONG
    cached(server, prompt=prompt)
    assert post(server, "save", {"file": "now.state"})[::2] == (200, {"file": "now.state", "status": "saved"})
    assert post(server, "save", {"file": "now.state"})[0] == 200  # the same file again
    s = Server(fixture(MODEL), *options(folder))
    try:
        assert cached(s, prompt="Another one. " + LONG)[0] == 0
        assert post(s, "load", {"file": "now.state"})[::2] == (200, {"file": "now.state", "status": "loaded"})
        got, n = cached(s, prompt=prompt)
        assert got == n - 1
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("path", ["save", "load"])
def test_files_refused(server, folder, path):
    for name in ("", "/etc/passwd", "../secret", "inner/x", ".hidden", "..", ".", "inner", "link", "x" * 300):
        refused(post(server, path, {"file": name}), 400, "file", "invalid_value")
    refused(post(server, path, {}), 400, "file", "missing_parameter")
    refused(post(server, path, {"file": "a", "path": "b"}), 400, "path", "unknown_parameter")
    assert (folder / "secret").read_text() == "x"


def test_load_refused(server, folder):
    refused(post(server, "load", {"file": "missing"}), 404, "file", "not_found")
    refused(post(server, "load", {"file": "other"}), 400, "file", "invalid_value")
    assert (folder / "states/other").read_text() == "no state\n"


def test_access(folder):
    s = Server(fixture(MODEL))
    try:
        for method, path in (("POST", "warm"), ("POST", "save"), ("POST", "load"), ("DELETE", "warm/x")):
            got = s.request(method, "/v1/cache/" + path, {} if method == "POST" else None, ADMIN)
            assert "--admin-key-file" in refused(got, 403, None, "no_admin_key")
        assert s.request("GET", "/v1/cache")[0] == 200 and explain(s, prompt="a")["reason"] == "unknown"
    finally:
        assert s.stop() == 0
    s = Server(fixture(MODEL), "--admin-key-file", folder / "admin")
    try:
        for path in ("save", "load"):
            assert "--cache-folder" in refused(post(s, path, {"file": "a"}), 403, None, "no_cache_folder")
    finally:
        assert s.stop() == 0


def test_keys(folder):
    """An admin keeps prompts ready for the keys of others, which nobody else can ask about."""
    s = Server(fixture(MODEL), *options(folder), "--api-key", "a", "--api-key", "b")
    a, b = ({"Authorization": "Bearer " + k} for k in "ab")
    body = {"name": "x", "prompt": "For a key. " + LONG}
    try:
        refused(post(s, "warm", body, a), 403, None, "not_admin")
        refused(post(s, "warm", body), 400, "api_key", "missing_parameter")
        refused(post(s, "warm", {**body, "api_key": "c"}), 400, "api_key", "invalid_value")
        assert post(s, "warm", {**body, "api_key": "a"})[0] == 200
        assert explain(s, a, prompt=body["prompt"])["reason"] == "usable"
        assert explain(s, b, prompt=body["prompt"])["reason"] == "unknown"
        assert explain(s, ADMIN, prompt=body["prompt"])["reason"] == "unknown"
        assert explain(s, ADMIN, prompt=body["prompt"], api_key="a")["reason"] == "usable"
        refused(post(s, "explain", {"prompt": "a", "api_key": "a"}, b), 403, "api_key", "not_admin")
        got, n = cached(s, headers=a, prompt=body["prompt"])
        assert got == n - 1 and cached(s, headers=b, prompt=body["prompt"])[0] == 0
        assert post(s, "explain", {"prompt": "a"}, None)[0] == 401
    finally:
        assert s.stop() == 0
