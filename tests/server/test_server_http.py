"""The server below its API: what it takes for a request, whom it answers, when it closes, how it ends."""
import json
import os
import resource
import signal
import socket
import subprocess
import time
from email.utils import parsedate_to_datetime

import pytest

from server_help import MODEL, Server, read_all, server, statuses, until  # noqa: F401 (a fixture)
from support import QUERN, call, fixture

HOST = b"Host: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
CLOSE = b"Connection: close\r\n"


def check_error(status, headers, body, wanted, **fields):
    assert status == wanted, body
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"} and error["message"]
    assert error["request_id"] == headers["x-request-id"]
    for key, value in fields.items():
        assert error[key] == value, error


def test_health_and_models(server):
    status, headers, body = server.request("GET", "/health")
    assert (status, body) == (200, {"status": "ok"}) and headers["x-request-id"].startswith("req_")
    status, _, body = server.request("GET", "/v1/models")
    assert status == 200 and body["object"] == "list"
    (model,) = body["data"]
    assert model["id"] == server.name == "llama" and model["object"] == "model" and model["context_window"] > 0
    assert server.request("GET", "/v1/models/llama")[2] == model
    check_error(*server.request("GET", "/v1/models/other"), 404, code="model_not_found", param="model")
    assert server.request("HEAD", "/health")[0] == 200
    assert server.request("GET", "/v1/health")[2] == {"status": "ok"}


def test_errors_of_paths_and_methods(server):
    check_error(*server.request("GET", "/v1/nothing"), 404, code="unknown_path")
    status, headers, body = server.request("PUT", "/v1/completions", {})
    check_error(status, headers, body, 405, code="method_not_allowed", param=None)
    assert headers["allow"] == "POST"
    check_error(*server.request("POST", "/v1/completions", b"{}",
                                {"Content-Type": "text/plain", "Origin": "null"}), 415)
    check_error(*server.request("POST", "/v1/completions", b"{}",
                                {"Content-Type": "application/json", "Content-Encoding": "gzip"}), 415)


@pytest.mark.parametrize("method, path, row", [
    ("GET", "/models", "/v1/models"), ("GET", "//v1//models/", "/v1/models"), ("GET", "/models/llama", "/v1/models/"),
    ("GET", "/health/", "/health"), ("POST", "//v1//chat/completions", "/v1/chat/completions"),
    ("POST", "/chat/completions", "/v1/chat/completions"), ("POST", "/completions/", "/completions"),
    ("POST", "/embeddings", "/v1/embeddings")])
def test_paths_as_clients_build_them(server, method, path, row):
    """A base URL that ends with a slash, or lacks /v1, reaches the same routes, and the same row of the metrics."""
    def count():
        return {k: v for k, v in server.metrics().items() if k.startswith("quern_requests_total") and
                '"/metrics"' not in k}

    body = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else \
        {"input": "x"} if "embed" in path else {"prompt": "x", "max_tokens": 1} if method == "POST" else None
    before = count()
    status, _, got = server.request(method, path, body)
    label = 'quern_requests_total{route="%s",status="%d"}' % (row, status)
    assert status == 200 or (status == 400 and "chat template" in got["error"]["message"]), got
    assert {k: v for k, v in count().items() if v != before.get(k)} == {label: before.get(label, 0) + 1}


@pytest.mark.parametrize("path", ["/.", "/api", "/./health", "/v1/../health", "/v1/./models", "/v1/models/..",
                                  "/models/../health", "/%2fhealth", "/v1/v1/models"])
