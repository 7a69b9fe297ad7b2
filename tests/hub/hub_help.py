"""What the tests of models by name share."""
import json
import os
import subprocess
import time

import pytest

from hub_server import HubServer, Made
from support import QUERN, fixture

GGUF = b"GGUF"


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


def tiny_files():
    """A model that runs, as a repository has it."""
    folder = fixture("models/llama")
    names = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    files = {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as f:
            files[name] = f.read()
    return files


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


def call(env, *args, stdin=b"", **options):
    return Result(subprocess.run([QUERN, *map(str, args)], env=env, input=stdin, capture_output=True, timeout=120,
                                 **options))


def pull(env, name, *args, **options):
    """The path that a pull prints; it must succeed."""
    got = call(env, "pull", name, *args, **options)
    assert got.code == 0, got
    return got.out.rstrip("\n")


def answer(env, model):
    """The ids that a model writes."""
    got = call(env, "run", model, "-p", "Hello", "-n", "4", "--json", "--temp", "0")
    assert got.code == 0, got
    return json.loads(got.out)["ids"]


def pull_json(env, name, *args):
    return json.loads(pull(env, name, "--json", *args))


def refused(env, name, *args, code=1, **options):
    """The one sentence that a failed pull says."""
    got = call(env, "pull", name, *args, **options)
    assert got.code == code and got.out == "", got
    lines = [line for line in got.err.splitlines() if line]
    assert lines and all(line.startswith("quern: ") for line in lines), got
    return lines[-1].removeprefix("quern: ")


def start(env, *args, **options):
    return subprocess.Popen([QUERN, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_until(is_so, seconds=30):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)


def tree(folder):
    """All files and links below a folder, locks left out."""
    found = []
    for at, folders, files in os.walk(folder):
        found += [os.path.relpath(os.path.join(at, f), folder) for f in files]
    return sorted(f for f in found if not f.startswith(".locks") and "/.locks/" not in f)


def nothing_half_done(tmp_path):
    """No snapshot, no reference and no whole blob."""
    return all(f.endswith(".quern.incomplete") for f in tree(tmp_path))


def fetches(hub, what="cdn"):
    return [s for s in hub.log if s.server == what and s.method == "GET"]


__all__ = ["GGUF", "Made", "Result", "answer", "call", "fetches", "hub", "nothing_half_done", "pull", "pull_json",
           "refused", "start", "tiny_files", "tree", "wait_until"]
