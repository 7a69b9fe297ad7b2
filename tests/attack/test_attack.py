"""Attacks that last: `make test-attack`. wrk sends as many requests as it can, slowhttptest as slowly as it can, and N
mutated requests (QUERN_ATTACK_N, 100,000) go through the whole server.

Throughout, a client with a key is answered correctly; afterwards files, pages and memory are back at the baseline. The
model is the mock.
"""
import concurrent.futures
import os
import random
import re
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(1, os.path.join(os.path.dirname(__file__), "..", "support"))
from server_help import Server, read_all, statuses, until

HERE = os.path.dirname(__file__)
N = int(os.environ.get("QUERN_ATTACK_N", "100000"))
SECONDS = int(os.environ.get("QUERN_ATTACK_SECONDS", "15"))
KEY = {"Authorization": "Bearer anna"}
CHAT = {"messages": [{"role": "user", "content": "What is a quern?"}], "max_tokens": 8, "temperature": 0}
SLACK_KB = 96 << 10  # what the allocator keeps for its threads; it stops growing there


def tell(line):
    """Figures go to a file too, because a test that passes is silent."""
    print(line)
    if path := os.environ.get("QUERN_ATTACK_LOG"):
        with open(path, "a") as f:
            f.write(line + "\n")


class Probe(threading.Thread):
    """A client that asks the same again and again, and must get the same answer."""

    def __init__(self, server):
        super().__init__()
        self.server, self.ended, self.times, self.faults = server, threading.Event(), [], []
        self.wanted = self.ask()

    def ask(self):
        status, _, got = self.server.request("POST", "/v1/chat/completions", CHAT, KEY)
        return status, got["choices"][0]["message"] if status == 200 else got

    def run(self):
        while not self.ended.is_set():
            began = time.monotonic()
            try:
                got = self.ask()
            except OSError as e:
                got = repr(e)
            if got != self.wanted:
                self.faults.append((time.monotonic() - began, got))
            self.times.append(time.monotonic() - began)
            self.ended.wait(0.1)

    def finish(self):
        self.ended.set()
        self.join()
        assert not self.faults, self.faults[:3]
        times = sorted(self.times)
        assert len(times) >= 5
        tell(f"probe: {len(times)} answers, median {1000 * times[len(times) // 2]:.0f} ms, worst "
              f"{1000 * times[-1]:.0f} ms")


def pages_used(server):
    """Beside those that only the prefix tree keeps."""
    return float(re.search(r"^quern_pages_used (\S+)", server.request("GET", "/metrics", None, KEY)[2], re.M)[1])


@pytest.fixture
def server():
    s = Server("mock", "--backend", "mock", "--context", 2048, "--memory-limit", "400M", "--cache-limit", "8M",
               "--api-key", "anna")
    try:
        assert s.post("/v1/chat/completions", CHAT, **KEY)[0] == 200
        files, memory = s.files(), s.memory_kb()
        probe = Probe(s)
        probe.start()
        try:
            yield s
        finally:
            probe.finish()
        assert s.request("GET", "/health")[0] == 200
        until(lambda: s.files() <= files, 60)
        until(lambda: pages_used(s) == 0, 60)
        tell(f"memory: {memory >> 10} MiB before, {s.memory_kb() >> 10} MiB after; files {files}, {s.files()}")
        assert s.memory_kb() < memory + SLACK_KB
    finally:
        code = s.stop()
    assert code == 0


def run(*command):
    out = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=SECONDS * 4 + 60)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


@pytest.mark.parametrize("path, options", [
    ("/health", []), ("/nothing", []), ("/v1/models", ["-H", "Authorization: Bearer anna"]),
    ("/v1/chat/completions", ["-s", os.path.join(HERE, "chat.lua")])])
def test_wrk(server, path, options):
    out = run("wrk", "-t", 2, "-c", 64, "-d", f"{SECONDS}s", *options, server.url + path)
    tell(re.search(r"(\d+) requests in.*", out)[0])
    assert int(re.search(r"(\d+) requests in", out)[1]) > 0 and "Socket errors" not in out, out


