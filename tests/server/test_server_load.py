"""The server with many clients: those that leave, those that fail, those that are too many, and its end under load."""
import asyncio
import json
import re
import signal
import socket
import threading
import time

import pytest

from server_help import Server, begin, client, openai, post_bytes, read_all, statuses, until, wait_for

HELLO = [{"role": "user", "content": "Hello"}]
LONG = {"prompt": " bubi xubi", "max_tokens": 100000, "ignore_eos": True, "seed": 1}
WORDS = " bubi kaju tebo xufi" * 20000  # a prompt that takes a while


@pytest.fixture
def mock(request):
    s = Server("mock", "--backend", "mock", *getattr(request, "param", ()))
    yield s
    assert s.stop() == 0


def is_idle(server):
    m = server.metrics()
    return m["quern_sequences_active"] == 0 and m["quern_sequences_queued"] == 0 and m["quern_requests_running"] == 1


@pytest.mark.parametrize("mock", [[], ["--no-look-ahead"]], indirect=True)
def test_many_streams(mock, request):
    """32 streams at once through the official client: each is what it is alone."""
    package = openai()

    async def one(c, i):
        text, usage = "", None
        stream = await c.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": f"Hello {i}"}], max_tokens=20 + i, seed=i + 1,
            stream=True, temperature=1, stream_options={"include_usage": True})
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        assert usage.completion_tokens == 20 + i
        return text

    async def run():
        async with package.AsyncOpenAI(base_url=mock.url + "/v1", api_key="none", max_retries=0, timeout=120) as c:
            return await asyncio.gather(*(one(c, i) for i in range(32)))

    together = asyncio.run(run())
    c = client(mock)
    for i, text in enumerate(together):
        alone = c.chat.completions.create(model="mock", messages=[{"role": "user", "content": f"Hello {i}"}],
                                          max_tokens=20 + i, seed=i + 1, temperature=1)
        assert alone.choices[0].message.content == text, i
    m = mock.metrics()
    assert m["quern_time_to_first_token_seconds_count"] == 64 and m["quern_queue_seconds_count"] == 64
    assert m['quern_inter_token_seconds_bucket{le="+Inf"}'] == m["quern_generated_tokens_total"] - 64
    assert m["quern_step_seconds_count"] > 0 and m["quern_pages_total"] > 0
    finished = m["quern_sequences_finished_total"]
    assert finished == 64 or (finished > 64 and not request.node.callspec.params["mock"])  # what was computed ahead
    assert m["quern_sequences_failed_total"] == 0
    assert m['quern_requests_total{route="/v1/chat/completions",status="200"}'] == 64
    assert m['quern_memory_bytes{entry="weights"}'] > 0
    # The second time each prompt is known.
    assert m["quern_prefix_hits_total"] > 0 and m["quern_cached_tokens_total"] > 0


