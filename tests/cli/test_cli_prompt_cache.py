"""run --prompt-cache FILE, and what /save and /load of a chat keep beside the conversation."""
import json
import os
import stat

import pytest
from support import call, fixture

MODELS = ["models/llama", "models/gemma3_text", "models/qwen3_5"]
PROMPT = ("The old mill by the river had not turned for many years when the children found it. " * 3).strip()


def run(model, *args, prompt=PROMPT):
    done = call("run", fixture(model), "-t", 1, "--raw", "-n", 8, "--ignore-eos", "--json", "-p", prompt, *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.decode()


@pytest.mark.parametrize("model", MODELS)
def test_the_same_answer(model, tmp_path):
    path = tmp_path / "cache"
    path.touch(0o600)
    longer = PROMPT + " They looked at each other"
    expected, _ = run(model, prompt=longer)
    first, said = run(model, "--prompt-cache", path)
    assert said == "" and path.stat().st_size > 1000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["cache"]
    second, said = run(model, "--prompt-cache", path, prompt=longer)
    assert said == "" and second["ids"] == expected["ids"] and second["text"] == expected["text"]
    assert second["n_cached_tokens"] >= first["n_prompt_tokens"] - 1 > 0
    again, said = run(model, "--prompt-cache", path)
    assert said == "" and again["ids"] == first["ids"]


def test_another_model_replaces_it(tmp_path):
    path = tmp_path / "cache"
    run(MODELS[0], "--prompt-cache", path)
    before = path.read_bytes()
    expected, _ = run(MODELS[1])
    got, said = run(MODELS[1], "--prompt-cache", path)
    assert "another model" in said and "is not used" in said and got["ids"] == expected["ids"]
    assert path.read_bytes() != before
    assert run(MODELS[1], "--prompt-cache", path)[1] == ""
    assert "precision" in run(MODELS[1], "--prompt-cache", path, "--precision", "fast")[1]


def test_other_files_stay(tmp_path):
    expected, _ = run(MODELS[0])
    path = tmp_path / "cache"
    run(MODELS[0], "--prompt-cache", path)
    whole = path.read_bytes()
    weights = next(f for f in sorted(os.listdir(fixture(MODELS[0]))) if f.endswith(".safetensors"))
    with open(os.path.join(fixture(MODELS[0]), weights), "rb") as f:
        model = f.read()
    for content in (b"a text of mine\n", whole[:-7], whole[:200], whole[:-9] + b"x" + whole[-8:], model):
        path.write_bytes(content)
        got, said = run(MODELS[0], "--prompt-cache", path)
        assert "left unchanged" in said and got["ids"] == expected["ids"]
        assert path.read_bytes() == content
    assert "directory" in run(MODELS[0], "--prompt-cache", tmp_path)[1]
    got, said = run(MODELS[0], "--prompt-cache", tmp_path / "absent" / "x")
    assert "is not saved" in said and got["ids"] == expected["ids"]


def chat(*lines):
    done = call("chat", fixture("models/qwen3"), "-t", 1, "--json", "--temp", 0, "-n", 6, "--ignore-eos",
                stdin="".join(line + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def contents(answers):
    return [a["content"] for a in answers if "content" in a]


def cached(answers):
    return [a["n_cached_tokens"] for a in answers if "n_cached_tokens" in a]


def test_chat(tmp_path):
    path = tmp_path / "talk.json"
    one = contents(chat("hello there", "and more", "what now")[0])
    chat("hello there", "and more", f"/save {path}")
    assert sorted(os.listdir(tmp_path)) == ["talk.json", "talk.json.state"]
    state = tmp_path / "talk.json.state"
    out, said = chat(f"/load {path}", "what now")
    assert contents(out)[-1] == one[-1] and cached(out)[-1] > 0
    state.write_bytes(state.read_bytes()[:-5])
    out, said = chat(f"/load {path}", "what now")
    assert "talk.json.state" in said and contents(out)[-1] == one[-1] and cached(out)[-1] == 0
    state.unlink()
    out, said = chat(f"/load {path}", "what now")
    assert "state" not in said and contents(out)[-1] == one[-1]
