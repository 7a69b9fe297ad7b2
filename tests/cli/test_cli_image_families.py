"""Pictures of further families: logits and greedy ids of the reference's prompts, and the same made by a chat."""
import numpy as np
import pytest

from picture_help import png
from support import call_json, fixture, read_json, read_safetensors

EXACT = ["--precision", "exact"]
KINDS = ["gemma3_vision", "gemma4_unified", "gemma4_vision", "glm5_next", "internvl", "lfm2_vl", "llama4", "mistral3",
         "muse_glimmer", "qwen2_5_vl", "qwen3_5_moe_vision", "qwen3_5_vision", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp",
         "smolvlm"]
CORRECTED = ["llama4"]  # tools/picture_golden.py says why
# Where the picture's marks begin and end in the reference's prompt, and what a template writes in their place.
MARKS = {"internvl": ("<img>", "</img>", "<IMG_CONTEXT>"), "lfm2_vl": ("<|image_start|>", "<|image_end|>", "<image>"),
         "llama4": ("<|image_start|>", "<|image_end|>", "<|image|>"), "mistral3": ("[IMG]", "[IMG_END]", "[IMG]"),
         "muse_glimmer": ("<|image_start|>", "<|image_end|>", "<|patch|>"),
         "smolvlm": ("<fake_token_around_image>", "<fake_token_around_image>", "<image>")}


@pytest.fixture
def golden(request, tmp_path):
    tensors = read_safetensors(fixture(f"families2/{request.param}/expected.safetensors"))
    if request.param in CORRECTED:
        tensors.update(read_safetensors(fixture(f"images/{request.param}.safetensors")))
    picture = tmp_path / "picture.png"
    picture.write_bytes(png(tensors["image.rgb"]))
    return request.param, tensors, str(picture)


@pytest.mark.parametrize("golden", KINDS, indirect=True)
def test_ids(golden, tmp_path):
    kind, t, picture = golden
    model, out = fixture(f"families2/{kind}"), str(tmp_path / "logits.safetensors")
    ids = {"ids": [t["image.ids"].tolist()]}
    call_json("logits", model, "--ids", "-", "--image", picture, "-o", out, "--json", *EXACT, stdin=ids)
    got = read_safetensors(out)["logits.0"][t["image.positions"]]
    assert np.abs(got - t["image.logits"]).max() <= (2e-3 if "qwen3_5" in kind else 1e-3 if "gemma4" in kind else 2e-4)
    got = call_json("run", model, "--ids", "-", "--image", picture, "--max-tokens", "16", "--ignore-eos", *EXACT,
                    stdin=ids)
    assert got["ids"] == [t["image.greedy"].tolist()]


@pytest.mark.parametrize("golden", MARKS, indirect=True)
def test_chat(golden, tmp_path):
    """A template that writes the mark alone: the processor's text takes its place."""
    kind, t, picture = golden
    begin, end, mark = MARKS[kind]
    text = read_json(fixture(f"families2/{kind}/expected.json"))["image"]["text"]
    before, after = text[:text.index(begin)], text[text.rindex(end) + len(end):]
    quote = lambda s: "{{ '" + s.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "' }}"
    template = tmp_path / "template.jinja"
    template.write_text(quote(before) + "{% for part in messages[0].content if part.type == 'image' %}" + quote(mark)
                        + "{% endfor %}" + quote(after))
    got = call_json("run", fixture(f"families2/{kind}"), "--template", template, "--image", picture, "-p", mark,
                    "--json", "--max-tokens", "16", "--ignore-eos", *EXACT)
    assert got["n_prompt_tokens"] == len(t["image.ids"]) and got["ids"] == [t["image.greedy"].tolist()]
