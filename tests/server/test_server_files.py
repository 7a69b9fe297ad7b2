"""`quern serve --store`: files and batches: uploads, owners, lines of every route, bad lines, cancels, restarts."""
import json
import os
import signal
import sqlite3
import time

import pytest

from server_help import Server, has_store, statuses, until
from test_server_ping import hold

pytestmark = pytest.mark.skipif(not has_store(), reason="built without SQLite")

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "The mill", "max_tokens": 8, "temperature": 0},
          "/v1/embeddings": {"input": "The mill"},
          "/v1/responses": {"input": "Hello", "max_output_tokens": 8, "temperature": 0}}
BOUNDARY = "----mill"


def serve(folder, *options, model=None):
    return Server(model, "--store", folder, *options)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    s = serve(tmp_path_factory.mktemp("files") / "store")
    yield s
    assert s.stop() == 0


def auth(key):
    return {"Authorization": "Bearer " + key} if key else {}


def part(name, value, filename=None):
    more = f'; filename="{filename}"' if filename is not None else ""
    value = value if isinstance(value, bytes) else value.encode()
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def form(*parts):
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def post_form(server, body, key=None, **headers):
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **auth(key), **headers}
    status, _, got = server.request("POST", "/v1/files", body, kind)
    return status, got


def upload(server, content, purpose="batch", key=None):
    status, got = post_form(server, form(part("purpose", purpose), part("file", content, "input.jsonl")), key)
    assert status == 200, got
    return got


def call(server, method, path, body=None, key=None):
    status, _, got = server.request(method, path, body, auth(key))
    return status, got


def content(server, name, key=None):
    status, got = call(server, "GET", f"/v1/files/{name}/content", key=key)
    assert status == 200
    return got


def lines(server, name, key=None):
    return [json.loads(line) for line in content(server, name, key).splitlines()] if name else []


def line(name, endpoint="/v1/chat/completions", body=None, **more):
    return {"custom_id": name, "method": "POST", "url": endpoint, "body": BODIES[endpoint] if body is None else body,
            **more}


def create(server, rows, endpoint="/v1/chat/completions", key=None, **fields):
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    name = upload(server, text, key=key)["id"]
    status, got = call(server, "POST", "/v1/batches", {"input_file_id": name, "endpoint": endpoint,
                                                      "completion_window": "24h", **fields}, key)
    assert status == 200, got
    return got


def get(server, name, key=None):
    status, got = call(server, "GET", f"/v1/batches/{name}", key=key)
    assert status == 200, got
    return got


def ended(server, name, key=None, timeout=60):
    until(lambda: get(server, name, key)["status"] in ("completed", "failed", "cancelled", "expired"), timeout)
    return get(server, name, key)


def refused(answer, status, words):
    assert answer[0] == status and words in answer[-1]["error"]["message"], answer


# ---- files ----

def test_file(stored):
    text = "".join(f"line {i}\r\n--{BOUNDARY[:-1]}\r\n" for i in range(20000))
    file = upload(stored, text, "user_data")
    assert file["object"] == "file" and file["bytes"] == len(text) and file["filename"] == "input.jsonl"
    assert file["purpose"] == "user_data" and file["status"] == "processed"
    assert call(stored, "GET", "/v1/files/" + file["id"]) == (200, file)
    assert content(stored, file["id"]) == text
    status, headers, got = stored.request("HEAD", f"/v1/files/{file['id']}/content")
    assert status == 200 and headers["content-length"] == str(len(text)) and got == ""
    assert call(stored, "DELETE", "/v1/files/" + file["id"]) == (
        200, {"id": file["id"], "object": "file", "deleted": True})
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        refused(call(stored, method, f"/v1/files/{file['id']}{path}"), 404, "there is no file")


def test_bytes_of_every_kind(stored):
    data = bytes(range(256)) * 300 + b"\r\n--" + BOUNDARY[:4].encode()
    file = upload(stored, data, "assistants")
    head = f"GET /v1/files/{file['id']}/content HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    raw = stored.raw(head.encode())
    assert raw.partition(b"\r\n\r\n")[2] == data
    empty = upload(stored, b"", "assistants")
    assert empty["bytes"] == 0 and content(stored, empty["id"]) == ""


