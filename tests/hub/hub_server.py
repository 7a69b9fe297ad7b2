"""A small server that speaks as the Hub, its CDN and Ollama's registry do, with faults on request, for tests/hub.

    with HubServer() as hub:
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": Made(1 << 30)})
        subprocess.run([quern, "pull", "org/name"], env=hub.env(folder))

Every answer is noted in hub.log. hub.fault is called before each one and may take it over. The CDN has a port and a
host name of its own (localhost instead of 127.0.0.1), so that a token that follows a redirect is seen.
"""
import hashlib
import http.server
import json
import os
import re
import socket
import threading
import time
import urllib.parse

BLOCK = 1 << 20


class Made:
    """Bytes that are made when they are asked for: any size without memory."""

    def __init__(self, size, head=b"", seed=1):
        self.size = size
        self.block = hashlib.shake_128(b"%d" % seed).digest(BLOCK)
        self.first = (head + self.block)[:BLOCK]

    def __len__(self):
        return self.size

    def read(self, begin, end):
        while begin < end:
            at = begin % BLOCK
            block = self.first if begin < BLOCK else self.block
            n = min(BLOCK - at, end - begin)
            yield block[at:at + n]
            begin += n

    def sha256(self):
        digest = hashlib.sha256()
        for block in self.read(0, self.size):
            digest.update(block)
        return digest.hexdigest()


def read(data, begin, end):
    return data.read(begin, end) if isinstance(data, Made) else [data[begin:end]]


class File:
    """lfs: by its sha256 on the CDN; else by git's sha1 from the Hub itself."""

    def __init__(self, path, data, lfs, sum=None):
        self.path, self.data, self.lfs = path, data, lfs
        if sum:
            self.sum = sum
        elif lfs:
            self.sum = data.sha256() if isinstance(data, Made) else hashlib.sha256(data).hexdigest()
        else:
            whole = b"".join(read(data, 0, len(data)))
            self.sum = hashlib.sha1(b"blob %d\0" % len(whole) + whole).hexdigest()

    def entry(self):
        oid = "0" * 40 if self.lfs else self.sum
        entry = {"type": "file", "path": self.path, "size": len(self.data), "oid": oid}
        if self.lfs:
            entry["lfs"] = {"oid": self.sum, "size": len(self.data), "pointerSize": 134}
        return entry


class Repo:
    def __init__(self, files, commit, token=None, gated=False):
        self.files = {f.path: f for f in files}
        self.commit, self.token, self.gated = commit, token, gated


