"""Questions about a picture that was there before: their answers are those of requests without the prefix tree, and
usage says that the picture's tokens were not computed again. For every kind that sees."""
import base64
import json

import numpy as np
import pytest

from picture_help import png
from server_help import Server
from support import fixture, read_json, read_safetensors

KINDS = ["gemma3_vision", "gemma4_unified", "gemma4_vision", "internvl", "lfm2_vl", "llama4", "mistral3",
         "muse_glimmer", "qwen2_vl", "qwen2_5_vl", "qwen3_5_moe_vision", "qwen3_5_vision", "qwen3_vl", "qwen3_vl_moe",
         "qwen4_exp", "smolvlm"]
# What a template writes where a picture belongs, for kinds whose processor writes more than image tokens.
MARKS = {"internvl": "<IMG_CONTEXT>", "lfm2_vl": "<image>", "llama4": "<|image|>", "mistral3": "[IMG]",
         "muse_glimmer": "<|patch|>", "smolvlm": "<image>", "gemma3_vision": "<start_of_image>"}
TEMPLATE = """{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}\
{% for part in m.content %}{% if part.type == 'image' %}MARK{% else %}{{ part.text }}{% endif %}{% endfor %}\
{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def folder_of(kind):
    return fixture(f"models/{kind}" if kind == "qwen2_vl" else f"families2/{kind}")


def mark_of(kind):
    if kind in MARKS:
        return MARKS[kind]
    config, tokens = read_json(f"{folder_of(kind)}/config.json"), read_json(f"{folder_of(kind)}/tokenizer.json")
    wanted = config.get("image_token_id", config.get("image_token_index"))
    return next(t["content"] for t in tokens["added_tokens"] if t["id"] == wanted)


def picture(rgb):
    url = "data:image/png;base64," + base64.b64encode(png(rgb)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts):
    return {"role": "user", "content": [p if isinstance(p, dict) else {"type": "text", "text": p} for p in parts]}


def ask(server, *messages, **fields):
    body = {"messages": list(messages), "max_tokens": 6, "temperature": 0, "logprobs": True, "ignore_eos": True,
            **fields}
    status, _, got = server.post("/v1/chat/completions", body)
    assert status == 200, got
    usage = got["usage"]
    return (json.dumps(got["choices"][0]["logprobs"]), usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("kind", KINDS)
def test_questions(kind, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE.replace("MARK", mark_of(kind)))
    rgb = read_safetensors(f"{folder_of(kind)}/expected.safetensors")["image.rgb"]
    one, two = picture(rgb), picture(np.random.RandomState(7).randint(0, 256, rgb.shape).astype(np.uint8))
    answer = {"role": "assistant", "content": "a b"}
    s = Server(folder_of(kind), "--template", str(template))

    def check(*messages, **fields):
        got, want = ask(s, *messages, **fields), ask(s, *messages, cache_prompt=False)
        assert got[:2] == want[:2] and want[2] == 0
        return got[1:]

    try:
        n_text = check(user("What is it?"))[0]
        n, before = check(user(one, "What is it?"))  # what is cached is the text in front of the picture
        first = n - n_text  # tokens of the picture and of the marks around it
        assert before < n_text
        assert check(user(one, "What is it?")) == (n, n - 1)
        assert check(user(one, "Which colours has the thing?"))[1] >= first
        assert check(user(two, "What is it?"))[1] <= before + 3  # and of marks
        # The next turn, with a further picture; it goes on from where the question ends.
        longer, cached = check(user(one, "What is it?"), answer, user(two, "And this?"))
        assert longer > n + first and cached >= n - 8
        assert check(user(one, "What is it?"), answer, user(two, "And the other one?"))[1] >= longer - 30
        assert check(user(one, "What is it?"), answer, user(one, "And this?"))[1] < longer - first
        assert check(user(two, "What is it?"), answer, user(one, "And this?"))[1] >= n - 8
        # Others do not share it.
        assert check(user(one, "What is it?"), cache_salt="x")[1] == 0
        assert check(user(one, "What is it?"), cache_salt="x")[1] == n - 1
    finally:
        assert s.stop() == 0


def test_keys(tmp_path):
    """The pictures of one key are not those of another."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE.replace("MARK", mark_of("qwen2_vl")))
    rgb = read_safetensors(f"{folder_of('qwen2_vl')}/expected.safetensors")["image.rgb"]
    body = {"messages": [user(picture(rgb), "What is it?")], "max_tokens": 2}
    s = Server(folder_of("qwen2_vl"), "--template", str(template), "--api-key", "a", "--api-key", "b")
    try:
        for key, known in (("a", False), ("a", True), ("b", False), ("b", True)):
            got = s.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})[2]
            assert (got["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == known, key
    finally:
        assert s.stop() == 0
