"""`quern serve --store`: responses that outlive their requests, by key, over restarts and kills."""
import os
import signal

import pytest

from server_help import Server, has_store, until
from test_server_ping import hold

pytestmark = pytest.mark.skipif(not has_store(), reason="built without SQLite")

ASK = {"input": "Hello", "max_output_tokens": 12, "temperature": 0}


def serve(folder, *options, **more):
    return Server(None, "--store", folder, *options, **more)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    s = serve(tmp_path_factory.mktemp("store") / "new")
    yield s
    assert s.stop() == 0


def ask(server, key=None, **fields):
    headers = {"Authorization": "Bearer " + key} if key else {}
    status, _, got = server.post("/v1/responses", {**ASK, **fields}, **headers)
    assert status == 200, got
    return got


def get(server, name, key=None, method="GET", path=""):
    headers = {"Authorization": "Bearer " + key} if key else {}
    status, _, got = server.request(method, f"/v1/responses/{name}{path}", {} if method == "POST" else None, headers)
    return status, got


def refused(answer, status, words):
    assert answer[0] == status and words in answer[-1]["error"]["message"], answer


def test_get_and_delete(stored):
    response = ask(stored)
    assert response["store"] is True
    assert get(stored, response["id"]) == (200, response)
    assert get(stored, response["id"], method="DELETE") == (
        200, {"id": response["id"], "object": "response", "deleted": True})
    for method in ("GET", "DELETE"):
        refused(get(stored, response["id"], method=method), 404, "there is no response")


def test_not_stored(stored):
    response = ask(stored, store=False)
    assert response["store"] is False
    refused(get(stored, response["id"]), 404, "there is no response")


def test_streams_are_stored(stored):
    status, _, text = stored.post("/v1/responses", {**ASK, "stream": True})
    assert status == 200
    name = text.partition('"id":"resp_')[2].partition('"')[0]
    status, got = get(stored, "resp_" + name)
    assert status == 200 and got["status"] in ("completed", "incomplete")
    assert got["output"][0]["content"][0]["text"] in text