class Seen:
    """One answer: who gave it, to what, and how many bytes of a body were sent."""

    def __init__(self, server, method, path, headers):
        self.server, self.method, self.path = server, method, path
        self.range, self.auth, self.headers = headers.get("Range"), headers.get("Authorization"), headers
        self.sent, self.status = 0, 0

    def __repr__(self):
        return f"<{self.server} {self.method} {self.path} {self.range or ''} -> {self.status}, {self.sent} bytes>"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    @property
    def hub(self):
        return self.server.hub

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        self.seen = Seen(self.server.kind, self.command, self.path, self.headers)
        with self.hub.lock:
            self.hub.log.append(self.seen)
        try:
            if self.hub.fault and self.hub.fault(self):
                return
            path = urllib.parse.urlsplit(self.path)
            if self.server.kind == "cdn":
                self.give_blob(path.path.rpartition("/")[2])
            elif path.path.startswith("/v2/"):
                self.ollama(path.path)
            elif path.path.startswith("/api/models/"):
                self.api(path)
            elif path.path.startswith("/files/"):
                self.give(self.hub.plain[path.path[7:]], {"ETag": '"v1"'})
            else:
                self.resolve(path.path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def say(self, status, body=b"", headers=()):
        self.seen.status = status
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def say_json(self, value, headers=()):
        self.say(200, json.dumps(value).encode(), {"Content-Type": "application/json", **dict(headers)})

    def refuse(self, status, code, text, headers=()):
        self.say(status, json.dumps({"error": text}).encode(),
                 {"X-Error-Code": code, "X-Error-Message": text, **dict(headers)})

    def repo(self, name):
        repo = self.hub.repos.get(name)
        if repo and repo.token and self.headers.get("Authorization") != f"Bearer {repo.token}":
            if repo.gated and self.headers.get("Authorization"):
                self.refuse(403, "GatedRepo", "Access to this model is restricted")
            else:
                self.refuse(401, "RepoNotFound", "Invalid username or password.")
        elif not repo:
            self.refuse(401, "RepoNotFound", "Repository not found")
        else:
            return repo
        return None

    def api(self, url):
        parts = url.path.split("/")
        repo = self.repo("/".join(parts[3:5]))
        if not repo:
            return
        what, revision = (parts + ["revision", "main"])[5:7] if len(parts) > 5 else ("revision", "main")
        if urllib.parse.unquote(revision) not in (*self.hub.branches, repo.commit):
            self.refuse(404, "RevisionNotFound", "Invalid rev id: " + revision)
        elif what == "revision":
            self.say_json({"id": "/".join(parts[3:5]), "sha": repo.commit, "private": False, "tags": [], "downloads": 0,
                           "siblings": [{"rfilename": p} for p in repo.files]})
        else:
            query = urllib.parse.parse_qs(url.query)
            begin = int(query.get("cursor", ["0"])[0])
            entries = [f.entry() for f in repo.files.values()] + [{"type": "directory", "path": "d", "oid": "0" * 40}]
            end = begin + self.hub.page
            headers = {}
            if end < len(entries):
                link = f"{self.hub.url}{url.path}?recursive=true&cursor={end}"
                headers["Link"] = f'<{link}>; rel="next"'
            self.say_json(entries[begin:end], headers)

    def resolve(self, path):
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = self.repo(m.group(1)) if m else None
        if not m:
            self.refuse(404, "EntryNotFound", "no such page")
        if not repo:
            return
        file = repo.files.get(urllib.parse.unquote(m.group(3)))
        head = {"X-Repo-Commit": repo.commit}
        if not file:
            self.refuse(404, "EntryNotFound", "Entry not found", head)
        elif file.lfs:
            self.say(302, b"", {**head, "Location": f"{self.hub.cdn_url}/blob/{file.sum}", "ETag": f'"{file.sum[:32]}"',
                                "X-Linked-Size": str(len(file.data)), "X-Linked-ETag": f'"{file.sum}"'})
        else:
            self.give(file.data, {**head, "ETag": f'"{file.sum}"'})

    def ollama(self, path):
        m = re.fullmatch(r"/v2/([^/]+/[^/]+)/(manifests|blobs)/([^/]+)", path)
        layers = self.hub.ollama.get(m.group(1)) if m else None
        if layers is None:
            self.say(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
        elif m.group(2) == "manifests":
            self.say_json({"schemaVersion": 2, "config": {"digest": "sha256:" + "0" * 64, "size": 2},
                           "layers": [{"mediaType": "application/vnd.ollama.image." + kind, "size": len(data),
                                       "digest": "sha256:" + hashlib.sha256(data).hexdigest()}
                                      for kind, data in layers]})
        else:
            self.say(307, b"", {"Location": f"{self.hub.cdn_url}/blob/{m.group(3).removeprefix('sha256:')}"})

    def give_blob(self, sum):
        data = self.hub.blobs.get(sum)
        if data is None:
            self.say(404)
        else:
            self.give(data, {"ETag": '"cdn-%s"' % sum[:8]})

    def give(self, data, headers, cut=None, pause=None, status=None):
        """The bytes that a Range asks for. cut: end the connection after so many; pause: seconds before each block."""
        begin, end, n = 0, len(data), len(data)
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if m and self.hub.ranges:
            begin, end = int(m.group(1)), min(n, int(m.group(2)) + 1) if m.group(2) else n
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{n}"}
        self.seen.status = status or (206 if m and self.hub.ranges else 200)
        self.send_response(self.seen.status)
        for name, value in {"Accept-Ranges": "bytes", **headers, "Content-Length": str(end - begin)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for block in read(data, begin, end):
            for at in range(0, len(block), 1 << 16):
                part = block[at:at + (1 << 16)]
                if cut is not None and self.seen.sent + len(part) > cut:
                    self.wfile.write(part[:cut - self.seen.sent])
                    self.wfile.flush()
                    self.seen.sent = cut
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if pause or self.hub.pause:
                    time.sleep(pause or self.hub.pause)
                self.wfile.write(part)
                self.seen.sent += len(part)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub, kind):
        self.hub, self.kind = hub, kind
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, address):
        pass


class HubServer:
    def __enter__(self):
        self.lock = threading.Lock()
        self.log, self.repos, self.blobs, self.ollama, self.plain = [], {}, {}, {}, {}
        self.branches, self.page, self.ranges, self.pause, self.fault = {"main", "pr/1"}, 1000, True, 0, None
        self.server, self.cdn = Server(self, "hub"), Server(self, "cdn")
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.cdn_url = f"http://localhost:{self.cdn.server_address[1]}"
        return self

    def __exit__(self, *args):
        for server in (self.server, self.cdn):
            server.shutdown()
            server.server_close()

    def add(self, name, files, commit="a" * 40, small=(".json", ".txt", ".jinja", ".md"), sums={}, **options):
        listed = [File(p, d, not p.endswith(small), sums.get(p)) for p, d in files.items()]
        self.repos[name] = Repo(listed, commit, **options)
        for f in listed:
            self.blobs[f.sum] = f.data
        return self.repos[name]

    def add_ollama(self, name, layers):
        self.ollama[name] = layers
        for _, data in layers:
            self.blobs[hashlib.sha256(data).hexdigest()] = data

    def env(self, folder, **more):
        """What quern and Python's huggingface_hub are called with: this server, and a cache in the folder."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "QUERN_OFFLINE"))
               and k.lower() not in ("http_proxy", "https_proxy", "all_proxy")}
        return {**env, "HF_ENDPOINT": self.url, "QUERN_OLLAMA_ENDPOINT": self.url, "HF_HOME": str(folder / "hf"),
                "QUERN_CACHE": str(folder / "own"), "no_proxy": "*", **{k: str(v) for k, v in more.items()}}

    def sent(self):
        """Bytes of files that were sent, API and redirects left out."""
        return sum(s.sent for s in self.log)


if __name__ == "__main__":  # to look at with the eyes: hub_server.py BYTES [SECONDS a block]
    import sys
    with HubServer() as hub:
        size = int(sys.argv[1])
        hub.pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0
        hub.add("org/large", {"large-Q4_K_M.gguf": Made(size, b"GGUF")})
        print(f"export HF_ENDPOINT={hub.url} no_proxy=*", flush=True)
        threading.Event().wait()
