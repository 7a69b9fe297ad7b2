"""What servers, disks and other processes do wrong while a model is pulled: a clear sentence, and nothing half done."""
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from hub_help import GGUF, Made, call, fetches, hub, nothing_half_done, pull, refused, tiny_files, tree  # noqa: F401
from support import QUERN, leave_out

MIB = 1 << 20
SIZE = 40 * MIB + 777  # three pieces


@pytest.fixture
def large(hub):
    hub.add("org/large", {"m-Q8_0.gguf": Made(SIZE, GGUF)})
    return hub


def nth(hub, kind, n_times, act):
    """act(handler) for the first n_times answers of a server of this kind that are about a file."""
    seen = [0]

    def fault(handler):
        if handler.server.kind != kind or (kind == "hub" and "/resolve/" not in handler.path):
            return False
        with hub.lock:
            seen[0] += 1
            if seen[0] > n_times:
                return False
        return act(handler) is not False
    hub.fault = fault
    return seen


def blob(handler):
    return handler.hub.blobs[handler.path.rpartition("/")[2]]


def whole(path):
    return os.path.getsize(path) == SIZE and not path.endswith("incomplete")


def test_cut(large, tmp_path):
    """Answers end after 3 MiB: each goes on from there, and no byte comes twice."""
    nth(large, "cdn", 5, lambda h: h.give(blob(h), {}, cut=3 * MIB))
    assert whole(pull(large.env(tmp_path), "org/large")) and large.sent() == SIZE


def test_always_cut(large, tmp_path):
    nth(large, "cdn", 10 ** 9, lambda h: h.give(blob(h), {}, cut=100))
    began = time.monotonic()
    said = refused(large.env(tmp_path), "org/large")
    assert re.search(r"hf:org/large: m-Q8_0.gguf: http://localhost:\d+: .*, 5 times in a row", said), said
    assert 5 < time.monotonic() - began < 30 and nothing_half_done(tmp_path)


def test_cut_before_the_headers(large, tmp_path):
    def act(handler):
        handler.close_connection = True
    nth(large, "cdn", 3, act)
    assert whole(pull(large.env(tmp_path), "org/large"))


