"""Pictures over HTTP: every dialect gives what `quern run --image` gives; what is no picture is refused by name."""
import base64
import struct

import pytest

from picture_help import MODEL, png, tensors
from server_help import Server
from support import call_json, fixture, read_json

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEXT = "Describe the image."


@pytest.fixture(scope="module")
def golden():
    return tensors()


@pytest.fixture(scope="module")
def server(golden):
    s = Server(fixture(MODEL), "--precision", "exact")
    yield s
    assert s.stop() == 0


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def text_of(path, answer):
    return {CHAT: lambda a: a["choices"][0]["message"]["content"], MESSAGES: lambda a: a["content"][0]["text"],
            RESPONSES: lambda a: a["output"][-1]["content"][0]["text"],
            "/api/chat": lambda a: a["message"]["content"], "/api/generate": lambda a: a["response"]}[path](answer)


def tokens_of(path, answer):
    return {CHAT: lambda a: a["usage"]["prompt_tokens"],
            MESSAGES: lambda a: a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"],
            RESPONSES: lambda a: a["usage"]["input_tokens"], "/api/chat": lambda a: a["prompt_eval_count"],
            "/api/generate": lambda a: a["prompt_eval_count"]}[path](answer)


def bodies(pictures, text=TEXT):
    """The same question in each dialect: pictures first."""
    raw = [base64.b64encode(p).decode() for p in pictures]
    urls = [data_url(p) for p in pictures]
    greedy = {"temperature": 0}
    return {
        CHAT: {**greedy, "max_tokens": 8, "messages": [{"role": "user", "content": [
            *({"type": "image_url", "image_url": {"url": u, "detail": "auto"}} for u in urls),
            {"type": "text", "text": text}]}]},
        MESSAGES: {**greedy, "max_tokens": 8, "messages": [{"role": "user", "content": [
            *({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": r}} for r in raw),
            {"type": "text", "text": text}]}]},
        RESPONSES: {**greedy, "max_output_tokens": 16, "input": [{"role": "user", "content": [
            *({"type": "input_image", "image_url": u, "detail": "auto"} for u in urls),
            {"type": "input_text", "text": text}]}]},
        "/api/chat": {"model": "m", "stream": False, "options": {**greedy, "num_predict": 8},
                      "messages": [{"role": "user", "content": text, "images": raw}]},
        "/api/generate": {"model": "m", "stream": False, "options": {**greedy, "num_predict": 8},
                          "prompt": text, "images": raw},
    }


def test_every_dialect(server, golden, tmp_path):
    """Their answers are the command line's, for one picture and for two."""
    asked = read_json(fixture(f"{MODEL}/generation_config.json"))
    penalty = ["--repeat-penalty", str(asked.get("repetition_penalty", 1))]
    one, two = png(golden["image.rgb"]), png(golden["image.rgb"][::-1, ::-1])
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for path, data in zip(paths, (one, two)):
        path.write_bytes(data)
    for files, pictures in ((paths[:1], [one]), (paths, [one, two]), (paths[::-1], [two, one])):
        images = [a for f in files for a in ("--image", str(f))]
        want = call_json("run", fixture(MODEL), *images, "-p", TEXT, "--json", "--max-tokens", "16",
                         "--precision", "exact", *penalty)
        for path, body in bodies(pictures).items():
            status, _, got = server.post(path, body)
            assert status == 200, got
            text = text_of(path, got)
            assert text and want["text"][0].startswith(text.strip("\ufffd")), (path, text, want["text"][0])
            assert tokens_of(path, got) == want["n_prompt_tokens"], path


def test_places(server, golden):
    """A picture stands where its part does; a later message may have one too, and a stream gives the same."""
    url = {"type": "image_url", "image_url": data_url(png(golden["image.rgb"]))}
    text = {"type": "text", "text": TEXT}
    answers = set()
    for messages in ([{"role": "user", "content": [url, text]}], [{"role": "user", "content": [text, url]}],
                     [{"role": "user", "content": [url, text]}, {"role": "assistant", "content": "a"},
                      {"role": "user", "content": [text]}],
                     [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                      {"role": "assistant", "content": "b"}, {"role": "user", "content": [url, url, text]}]):
        body = {"messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True}
        status, _, got = server.post(CHAT, body)
        assert status == 200, got
        answers.add(str(got["choices"][0]["logprobs"]))
        again = server.post(CHAT, body)[2]
        assert again["choices"] == got["choices"]
    assert len(answers) == 4


def test_counted(server, golden):
    picture = png(golden["image.rgb"])
    for path, count, name in ((MESSAGES, "/v1/messages/count_tokens", "input_tokens"),
                              (RESPONSES, "/v1/responses/input_tokens", "input_tokens")):
        body = bodies([picture])[path]
        used = tokens_of(path, server.post(path, body)[2])
        for key in ("max_tokens", "max_output_tokens", "temperature"):
            body.pop(key, None)
        status, _, got = server.post(count, body)
        assert status == 200 and got[name] == used, got


@pytest.mark.parametrize("url,words", [
    ("http://localhost/a.png", "the server fetches nothing"),
    ("file:///etc/passwd", "the server fetches nothing"),
    ("data:image/png,abc", "must have ;base64,"),
    ("data:image/png;base64", "must have ;base64,"),
    ("data:image/png;base64,!!", "no base64"),
    ("data:image/png;base64,", "image"),
    (data_url(b"GIF89a" + bytes(40)), "GIF"),
    (7, "must be a data URL")])
def test_refused(server, url, words):
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    status, _, got = server.post(CHAT, body)
    assert status == 400 and words in got["error"]["message"], got
    assert got["error"]["param"] == "messages[0].content[0].image_url"
    body = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}
    status, _, got = server.post(RESPONSES, body)
    assert status == 400 and words in got["error"]["message"], got


def test_limits(server, golden):
    """Sizes are looked at before a picture is decoded; the server goes on."""
    data = png(golden["image.rgb"])
    bomb = data[:16] + struct.pack(">II", 50000, 50000) + data[24:]
    for pictures, words in (([bomb], "pixels"), ([data[:-20]], "PNG"), ([data] * 65, "at most 64 images")):
        for path, body in bodies(pictures).items():
            status, _, got = server.post(path, body)
            assert status == 400 and words in str(got), (path, got)
    assert server.metrics()["quern_sequences_active"] == 0
    assert server.post(CHAT, bodies([data])[CHAT])[0] == 200


def test_roles(server, golden):
    """Templates show pictures of users and of tools; elsewhere they are refused by name."""
    url = {"type": "image_url", "image_url": {"url": data_url(png(golden["image.rgb"]))}}
    for role in ("system", "assistant"):
        status, _, got = server.post(CHAT, {"messages": [{"role": role, "content": [url]},
                                                         {"role": "user", "content": "a"}]})
        assert status == 400 and got["error"]["param"] == "messages[0].content[0].type", got


def test_text_models(golden):
    picture = png(golden["image.rgb"])
    s = Server(fixture("models/qwen3"))
    try:
        for path, body in bodies([picture]).items():
            status, _, got = s.post(path, body)
            assert status == 400 and "the model takes only text" in str(got), got
    finally:
        assert s.stop() == 0