def test_paths_that_are_none(server, path):
    raw = server.raw(b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
    assert statuses(raw) == [404], raw


@pytest.mark.parametrize("request_bytes, status", [
    (GET + CLOSE + b"\r\n", 200),
    (b"GET /health HTTP/1.0\r\n\r\n", 200),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\nHost: localhost\n\n", 400),
    (GET + HOST + b"\r\n", 400),
    (GET + b"A: b\r\n c\r\n\r\n", 400),
    (GET + b"A : b\r\n\r\n", 400),
    (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    (POST + b"Content-Length: -2\r\n\r\n{}", 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n2;x\n=y\r\n{}\r\n0\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", 400),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    (POST + b"Expect: something\r\n\r\n", 417),
    (b"GET / HTTP/3.0\r\n\r\n", 505),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),
    (GET + b"A: " + b"x" * 20000 + b"\r\n\r\n", 431),
    (GET + b"".join(b"A%d: b\r\n" % i for i in range(100)) + b"\r\n", 431),
    (POST + b"Content-Length: 99999999999\r\n\r\n", 413),
])
def test_framing(server, request_bytes, status):
    """What is refused is refused once, and nothing behind it is read as a request."""
    raw = server.raw(request_bytes + (b"" if status == 200 else GET + b"\r\n"))
    assert statuses(raw) == [status], raw
    if status != 200:
        assert b"\r\nconnection: close\r\n" in raw and b'"error":{' in raw


def test_bytes_that_arrive_one_by_one(server):
    text = GET + CLOSE + b"\r\n"
    assert statuses(server.raw(*(text[i:i + 1] for i in range(len(text))))) == [200]
    text = POST + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    raw = server.raw(*(text[i:i + 1] for i in range(len(text))))
    assert statuses(raw) == [400] and b"prompt is missing" in raw


def test_one_connection_many_requests(server):
    raw = server.raw((GET + b"\r\n") * 50 + GET + CLOSE + b"\r\n")
    assert statuses(raw) == [200] * 51


def test_expect_continue(server):
    with server.connect() as s:
        s.sendall(POST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"{}")
        assert statuses(read_all(s)) == [400]


def test_large_bodies(tmp_path):
    s = Server(fixture(MODEL), "--max-body", "1M")
    try:
        body = b'{"prompt":"' + b"x" * (2 << 20) + b'"}'
        check_error(*s.request("POST", "/v1/completions", body), 413, code="body_too_large")
        raw = s.raw(POST + b"Transfer-Encoding: chunked\r\n\r\n200000\r\n" + body)
        assert statuses(raw) == [413]
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("body", [b"[" * (10 << 20), b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000 + b"1" + b"}" * 3000,
                                  b"", b"\xff\xfe", b"null", b"[]", b"1", b'{"prompt":', b'{"prompt":1,"prompt":2}',
                                  b'{"prompt":"a\\u0000b"}\x00', b'{"prompt":NaN}', b"{} {}"])
def test_bodies_that_are_no_request(server, body):
    began = time.monotonic()
    status, headers, got = server.request("POST", "/v1/completions", body)
    check_error(status, headers, got, 400)
    assert time.monotonic() - began < 5
    assert server.request("GET", "/health")[0] == 200


def test_slow_requests():
    """A request has a time as a whole, however often a byte of it comes."""
    s = Server(fixture(MODEL), "--read-timeout", 1)
    try:
        began = time.monotonic()
        with s.connect() as drip:
            drip.settimeout(0.1)
            got = b""
            for byte in POST * 10:
                try:
                    drip.sendall(bytes([byte]))
                    got += drip.recv(4096)
                except socket.timeout:
                    pass
                except OSError:
                    break
                if got:
                    break
            assert statuses(got) == [408] and 0.9 < time.monotonic() - began < 10
        with s.connect() as silent:
            assert silent.recv(10) == b""  # nothing was asked, so nothing is answered
    finally:
        assert s.stop() == 0


# ---- whom it answers ----

def test_names_of_hosts():
    s = Server(fixture(MODEL), "--allow-host", "mill.example")
    try:
        port = s.address[1]
        for host, status in (("localhost", 200), (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200),
                             ("[::1]:1", 200),
                             ("mill.example", 200), ("MILL.example:80", 200), ("evil.example", 403), ("", 403),
                             ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403)):
            assert s.request("GET", "/health", None, {"Host": host})[0] == status, host
    finally:
        assert s.stop() == 0


def test_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# who may\nfirst-key\r\n\nsecond-key\n")
    s = Server(fixture(MODEL), "--api-key-file", file, "--api-key", "third")
    try:
        assert s.request("GET", "/health")[0] == 200
        for path in ("/v1/models", "/metrics", "/v1/nothing", "/nothing"):
            status, headers, body = s.request("GET", path)
            check_error(status, headers, body, 401, code="missing_api_key", type="authentication_error")
            assert headers["www-authenticate"] == "Bearer"
        check_error(*s.request("POST", "/v1/completions", {"prompt": "x"}), 401)
        for key, status in (("first-key", 200), ("second-key", 200), ("third", 200), ("first-ke", 401),
                            ("first-keyx", 401),
                            ("", 401), ("first-key second-key", 401), ("# who may", 401)):
            got = s.request("GET", "/v1/models", None, {"Authorization": f"Bearer {key}"})[0]
            assert got == status, key
        assert s.request("GET", "/v1/models", None, {"Authorization": "bearer third"})[0] == 200
        # As Anthropic's clients send it; where both headers are sent they must agree.
        for headers, status, code in (
                ({"X-Api-Key": "second-key"}, 200, None), ({"X-API-KEY": "third"}, 200, None),
                ({"X-Api-Key": "third", "Authorization": "Bearer third"}, 200, None),
                ({"X-Api-Key": "", "Authorization": "Bearer third"}, 200, None),
                ({"X-Api-Key": "third", "Authorization": "Basic dGhpcmQ="}, 200, None),
                ({"X-Api-Key": "third", "Authorization": "Bearer first-key"}, 401, "invalid_api_key"),
                ({"X-Api-Key": "x", "Authorization": "Bearer third"}, 401, "invalid_api_key"),
                ({"X-Api-Key": "Bearer third"}, 401, "invalid_api_key"), ({"X-Api-Key": "x"}, 401, "invalid_api_key"),
                ({"X-Api-Key": ""}, 401, "missing_api_key"), ({"Authorization": "third"}, 401, "missing_api_key")):
            got = s.request("GET", "/v1/models", None, headers)
            assert got[0] == status, headers
            if code:
                check_error(*got, 401, code=code)
        message = s.request("GET", "/v1/models")[2]["error"]["message"]
        assert "Authorization" in message and "x-api-key" in message
        twice = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"X-Api-Key: third\r\n" * 2 + CLOSE + b"\r\n"
        assert statuses(s.raw(twice)) == [400]
        # A body of somebody without a key is not even read.
        raw = s.raw(POST + b"Content-Length: 1000000\r\n\r\n")
        assert statuses(raw) == [401]
    finally:
        assert s.stop() == 0


def test_off_loopback_needs_a_key(tmp_path):
    out = call("serve", fixture(MODEL), "--host", "0.0.0.0", "--port", 0)
    assert out.returncode == 1 and b"key" in out.stderr and out.stdout == b""
    s = Server(fixture(MODEL), "--host", "0.0.0.0", "--api-key", "k")
    try:
        s.address = ("127.0.0.1", s.address[1])
        assert s.request("GET", "/v1/models")[0] == 401
        assert s.request("GET", "/v1/models", None, {"Authorization": "Bearer k"})[0] == 200
    finally:
        assert s.stop() == 0


def test_pages_of_strangers(server):
    status, headers, _ = server.request("GET", "/v1/models", None, {"Origin": "http://evil.example"})
    assert not [h for h in headers if h.startswith("access-control")]
    assert server.request("OPTIONS", "/v1/models", None, {"Origin": "http://evil.example"})[0] == 405
    # What a page can send anywhere without asking: a form. Browsers send one of these headers with it.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"):
        for page in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
                     {"sec-fetch-site": "none"}):
            headers = {"Content-Type": kind, **page}
            assert server.request("POST", "/v1/completions", b'{"prompt":"x"}', headers)[0] == 415
    raw = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
           b"Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}")
    assert statuses(server.raw(raw)) == [415]


