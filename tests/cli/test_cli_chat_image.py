"""Pictures in quern chat: they stand before the next message, stay in the conversation, and in its file."""
import json

import pytest

from picture_help import MODEL, png, tensors
from support import call, call_json, fixture

OPTIONS = ["-t", 1, "-n", 6, "--temp", 0, "--repeat-penalty", 1, "--precision", "exact", "--json"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    rgb, folder = tensors()["image.rgb"], tmp_path_factory.mktemp("pictures")
    for name, pixels in ("one.png", rgb), ("two.png", 255 - rgb):
        (folder / name).write_bytes(png(pixels))
    return folder / "one.png", folder / "two.png"


def chat(lines, *options):
    return call("chat", fixture(MODEL), *OPTIONS, *options, stdin="\n".join(lines) + "\n")


def answers(out):
    """Without times, seeds and what the prefix cache had."""
    assert out.returncode == 0, out.stderr
    kept = "content", "end", "n_prompt_tokens", "n_generated_tokens"
    return [{k: v for k, v in json.loads(line).items() if k in kept} for line in out.stdout.decode().splitlines()]


def test_first_answer_is_that_of_run(pictures):
    one, two = pictures
    for files in ([one], [one, two], [two, one]):
        (said,) = answers(chat([*(f"/image {f}" for f in files), "What is it?"]))
        images = [a for f in files for a in ("--image", f)]
        want = call_json("run", fixture(MODEL), *images, "-p", "What is it?", "--json", "--max-tokens", 6,
                         "--temp", 0, "--precision", "exact", "-t", 1)
        assert said["n_prompt_tokens"] == want["n_prompt_tokens"] and said["content"] == want["text"][0]


def test_conversation(pictures, tmp_path):
    """Later turns see the pictures of earlier ones; a saved conversation goes on as if it had never ended."""
    one, two = pictures
    path = tmp_path / "talk.json"
    lines = [f"/image {one}", "What is it?", "And now?", f"/image {two}", "Both", "/regen"]
    first = answers(chat(lines))
    assert len(first) == 4 and first[2]["n_prompt_tokens"] > first[1]["n_prompt_tokens"] + 6
    assert first[3] == first[2]
    answers(chat([*lines[:3], f"/save {path}"]))
    assert answers(chat(lines[3:], "--load", path)) == first[2:]
    with open(path, encoding="utf-8") as f:
        content = json.load(f)["messages"][0]["content"]
    assert [p["type"] for p in content] == ["image_url", "text"]


def test_forgotten(pictures):
    """/clear drops pictures, those too that wait for a message."""
    one, _ = pictures
    plain = answers(chat(["Hello"]))
    assert answers(chat([f"/image {one}", "What is it?", f"/image {one}", "/clear", "Hello"]))[1:] == plain


def test_names_as_terminals_paste_them(pictures, tmp_path):
    """A file that is dropped on a terminal comes in quotes, or with backslashes; a file of just that name is first."""
    one, two = pictures
    name = tmp_path / "it's a b.png"
    name.write_bytes(one.read_bytes())
    want = answers(chat([f"/image {name}", "What is it?"]))
    shell = str(name).replace("'", "'\\''")
    for written in f"'{shell}'", f'"{name}"', str(name).replace(" ", "\\ ").replace("'", "\\'"):
        assert answers(chat([f"/image {written}", "What is it?"])) == want
    odd = tmp_path / "a\\ b.png"
    odd.write_bytes(two.read_bytes())
    (tmp_path / "a b.png").write_bytes(one.read_bytes())
    assert answers(chat([f"/image {odd}", "What is it?"])) == answers(chat([f"/image {two}", "What is it?"]))
    out = chat([f"/image '{tmp_path}/none'"])
    assert out.returncode == 1 and f"'{tmp_path}/none': No such file".encode() in out.stderr, out.stderr


def test_refused(pictures, tmp_path):
    (tmp_path / "text").write_text("no picture")
    for line, words in ((f"/image {tmp_path}/none", b"No such file"), (f"/image {tmp_path}/text", b"PNG and JPEG"),
                        ("/image", b"")):
        out = chat([line])
        assert out.returncode == 1 and words in out.stderr, out.stderr
    out = call("chat", fixture("models/llama"), stdin=f"/image {pictures[0]}\n")
    assert out.returncode == 1 and b"the model takes only text" in out.stderr
    for part in ({"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
                 {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}):
        (tmp_path / "talk.json").write_text(json.dumps(
            {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "b"}]}]}))
        out = chat(["x"], "--load", tmp_path / "talk.json")
        assert out.returncode == 1 and b"messages[0].content[0]" in out.stderr, out.stderr