def test_known_prefixes(mock):
    """A prompt that was there before is not computed again; other keys and salts do not share it."""
    def cached(**fields):
        body = mock.post("/v1/completions", {"prompt": " bubi" * 300, "max_tokens": 2, "seed": 1, **fields})[2]
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached() == 0 and cached() > 250
    assert cached(cache_salt="a") == 0 and cached(cache_salt="a") > 250 and cached(cache_salt="b") == 0
    assert cached(cache_prompt=False) == 0
    s = Server("mock", "--backend", "mock", "--api-key", "a", "--api-key", "b")
    try:
        for key, known in (("a", False), ("a", True), ("b", False), ("b", True)):
            body = s.request("POST", "/v1/completions", {"prompt": " bubi" * 300, "max_tokens": 2},
                             {"Authorization": f"Bearer {key}"})[2]
            assert (body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == known, key
    finally:
        assert s.stop() == 0


def test_what_is_kept_has_a_limit():
    def cached_with(*options):
        s = Server("mock", "--backend", "mock", *options)
        try:
            for _ in range(2):
                body = s.post("/v1/completions", {"prompt": " bubi" * 300, "max_tokens": 2, "seed": 1})[2]
            tokens = body["usage"]["prompt_tokens_details"]["cached_tokens"]
            return tokens, s.metrics()['quern_memory_bytes{entry="cache"}']
        finally:
            assert s.stop() == 0

    tokens, all_bytes = cached_with()
    assert tokens > 250
    assert cached_with("--cache-limit", "0") == (0, 0)
    fewer, some_bytes = cached_with("--cache-limit", int(all_bytes / 2))
    assert 0 < fewer < tokens and 0 < some_bytes <= all_bytes / 2


# ---- clients that go ----

@pytest.mark.parametrize("mock", [["--parallel", 2]], indirect=True)
@pytest.mark.parametrize("phase", ["decoding", "streaming", "queued", "prefill", "choices"])
def test_clients_that_go(mock, phase):
    """In every phase: what was computed for them ends at once, and nobody else notices."""
    files = mock.files()
    held = []
    if phase == "queued":
        held = [begin(mock, {**LONG, "stream": True, "seed": i}) for i in (1, 2)]
        for s in held:
            wait_for(s, b'"text":"')
    body = {"decoding": LONG, "streaming": {**LONG, "stream": True}, "queued": LONG,
            "prefill": {"prompt": WORDS, "max_tokens": 1}, "choices": {**LONG, "n": 2, "prompt": ["a", "b"]}}[phase]
    s = begin(mock, body)
    if phase == "streaming":
        wait_for(s, b'"text":" ')
    else:
        until(lambda: mock.metrics()["quern_sequences_queued" if phase == "queued" else "quern_sequences_active"] > 0)
    before = mock.metrics()["quern_clients_gone_total"]
    s.close()
    gone = time.monotonic()
    until(lambda: mock.metrics()["quern_clients_gone_total"] == before + 1)
    if phase == "queued":
        until(lambda: mock.metrics()["quern_sequences_queued"] == 0)
        assert mock.metrics()["quern_sequences_active"] == 2  # the others are still there
        for s in held:
            wait_for(s, b'"text":"')
            s.close()
    until(lambda: is_idle(mock))
    assert time.monotonic() - gone < 10
    assert mock.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
    until(lambda: mock.files() <= files + 1)


def test_embeddings_that_nobody_waits_for(mock):
    s = begin(mock, {"input": [" bubi" * 2000] * 500}, "/v1/embeddings")
    until(lambda: mock.metrics()["quern_requests_running"] == 2)
    s.close()
    until(lambda: mock.metrics()["quern_requests_running"] == 1)
    assert mock.post("/v1/embeddings", {"input": "a"})[0] == 200


def test_half_closed(mock):
    """A client that closes its sending half has gone."""
    s = begin(mock, LONG)
    until(lambda: mock.metrics()["quern_sequences_active"] == 1)
    s.shutdown(socket.SHUT_WR)
    until(lambda: is_idle(mock))
    assert read_all(s) == b""
    s.close()


def test_clients_that_do_not_read(mock):
    """A stream waits for a slow reader, in bounded memory; others go on meanwhile."""
    alone = mock.post("/v1/completions", {**LONG, "max_tokens": 60})[2]["choices"]
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(mock.address)
        body = {**LONG, "stream": True, "max_tokens": 20000, "logprobs": 5}
        slow.sendall(post_bytes(mock, "/v1/completions", body))
        memory = mock.memory_kb()
        for _ in range(10):
            assert mock.post("/v1/completions", {**LONG, "max_tokens": 60})[2]["choices"] == alone
            time.sleep(0.1)
        assert mock.metrics()["quern_sequences_active"] == 1 and mock.memory_kb() < memory + 50000
    until(lambda: is_idle(mock))


# ---- requests that fail beside those that do not ----

def test_failures_disturb_nobody(mock):
    """Bad requests of all kinds and clients that go, beside streams whose texts stay the same."""
    body = {"prompt": " bubi kaju", "max_tokens": 1500, "seed": 7, "temperature": 1}
    wanted = mock.post("/v1/completions", body)[2]["choices"][0]["text"]
    got = {}

    def stream(i):
        with begin(mock, {**body, "stream": True}) as s:
            raw = wait_for(s, b"[DONE]").decode()
            got[i] = "".join(json.loads(e)["choices"][0]["text"] for e in re.findall(r"data: (\{.*\})\n", raw))

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    bad = [(b"{", 400), (b"[" * 100000, 400), ({"prompt": "a", "n": 10**9}, 400), ({"prompt": [32000]}, 400),
           ({"prompt": "a", "model": "mock+x"}, 404), ({"prompt": " a" * 200000}, 400)]
    while any(t.is_alive() for t in threads):
        for each, status in bad:
            assert mock.request("POST", "/v1/completions", each)[0] == status
        begin(mock, LONG).close()
        mock.raw(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n")
    for t in threads:
        t.join()
    assert [got[i] == wanted for i in range(4)] == [True] * 4
    until(lambda: is_idle(mock))


@pytest.mark.parametrize("mock", [["--parallel", 1, "--max-queue", 2]], indirect=True)
def test_full_queue(mock):
    """One runs, two wait, further ones are told when to come again."""
    held = []
    try:
        held.append(begin(mock, LONG))
        until(lambda: mock.metrics()["quern_sequences_active"] == 1)
        held += [begin(mock, LONG), begin(mock, LONG)]
        until(lambda: mock.metrics()["quern_sequences_queued"] == 2)
        status, headers, body = mock.post("/v1/completions", {"prompt": "a"})
        assert status == 429 and int(headers["retry-after"]) >= 1 and body["error"]["code"] == "queue_full", body
        assert body["error"]["request_id"] == headers["x-request-id"]
        package = openai()
        with pytest.raises(package.RateLimitError):
            client(mock).completions.create(model="mock", prompt="a", stream=True)
    finally:
        for s in held:
            s.close()
    until(lambda: is_idle(mock))
    assert mock.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_many_connections(mock):
    """300 short requests on as many connections, all answered."""
    held = [begin(mock, {"prompt": "a", "max_tokens": 2, "seed": 1}) for _ in range(200)]
    answers = [wait_for(s, b'"usage"') for s in held]
    for s in held:
        s.close()
    assert all(statuses(a) == [200] for a in answers)
    assert len({re.search(rb'"text":"([^"]*)"', a)[1] for a in answers}) == 1


# ---- the end ----

def test_draining():
    """What runs is finished whole, new work is refused, and then it ends with 0."""
    s = Server("mock", "--backend", "mock")
    body = {"prompt": " bubi", "max_tokens": 3000, "seed": 3, "temperature": 1}
    wanted = s.post("/v1/completions", body)[2]["choices"][0]["text"]
    with begin(s, {**body, "stream": True}) as running, s.connect() as idle:
        got = wait_for(running, b'"text":" ')
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(idle, b"}")
        s.process.send_signal(signal.SIGTERM)
        assert idle.recv(10) == b""
        until(lambda: s.request("GET", "/health")[2] == {"status": "draining"})
        status, headers, refused = s.post("/v1/completions", body)
        assert status == 503 and headers["retry-after"] and refused["error"]["code"] == "shutting_down"
        assert s.request("GET", "/health")[0] == 503
        got += read_all(running)
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert "".join(json.loads(e)["choices"][0]["text"] for e in re.findall(r"data: (\{.*\})\n", got.decode())) == wanted
    assert s.process.wait(30) == 0  # by itself: a second signal may find its handler given back
    s.stop()


def test_second_signal():
    s = Server("mock", "--backend", "mock")
    with begin(s, {**LONG, "stream": True}) as running:
        wait_for(running, b'"text":" ')
        s.process.send_signal(signal.SIGTERM)
        until(lambda: s.request("GET", "/health")[0] == 503)
        began = time.monotonic()
        assert s.stop(timeout=10) == 130 and time.monotonic() - began < 5
        assert b"[DONE]" not in read_all(running)


def test_end_while_clients_wait():
    """Draining with clients in the queue that go: the end comes all the same."""
    s = Server("mock", "--backend", "mock", "--parallel", 1)
    held = [begin(s, LONG) for _ in range(4)]
    until(lambda: s.metrics()["quern_sequences_queued"] == 3)
    s.process.send_signal(signal.SIGTERM)
    for each in held:
        each.close()
    assert s.process.wait(10) == 0 and s.stop() == 0