@pytest.mark.parametrize("kind", ["headers", "bodies", "reading", "ranges"])
def test_slow(server, kind):
    options = {"headers": ["-H", "-i", 2], "bodies": ["-B", "-i", 2, "-s", 8192, "-t", "POST"],
               "reading": ["-X", "-w", 1, "-y", 8, "-n", 2, "-z", 1], "ranges": ["-R"]}[kind]
    path = "/v1/chat/completions" if kind == "bodies" else "/openapi.json"
    out = run("slowhttptest", *options, "-c", 1000, "-r", 500, "-l", SECONDS, "-u", server.url + path)
    out = re.sub(r"\x1b\[[0-9;]*[mJH]", "", out)
    tell(" ".join(out.split("\n")[-6:]))


# ---- mutated requests ----

BODIES = {
    "/v1/chat/completions": b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2,"stream":true}',
    "/v1/completions": b'{"prompt":[1,2,3],"max_tokens":2,"logprobs":2,"stop":["a"]}',
    "/v1/embeddings": b'{"input":["a","b"],"encoding_format":"base64"}',
    "/v1/responses": b'{"input":"Hi","max_output_tokens":2,"stream":true}',
    "/v1/messages": b'{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_tokens":2}',
    "/api/chat": b'{"messages":[{"role":"user","content":"Hi"}],"options":{"num_predict":2}}',
    "/api/generate": b'{"prompt":"Hi","options":{"num_predict":2},"format":{"type":"object"}}',
    "/completion": b'{"prompt":"Hi","n_predict":2,"n_probs":1}',
    "/tokenize": b'{"content":"Hi","with_pieces":true}',
    "/infill": b'{"input_prefix":"a","input_suffix":"b","n_predict":2}',
    "/v1/rerank": b'{"query":"a","documents":["b","c"],"top_n":1}',
    "/v1/decisions": b'{"input":"a","questions":[{"type":"predicate","instructions":"b"}]}',
}
TOKENS = [b"\r\n", b"\n", b":", b" ", b"\0", b"{", b"}", b"[", b'"', b",", b"-1", b"1e999", b"null", b"%2e", b"/..",
          b"\xff", b"HTTP/1.1", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n",
          b"Expect: 100-continue\r\n", b"99999999999999999999", b"\\u0000", b"ffffffff\r\n", b"0\r\n\r\n",
          b"Connection: close\r\n"]


LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def requests():
    """Requests as they should be, whole and in chunks."""
    all_of_them = [b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anna\r\n\r\n"
                   for path in (b"/health", b"/metrics", b"/v1/models", b"/props", b"/openapi.json", b"/api/tags")]
    for path, body in BODIES.items():
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anna\r\n"
                "Content-Type: application/json\r\n").encode()
        all_of_them.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        all_of_them.append(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
    return all_of_them


def mutate(source, known):
    data = bytearray(source.choice(known))
    for _ in range(source.choice((0, 1, 1, 1, 2, 4, 16))):
        at = source.randrange(len(data) + 1)
        what = source.randrange(6)
        if what == 0 and data:
            data[at % len(data)] ^= 1 << source.randrange(8)
        elif what == 1:
            del data[at:at + source.choice((1, 2, 8, 64))]
        elif what == 2:
            data[at:at] = source.choice(TOKENS)
        elif what == 3:
            data[at:at] = data[source.randrange(len(data) + 1):][:source.choice((1, 8, 64))]
        elif what == 4:
            other = source.choice(known)
            data[at:] = other[source.randrange(len(other)):]
        else:
            data[at:at + 1] = bytes([source.randrange(256)])
    return bytes(data)


def send_many(server, seed, n):
    """Sends n requests, several on a connection; counts answers by status."""
    source, known, counts = random.Random(seed), requests(), {}
    while n > 0:
        n_together = min(n, source.choice((1, 1, 1, 1, 4)))
        n -= n_together
        try:
            with server.connect() as s:
                s.settimeout(1)  # what waits for the rest of a request is left alone
                s.sendall(b"".join(mutate(source, known) for _ in range(n_together)) + LAST)
                for status in statuses(read_all(s)):
                    counts[status] = counts.get(status, 0) + 1
        except OSError:  # the server closed first
            pass
    return counts


def test_mutated(server):
    n_threads = 8
    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        parts = pool.map(lambda i: send_many(server, i, N // n_threads), range(n_threads))
        counts = {}
        for part in parts:
            for status, n in part.items():
                counts[status] = counts.get(status, 0) + n
    tell(f"{N} requests, answers by status: {dict(sorted(counts.items()))}")
    assert counts[200] > N // 20 and counts[400] > N // 20, counts
    assert not [s for s in counts if s >= 500 and s not in (501, 503, 505)], counts