def test_programs_name_any_type(server):
    """`curl -d` says that its JSON is a form."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream", ""):
        body = b'{"prompt":"x","max_tokens":1}'
        status, _, got = server.request("POST", "/v1/completions", body, {"Content-Type": kind} if kind else {})
        assert status == 200, got
        check_error(*server.request("POST", "/v1/completions", b"prompt=x", {"Content-Type": kind}), 400)


def test_pages_that_are_allowed():
    s = Server(fixture(MODEL), "--cors-origin", "https://mill.example", "--api-key", "k")
    try:
        asked = {"Origin": "https://mill.example", "Access-Control-Request-Method": "POST"}
        status, headers, _ = s.request("OPTIONS", "/v1/completions", None, asked)
        assert status == 204 and headers["access-control-allow-origin"] == "https://mill.example"
        assert "authorization" in headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in headers
        status, headers, _ = s.request("OPTIONS", "/v1/completions", None, {**asked, "Origin": "https://evil.example"})
        assert not [h for h in headers if h.startswith("access-control")]
        status, headers, _ = s.request("GET", "/v1/models", None, {"Origin": "https://mill.example"})
        assert status == 401 and headers["access-control-allow-origin"] == "https://mill.example"
        assert headers["access-control-expose-headers"] == "x-request-id, request-id, retry-after"
        assert headers["vary"] == "origin" and "access-control-allow-headers" not in headers
    finally:
        assert s.stop() == 0


def test_preflights_of_methods():
    """GET and POST everywhere, and what else the path takes."""
    s = Server(fixture(MODEL), "--cors-origin", "https://mill.example")
    try:
        for path, methods in (("/v1/chat/completions", "GET, POST"), ("/health", "GET, POST"),
                              ("/v1/files/file-1", "GET, POST, DELETE"), ("/v1/responses/resp_1", "GET, POST, DELETE"),
                              ("/responses/resp_1", "GET, POST, DELETE"), ("/v1/responses", "GET, POST")):
            status, headers, _ = s.request("OPTIONS", path, None, {
                "Origin": "https://mill.example", "Access-Control-Request-Method": "DELETE"})
            assert status == 204 and headers["access-control-allow-methods"] == methods, path
    finally:
        assert s.stop() == 0


def test_preflights_of_sdks():
    """What OpenAI's and Anthropic's SDKs, and what is built on them, ask for in a browser; nothing else is allowed."""
    s = Server(fixture(MODEL), "--cors-origin", "https://mill.example", "--api-key", "k")

    def allowed(*names, **more):
        status, headers, _ = s.request("OPTIONS", "/v1/chat/completions", None, {
            "Origin": "https://mill.example", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": ",".join(names), **more})
        assert status == 204 and headers["access-control-allow-methods"] == "GET, POST"
        assert headers["access-control-max-age"] == "7200"
        assert headers["vary"] == "origin, access-control-request-headers"
        private = headers.get("access-control-allow-private-network")
        return set(headers["access-control-allow-headers"].split(", ")), private

    try:
        stainless = ["x-stainless-" + name for name in (
            "arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version", "timeout", "helper",
            "helper-method", "read-timeout", "async", "poll-helper", "custom-poll-interval")]
        others = ["authorization", "content-type", "x-api-key", "anthropic-version", "anthropic-beta",
                  "anthropic-dangerous-direct-browser-access", "openai-organization", "openai-project", "openai-beta",
                  "user-agent", "accept", "x-request-id", "http-referer", "x-title"]
        asked = [*stainless, *others]
        got, private = allowed(*asked)
        assert set(asked) <= got and private is None
        assert set(stainless) & allowed("authorization")[0] == set()
        bad = ["cookie", "x-forwarded-for", "x-stainless", "x-stainless-", "x-stainless-a_b", "x-stainless-a:b",
               "x-stainless-a%0d%0ab", "x-stainless-" + "a" * 60, "y-x-stainless-a", "*"]
        got = allowed(*bad, "x-stainless-os")[0]
        assert set(bad) & got == set() and "x-stainless-os" in got
        assert len([h for h in allowed(*(f"x-stainless-{i}" for i in range(900)))[0] if h.startswith("x-st")]) == 32
        assert allowed("authorization", **{"Access-Control-Request-Private-Network": "true"})[1] == "true"
    finally:
        assert s.stop() == 0
    s = Server(fixture(MODEL), "--cors-origin", "*")
    try:
        got, private = allowed("authorization", **{"Access-Control-Request-Private-Network": "true"})
        assert "authorization" in got and private is None  # any page at all is not meant to reach what is private
    finally:
        assert s.stop() == 0


# ---- how it begins and ends ----

def test_what_keeps_it_from_starting(tmp_path, server):
    def refused(*args):
        out = call("serve", *args)
        lines = out.stderr.decode().strip().split("\n")
        assert out.returncode in (1, 2) and len(lines) == 1, out.stderr
        return lines[0]

    model = fixture(MODEL)
    assert "nowhere" in refused(tmp_path / "nowhere", "--port", 0)
    assert str(server.address[1]) in refused(model, "--port", server.address[1])
    assert "--port" in refused(model, "--port", 65536)
    assert "no-such-host.invalid" in refused(model, "--host", "no-such-host.invalid")
    assert "keys" in refused(model, "--port", 0, "--api-key-file", tmp_path / "keys")
    (tmp_path / "keys").write_text("\n# none\n")
    assert "keys" in refused(model, "--port", 0, "--api-key-file", tmp_path / "keys")


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # there is none on this machine
    s = Server(fixture(MODEL), "--host", "::1")
    try:
        assert s.url.startswith("http://[::1]:") and s.request("GET", "/health")[0] == 200
    finally:
        assert s.stop() == 0


def ask_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect(str(path))
        s.sendall(GET + CLOSE + b"\r\n")
        return statuses(read_all(s))


def test_several_addresses(tmp_path):
    """Addresses share the port that the first one got; a Unix socket is its owner's alone and goes with the server."""
    path = tmp_path / "quern.sock"
    s = Server(fixture(MODEL), "--host", "127.0.0.1", "--host", "127.0.0.2", "--host", path)
    try:
        assert s.urls == [s.url, s.url.replace("127.0.0.1", "127.0.0.2"), f"unix:{path}"]
        assert ask_socket(path) == [200] and os.stat(path).st_mode & 0o077 == 0
        with socket.create_connection(("127.0.0.2", s.address[1]), timeout=30) as other:
            other.sendall(GET + CLOSE + b"\r\n")
            assert statuses(read_all(other)) == [200]
        out = call("serve", fixture(MODEL), "--host", f"unix:{path}")
        assert out.returncode == 1 and b"another server uses it" in out.stderr and ask_socket(path) == [200]
    finally:
        assert s.stop() == 0
    assert not path.exists()


