"""quern doctor: sound models pass every step, each fault is named in its step with something to do about it."""
import json
import os
import shutil
import struct

import pytest

from support import call, each, fixture, read_json, rewrite_safetensors

STEPS = ["files", "config", "weights", "tokenizer", "template", "devices", "memory", "compute"]


def examine(path, *options, **more):
    """step -> its findings; the exit status must fit them, and each warning and failure must say what to do."""
    out = call("doctor", path, "--json", *options, **more)
    assert out.returncode in (0, 1), out.stderr.decode()
    report = json.loads(out.stdout)
    results = [f["result"] for f in report["findings"]]
    assert report["n_failed"] == results.count("failed") and report["n_warnings"] == results.count("warning")
    assert out.returncode == (1 if report["n_failed"] else 0) and report["ok"] == (report["n_failed"] == 0)
    assert list(dict.fromkeys(f["step"] for f in report["findings"])) == STEPS
    for f in report["findings"]:
        assert f["text"] and (f["result"] in ("ok", "skipped") or f.get("next")), f
    return {s: [f for f in report["findings"] if f["step"] == s] for s in STEPS}, report


def of(findings, result):
    return [f["text"] for f in findings if f["result"] == result]


def only_fault(path, step, *words, result="failed", steps_hurt=(), options=()):
    """The step has one fault with these words; what follows from it is skipped, the rest is in order."""
    steps, report = examine(path, *options)
    faults = of(steps[step], result)
    assert len(faults) == 1, faults
    for word in words:
        assert word in faults[0], faults[0]
    for s in STEPS:
        results = {f["result"] for f in steps[s]}
        if s in steps_hurt:
            assert results == {"skipped"}, (s, steps[s])
        elif s != step:
            assert "failed" not in results and "skipped" not in results, (s, steps[s])
    return report


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(fixture("models/llama"), tmp_path / "model")


def edit_json(model, name, **changes):
    path = os.path.join(model, name)
    value = {**read_json(path), **changes}
    with open(path, "w") as f:
        json.dump({k: v for k, v in value.items() if v is not ...}, f)


def edit_tensors(model, change):
    path = os.path.join(model, "model.safetensors")
    rewrite_safetensors(path, path + ".new", change)
    os.replace(path + ".new", path)


def test_sound_models():
    names = ["models/llama", "models/gemma3_text", "models/llama_rope3_tied", "models/qwen2_window",
             "quant/gguf_models/llama-Q4_K_M.gguf", "quant/gguf_models/qwen3-F16.gguf", "quant/mlx_models/llama-mixed"]
    for name, (steps, report) in zip(names, each(lambda n: examine(fixture(n)), names)):
        assert report["ok"], (name, report)
        back = "the normalised text" if "qwen2" in name else "the same text"  # composes its accents
        assert any(f"decoding them gives {back}" in t for t in of(steps["tokenizer"], "ok")), name
        assert any("are finite" in t for t in of(steps["compute"], "ok")), name
        assert not of(steps["weights"], "warning"), name
        assert report["figures"]["weights_bytes"] > 0 and report["figures"]["kv_bytes_per_1000_tokens"] > 0
        assert report["figures"]["torture_ids"]


def test_the_table(model):
    out = call("doctor", model)
    lines = out.stdout.decode().split("\n")
    assert out.returncode == 0 and lines[-2] == "This model works: 0 failed, 0 warnings"
    assert any(line.startswith("config     ok       family llama, by model_type") for line in lines)
    assert all(c == "\n" or c.isprintable() or c == "\ufffd" for c in out.stdout.decode())
    os.remove(model / "config.json")
    out = call("doctor", model)
    assert out.returncode == 1 and b"does not work as it is: 1 failed" in out.stdout and b"\n    " in out.stdout


def test_ids_are_those_of_tokenize(model):
    _, report = examine(model, "--no-compute")
    figures = report["figures"]
    ids = json.loads(call("tokenize", model, "--json", stdin=figures["torture_text"]).stdout)["ids"]
    assert figures["torture_ids"] == ids


