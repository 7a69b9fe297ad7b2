"""What the tests of the server share: one to be started, requests byte by byte, and the official client.

The client (the package openai) lies in quern's cache folder, where tools/test puts it; tests that need it are left out
where it is absent.
"""
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from support import QUERN, call_json, fixture, heed_interrupt, leave_out, read_json, rewrite_safetensors

MODEL = "models/llama"


class Server:
    """`quern serve MODEL`, or without MODEL, on a port of its own."""

    def __init__(self, model=None, *options, wait=True):
        self.process = subprocess.Popen([QUERN, "serve", *([] if model is None else [str(model)]), "--port", "0",
                                         *map(str, options)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interrupt)
        self.said = b""
        self.urls = []
        for _ in range(max(1, options.count("--host"))):
            line = self.read_line()
            assert line.startswith("listening on "), line + self.process.stderr.read().decode()
            self.urls.append(line[len("listening on "):])
        self.url = next(u for u in self.urls if u.startswith("http://"))
        host, _, port = self.url[len("http://"):].rpartition(":")
        self.address = (host.strip("[]"), int(port))
        if wait:
            line = self.read_line()
            assert line.startswith("ready: "), line
            self.name = line[len("ready: "):]

    def read_line(self, timeout=60):
        end = time.monotonic() + timeout
        while b"\n" not in self.said:
            assert select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0], "silence"
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                raise AssertionError("ended: " + self.process.stderr.read().decode())
            self.said += piece
        line, self.said = self.said.split(b"\n", 1)
        return line.decode()

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body); body is sent as JSON unless it is bytes, and read as JSON where it is."""
        c = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            sent = {"Content-Type": "application/json"} if body is not None else {}
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            c.request(method, path, data, {**sent, **(headers or {})})
            r = c.getresponse()
            text = r.read()
            known = {k.lower(): v for k, v in r.getheaders()}
            is_json = known.get("content-type", "").startswith("application/json") and text
            return r.status, known, json.loads(text) if is_json else text.decode()
        finally:
            c.close()

    def post(self, path, body, **headers):
        return self.request("POST", path, body, headers)

    def metrics(self):
        """{'name{labels}': value}"""
        status, _, text = self.request("GET", "/metrics")
        assert status == 200
        return {k: float(v) for k, _, v in (line.rpartition(" ") for line in text.split("\n"))
                if k and not k.startswith("#")}

    def connect(self):
        return socket.create_connection(self.address, timeout=30)

    def raw(self, *pieces, pause=0.0):
        """Sends bytes on a connection of its own; all that comes back until it is closed."""
        with self.connect() as s:
            try:
                for i, piece in enumerate(pieces):
                    if i:
                        time.sleep(pause)
                    s.sendall(piece)
            except OSError:  # it was refused, and closed, before all was sent
                pass
            return read_all(s)

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory_kb(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(next(line for line in f if line.startswith("VmRSS")).split()[1])

    def stop(self, number=signal.SIGTERM, timeout=30):
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process.stderr.close()


def has_store():
    """Was the program built with SQLite? It says so before it finds that the folder cannot be made."""
    said = subprocess.run([QUERN, "serve", "--port", "0", "--store", "/dev/null/store"], capture_output=True, text=True)
    return "without SQLite" not in said.stderr


def read_all(s):
    got = b""
    try:
        while piece := s.recv(65536):
            got += piece
    except OSError:
        pass
    return got


def statuses(raw):
    """The statuses of the answers in what a connection brought."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) \w", raw)]


def until(condition, timeout=20.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def post_bytes(server, path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def begin(server, body, path="/v1/completions"):
    """A connection on which a request was sent and nothing was read yet."""
    s = server.connect()
    s.sendall(post_bytes(server, path, body))
    return s


def wait_for(s, text):
    got = b""
    while text not in got:
        piece = s.recv(65536)
        assert piece, got[-300:]
        got += piece
    return got


def openai():
    try:
        import openai as package
    except ImportError:
        leave_out("the Python package openai is absent (tools/test installs it)")
    return package


def client(server, kind="OpenAI", **options):
    return getattr(openai(), kind)(base_url=server.url + "/v1", **{"api_key": "none", "max_retries": 0, "timeout": 120,
                                                                    **options})


@pytest.fixture(scope="module")
def server():
    s = Server(fixture(MODEL))
    yield s
    assert s.stop() == 0


THOUGHT = ["<think>", "\nThe user ", "wants to know what ", "a mill does, ", "and so I say ", "that it grinds.\n",
           "</think>", "\n\n", "It grinds ", "corn."]  # for a parrot


def stable(model, messages, more=(), **variables):
    """How many tokens all next turns of the conversation begin with; more: of the message that comes next."""
    def ids(content):
        following = {"role": "user", "content": content, **dict(more)}
        request = {"messages": [*messages, following], "add_generation_prompt": True, **variables}
        return call_json("template", model, "--provenance", "--json", stdin=request)["ids"]

    rows = [ids(content) for content in ("a", "1", "Zebra", "Next one")]
    return next(i for i, column in enumerate(zip(*rows)) if len(set(column)) > 1)


def parrot(folder, pieces):
    """A copy of the qwen3 fixture that answers whatever it is asked with these pieces, a token each, and ends.

    Its layers add nothing to what the last token brings, so the head maps each piece to the next. Every token that is
    no piece leads to the first one.
    """
    source, target = fixture("models/qwen3"), os.path.join(folder, "parrot")
    shutil.copytree(source, target)
    for name in ("config.json", "tokenizer.json"):
        os.chmod(os.path.join(target, name), 0o644)
    config = read_json(os.path.join(target, "config.json"))
    first, width = config["vocab_size"], config["hidden_size"]
    config["vocab_size"] = n = first + len(pieces)
    assert len(pieces) < width
    tokenizer = read_json(os.path.join(target, "tokenizer.json"))
    known = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    ids = [known.get(piece, first + i) for i, piece in enumerate(pieces)]
    assert len(set(ids)) == len(ids)
    tokenizer["added_tokens"] += [
        {"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": False} for i, piece in zip(ids, pieces) if piece not in known]
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer)):
        with open(os.path.join(target, name), "w") as f:
            json.dump(value, f)
    embedding, head = np.zeros((n, width), np.float32), np.zeros((n, width), np.float32)
    embedding[:, 0] = 1
    for place, i in enumerate(ids):
        embedding[i] = np.eye(width)[place + 1]
    for place, i in enumerate([*ids, config["eos_token_id"]]):
        head[i] = np.eye(width)[place] * 8

    def change(tensors):
        for name, tensor in tensors.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensor[2] = bytes(len(tensor[2]))
            if name == "model.norm.weight":
                tensor[0], tensor[2] = "F32", np.ones(tensor[1], np.float32).tobytes()
        tensors["model.embed_tokens.weight"][:] = ["F32", [n, width], embedding.tobytes()]
        tensors["lm_head.weight"][:] = ["F32", [n, width], head.tobytes()]

    weights = os.path.join(target, "model.safetensors")
    os.remove(weights)
    rewrite_safetensors(os.path.join(source, "model.safetensors"), weights, change)
    return target
