"""What requests hold that are not answered: it stays within the memory limit, goes back, and small ones have room."""
import threading
import time

import pytest

from server_help import MODEL, Server, until
from support import fixture

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LIMIT = 300 << 20
ASK = {"prompt": "a", "max_tokens": 8, "temperature": 0}
# Bodies just below the size that is allowed, which become as much JSON as so many bytes can.
N = (16 << 20) - 1000
HOSTILE = [
    (TEXT, b'{"prompt":[' + b"0," * (N // 2 - 20) + b"0]}"),
    (CHAT, b'{"messages":[' + b"{}," * (N // 3 - 20) + b"{}]}"),
    (CHAT, b'{"messages":' + b"[" * 80 + b"[]," * (N // 3 - 100) + b"[]" + b"]" * 80 + b"}"),
    (TEXT, b'{"stop":[' + b'"",' * (N // 3 - 20) + b'""]}'),
    (TEXT, b'{"logit_bias":{' + b",".join(b'"%d":1' % i for i in range(N // 11)) + b"}}"),
    (TEXT, b'{"prompt":"' + b"x" * (N - 20) + b'"}'),
]


@pytest.fixture
def server():
    s = Server(fixture(MODEL), "--memory-limit", LIMIT, "--context", 2048)
    yield s
    assert s.stop() == 0


def memory(server, name):
    """Bytes of VmHWM or VmRSS."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name))


def held(server):
    return server.metrics()["quern_requests_held_bytes"]


@pytest.mark.parametrize("i", range(len(HOSTILE)))
def test_hostile_body(server, i):
    """Refused, whatever it would become; its memory goes back."""
    before = memory(server, "VmRSS")
    status, _, got = server.request("POST", *HOSTILE[i])
    assert status in (400, 413, 503) and got["error"]["message"], got
    assert memory(server, "VmHWM") < LIMIT * 1.1
    until(lambda: held(server) == 0)
    until(lambda: memory(server, "VmRSS") < before + (24 << 20))
    assert server.post(TEXT, ASK)[0] == 200


def test_many_at_once(server):
    """40 bodies that never end and six hostile ones: the peak stays within the limit; small requests are answered."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    unfinished = [server.connect() for _ in range(40)]

    def push(c):
        try:
            c.sendall(head + b"Content-Length: %d\r\n\r\n" % N + b"0" * (N - 100))
        except OSError:  # refused, and closed
            pass

    answers = []
    threads = [threading.Thread(target=push, args=(c,)) for c in unfinished]
    threads += [threading.Thread(target=lambda h=h: answers.append(server.request("POST", *h)[0])) for h in HOSTILE]
    for t in threads:
        t.start()
    for _ in range(20):
        assert server.post(TEXT, ASK)[0] == 200
        time.sleep(0.02)
    for c in unfinished:
        c.close()
    for t in threads:
        t.join()
    assert len(answers) == len(HOSTILE) and set(answers) <= {400, 413, 503}
    assert memory(server, "VmHWM") < LIMIT * 1.1
    until(lambda: held(server) == 0)
    assert server.post(TEXT, ASK)[0] == 200


def test_large_body_is_taken(server):
    """A body near the largest size that says something works under the same limit."""
    status, _, got = server.post(TEXT, {**ASK, "prompt": " a" * (1 << 20)})
    assert status == 400 and got["error"]["code"] == "context_length_exceeded", got