def test_without_computing(model):
    steps, _ = examine(model, "--no-compute")
    assert steps["compute"] == [{"step": "compute", "result": "skipped", "text": "skipped: --no-compute"}]
    last = call("doctor", model, "--no-compute").stdout.decode().split("\n")[-2]
    assert last == "Nothing wrong was found, but nothing was computed: 0 failed, 0 warnings"


def test_number_of_tokens(model):
    steps, report = examine(model, "-n", "3")
    assert "(3 tokens" in of(steps["compute"], "ok")[-1] and "generated_text" in report["figures"]


def test_no_model(tmp_path):
    for path, word in ((tmp_path, "no model in this folder"), (tmp_path / "nowhere", "nowhere")):
        steps, _ = examine(path)
        assert word in of(steps["files"], "failed")[0]
        assert all(steps[s][0]["result"] == "skipped" for s in STEPS[1:])


def test_advice_fits_what_was_named(model, tmp_path):
    (tmp_path / "README.md").write_text("words")
    for path, options, words in ((tmp_path / "README.md", (), "name a model's folder, or a .safetensors or .gguf"),
                                 (model / "config.json", (), "name a model's folder, or a .safetensors or .gguf"),
                                 (model, ("--file", "../x"), "a file in the folder MODEL")):
        steps, _ = examine(path, *options)
        assert words in steps["files"][0]["next"], steps["files"]
        assert "name one by" not in steps["files"][0]["next"]


def test_truncated_weights(model):
    path = model / "model.safetensors"
    os.truncate(path, os.path.getsize(path) - 100)
    only_fault(model, "files", "model.safetensors", "truncated",
               steps_hurt=("config", "weights", "memory", "compute"))


def test_truncated_shard(tmp_path):
    model = shutil.copytree(fixture("models/llama_rope3_tied"), tmp_path / "m")
    os.truncate(model / "model-00002-of-00002.safetensors", 1000)
    only_fault(model, "files", "model-00002-of-00002.safetensors",
               steps_hurt=("config", "weights", "memory", "compute"))
    os.remove(model / "model-00002-of-00002.safetensors")
    only_fault(model, "files", "model-00002-of-00002.safetensors",
               steps_hurt=("config", "weights", "memory", "compute"))


def test_several_models_in_one_folder(model):
    shutil.copy(fixture("quant/gguf_models/llama-Q8_0.gguf"), model / "other.gguf")
    steps, report = examine(model)
    fault = [f for f in steps["files"] if f["result"] == "failed"][0]
    assert "other.gguf" in fault["text"] and "--file" in fault["next"]
    assert examine(model, "--file", "model.safetensors")[1]["ok"]


def test_no_config(model):
    os.remove(model / "config.json")
    only_fault(model, "config", "config.json is missing", steps_hurt=("weights", "memory", "compute"))


def test_unknown_family(model):
    edit_json(model, "config.json", model_type="perceptron", architectures=["Perceptron"])
    only_fault(model, "config", "perceptron", "not supported", steps_hurt=("weights", "memory", "compute"))


def test_guessed_family(model):
    model = shutil.copytree(fixture("models/qwen3_no_model_type"), model / "guessed")
    edit_json(model, "config.json", model_type=..., architectures=...)
    report = only_fault(model, "config", "name no architecture", "qwen3", result="warning")
    assert "model_type" in [f for f in report["findings"] if f["result"] == "warning"][0]["next"]
    steps, report = examine(model, "--gpu-layers", 1, "-n", 1)
    assert report["ok"] and of(steps["compute"], "warning") == ["gpu_layers is ignored: the device computes all layers"]