def test_socket_that_is_left(tmp_path):
    """The socket of a server that was killed is taken; a file that is no socket is left alone."""
    path, file = tmp_path / "left.sock", tmp_path / "file.sock"
    s = Server(fixture(MODEL), "--host", "127.0.0.1", "--host", path)
    s.process.kill()
    s.process.wait()
    s = Server(fixture(MODEL), "--host", "127.0.0.1", "--host", path)
    try:
        assert ask_socket(path) == [200]
    finally:
        assert s.stop() == 0
    file.write_text("text")
    for name, words in ((file, b"is no socket"), (tmp_path / ("a" * 200 + ".sock"), b"bytes")):
        out = call("serve", fixture(MODEL), "--host", name)
        assert out.returncode == 1 and words in out.stderr, out.stderr
    assert file.read_text() == "text"


def test_forms_of_rfc_9112(server):
    """An empty line before a request, a URL as the target, escapes, chunk extensions, and the date of an answer."""
    host = server.url.encode()
    for text in (b"\r\n" + GET, GET.replace(b"/health", host + b"/health"), GET.replace(b"/health", b"/%68ealth")):
        raw = server.raw(text + CLOSE + b"\r\n")
        assert statuses(raw) == [200], raw
    raw = server.raw(POST + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\n\r\n")
    assert statuses(raw) == [400] and b"prompt" in raw
    assert statuses(server.raw(GET.replace(b"/health", b"http://evil.example/health") + CLOSE + b"\r\n")) == [403]
    date = parsedate_to_datetime(server.request("GET", "/health")[1]["date"])
    assert abs(date.timestamp() - time.time()) < 5


def test_idle_connections_give_way():
    """As many idle connections as the server holds keep nobody waiting; one that showed a key stays the longest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (192, hard))
    try:
        s = Server(fixture(MODEL), "--api-key", "k")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = []
    try:
        keyed = s.connect()
        keyed.sendall(b"GET /v1/models HTTP/1.1\r\n" + HOST + b"X-Api-Key: k\r\n\r\n")
        assert statuses(keyed.recv(65536)) == [200]
        for i in range(400):
            held.append(s.connect())
            held[-1].sendall((GET + b"\r\n", b"GET /health", b"")[i % 3])
        began = time.monotonic()
        assert statuses(s.raw(GET + CLOSE + b"\r\n")) == [200]
        keyed.sendall(b"GET /v1/models HTTP/1.1\r\n" + HOST + b"X-Api-Key: k\r\n" + CLOSE + b"\r\n")
        assert statuses(read_all(keyed)) == [200] and time.monotonic() - began < 10
        status, _, text = s.request("GET", "/metrics", None, {"X-Api-Key": "k"})
        assert status == 200 and int(text.split("\nquern_connections ")[1].split()[0]) <= 128
    finally:
        for c in held:
            c.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert s.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_end(number):
    s = Server(fixture(MODEL))
    with s.connect() as idle:
        idle.sendall(GET + b"\r\n")
        assert idle.recv(1000)
        assert s.stop(number, timeout=5) == 0
        assert idle.recv(10) == b""


def test_files_and_memory_return(server):
    """Connections of all kinds, opened and left."""
    def leave(kind):
        s = server.connect()
        if kind:
            s.sendall((b"GET /he", GET + b"\r\n", POST + b"Content-Length: 100\r\n\r\n{", b"\x00\xff")[kind - 1])
        s.close()

    leave(0)
    until(lambda: server.metrics()["quern_connections"] == 1)
    before = server.files()
    for i in range(500):
        leave(i % 5)
    until(lambda: server.metrics()["quern_connections"] == 1)
    assert server.files() <= before + 1
    assert server.metrics()["quern_requests_running"] <= 1


def test_more_connections_than_files():
    """Out of file descriptors, clients wait; nothing ends."""
    s = Server(fixture(MODEL))
    try:
        subprocess.run(["prlimit", f"--pid={s.process.pid}", "--nofile=40:40"], check=True)
        held = [s.connect() for _ in range(60)]
        time.sleep(0.3)
        assert s.process.poll() is None
        for c in held:
            c.close()
        until(lambda: s.request("GET", "/health")[0] == 200)
    except FileNotFoundError:
        pytest.skip("prlimit is absent")
    finally:
        assert s.stop() == 0