def test_stalled(large, tmp_path):
    """Nothing comes for HF_HUB_DOWNLOAD_TIMEOUT seconds: the piece is asked for again."""
    def act(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", handler.headers["Range"].replace("=", " ") + f"/{SIZE}")
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        time.sleep(6)
        handler.close_connection = True
    nth(large, "cdn", 1, act)
    assert whole(pull(large.env(tmp_path, HF_HUB_DOWNLOAD_TIMEOUT=2), "org/large"))


def test_slow_is_no_fault(hub, tmp_path):
    hub.add("org/small", {"m-Q8_0.gguf": Made(300000, GGUF)})
    hub.pause = 0.5
    pull(hub.env(tmp_path, HF_HUB_DOWNLOAD_TIMEOUT=2), "org/small")


def test_wrong_sum(hub, tmp_path):
    """Thrown away, in the large file and in the one with git's sum."""
    for i, bad in enumerate(("m.safetensors", "config.json")):
        folder = tmp_path / str(i)
        folder.mkdir()
        hub.add("org/bad", {"m.safetensors": b"x" * 1000, "config.json": b"{}"}, sums={
            "m.safetensors": "1" * 64} if bad == "m.safetensors" else {"config.json": "2" * 40})
        said = refused(hub.env(folder), "org/bad")
        assert re.search(rf"hf:org/bad: {bad}: what came has the sum [0-9a-f]+, expected [12]+; it was thrown", said)
        assert not any("incomplete" in f and ("1" * 40 in f or "2" * 40 in f) for f in tree(folder))
        assert not any("snapshots" in f or "refs" in f for f in tree(folder))


def test_a_damaged_part_is_fetched_again(large, tmp_path):
    """What an earlier pull left was changed meanwhile: the sum tells, and the whole file comes once more."""
    env = large.env(tmp_path)
    large.pause = 0.004
    first = subprocess.Popen([QUERN, "pull", "org/large"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while large.sent() < 20 * MIB:
        time.sleep(0.02)
    first.kill()
    first.communicate()
    large.pause = 0
    part = next(tmp_path / f for f in tree(tmp_path) if f.endswith(".quern.incomplete"))
    with open(part, "r+b") as f:
        f.seek(1000)
        f.write(b"damage")
    got = call(env, "pull", "org/large")
    assert got.code == 0 and whole(got.out.rstrip("\n")) and "damaged; fetching the file again" in got.err, got


@pytest.mark.parametrize("damage", ["table", "shorter", "longer", "text", "empty"])
def test_a_part_that_is_none(large, tmp_path, damage):
    blobs = tmp_path / "hf/hub/models--org--large/blobs"
    blobs.mkdir(parents=True)
    sum = next(iter(large.repos["org/large"].files.values())).sum
    head = b"QNPART1\0" + SIZE.to_bytes(8, "little") + (16 * MIB).to_bytes(8, "little")
    table = {"table": head + b"\xff" * 24, "shorter": head + b"\0" * 8, "longer": head + b"\0" * 32, "text": b"x" * 48,
             "empty": b""}[damage]
    with open(blobs / (sum + ".quern.incomplete"), "wb") as f:
        f.seek(SIZE if table else 0)
        f.write(table)
    assert whole(pull(large.env(tmp_path), "org/large"))


def test_a_link_in_the_place_of_a_part(large, tmp_path):
    blobs = tmp_path / "hf/hub/models--org--large/blobs"
    blobs.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    sum = next(iter(large.repos["org/large"].files.values())).sum
    os.symlink(tmp_path / "precious", blobs / (sum + ".quern.incomplete"))
    assert "Too many levels of symbolic links" in refused(large.env(tmp_path), "org/large")
    assert (tmp_path / "precious").read_text() == "precious"


# Refusals.

def test_private(hub, tmp_path):
    hub.add("org/private", tiny_files(), token="hf_secret")
    env = hub.env(tmp_path)
    assert "asks for a token (401): the model is private or does not exist. HF_TOKEN" in refused(env, "org/private")
    assert "does not accept the token (401)" in refused({**env, "HF_TOKEN": "hf_wrong"}, "org/private")
    assert tree(tmp_path) == []
    pull({**env, "HF_TOKEN": "hf_secret"}, "org/private")


def test_gated(hub, tmp_path):
    hub.add("org/gated", tiny_files(), token="hf_good", gated=True)
    said = refused({**hub.env(tmp_path), "HF_TOKEN": "hf_other"}, "org/gated")
    assert "refuses access (403)" in said and "asked for on its page" in said and "Access to this model" in said


@pytest.mark.parametrize("how", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_tokens_come_from_the_environment_or_the_hubs_file(hub, tmp_path, how):
    hub.add("org/private", {"config.json": b"{}", "m.safetensors": b"x" * 100}, token="hf_secret")
    env = hub.env(tmp_path)
    if how == "HF_HOME":
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf/token").write_text("hf_secret\n")
    elif how == "HF_TOKEN_PATH":
        (tmp_path / "t").write_text(" hf_secret\n")
        env[how] = str(tmp_path / "t")
    else:
        env[how] = "hf_secret"
    got = call(env, "pull", "org/private")
    assert got.code == 0 and "hf_secret" not in got.out + got.err, got
    assert "HF_HUB_DISABLE_IMPLICIT_TOKEN" and call(
        {**env, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, "pull", "org/private").code == 1


def test_the_token_goes_to_no_other_host(hub, tmp_path):
    hub.add("org/private", {"config.json": b"{}", "m.safetensors": Made(40 * MIB)}, token="hf_secret")
    nth(hub, "cdn", 2, lambda h: h.give(blob(h), {}, cut=MIB))  # also not when it asks again
    pull(hub.env(tmp_path, HF_TOKEN="hf_secret"), "org/private")
    assert all(s.auth == "Bearer hf_secret" for s in hub.log if s.server == "hub")
    assert fetches(hub) and all(s.auth is None for s in fetches(hub))


def test_the_token_is_never_printed(hub, tmp_path):
    """Whatever goes wrong. A bad token is refused without being shown."""
    hub.add("org/private", tiny_files(), token="hf_secret")
    for token, endpoint in (("hf_secret", "http://127.0.0.1:1"), ("hf_wrong", hub.url), ("hf_bad\tsecret", hub.url)):
        got = call({**hub.env(tmp_path, HF_TOKEN=token), "HF_ENDPOINT": endpoint}, "pull", "org/private")
        assert got.code == 1 and "secret" not in got.err and "hf_" not in got.err, got


def test_the_token_does_not_go_over_an_open_line(hub, tmp_path):
    """http to another machine; the proxy stands for it here."""
    env = {**hub.env(tmp_path, HF_TOKEN="hf_secret"), "HF_ENDPOINT": "http://mirror.invalid", "http_proxy": hub.url,
           "no_proxy": ""}
    got = call(env, "pull", "org/x")
    assert got.code == 1 and "the token is not sent to mirror.invalid: http is not encrypted" in got.err
    assert hub.log and all(s.auth is None for s in hub.log)


def test_not_there(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    assert "has no such thing (404): Invalid rev id: none" in refused(env, "org/tiny@none")
    assert "the model is private or does not exist" in refused(env, "org/none")
    del hub.repos["org/tiny"].files["tokenizer.json"]
    hub.fault = lambda h: "/resolve/" in h.path and not h.path.endswith("x") and bool(h.say(404) or True)
    assert "(404)" in refused(env, "org/tiny") and nothing_half_done(tmp_path)


def test_retry_after(large, tmp_path):
    nth(large, "hub", 2, lambda h: h.refuse(429, "", "slow down", {"Retry-After": "2"}))
    began = time.monotonic()
    assert whole(pull(large.env(tmp_path), "org/large")) and time.monotonic() - began >= 2


def test_a_rate_limit_without_retry_after(large, tmp_path):
    """As the Hub says it: a header of the IETF's draft."""
    nth(large, "hub", 1, lambda h: h.refuse(429, "", "slow down", {"RateLimit": '"resolvers";r=0;t=1'}))
    began = time.monotonic()
    assert whole(pull(large.env(tmp_path), "org/large")) and time.monotonic() - began >= 2


def test_retry_after_of_the_list(large, tmp_path):
    seen = []

    def fault(handler):
        if "/api/" not in handler.path or len(seen) >= 2:
            return False
        seen.append(time.monotonic())
        handler.refuse(429, "", "slow down", {"Retry-After": "1"})
        return True
    large.fault = fault
    assert whole(pull(large.env(tmp_path), "org/large")) and 1 <= seen[1] - seen[0] < 3


def test_a_wait_that_is_too_long(large, tmp_path):
    nth(large, "hub", 9, lambda h: h.refuse(429, "", "tomorrow", {"Retry-After": "86400"}))
    assert "asks to come back in 86400 seconds (429)" in refused(large.env(tmp_path), "org/large")


def test_broken_for_a_moment(large, tmp_path):
    nth(large, "cdn", 3, lambda h: h.say(503))
    assert whole(pull(large.env(tmp_path), "org/large"))


def test_broken_for_good(large, tmp_path):
    nth(large, "cdn", 10 ** 9, lambda h: h.say(500))
    said = refused(large.env(tmp_path), "org/large")
    assert "status 500, 5 times in a row" in said and nothing_half_done(tmp_path)


def test_nobody_there(hub, tmp_path):
    began = time.monotonic()
    said = refused({**hub.env(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}, "org/tiny")
    assert "hf:org/tiny: http://127.0.0.1:1: " in said and said.endswith("Is the network up?")
    assert time.monotonic() - began < 5


def test_an_address_that_ran_out(large, tmp_path):
    """The CDN's signed address is refused after a while: the Hub is asked for a new one."""
    nth(large, "cdn", 2, lambda h: h.say(403, b"<Error>expired</Error>"))
    assert whole(pull(large.env(tmp_path), "org/large"))


@pytest.mark.parametrize("location, said", [
    ("{hub}/loop", "more than 10 redirects"), ("ftp://x/y", "leads nowhere"), ("http://", "leads nowhere"),
    ("http://user:pw@127.0.0.1/x", "leads nowhere"), ("file:///etc/passwd", "leads nowhere"),
    ("", "without an address"), ("http://x/" + "y" * 9000, "without an address")])
def test_redirects_that_lead_nowhere(large, tmp_path, location, said):
    to = location.format(hub=large.url)

    def fault(handler):
        if handler.server.kind == "hub" and ("/resolve/" in handler.path or handler.path == "/loop"):
            handler.say(302, b"", {"Location": to})
            return True
        return False
    large.fault = fault
    got = refused(large.env(tmp_path), "org/large")
    assert said in got and "pw" not in got and nothing_half_done(tmp_path)


def test_relative_redirects(large, tmp_path):
    """A mirror answers so."""
    file = large.repos["org/large"].files["m-Q8_0.gguf"]
    large.plain["moved"] = file.data

    def fault(handler):
        if "/resolve/" in handler.path:
            handler.say(307, b"", {"Location": "/files/moved"})
            return True
        return False
    large.fault = fault
    assert whole(pull(large.env(tmp_path), "org/large"))


# Answers that are not what was asked for.

def test_a_server_without_ranges(large, tmp_path):
    large.ranges = False
    assert whole(pull(large.env(tmp_path), "org/large"))


def test_a_server_without_ranges_that_cuts(large, tmp_path):
    """Fewer cuts than end a pull, if one connection gets all of them."""
    large.ranges = False
    nth(large, "cdn", 4, lambda h: h.give(blob(h), {}, cut=30 * MIB))
    assert whole(pull(large.env(tmp_path), "org/large"))


def test_a_server_without_ranges_that_always_cuts(large, tmp_path):
    """It never gets further, and that ends too."""
    large.ranges = False
    nth(large, "cdn", 10 ** 9, lambda h: h.give(blob(h), {}, cut=5 * MIB))
    assert "5 times in a row" in refused(large.env(tmp_path), "org/large") and nothing_half_done(tmp_path)


@pytest.mark.parametrize("content_range, said", [
    ("bytes 5-{end}/{size}", "another range came"), ("bytes {begin}-{end}/5", "another size"),
    ("nonsense", "another range came"), ("bytes {begin}-{end}/99999999999999999999", None)])
def test_wrong_ranges(large, tmp_path, content_range, said):
    def act(handler):
        begin, end = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        handler.seen.status = 206
        handler.send_response(206)
        handler.send_header("Content-Range", content_range.format(begin=begin, end=end, size=SIZE))
        handler.send_header("Content-Length", str(end + 1 - begin))
        handler.end_headers()
        for block in blob(handler).read(begin, end + 1):
            handler.wfile.write(block)
    nth(large, "cdn", 2 if said is None else 10 ** 9, act)
    if said is None:
        assert whole(pull(large.env(tmp_path), "org/large"))
    else:
        assert said in refused(large.env(tmp_path), "org/large") and nothing_half_done(tmp_path)


def test_more_than_was_asked_for(large, tmp_path):
    def act(handler):
        begin, end = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begin}-{end}/{SIZE}")
        handler.send_header("Content-Length", str(end + 1 - begin + 100))
        handler.end_headers()
        for block in blob(handler).read(begin, end + 1):
            handler.wfile.write(block)
        handler.wfile.write(b"x" * 100)
    nth(large, "cdn", 10 ** 9, act)
    assert "more came than was asked for" in refused(large.env(tmp_path), "org/large") and nothing_half_done(tmp_path)


def test_a_page_instead_of_a_file(hub, tmp_path):
    """A portal answers every URL with its own page."""
    hub.fault = lambda h: bool(h.say(200, b"<html>log in</html>", {"Content-Type": "text/html"}) or True)
    env = hub.env(tmp_path)
    assert "not a GGUF file; it was thrown away" in refused(env, hub.url + "/files/m.gguf")
    assert refused(env, "org/tiny") and refused(env, "ollama:x") and tree(tmp_path) == []


def test_a_url_that_changes_meanwhile(hub, tmp_path):
    hub.plain["m.gguf"] = Made(SIZE, GGUF)
    n = [0]

    def fault(handler):
        n[0] += 1
        if n[0] <= 2:
            return False
        handler.give(hub.plain["m.gguf"], {"ETag": '"v2"'})
        return True
    hub.fault = fault
    assert "changed on the server while it was fetched" in refused(hub.env(tmp_path), hub.url + "/files/m.gguf")


def test_a_url_without_a_size(hub, tmp_path):
    def fault(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"4\r\nGGUF\r\n0\r\n\r\n")
        return True
    hub.fault = fault
    assert "does not say how large the file is" in refused(hub.env(tmp_path), hub.url + "/files/m.gguf")


# Lists that would lead out of the folder, or are none.

@pytest.mark.parametrize("path", [
    "../../../etc/cron.d/x.json", "/etc/x.json", "a/../../x.json", "a//x.json", "./x.json",
    "x\\..\\y.json", "x\ny.json",
    "..", "", "x\0.json"])
def test_paths_that_lead_elsewhere(hub, tmp_path, path):
    hub.add("org/tiny", {**tiny_files(), path: b"{}"})
    said = refused(hub.env(tmp_path), "org/tiny")
    assert re.search("leads out of its folder or is not plain|no path|NUL|u0000", said), said
    assert "\n" not in said and tree(tmp_path) == [] and not any("/resolve/" in s.path for s in hub.log)


@pytest.mark.parametrize("what, body", [
    ("revision", b"[]"), ("revision", b"{}"), ("revision", b'{"sha": "../../x"}'), ("revision", b'{"sha": 5}'),
    ("revision", "deep"), ("tree", b"{}"), ("tree", b'[{"type":"file"}]'), ("tree", b"[1]"), ("tree", b""),
    ("tree", b'[{"type":"file","path":"m.gguf","size":-1,"oid":"' + b"0" * 40 + b'"}]'),
    ("tree", b'[{"type":"file","path":"m.gguf","size":1e300,"oid":"' + b"0" * 40 + b'"}]'),
    ("tree", b'[{"type":"file","path":"m.gguf","size":1,"oid":"../../x"}]'),
    ("tree", b'[{"type":"file","path":"m.gguf","size":1,"oid":"x","lfs":{"oid":"../x","size":1}}]'),
    ("tree", b'[{"type":"file","path":"m.gguf","size":99999999999999,"oid":"' + b"0" * 40 + b'"}]'),
    ("tree", "much")])
def test_lists_that_are_none(hub, tmp_path, what, body):
    hub.add("org/tiny", tiny_files())
    body = b" " * (5 << 20) if body == "much" else b"{" * 100000 if body == "deep" else body
    hub.fault = lambda h: f"/{what}/" in h.path and bool(h.say(200, body) or True)
    assert "hf:org/tiny" in refused(hub.env(tmp_path), "org/tiny") and tree(tmp_path) == []


def test_a_list_without_end(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    hub.fault = lambda h: "/tree/" in h.path and bool(
        h.say_json([], {"Link": f'<{hub.url}{h.path}>; rel="next"'}) or True)
    assert "the list of files has no end" in refused(hub.env(tmp_path), "org/tiny")


def test_a_list_that_goes_on_elsewhere(hub, tmp_path):
    hub.add("org/tiny", tiny_files(), token="hf_secret")
    hub.fault = lambda h: "/tree/" in h.path and h.server.kind == "hub" and bool(
        h.say_json([], {"Link": f'<{hub.cdn_url}/x>; rel="next"'}) or True)
    assert "another server" in refused(hub.env(tmp_path, HF_TOKEN="hf_secret"), "org/tiny")
    assert fetches(hub) == []


# The disk.

def test_a_file_larger_than_the_disk(hub, tmp_path):
    hub.add("org/huge", {"m-Q8_0.gguf": Made(1 << 40, GGUF)}, sums={"m-Q8_0.gguf": "1" * 64})
    said = refused(hub.env(tmp_path), "org/huge:Q8_0")
    assert re.search(r"too little room on the disk: 1\.1 TB are needed, \d.* are free \(HF_HUB_CACHE", said), said
    assert tree(tmp_path) == [] and fetches(hub) == []


def test_a_file_that_may_grow_no_further(large, tmp_path):
    """A limit of the system in the middle stands for a disk that fails. The bytes that came are kept."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE - 5 * MIB, SIZE - 5 * MIB))
    said = refused(large.env(tmp_path), "org/large", preexec_fn=limit)
    assert "may grow no further" in said and nothing_half_done(tmp_path)
    assert whole(pull(large.env(tmp_path), "org/large"))


FULL_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>
static long left = 20l << 20;
#define PWRITE(name)                                                                                  \
    ssize_t name(int file, const void *bytes, size_t n, off_t at)                                     \
    {                                                                                                 \
        if ((left -= (long)n) < 0) { errno = ENOSPC; return -1; }                                     \
        return ((ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, #name))(file, bytes, n, at); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
"""


def test_a_disk_that_becomes_full(large, tmp_path):
    """A library before the system's says so after 20 MiB; once there is room, the pull goes on from there."""
    shutil.which("cc") or leave_out("cc is absent")
    (tmp_path / "full.c").write_text(FULL_DISK)
    full = str(tmp_path / "full.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", full, str(tmp_path / "full.c"), "-ldl"], check=True)
    env = large.env(tmp_path)
    said = refused({**env, "LD_PRELOAD": full, "ASAN_OPTIONS": "verify_asan_link_order=0"}, "org/large")
    assert "the disk is full; what came is kept, and pulling again goes on from there" in said, said
    assert nothing_half_done(tmp_path / "hf")
    large.log.clear()
    assert whole(pull(env, "org/large")) and SIZE - 21 * MIB < large.sent() < SIZE - 10 * MIB


def test_a_folder_that_cannot_be_written(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    (tmp_path / "hf").write_text("a file")
    said = refused(hub.env(tmp_path), "org/tiny")
    assert str(tmp_path / "hf") in said and tree(tmp_path) == ["hf"]


def test_settings_that_are_none(hub, tmp_path):
    env = hub.env(tmp_path)
    for name, value in (("HF_ENDPOINT", "ftp://x"), ("HF_ENDPOINT", "https://user:pw@x"),
                        ("QUERN_OLLAMA_ENDPOINT", "x"), ("HF_HUB_DOWNLOAD_TIMEOUT", "soon")):
        said = refused({**env, name: value}, "org/tiny")
        assert said.startswith(name) and "pw" not in said


def test_two_signals_end_it_at_once(large, tmp_path):
    large.pause = 0.01
    child = subprocess.Popen([QUERN, "pull", "org/large"], env=large.env(tmp_path), stderr=subprocess.PIPE)
    while large.sent() < MIB:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=10)
    assert child.returncode in (-signal.SIGINT, 130)
    large.pause = 0
    assert whole(pull(large.env(tmp_path), "org/large"))