def test_going_on(stored):
    """The same prompt, and so the same answer, as with the whole conversation."""
    first = ask(stored, instructions="Be brief.")
    second = ask(stored, input=[{"role": "user", "content": "And you?"}], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    items = [{"role": "user", "content": ASK["input"]}, *first["output"], {"role": "user", "content": "And you?"}]
    whole = ask(stored, input=items)
    assert second["output"][0]["content"] == whole["output"][0]["content"]
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    _, _, count = stored.post("/v1/responses/input_tokens", {"input": "And you?", "previous_response_id": first["id"]})
    assert count["input_tokens"] == whole["usage"]["input_tokens"]
    # What came before may be deleted: a response has all that the model was shown.
    assert get(stored, first["id"], method="DELETE")[0] == 200
    third = ask(stored, input="Why?", previous_response_id=second["id"])
    items += [*second["output"], {"role": "user", "content": "Why?"}]
    assert third["usage"]["input_tokens"] == ask(stored, input=items)["usage"]["input_tokens"]


def test_input_items(stored):
    first = ask(stored)
    second = ask(stored, input=[{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"},
                                {"role": "user", "content": "Three"}], previous_response_id=first["id"])
    status, got = get(stored, second["id"], path="/input_items?order=asc")
    texts = [item["content"][0]["text"] for item in got["data"]]
    assert status == 200 and texts == ["Hello", first["output"][0]["content"][0]["text"], "One", "Two", "Three"]
    assert [item["content"][0]["type"] for item in got["data"]][2:] == ["input_text", "output_text", "input_text"]
    assert got["first_id"] == got["data"][0]["id"] and not got["has_more"]
    assert len({item["id"] for item in got["data"]}) == 5
    _, newest = get(stored, second["id"], path="/input_items")
    assert newest["data"] == got["data"][::-1]
    pages, after = [], ""
    while True:
        _, page = get(stored, second["id"], path=f"/input_items?order=asc&limit=2{after}")
        pages += page["data"]
        if not page["has_more"]:
            break
        after = "&after=" + page["last_id"]
    assert pages == got["data"]
    for query, words in (("limit=0", "limit must be"), ("limit=101", "limit must be"), ("limit=x", "limit must be"),
                         ("order=up", "order must be"), ("after=no", "no item"), ("after=%zz", "malformed")):
        refused(get(stored, second["id"], path="/input_items?" + query), 400, words)


@pytest.mark.parametrize("fields, status, words", [
    ({"previous_response_id": "resp_no"}, 404, "there is no response 'resp_no'"),
    ({"previous_response_id": 1}, 400, "previous_response_id must be"),
    ({"background": True, "store": False}, 400, "background needs store"),
    ({"background": True, "stream": True}, 400, "stream is not supported with background"),
    ({"conversation": "c"}, 400, "stores no conversations"),
])
def test_refusals(stored, fields, status, words):
    code, _, got = stored.post("/v1/responses", {**ASK, **fields})
    refused((code, got), status, words)
    assert got["error"]["param"] in fields


def test_stored_is_not_streamed(stored):
    refused(get(stored, ask(stored)["id"], path="?stream=true"), 400, "given as a whole")


def test_background(stored):
    response = ask(stored, background=True)
    assert response["status"] == "in_progress" and response["background"] is True and response["output"] == []
    until(lambda: get(stored, response["id"])[1]["status"] != "in_progress")
    status, got = get(stored, response["id"])
    assert got["output"][0]["content"] == ask(stored)["output"][0]["content"] and got["id"] == response["id"]
    refused(get(stored, response["id"], method="POST", path="/cancel"), 400, "the response has ended")
    refused(get(stored, ask(stored)["id"], method="POST", path="/cancel"), 400, "can be cancelled")


def test_cancel(tmp_path):
    mock = Server(None, "--backend", "mock", "--parallel", "1", "--store", tmp_path)
    with hold(mock) as held:
        response = ask(mock, background=True)
        assert get(mock, response["id"])[1]["status"] == "in_progress"
        refused(get(mock, response["id"], method="DELETE"), 409, "cancel it first")
        refused((lambda a: (a[0], a[2]))(mock.post("/v1/responses", {**ASK, "previous_response_id": response["id"]})),
                400, "still being made")
        for _ in range(2):
            status, got = get(mock, response["id"], method="POST", path="/cancel")
            assert status == 200 and got["status"] == "cancelled"
            assert get(mock, response["id"])[1]["status"] == "cancelled"
        held.close()
    assert mock.stop() == 0


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("anna\nben\n")
    s = serve(tmp_path / "store", "--api-key-file", keys)
    response = ask(s, "anna")
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
        refused(get(s, response["id"], "ben", method, path), 404, "there is no response")
    code, _, got = s.post("/v1/responses", {**ASK, "previous_response_id": response["id"]}, Authorization="Bearer ben")
    refused((code, got), 404, "there is no response")
    assert s.stop() == 0
    # The key counts, not its place in the file; the file of the store does not have it.
    keys.write_text("ben\nanna\n")
    s = serve(tmp_path / "store", "--api-key-file", keys)
    assert get(s, response["id"], "anna") == (200, response)
    assert get(s, response["id"], "ben")[0] == 404
    assert s.stop() == 0
    for folder, _, files in os.walk(tmp_path / "store"):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                assert b"anna" not in f.read()


def test_killed(tmp_path):
    """What was answered is there after kill -9; what was being made has failed."""
    mock = Server(None, "--backend", "mock", "--parallel", "1", "--store", tmp_path)
    response = ask(mock)
    held = hold(mock)
    pending = ask(mock, background=True)
    mock.stop(signal.SIGKILL)
    held.close()
    mock = Server(None, "--backend", "mock", "--store", tmp_path)
    assert get(mock, response["id"]) == (200, response)
    status, got = get(mock, pending["id"])
    assert status == 200 and got["status"] == "failed" and "the server ended" in got["error"]["message"]
    assert mock.stop() == 0


def test_second_signal(tmp_path):
    """It ends the server at once: what was being made in the background has failed."""
    mock = Server(None, "--backend", "mock", "--parallel", "1", "--store", tmp_path)
    with hold(mock) as held:
        pending = ask(mock, background=True)
        mock.process.send_signal(signal.SIGTERM)
        until(lambda: mock.request("GET", "/health")[0] == 503)
        assert mock.stop() == 130
        held.close()
    mock = Server(None, "--backend", "mock", "--store", tmp_path)
    status, got = get(mock, pending["id"])
    assert status == 200 and got["status"] == "failed" and "the server ended" in got["error"]["message"]
    assert mock.stop() == 0


def test_one_process(tmp_path):
    s = serve(tmp_path)
    with pytest.raises(AssertionError, match="another process has this store open"):
        serve(tmp_path)
    assert s.stop() == 0


def test_bounded(tmp_path):
    """The oldest give way, on the disk too."""
    mock = Server(None, "--backend", "mock", "--store", tmp_path, "--store-limit", "1M")
    names = [ask(mock, input="x" * 40000, max_output_tokens=1)["id"] for _ in range(60)]
    assert get(mock, names[-1])[0] == 200 and get(mock, names[0])[0] == 404
    size = sum(os.path.getsize(os.path.join(folder, f)) for folder, _, files in os.walk(tmp_path) for f in files)
    assert size < 5 << 20
    assert mock.stop() == 0


def test_larger_than_the_store(tmp_path):
    """The answer is given all the same, and says that it was not stored."""
    mock = Server(None, "--backend", "mock", "--store", tmp_path, "--store-limit", "1M")
    response = ask(mock, metadata={"large": "x" * 1200000}, max_output_tokens=1)
    assert response["store"] is False and response["output"]
    (warning,) = response["warnings"]
    assert warning["param"] == "store" and "--store-limit" in warning["message"]
    refused(get(mock, response["id"]), 404, "there is no response")
    assert ask(mock, max_output_tokens=1)["store"] is True
    assert mock.stop() == 0


def test_drain(tmp_path):
    """A response in the background is finished before a draining server ends."""
    mock = Server(None, "--backend", "mock", "--parallel", "1", "--store", tmp_path)
    held = hold(mock)
    response = ask(mock, background=True)
    mock.process.send_signal(signal.SIGTERM)
    held.close()
    assert mock.process.wait(30) == 0
    mock.stop()
    mock = Server(None, "--backend", "mock", "--store", tmp_path)
    assert get(mock, response["id"])[1]["status"] in ("completed", "incomplete")
    assert mock.stop() == 0
