"""Slots: which one a request gets, and what it has is saved, restored and erased."""
import os

import pytest

from server_help import MODEL, Server, until
from support import fixture

FRANCE, GERMANY = "What is the capital of France?", "What is the capital of Germany?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("slots")
    (top / "state").mkdir()
    (top / "secret").write_text("x")
    (top / "state/link").symlink_to("../secret")
    (top / "state/other").write_text("no state\n")
    return top / "state"


def start(folder, *more):
    return Server(fixture(MODEL), "--slot-save-path", folder, "--parallel", 2, "--no-look-ahead", *more)


@pytest.fixture()
def server(folder):
    s = start(folder)
    yield s
    assert s.stop() == 0


def ask(server, prompt, headers=None, **fields):
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, **fields}
    status, _, got = server.request("POST", "/completion", body, headers)
    assert status == 200, got
    return got


def act(server, slot, action, body=None, headers=None, status=200):
    got = server.request("POST", f"/slots/{slot}?action={action}", body, headers)
    assert got[0] == status, got
    return got[2]


def tokens(server, slot):
    return server.request("GET", "/slots")[2][slot].get("n_prompt_tokens", 0)


def test_save_and_restore(server, folder):
    first = ask(server, FRANCE, id_slot=1)
    n = first["tokens_evaluated"] + 7  # the state of the last token was not computed
    assert first["id_slot"] == 1 and "warnings" not in first
    assert first["timings"]["prompt_n"] == first["tokens_evaluated"] and tokens(server, 1) == n
    saved = act(server, 1, "save", {"filename": "france.bin"})
    size = os.path.getsize(folder / "france.bin")
    assert saved.pop("timings")["save_ms"] > 0
    assert saved == {"id_slot": 1, "filename": "france.bin", "n_saved": n, "n_written": size}
    own = ask(server, GERMANY, id_slot=1)
    assert server.stop() == 0

    again = start(folder)
    try:
        got = act(again, 0, "restore", {"filename": "france.bin"})
        assert got.pop("timings")["restore_ms"] > 0
        assert got == {"id_slot": 0, "filename": "france.bin", "n_restored": n, "n_read": size}
        assert tokens(again, 0) == n and tokens(again, 1) == 0
        got = ask(again, FRANCE)
        assert got["id_slot"] == 0 and got["timings"]["prompt_n"] == 1 and got["content"] == first["content"]
        got = ask(again, GERMANY, id_slot=0)
        assert got["content"] == own["content"] and got["timings"]["prompt_n"] == own["timings"]["prompt_n"]
        got = ask(again, FRANCE, id_slot=0)
        assert got["content"] == first["content"] and got["timings"]["prompt_n"] == 1
    finally:
        assert again.stop() == 0


def test_erase(server):
    n = ask(server, FRANCE, id_slot=1)["timings"]["prompt_n"]
    assert act(server, 1, "erase") == {"id_slot": 1, "n_erased": n + 7}
    assert act(server, 1, "erase", {}) == {"id_slot": 1, "n_erased": 0}
    assert tokens(server, 1) == 0
    assert ask(server, FRANCE, id_slot=1)["timings"]["prompt_n"] == n


def test_choice(server):
    """A conversation stays in its slot, whatever the API; another gets the one that was used longest ago."""
    assert ask(server, FRANCE)["id_slot"] == 0
    assert ask(server, "Once upon a time there was a miller.")["id_slot"] == 1
    got = ask(server, FRANCE, stream=False, n_predict=4)
    assert got["id_slot"] == 0 and tokens(server, 0) == got["tokens_evaluated"] + 3
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "id_slot": 0}
    status, _, got = server.post("/v1/chat/completions", chat)
    assert status == 200 and "warnings" not in got
    assert tokens(server, 0) == got["usage"]["prompt_tokens"] + 3
    assert ask(server, "none", cache_prompt=False)["id_slot"] == 1 and tokens(server, 1) == 0
    assert act(server, 1, "save", {"filename": "empty"})["n_saved"] == 0
    assert act(server, 0, "restore", {"filename": "empty"})["n_restored"] == 0 and tokens(server, 0) == 0
    body = {"prompt": ["a b c", "d e f"], "n_predict": 2, "stream": True, "id_slot": 1}
    text = server.request("POST", "/completion", body)[2]
    assert '"id_slot":1' in text and '"id_slot":-1' in text and tokens(server, 1) > 0
    until(lambda: not any(s["is_processing"] for s in server.request("GET", "/slots")[2]))