def test_guessed_keys(model):
    config = read_json(model / "config.json")
    edit_json(model, "config.json", head_dim=..., num_key_value_heads=config["num_key_value_heads"])
    steps, _ = examine(model, "--no-compute")
    guessed = [t for t in of(steps["config"], "ok") if "missing in config.json" in t][0]
    assert "head_dim 16" in guessed and "num_key_value_heads" not in guessed


def test_missing_tensor(model):
    gone = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(model, lambda t: t.pop(gone))
    only_fault(model, "weights", gone, "missing", steps_hurt=("memory", "compute"))


def test_wrong_shape(model):
    def change(tensors):
        shape = tensors["model.layers.0.mlp.down_proj.weight"][1]
        shape[0], shape[1] = shape[1], shape[0]
    edit_tensors(model, change)
    only_fault(model, "weights", "model.layers.0.mlp.down_proj.weight", "shape", "expected",
               steps_hurt=("memory", "compute"))


def test_unused_tensors(model):
    edit_tensors(model, lambda t: t.update({"vision.patch": ["F32", [4], b"\0" * 16]}))
    only_fault(model, "weights", "unused tensors: 1 (16 B), vision.patch", result="warning")


def test_type_that_is_not_for_weights(model):
    def change(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"][0] = "I16"
    edit_tensors(model, change)
    only_fault(model, "weights", "q_proj", "I16", steps_hurt=("memory", "compute"))


@pytest.mark.parametrize("bits, what", [(0x7fc0, "not a number"), (0xff80, "infinite")])
def test_norms_that_are_no_numbers(model, bits, what):
    def change(tensors):
        t = tensors["model.layers.2.input_layernorm.weight"]
        t[2] = t[2][:6] + struct.pack("<H", bits) + t[2][8:]
    edit_tensors(model, change)
    only_fault(model, "weights", "model.layers.2.input_layernorm.weight", "element 3", what,
               steps_hurt=("memory", "compute"))


def test_matrices_that_are_no_numbers(model):
    """Matrices are not read one by one: the logits show it."""
    def change(tensors):
        t = tensors["model.layers.0.mlp.up_proj.weight"]
        t[2] = struct.pack("<H", 0x7fc0) + t[2][2:]
    edit_tensors(model, change)
    only_fault(model, "compute", "logits of position", "not finite; the")


def test_matrices_of_zeros(model):
    """As a hole in a file leaves them; one number is enough not to be one."""
    names = ["model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"]

    def change(tensors):
        for name in names:
            tensors[name][2] = bytes(len(tensors[name][2]))
    edit_tensors(model, lambda t: (change(t), t[names[1]].__setitem__(2, t[names[1]][2][:-1] + b"\x3f")))
    only_fault(model, "weights", f"1 matrix is only zeros, {names[0]}", result="warning")
    edit_tensors(model, change)
    only_fault(model, "weights", "2 matrices are only zeros", " and others", result="warning",
               options=("--memory-limit", "1G"))


def test_no_tokenizer(model):
    os.remove(model / "tokenizer.json")
    report = only_fault(model, "tokenizer", "no tokenizer.json", steps_hurt=("template", "compute"))
    assert "download tokenizer.json" in [f for f in report["findings"] if f["result"] == "failed"][0]["next"]


def test_damaged_tokenizer(model):
    (model / "tokenizer.json").write_text('{"model": {"type": "BPE"')
    only_fault(model, "tokenizer", "tokenizer.json", steps_hurt=("template", "compute"))


def test_vocabulary_of_another_model(model):
    tokenizer = read_json(model / "tokenizer.json")
    n = max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])]) + 1
    for i in range(5):
        tokenizer["model"]["vocab"][f"stranger{i}"] = n + i
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    steps, _ = examine(model)
    assert f"{n + 5} tokens, but the embedding has {n} rows" in of(steps["tokenizer"], "failed")[0]


def test_special_tokens_beyond_the_embedding(model):
    tokenizer = read_json(model / "tokenizer.json")
    extra = dict(tokenizer["added_tokens"][-1], content="<|extra|>", id=tokenizer["added_tokens"][-1]["id"] + 50)
    tokenizer["added_tokens"].append(extra)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    only_fault(model, "tokenizer", "embedding: 1", result="warning")


