"""Requests that are made to break servers: each gets an error of its own within moments, and the next one is answered.

Beside test_server_http.py (framing, names, keys) and test_server_load.py (clients that go, full queues).
"""
import gzip
import json
import select
import socket
import struct
import time
import zlib

import pytest

from server_help import Server, begin, post_bytes, read_all, statuses, until, wait_for

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "Hello"}]
HOST = b"Host: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
LONG = {"prompt": " bubi xubi", "max_tokens": 100000, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--context", 4096)
    yield s
    assert s.stop() == 0


def refused(server, path, body):
    """Error and status; it must come soon, and leave the server as it was."""
    began = time.monotonic()
    status, headers, got = server.request("POST", path, body)
    assert status == 400 and time.monotonic() - began < 20, (status, got)
    assert got["error"]["message"] and got["error"]["request_id"] == headers["x-request-id"]
    assert server.request("GET", "/health")[0] == 200
    return got["error"]


def raw_field(path, name, text):
    """A body whose field `name` has this text for a value, whether that is JSON or not."""
    bodies = {CHAT: {"messages": HELLO, "max_tokens": 1}, TEXT: {"prompt": "a", "max_tokens": 1}, EMBED: {"input": "a"}}
    rest = {k: v for k, v in bodies[path].items() if k != name}
    return f'{{"{name}": {text}{", " if rest else ""}{json.dumps(rest)[1:]}'.encode()


# ---- bodies ----

DEEP = 3000


BODIES = {
    "brackets": b"[" * (10 << 20), "objects": b'{"a":' * (2 << 20), "closed": b"[" * DEEP + b"]" * DEEP,
    "prompt": b'{"prompt":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "messages": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "input": b'{"input":' + b'{"a":' * DEEP + b"1" + b"}" * (DEEP + 1),
    "digits": b'{"seed":' + b"9" * (10 << 20) + b"}", "decimals": b'{"seed":-0.' + b"9" * (10 << 20) + b"e99999}",
    "string": b'"' + b"a" * (10 << 20), "escapes": b'{"prompt":"' + b"\\u0041" * (1 << 20),
    "key": b'{"' + b"k" * (10 << 20) + b'":1}', "space": b" " * (10 << 20), "backslashes": b"\\" * (1 << 20),
    "half a character": b'{"model":"\xed\xa0\x80"}', "half an escape": b'{"model":"\\ud800"}', "comma": b'{"a":1,}',
    "quotes": b"{'a':1}", "mark": b"\xef\xbb\xbf{}", "NUL": b"{}\0", "two": b"{}{}", "comment": b"/**/{}",
    "open": b'{"model":{"a":1}'}


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED])
@pytest.mark.parametrize("name", BODIES)
def test_bodies(server, path, name):
    refused(server, path, BODIES[name])


@pytest.mark.parametrize("field", ["tools", "chat_template_kwargs", "metadata", "logit_bias", "stop", "tool_choice"])
def test_deep_values(server, field):
    """Deep, but no field alone: the depth of the body counts."""
    deep = "[" * DEEP + "]" * DEEP
    assert refused(server, CHAT, raw_field(CHAT, field, deep))["code"] == "invalid_json"
    tools = '[{"type":"function","function":{"name":"f","parameters":%s}}]' % ('{"a":' * DEEP + "1" + "}" * DEEP)
    assert refused(server, CHAT, raw_field(CHAT, "tools", tools))["code"] == "invalid_json"


def test_many_values(server):
    """Wide instead of deep."""
    for name, text in (("stop", json.dumps(["a"] * 100000)), ("stop_token_ids", json.dumps([1] * 100000)),
                       ("logit_bias", json.dumps({str(i): 1 for i in range(30000)})),
                       ("logit_bias", json.dumps([[5, 1]] * 100000)),
                       ("messages", json.dumps(HELLO * 100000)), ("tools", "[" + "1," * 1000000 + "1]"),
                       ("messages", "[" + "null," * 1000000 + "null]")):
        assert refused(server, CHAT, raw_field(CHAT, name, text))["param"].startswith(name)
    for path, name in ((TEXT, "prompt"), (EMBED, "input")):
        error = refused(server, path, raw_field(path, name, json.dumps([[1]] * 200000)))
        assert error["param"] == name
    fields = ",".join(f'"field{i}":1' for i in range(200000))
    assert refused(server, CHAT, ("{" + fields + "}").encode())["code"] == "unknown_parameter"


def test_tools_with_patterns(server):
    """Schemas are shown to the model; nothing is compiled, so nothing can blow up."""
    for parameters in ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$((("}}},
                       {"type": ["object", 7, None]}, {"$ref": "#"}, {"type": "object", "pattern": "[" * 5000},
                       {"enum": [1e308, -1e308, "\u0000"]}):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        status, _, got = server.post(CHAT, {"messages": HELLO, "max_tokens": 1, "tools": tools})
        assert status == 200 or (status == 400 and got["error"]["param"]), got


# ---- numbers ----

INTEGERS = [(path, field) for path, fields in (
    (CHAT, "n max_tokens max_completion_tokens top_k top_logprobs priority seed mirostat repeat_last_n"),
    (CHAT, "dry_allowed_length dry_penalty_last_n"),
    (TEXT, "n max_tokens logprobs best_of n_discard n_predict min_tokens"), (EMBED, "dimensions"))
            for field in fields.split()]
SIGNED = ["presence_penalty", "frequency_penalty"]
STEPS = """typical_p xtc_probability xtc_threshold dynatemp_range dynatemp_exponent mirostat_tau mirostat_eta
    dry_multiplier dry_base""".split()
REALS = [(path, field) for path in (CHAT, TEXT)
         for field in ("temperature", "top_p", "min_p", "repetition_penalty", "repeat_penalty", *STEPS, *SIGNED)]
NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e999", "0x10", "1.", ".5", "+1", "01", "1e", "--1",
              '"1"', "[1]", "{}"]


@pytest.mark.parametrize("path, field", INTEGERS + REALS)
def test_numbers(server, path, field):
    texts = NO_NUMBERS + ["-1000000", "-9223372036854775808", "-9223372036854775809", "18446744073709551616",
                          "1" + "0" * 400]
    if (path, field) in INTEGERS:
        texts += ["9223372036854775808", "1.5", "1e3"]
        texts += [] if field == "seed" else ["9223372036854775807", "4294967297", "-4294967295"]
    else:
        texts += ["1e300", "1000000", "-2.001"] + ([] if field in SIGNED else ["-1e-300"])
    if field == "seed":  # any integer of 64 bits is one
        texts = [t for t in texts if t not in ("-1000000", "-9223372036854775808")]
    for text in texts:
        error = refused(server, path, raw_field(path, field, text))
        assert error["param"] == field or error["code"] == "invalid_json", (text, error)


@pytest.mark.parametrize("text", ["1e-320", "1e-45", "1e-38", "1e-30", "1e-7", "-0.0", "0e999", "100"])
def test_temperatures_at_the_edge(server, text):
    """So cold that logits overflow when they are divided: that is the likeliest token, and no failure."""
    body = json.dumps({"prompt": " bubi", "max_tokens": 5, "seed": 3}).encode()[:-1]
    status, _, got = server.request("POST", TEXT, body + b', "temperature": ' + text.encode() + b"}")
    assert status == 200, got
    if text != "100":
        assert got["choices"] == server.post(TEXT, {"prompt": " bubi", "max_tokens": 5, "temperature": 0})[2]["choices"]


IDS = {
    "logit_bias": """{"32000":1} {"-1":1} {"2147483648":1} {"4294967301":1} {"18446744073709551621":1} {"1.5":1}
        {"1_":1} {"+1":1} {"0x1":1} {"":1} {"1e1":1} {"1":NaN} {"1":1e999} {"1":-1e999} {"1":100.01} {"1":null}
        [[32000,1]] [[-1,1]] [[4294967301,1]] [[1.5,1]] [["1",1]] [[1,1e999]] [[1,1,1]] [1] "1" true""",
    "allowed_token_ids": "[32000] [-1] [4294967301] [9223372036854775808] [1.0] [\"1\"] [[1]] 1 [null] []",
    "bad_words": "[[32000]] [[-1]] [[4294967301]] [[1.0]] [[\"1\"]] [1] 1 [null] [[]] [[[1]]]",
    "stop_token_ids": "[32000] [-1] [4294967301] [9223372036854775808] [1.0] [\"1\"] [[1]] 1 [null]",
    "prompt": """[32000] [-1] [4294967394] [-9223372036854775808] [9223372036854775808] [98.0] [true] [null]
        [[98],[4294967394]]"""}


@pytest.mark.parametrize("field, text", [(field, text) for field in IDS for text in IDS[field].split()])
def test_ids_outside_the_vocabulary(server, field, text):
    error = refused(server, TEXT, raw_field(TEXT, field, text))
    assert error["param"] == field or error["code"] == "invalid_json", error


# ---- what the body is wrapped in ----

def test_compressed_bodies(server):
    """Nothing is unpacked, whatever it would become."""
    bomb = gzip.compress(b" " * (64 << 20))
    for kind in ("gzip", "x-gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP", "compress"):
        status, _, got = server.request("POST", TEXT, bomb, {"Content-Type": "application/json",
                                                             "Content-Encoding": kind})
        assert status == 415 and got["error"]["message"], kind
    for body in (bomb, zlib.compress(b"{}"), b"\x28\xb5\x2f\xfd"):
        refused(server, TEXT, body)
    for kind in (b"gzip", b"gzip, chunked", b"chunked, gzip", b"identity", b"chunked, chunked", b"x", b"Chunked\x0b"):
        raw = server.raw(POST + b"Transfer-Encoding: " + kind + b"\r\n\r\n0\r\n\r\n")
        assert statuses(raw) in ([400], [501]), (kind, raw)
    status, headers, _ = server.request("GET", "/v1/models", None, {"Accept-Encoding": "gzip, br"})
    assert status == 200 and "content-encoding" not in headers


def test_large_headers(server):
    """Of one name, of many, in the line of the request; held in bounded memory, refused as soon as it is clear."""
    get = b"GET /health HTTP/1.1\r\n" + HOST
    memory = server.memory_kb()
    for head, wanted in ((get + b"A: " + b"x" * (8 << 20), 431), (get + b"A" * (8 << 20), 431),
                         (get + b"".join(b"A%d: b\r\n" % i for i in range(100000)), 431),
                         (b"GET /" + b"a" * (8 << 20), 431), (b"G" * (8 << 20), 431),
                         (get + b"Authorization: Bearer " + b"k" * 20000 + b"\r\n\r\n", 431),
                         (get + b"Cookie: " + b"c=1; " * 5000 + b"\r\n\r\n", 431)):
        assert statuses(server.raw(head)) == [wanted], head[:60]
    assert server.memory_kb() < memory + 20000


def test_chunks(server):
    """Bodies in pieces of a byte, or with sizes that overflow."""
    body = json.dumps({"prompt": "a" * 2000, "max_tokens": 1}).encode()
    small = b"".join(b"1\r\n" + body[i:i + 1] + b"\r\n" for i in range(len(body))) + b"0\r\n\r\n"
    assert statuses(server.raw(POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + small)) == [200]
    for size in (b"FFFFFFFFFFFFFFFF", b"10000000000000000", b"8000000000000000", b"-1", b"0x5", b" 5", b"5 ", b"",
                 b"g", b"1" * 100):
        raw = server.raw(POST + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{}\r\n0\r\n\r\n")
        assert statuses(raw) in ([400], [413]), size


def test_promised_bodies(server):
    """Who announces much and sends nothing takes no memory."""
    memory = server.memory_kb()
    held = [server.connect() for _ in range(60)]
    for s in held:
        s.sendall(POST + b"Content-Length: 16000000\r\n\r\n{")
    until(lambda: server.metrics()["quern_connections"] >= 61)
    assert server.memory_kb() < memory + 30000
    assert server.post(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200
    for s in held:
        s.close()
    until(lambda: server.metrics()["quern_connections"] == 1)


# ---- slow ones ----

def test_slow_clients():
    """Heads and bodies that trickle in have one deadline each; a hundred of them hold up nobody."""
    s = Server("mock", "--backend", "mock", "--read-timeout", 2)
    try:
        body = POST + b"Content-Length: 1000\r\n\r\n"
        chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        began = time.monotonic()
        held = [(s.connect(), (POST, body, chunked)[i % 3], i) for i in range(99)]
        drips = {0: b"X: y\r\n", 1: b" ", 2: b"1\r\n \r\n"}
        for c, head, _ in held:
            c.sendall(head)
        answered = 0
        while time.monotonic() - began < 1.6:
            for c, _, i in held:
                c.sendall(drips[i % 3])
            assert s.post(TEXT, {"prompt": "a", "max_tokens": 2})[0] == 200
            answered += 1
            time.sleep(0.1)
        assert answered >= 3
        for c, _, _ in held:
            raw = read_all(c)
            assert statuses(raw) == [408] and b"\r\nconnection: close\r\n" in raw
            c.close()
        assert time.monotonic() - began < 15
        until(lambda: s.metrics()["quern_connections"] == 1)
    finally:
        assert s.stop() == 0


# ---- clients that are lost, in each phase ----

def reset(s):
    """As a machine that is switched off and on: no end of the stream, an error."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


WHOLE = {"prompt": [" bubi"] * 8, "n": 8, "max_tokens": 60, "seed": 1, "logprobs": 20}
PHASES = {
    "nothing": lambda s: s.connect(),
    "request line": lambda s: sent(s, b"POST /v1/com"),
    "headers": lambda s: sent(s, POST + b"Content-Le"),
    "before the body": lambda s: sent(s, POST + b"Content-Length: 1000\r\n\r\n"),
    "body": lambda s: sent(s, POST + b"Content-Length: 1000\r\n\r\n{\"prompt\": \"aaa"),
    "chunks": lambda s: sent(s, POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"pro"),
    "continue": lambda s: sent(s, POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 1),
    "opening": lambda s: begin(s, {"prompt": " bubi" * 3000, "max_tokens": 50}),
    "prefill": lambda s: active(s, begin(s, {"prompt": [" bubi kaju" * 1900] * 4, "max_tokens": 50})),
    "decoding": lambda s: active(s, begin(s, LONG)),
    "streaming": lambda s: heard(begin(s, {**LONG, "stream": True}), b'"text":" '),
    "chat": lambda s: heard(begin(s, {"messages": HELLO, "max_tokens": 3000, "stream": True}, CHAT), b"delta"),
    "the answer": lambda s: sent(s, post_bytes(s, TEXT, WHOLE), 1),
    "unread answers": lambda s: sent(s, post_bytes(s, TEXT, {"prompt": "a", "max_tokens": 3}) * 40, 1),
    "after the answer": lambda s: heard(begin(s, {"prompt": "a", "max_tokens": 2}), b'"usage"'),
    "refusal": lambda s: sent(s, POST + b"Content-Length: 99999999999\r\n\r\n"),
    "vectors": lambda s: begin(s, {"input": [" bubi" * 500] * 100}, EMBED),
    "metrics": lambda s: sent(s, b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"),
}


def sent(server, text, n=0):
    s = server.connect()
    s.sendall(text)
    if n:
        s.recv(n)
    return s


def heard(s, text):
    wait_for(s, text)
    return s


def active(server, s):
    """Until its sequences run, or have run: a busy machine may show the first too late."""
    until(lambda: server.metrics()["quern_sequences_active"] > 0 or select.select([s], [], [], 0)[0])
    return s


@pytest.mark.parametrize("lose", [reset, socket.socket.close])
@pytest.mark.parametrize("phase", PHASES)
def test_lost_clients(server, phase, lose):
    """Its work ends, nothing is left open, and what others get is the same as ever."""
    body = {"prompt": " bubi kaju", "max_tokens": 20, "seed": 9, "temperature": 1}
    wanted = server.post(TEXT, body)[2]["choices"]
    until(lambda: is_idle(server))
    files = server.files()
    for _ in range(3):
        lose(PHASES[phase](server))
        assert server.post(TEXT, body)[2]["choices"] == wanted
    until(lambda: is_idle(server))
    until(lambda: server.files() <= files)  # but for the connection of the last question, which goes as well


def is_idle(server):
    m = server.metrics()
    return (m["quern_sequences_active"] == m["quern_sequences_queued"] == 0 and m["quern_requests_running"] == 1 and
            m["quern_connections"] == 1)