def test_refused(server):
    def refused(got, param, status=400):
        assert got["error"]["param"] == param and got["error"]["code"] == status and got["error"]["message"], got

    for slot in ("2", "-1", "x", "1x", "99999999999999999999"):
        refused(act(server, slot, "save", {"filename": "a"}, status=400), "id_slot")
    for action in ("", "load", "saves", "%00"):
        refused(act(server, 0, action, {"filename": "a"}, status=400), "action")
    for action in ("save", "restore"):
        refused(act(server, 0, action, {}, status=400), "filename")
        for name in ("", ".", "..", "../secret", "/etc/passwd", "a/b", ".hidden", "link", "x" * 300, 5, "a\0b"):
            refused(act(server, 0, action, {"filename": name}, status=400), "filename")
    refused(act(server, 0, "save", {"filename": "a", "colour": 1}, status=400), "colour")
    ask(server, FRANCE, id_slot=0)
    refused(act(server, 0, "restore", {"filename": "not-there"}, status=400), "filename")
    assert tokens(server, 0) == 0  # as llama.cpp's server has it
    refused(act(server, 0, "restore", {"filename": "other"}, status=400), "filename")
    for value in (2, -2, 1.5, "0", True):
        status, _, got = server.post("/completion", {"prompt": "a", "id_slot": value})
        assert status == 400
        refused(got, "id_slot")
    assert ask(server, "a", id_slot=-1)["id_slot"] >= 0


def test_busy(server):
    assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 200
    with server.connect() as first, server.connect() as second:
        for i, s in enumerate((first, second)):
            body = b'{"prompt":"a","n_predict":-1,"ignore_eos":true,"stream":true,"id_slot":1}'
            s.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert s.recv(100)
            busy = [slot["is_processing"] for slot in server.request("GET", "/slots")[2]]
            assert busy == [False, True]
        status, _, got = server.request("GET", "/slots?fail_on_no_slot=1")
        assert status == 503 and got["error"]["type"] == "unavailable_error"
    until(lambda: not any(s["is_processing"] for s in server.request("GET", "/slots")[2]))


def test_keys(folder):
    """What a slot has belongs to the key of its request, in memory and in files."""
    s = start(folder, "--api-key", "one", "--api-key", "two")
    one, two = ({"Authorization": f"Bearer {k}"} for k in ("one", "two"))
    try:
        assert s.request("POST", "/slots/0?action=erase")[0] == 401
        n = ask(s, FRANCE, one, id_slot=0)["tokens_evaluated"] + 7
        assert act(s, 0, "save", {"filename": "two"}, two)["n_saved"] == 0
        assert act(s, 0, "erase", None, two)["n_erased"] == 0
        assert act(s, 0, "save", {"filename": "one"}, one)["n_saved"] == n
        got = act(s, 1, "restore", {"filename": "one"}, two, 403)
        assert "another key" in got["error"]["message"]
        assert act(s, 1, "restore", {"filename": "one"}, one)["n_restored"] == n
        assert act(s, 1, "restore", {"filename": "two"}, two)["n_restored"] == 0
        assert ask(s, FRANCE, two)["timings"]["cache_n"] == 0
    finally:
        assert s.stop() == 0


def test_without_a_folder():
    s = Server(fixture(MODEL))
    try:
        for action in ("save", "restore", "erase"):
            got = act(s, 0, action, {"filename": "a"}, status=501)
            assert got["error"]["type"] == "not_supported_error" and "--slot-save-path" in got["error"]["message"]
        got = ask(s, "a", id_slot=0)
        assert got["id_slot"] == -1 and got["warnings"][0]["param"] == "id_slot"
    finally:
        assert s.stop() == 0