def test_named_token_that_is_none(model):
    edit_json(model, "tokenizer_config.json", pad_token="<|nowhere|>")
    only_fault(model, "tokenizer", "pad_token", "<|nowhere|>", result="warning")


def test_no_end_token(model):
    os.remove(model / "generation_config.json")
    edit_json(model, "config.json", eos_token_id=...)
    edit_json(model, "tokenizer_config.json", eos_token=..., chat_template=..., added_tokens_decoder=...)
    tokenizer = (model / "tokenizer.json").read_text()
    for token in ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|start_header_id|>"):
        tokenizer = tokenizer.replace(token, token[:-2] + "z|>")
    (model / "tokenizer.json").write_text(tokenizer)
    steps, _ = examine(model, "--no-compute")
    assert "no token is known to end an answer" in of(steps["tokenizer"], "warning")
    assert "there is no chat template" in of(steps["template"], "warning")


def test_template_with_an_error(model):
    edit_json(model, "tokenizer_config.json", chat_template="{% for m in messages %}{{ m.content }}")
    only_fault(model, "template", "chat_template", "line 1")


def test_template_that_refuses(model):
    edit_json(model, "tokenizer_config.json", chat_template="{{ raise_exception('not today') }}")
    only_fault(model, "template", "not today")


def test_template_that_says_nothing(model):
    edit_json(model, "tokenizer_config.json", chat_template="always the same")
    only_fault(model, "template", "does not appear")


def test_what_templates_take(model):
    edit_json(model, "tokenizer_config.json", chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}"
              "{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}{% endfor %}")
    steps, report = examine(model, "--no-compute")
    texts = of(steps["template"], "ok")
    assert report["ok"] and "a system message: refused by the template: no system here" in texts
    assert "tools: ignored by the template" in texts and "a tool's result: understood" in texts


def test_bos_twice_and_missing(model):
    body = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for before, word in (("{{ bos_token }}{{ bos_token }}", "BOS twice"), ("", "does not begin with it")):
        edit_json(model, "tokenizer_config.json", chat_template=before + body)
        only_fault(model, "template", word, result="warning", steps_hurt=("compute",), options=("--no-compute",))


def test_template_from_outside(model, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("{{ bos_token }}{{ messages[-1].content }}")
    steps, report = examine(model, "--template", path, "--no-compute")
    assert report["ok"] and of(steps["template"], "ok")[0] == "the one given by --template"


def test_built_in_template(model):
    edit_json(model, "tokenizer_config.json", chat_template=...)
    steps, _ = examine(model, "--no-compute")
    assert "built-in" in of(steps["template"], "ok")[0]


def test_memory_that_does_not_suffice(model):
    only_fault(model, "memory", "only 200 KiB are available", steps_hurt=("compute",),
               options=("--memory-limit", "200K"))


def test_options_that_cannot_be(model):
    report = only_fault(model, "compute", "adapter", options=("--adapter", "somewhere"))
    assert "leave out the option" in [f for f in report["findings"] if f["result"] == "failed"][0]["next"]


def test_hostile_texts(model):
    """Names from files are shown without their control characters."""
    edit_json(model, "tokenizer_config.json", pad_token="\x1b]0;x\x07\u202e",
              chat_template="{{ bos_token }}{{ messages[-1].content }}\x1b[2J\x9b2J\u2066")
    out = call("doctor", model, "--no-compute")
    shown = out.stdout.decode()
    assert out.returncode == 0 and all(c == "\n" or c.isprintable() for c in shown) and "\\x1b[2J" in shown
    assert "\u202e" not in shown and "\u2066" not in shown


def test_unknown_set(model):
    out = call("doctor", model, env={"QUERN_CPU": "abacus"})
    assert out.returncode == 1 and b"abacus" in out.stdout
