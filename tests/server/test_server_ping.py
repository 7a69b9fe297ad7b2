"""Comments that keep a silent stream alive (--sse-ping): when they come, how they are framed, that clients pass over
them. Silence is made by a long prompt: its own, or that of a request which has the only slot."""
import re
import socket
import time

import pytest

from server_help import Server, begin, client, post_bytes, read_all, until, wait_for

WORDS = " bubi kaju tebo xufi" * 20000  # a prompt that takes many seconds
COMMENT = b": keep-alive\n\n"


@pytest.fixture
def mock(request):
    s = Server("mock", "--backend", "mock", "--parallel", 1, "--no-look-ahead", *getattr(request, "param", ()))
    yield s
    assert s.stop() == 0


def hold(server):
    """A request that has the only slot until its connection is closed."""
    s = begin(server, {"prompt": WORDS, "max_tokens": 1})
    until(lambda: server.metrics()["quern_sequences_active"] == 1)
    return s


def read_for(s, seconds):
    """What a connection brings in this time."""
    end, got = time.monotonic() + seconds, b""
    while (left := end - time.monotonic()) > 0:
        s.settimeout(left)
        try:
            got += s.recv(65536)
        except socket.timeout:
            break
    s.settimeout(30)
    return got


def read_comments(s, n):
    """What a connection brings until n comments have come."""
    got = b""
    while got.count(COMMENT) < n:
        assert b"[DONE]" not in got
        got += s.recv(65536)
    return got


def dechunk(raw):
    """(the body of a chunked answer, what is behind it)"""
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        assert rest[n:n + 2] == b"\r\n", rest[:n + 20]
        body, rest = body + rest[:n], rest[n + 2:]
        if not n:
            return body, rest


ping = pytest.mark.parametrize("mock", [["--sse-ping", "0.2"]], indirect=True)
PATHS = [("/v1/completions", {"prompt": " bubi", "max_tokens": 3, "seed": 2}),
         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "seed": 2})]


@ping
@pytest.mark.parametrize("path, body", PATHS)
def test_queue(mock, path, body):
    """As often as said, from the head of the stream to its end; the connection is as good as before."""
    wanted = mock.post(path, {**body, "stream": True})[2]
    with hold(mock) as held, begin(mock, {**body, "stream": True}, path) as s:
        began = time.monotonic()
        got = read_comments(s, 4)
        assert got.count(COMMENT) <= (time.monotonic() - began) / 0.2 + 1 and b"[DONE]" not in got
        held.close()
        got += wait_for(s, b"\r\n0\r\n\r\n")
        text, rest = dechunk(got)
        assert rest == b"" and read_for(s, 0.7) == b""
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(s).startswith(b"HTTP/1.1 200 ")
    assert text.endswith(b"data: [DONE]\n\n")

    def events(stream):
        stream = re.sub(r'"(id|created)":("[^"]*"|\d+)', "", stream)
        return [e for e in stream.split("\n\n") if e and e != ": keep-alive"]

    assert events(text.decode()) == events(wanted)


@ping
def test_plain_framing(mock):
    """HTTP/1.0 has no chunks."""
    data = post_bytes(mock, "/v1/completions", {**PATHS[0][1], "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    with hold(mock) as held, mock.connect() as s:
        s.sendall(data)
        got = read_comments(s, 2)
        held.close()
        got += read_all(s)
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"chunked" not in head and body.count(COMMENT) >= 2
    assert body.replace(COMMENT, b"").startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("mock", [["--sse-ping", "0.1"]], indirect=True)
def test_prefill(mock):
    with begin(mock, {"prompt": WORDS, "max_tokens": 1, "stream": True}) as s:
        wait_for(s, COMMENT)
        wait_for(s, COMMENT)


@pytest.mark.parametrize("mock", [[], ["--sse-ping", "0"], ["--sse-ping", "60"]], indirect=True)
def test_no_comments(mock):
    """None sooner than said, and none with 0."""
    with hold(mock), begin(mock, {**PATHS[0][1], "stream": True}) as s:
        got = read_for(s, 0.7)
        assert got.count(b"data: ") == 1 and COMMENT not in got


@pytest.mark.parametrize("mock", [["--sse-ping", "0.4"]], indirect=True)
def test_streams_that_are_not_silent(mock):
    with begin(mock, {**PATHS[0][1], "stream": True, "max_tokens": 100000, "ignore_eos": True}) as s:
        got = read_for(s, 2)
    assert got.count(b"data: ") > 20 and got.count(COMMENT) <= 1


@pytest.mark.parametrize("mock", [[], ["--sse-ping", "0.2"], ["--sse-ping", "0"]], indirect=True)
@pytest.mark.parametrize("value", [0.2, -1, 0, 60])
def test_what_a_request_asks_for(mock, value):
    """sse_ping_interval goes before the server's option, either way."""
    with hold(mock), begin(mock, {**PATHS[0][1], "stream": True, "sse_ping_interval": value}) as s:
        got = read_comments(s, 2) if value == 0.2 else read_for(s, 0.7)
    assert b"data: " in got and b"warnings" not in got and (value == 0.2 or COMMENT not in got)


@ping
def test_answers_that_are_no_streams(mock):
    with hold(mock) as held, begin(mock, PATHS[0][1]) as s:
        assert read_for(s, 0.7) == b""
        held.close()
        _, _, body = wait_for(s, b'"usage"').partition(b"\r\n\r\n")
        assert body.startswith(b"{")


@ping
def test_official_client(mock):
    c = client(mock)
    wanted = c.completions.create(model="mock", prompt=" bubi", max_tokens=8, seed=2).choices[0].text
    with hold(mock) as held:
        stream = c.completions.create(model="mock", prompt=" bubi", max_tokens=8, seed=2, stream=True)
        time.sleep(0.7)
        held.close()
        assert "".join(chunk.choices[0].text for chunk in stream) == wanted


@pytest.mark.parametrize("mock", [["--sse-ping", "0.1"]], indirect=True)
def test_clients_that_do_not_read(mock):
    """What waits for a client is no silence: comments are not piled up behind it."""
    long = {"prompt": " bubi xubi", "max_tokens": 20000, "ignore_eos": True, "seed": 1, "stream": True, "logprobs": 20}

    def n_tokens():
        return mock.metrics()["quern_inter_token_seconds_count"]

    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        slow.connect(mock.address)
        slow.sendall(post_bytes(mock, "/v1/completions", long))
        before = -1
        while n_tokens() != before:
            before = n_tokens()
            time.sleep(0.3)
        assert before < 19999
        time.sleep(1.5)
        slow.settimeout(30)
        got = b""
        while len(got) < 6 << 20:  # more than waited
            got += slow.recv(1 << 20)
        assert n_tokens() > before and got.count(COMMENT) <= 2
