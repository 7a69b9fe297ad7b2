"""Situations from people's reports (../shared/cases/files, or $QUERN_CASES), as their READMEs say what is right."""
import json
import os
import shutil

import pytest

from support import call, leave_out

CASES = os.environ.get("QUERN_CASES", "../shared/cases/files")


@pytest.fixture
def case(request, tmp_path):
    """A copy of the folder that the test is named after."""
    name = request.node.name[len("test_"):].split("[")[0].replace("_", "-")
    path = os.path.join(CASES, name)
    if not os.path.isdir(path):
        leave_out(f"{path} is not in this clone")
    shutil.copytree(path, tmp_path / "case", copy_function=shutil.copyfile)
    return tmp_path / "case"


def ids(model):
    out = call("run", model, "-p", "Hi", "-n", 4, "--json")
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)["ids"]


def test_config_infinity_literal(case):
    assert ids(case)[0]


def test_generation_config_repetition_penalty(case):
    out = call("chat", case / "model", stdin="/show parameters").stdout.decode()
    assert out.startswith("temp 0.7, top-p 0.8, top-k 20, min-p 0.02, repeat-penalty 1.05,")


def test_gguf_split_files(case):
    whole = ids(case / "whole.gguf")
    for part in ("split", "split/m-00001-of-00003.gguf", "split/m-00003-of-00003.gguf"):
        assert ids(case / part) == whole
    assert b"not usable" not in call("models", case / "split").stdout
    os.remove(case / "split/m-00002-of-00003.gguf")
    assert b"missing beside it: m-00002-of-00003.gguf" in call("run", case / "split", "-p", "Hi").stderr


def test_git_lfs_pointer(case):
    for model in ("model", "model.gguf"):
        out = call("run", case / model, "-p", "Hi")
        assert out.returncode == 1 and b"Git LFS pointer" in out.stderr and b"git lfs pull" in out.stderr
    assert b"Git LFS pointer" in call("doctor", case / "model", "--no-compute").stdout


def test_template_additional_folder(case):
    out = call("template", case, "--json", stdin=(case / "request.json").read_bytes())
    assert json.loads(out.stdout)["text"] == "TOOLS 1 hi"


def test_template_renders_nothing(case):
    for out in (call("run", case / "model", "-p", "Hi", "-n", 4), call("chat", case / "model", stdin="Hi\n")):
        assert out.returncode == 1
        for words in (b"chat template", b"--template FILE", b"--raw"):
            assert words in out.stderr


def test_tokenizer_config_only_added_tokens(case):
    out = call("tokenize", case, "--special", "--json", "-p", "a <tool>x</tool>")
    assert json.loads(out.stdout) == {"ids": [64, 220, 508, 87, 509]}


def show(case, data="data.jsonl"):
    out = call("train", case / "model", case / data, "-o", case / "out", "--show-batch")
    assert out.returncode == 0, out.stderr
    return out.stdout.decode(), out.stderr.decode()


def test_train_lost_tool_call_learns_empty_answer(case):
    text, said = show(case)
    assert "\u27e6<|eot_id|>\u27e7" not in text and "\u27e6There are 12 kg.<|eot_id|>\u27e7" in text
    assert "does not count" in said and "tool calls" in said


def test_train_message_weight_zero(case):
    text, _ = show(case)
    assert "The lower one.<|eot_id|>" in text and "\u27e6The lower one." not in text
    assert "\u27e6No: the upper one.<|eot_id|>\u27e7" in text


def test_train_tools_not_shown_name_in_text(case):
    for data in ("told.jsonl", "silent.jsonl"):
        assert "1 line has tools that the chat template does not show" in show(case, data)[1]