def test_list(stored):
    names = [upload(stored, "x", "evals")["id"] for _ in range(5)]
    status, got = call(stored, "GET", "/v1/files?purpose=evals&order=asc")
    assert status == 200 and [f["id"] for f in got["data"]] == names and got["has_more"] is False
    status, got = call(stored, "GET", "/v1/files?purpose=evals&limit=2")
    assert [f["id"] for f in got["data"]] == names[:2:-1] and got["has_more"] is True
    assert (got["first_id"], got["last_id"]) == (names[4], names[3])
    status, got = call(stored, "GET", f"/v1/files?purpose=evals&limit=2&after={got['last_id']}")
    assert [f["id"] for f in got["data"]] == [names[2], names[1]]
    assert call(stored, "GET", "/v1/files?purpose=vision")[1]["data"] == []
    refused(call(stored, "GET", "/v1/files?after=file-no"), 400, "there is no file")
    for query in ("limit=10001", "limit=", "limit", "limit=+1", "limit=1x"):
        refused(call(stored, "GET", "/v1/files?" + query), 400, "limit must be")
    for query in ("order=", "order=Asc", "order"):
        refused(call(stored, "GET", "/v1/files?" + query), 400, "order must be")


def test_chunks_and_pieces(stored):
    """A body in chunks, whose edges lie within boundaries and headers."""
    body = form(part("file", "x" * 3000, "a/b.txt"), part("purpose", "batch"))
    pieces = b"".join(f"{len(p):x}\r\n".encode() + p + b"\r\n" for p in (body[i:i + 7] for i in range(0, len(body), 7)))
    head = (f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n").encode()
    raw = stored.raw(head, pieces[:999], pieces[999:] + b"0\r\n\r\n", pause=0.05)
    assert statuses(raw) == [200] and b'"filename":"b.txt"' in raw and b'"bytes":3000' in raw


@pytest.mark.parametrize("body, status, words", [
    (form(part("purpose", "batch")), 400, "file is missing"),
    (form(part("file", "x", "f")), 400, "purpose is missing"),
    (form(part("purpose", "other"), part("file", "x", "f")), 400, "purpose must be batch"),
    (form(part("purpose", "x" * 100), part("file", "x", "f")), 400, "purpose is none"),
    (form(part("purpose", "batch"), part("purpose", "batch")), 400, "purpose was sent twice"),
    (form(part("file", "x", "f"), part("file", "x", "f")), 400, "file was sent twice"),
    (form(part("purpose", "batch"), part("file", "x")), 400, "no filename"),
    (form(part("color", "red")), 400, "unknown parameter: color"),
    (form(part("purpose", "batch"), part("file", "x", "f"))[:-20], 400, "ends before its last boundary"),
    (b"", 400, "ends before its last boundary"),
    (b"file=x", 400, "does not begin with the boundary"),
    (form(part("purpose", "batch"), part("file", "x", "f")) + b"more", 400, "goes on behind its last boundary"),
])
def test_bad_forms(stored, body, status, words):
    before = stored.files()
    refused(post_form(stored, body), status, words)
    assert stored.request("GET", "/health")[0] == 200
    until(lambda: stored.files() <= before)


def test_expires_after(stored):
    """A field of the official client: files have the age that --store-days says."""
    status, got = post_form(stored, form(part("purpose", "batch"), part("file", "x", "f"),
                                         part("expires_after[anchor]", "created_at"),
                                         part("expires_after[seconds]", "3600")))
    assert status == 200 and got["expires_at"] == got["created_at"] + 30 * 86400


def test_other_types(stored):
    refused((lambda a: (a[0], a[2]))(stored.post("/v1/files", {"purpose": "batch"})), 415, "multipart/form-data")
    body = form(part("purpose", "batch"), part("file", "x", "f"))
    # A page could send this type without asking first, so no page may.
    for headers in ({"Origin": "http://localhost:3000"}, {"Sec-Fetch-Site": "cross-site"}):
        refused(post_form(stored, body, **headers), 415, "a web page's request")


def test_large_files(tmp_path):
    s = serve(tmp_path, "--max-file", "1M", "--max-body", "100K")
    assert upload(s, "x" * 1000000)["bytes"] == 1000000  # --max-body is not about files
    before = s.memory_kb()
    refused(post_form(s, form(part("purpose", "batch"), part("file", "x" * 3000000, "f"))), 413, "--max-file")
    assert s.memory_kb() < before + 20000
    assert len(os.listdir(tmp_path / "incoming")) == 0 and len(os.listdir(tmp_path / "files")) == 1
    with s.connect() as c:  # a client that goes in the middle
        c.sendall((f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n"
                   f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n").encode() +
                  part("file", "x" * 100000, "f")[:-2])
        until(lambda: len(os.listdir(tmp_path / "incoming")) == 1)
    until(lambda: len(os.listdir(tmp_path / "incoming")) == 0)
    assert s.stop() == 0


def test_without_store():
    s = Server()
    for method, path in (("POST", "/v1/files"), ("GET", "/v1/files"), ("GET", "/v1/files/file-1"),
                         ("DELETE", "/v1/files/file-1"), ("GET", "/v1/files/file-1/content"), ("POST", "/v1/batches"),
                         ("GET", "/v1/batches"), ("GET", "/v1/batches/batch_1"),
                         ("POST", "/v1/batches/batch_1/cancel")):
        refused(call(s, method, path, {} if method == "POST" else None), 400, "--store DIR")
    assert s.stop() == 0


# ---- batches ----

@pytest.mark.parametrize("endpoint", BODIES)
def test_batch(stored, endpoint):
    """Each line has the answer that the route itself gives."""
    batch = create(stored, [line(f"row {i}", endpoint) for i in range(5)], endpoint, metadata={"a": "b"})
    assert batch["object"] == "batch" and batch["status"] == "in_progress" and batch["metadata"] == {"a": "b"}
    assert batch["request_counts"] == {"total": 5, "completed": 0, "failed": 0} and batch["errors"] is None
    batch = ended(stored, batch["id"])
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert batch["error_file_id"] is None and batch["completed_at"] >= batch["created_at"]
    got = lines(stored, batch["output_file_id"])
    assert [row["custom_id"] for row in got] == [f"row {i}" for i in range(5)] and len({row["id"] for row in got}) == 5
    _, _, alone = stored.post(endpoint, BODIES[endpoint])
    for row in got:
        response = row["response"]
        assert row["error"] is None and response["status_code"] == 200 and response["request_id"].startswith("req_")
        for key in ("choices", "data"):
            assert response["body"].get(key) == alone.get(key)
    assert call(stored, "GET", "/v1/files/" + batch["output_file_id"])[1]["purpose"] == "batch_output"


def test_bad_lines(stored):
    good = line("good")
    bad = [("{", "invalid_json"), ("[1]", "invalid_request"), (json.dumps({**good, "custom_id": 1}), "invalid_request"),
           (json.dumps({**good, "method": "GET"}), "invalid_request"),
           (json.dumps({**good, "url": "/v1/completions"}), "invalid_request"),
           (json.dumps({**good, "body": None}), "invalid_request"),
           (json.dumps({**good, "other": 1}), "invalid_request"),
           (json.dumps({**good, "body": {**CHAT, "stream": True}}), "invalid_request")]
    refused_ones = [line("no messages", body={}), line("temperature", body={**CHAT, "temperature": -1})]
    batch = ended(stored, create(stored, ["", good, *(text for text, _ in bad), "  ", *refused_ones])["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3 + len(bad), "completed": 1, "failed": 2 + len(bad)}
    assert [row["custom_id"] for row in lines(stored, batch["output_file_id"])] == ["good"]
    errors = lines(stored, batch["error_file_id"])
    assert [row["error"]["code"] for row in errors[:len(bad)]] == [code for _, code in bad]
    assert all(row["response"] is None and row["error"]["message"] for row in errors[:len(bad)])
    for row, sent in zip(errors[len(bad):], refused_ones, strict=True):
        assert row["custom_id"] == sent["custom_id"] and row["error"] is None
        assert row["response"]["status_code"] == 400 and row["response"]["body"]["error"]["message"]


@pytest.mark.parametrize("fields, status, words", [
    ({"input_file_id": "file-no"}, 404, "there is no file"), ({"input_file_id": None}, 400, "input_file_id is missing"),
    ({"endpoint": "/v1/messages"}, 400, "endpoint must be"), ({"endpoint": None}, 400, "endpoint is missing"),
    ({"completion_window": "1h"}, 400, "completion_window must be"), ({"metadata": {"a": 1}}, 400, "metadata must be"),
    ({"other": 1}, 400, "unknown parameter: other"), ({"output_expires_after": {}}, 400, "--store-days")])
def test_refused_batches(stored, fields, status, words):
    name = upload(stored, "{}\n")["id"]
    body = {"input_file_id": name, "endpoint": "/v1/completions", "completion_window": "24h", **fields}
    refused(call(stored, "POST", "/v1/batches", body), status, words)


def test_refused_inputs(stored):
    for text, purpose, words in (("\n \n", "batch", "has no lines"), ("{}\n", "evals", "purpose is not batch")):
        body = {"input_file_id": upload(stored, text, purpose)["id"], "endpoint": "/v1/completions",
                "completion_window": "24h"}
        refused(call(stored, "POST", "/v1/batches", body), 400, words)


def test_list_of_batches(stored):
    names = [create(stored, [line("a")])["id"] for _ in range(3)]
    status, got = call(stored, "GET", "/v1/batches?limit=2")
    assert status == 200 and [b["id"] for b in got["data"]] == names[:0:-1] and got["has_more"] is True
    status, got = call(stored, "GET", f"/v1/batches?limit=1&after={names[1]}")
    assert [b["id"] for b in got["data"]] == [names[0]]
    for name in names:
        assert ended(stored, name)["status"] == "completed"


def test_keys(tmp_path):
    s = serve(tmp_path, "--api-key", "anna", "--api-key", "ben")
    batch = create(s, [line("a")], key="anna")
    batch = ended(s, batch["id"], "anna")
    for method, path in (("GET", "/v1/batches/" + batch["id"]), ("GET", "/v1/files/" + batch["input_file_id"]),
                         ("GET", f"/v1/files/{batch['output_file_id']}/content"),
                         ("DELETE", "/v1/files/" + batch["output_file_id"])):
        refused(call(s, method, path, key="ben"), 404, "there is no")
    refused(call(s, "POST", f"/v1/batches/{batch['id']}/cancel", {}, "ben"), 404, "there is no")
    for path in ("/v1/files", "/v1/batches"):
        assert call(s, "GET", path, key="ben")[1]["data"] == []
    body = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    refused(call(s, "POST", "/v1/batches", body, "ben"), 404, "there is no file")
    assert lines(s, batch["output_file_id"], "anna")[0]["response"]["status_code"] == 200
    assert s.stop() == 0


def test_cancel(tmp_path):
    mock = serve(tmp_path, "--backend", "mock", "--parallel", "1", "--no-look-ahead", model="mock")
    with hold(mock) as held:
        batch = create(mock, [line(str(i)) for i in range(40)])
        time.sleep(0.2)
        refused(call(mock, "DELETE", "/v1/files/" + batch["input_file_id"]), 409, "in use")
        status, got = call(mock, "POST", f"/v1/batches/{batch['id']}/cancel", {})
        assert status == 200 and got["status"] == "cancelling" and got["cancelling_at"]
        batch = ended(mock, batch["id"])
        held.close()
    assert batch["status"] == "cancelled" and batch["cancelled_at"] >= batch["cancelling_at"]
    errors, done = lines(mock, batch["error_file_id"]), lines(mock, batch["output_file_id"])
    assert len(errors) + len(done) == 40 and len(errors) > 0
    assert {row["error"]["code"] for row in errors} == {"batch_cancelled"}
    assert call(mock, "POST", f"/v1/batches/{batch['id']}/cancel", {}) == (200, batch)
    assert mock.stop() == 0
    s = serve(tmp_path)
    batch = ended(s, create(s, [line("a")])["id"])
    refused(call(s, "POST", f"/v1/batches/{batch['id']}/cancel", {}), 409, "has ended")
    refused(call(s, "POST", "/v1/batches/batch_no/cancel", {}), 404, "there is no batch")
    assert s.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_restart(tmp_path, number):
    """A batch goes on after kill -9, more than once, and has each line once."""
    rows = [line(str(i), body={**CHAT, "max_tokens": 24, "seed": i, "temperature": 1}) for i in range(60)]
    s = serve(tmp_path)
    name = create(s, rows)["id"]
    for least in (5, 20):
        until(lambda: get(s, name)["request_counts"]["completed"] >= least)
        assert get(s, name)["status"] == "in_progress"
        assert s.stop(number) in (0, -9)
        s = serve(tmp_path)
        assert get(s, name)["request_counts"]["completed"] >= least
    batch = ended(s, name)
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    got = lines(s, batch["output_file_id"])
    assert [row["custom_id"] for row in got] == [str(i) for i in range(60)]
    _, _, alone = s.post("/v1/chat/completions", rows[30]["body"])
    assert got[30]["response"]["body"]["choices"] == alone["choices"]
    assert s.stop() == 0


def test_cancelled_over_a_restart(tmp_path):
    mock = serve(tmp_path, "--backend", "mock", "--parallel", "1", "--no-look-ahead", model="mock")
    held = hold(mock)
    name = create(mock, [line(str(i)) for i in range(2000)])["id"]
    assert call(mock, "POST", f"/v1/batches/{name}/cancel", {})[0] == 200
    until(lambda: get(mock, name)["status"] == "cancelling")
    mock.stop(signal.SIGKILL)
    held.close()
    mock = serve(tmp_path, "--backend", "mock", model="mock")
    batch = ended(mock, name)
    assert batch["status"] == "cancelled" and len(lines(mock, batch["error_file_id"])) == 2000
    assert mock.stop() == 0


def test_key_that_is_gone(tmp_path):
    mock = serve(tmp_path, "--backend", "mock", "--parallel", "1", "--no-look-ahead", "--api-key", "anna", model="mock")
    name = create(mock, [line(str(i)) for i in range(3000)], key="anna")["id"]
    mock.stop(signal.SIGKILL)
    mock = serve(tmp_path, "--backend", "mock", "--api-key", "ben", model="mock")
    time.sleep(0.5)
    mock.stop()
    mock = serve(tmp_path, "--backend", "mock", "--api-key", "anna", model="mock")
    batch = ended(mock, name, "anna")
    assert batch["status"] == "failed" and "is gone" in batch["errors"]["data"][0]["message"]
    assert mock.stop() == 0


def test_interactive_requests_go_first(tmp_path):
    """A chat beside a batch is not slower than it would be beside nothing, but for the step that is under way."""
    s = serve(tmp_path)
    rows = [line(str(i), body={**CHAT, "max_tokens": 200, "seed": i, "temperature": 1}) for i in range(300)]
    name = create(s, rows)["id"]
    until(lambda: get(s, name)["request_counts"]["completed"] >= 1)
    for _ in range(5):
        status, _, _ = s.post("/v1/chat/completions", CHAT)
        assert status == 200
    assert s.metrics()['quern_batch_lines_total{result="completed"}'] < 300
    assert call(s, "POST", f"/v1/batches/{name}/cancel", {})[0] == 200
    ended(s, name)
    assert s.stop() == 0


def test_full_queue(tmp_path):
    """A line that finds the queue full comes again."""
    s = serve(tmp_path, "--parallel", "1", "--max-queue", "1")
    batch = ended(s, create(s, [line(str(i)) for i in range(10)])["id"])
    assert batch["status"] == "completed" and batch["request_counts"]["completed"] == 10
    assert s.stop() == 0


def test_full_store(tmp_path):
    """A batch whose answers do not fit says so, and the server goes on."""
    s = serve(tmp_path, "--backend", "mock", "--store-limit", "1M", model="mock")
    body = {"prompt": "x" * 12000, "max_tokens": 1, "echo": True}
    batch = ended(s, create(s, [line(str(i), "/v1/completions", body) for i in range(50)], "/v1/completions")["id"])
    assert batch["status"] == "failed" and batch["failed_at"]
    assert "--store-limit" in batch["errors"]["data"][0]["message"] or "full" in batch["errors"]["data"][0]["message"]
    assert call(s, "DELETE", "/v1/files/" + batch["input_file_id"])[0] == 200
    assert ended(s, create(s, [line("a")])["id"])["status"] == "completed"
    assert s.stop() == 0


def test_expired(tmp_path):
    """The window ends: what was not computed is an error line."""
    mock = serve(tmp_path, "--backend", "mock", "--parallel", "1", "--no-look-ahead", model="mock")
    held = hold(mock)
    batch = create(mock, [line(str(i)) for i in range(30)])
    mock.stop(signal.SIGKILL)
    held.close()
    db = sqlite3.connect(tmp_path / "store.sqlite")
    text, = db.execute("SELECT object FROM objects WHERE id=?", [batch["id"]]).fetchone()
    yesterday = {**json.loads(text), "created_at": batch["created_at"] - 86400}
    db.execute("UPDATE objects SET object=? WHERE id=?", [json.dumps(yesterday).encode(), batch["id"]])
    db.commit()
    db.close()
    mock = serve(tmp_path, "--backend", "mock", model="mock")
    batch = ended(mock, batch["id"])
    assert batch["status"] == "expired" and batch["expired_at"] and batch["request_counts"]["total"] == 30
    codes = {row["error"]["code"] for row in lines(mock, batch["error_file_id"])}
    assert codes == {"batch_expired"} and batch["request_counts"]["failed"] > 0
    assert mock.stop() == 0


def test_deleted_input(tmp_path):
    """A damaged store: the content of an input is gone."""
    mock = serve(tmp_path, "--backend", "mock", "--parallel", "1", "--no-look-ahead", model="mock")
    held = hold(mock)
    batch = create(mock, [line(str(i)) for i in range(30)])
    mock.stop(signal.SIGKILL)
    held.close()
    os.unlink(tmp_path / "files" / batch["input_file_id"])
    mock = serve(tmp_path, "--backend", "mock", model="mock")
    batch = ended(mock, batch["id"])
    assert batch["status"] == "failed" and "there is no file" in batch["errors"]["data"][0]["message"]
    assert mock.stop() == 0
