"""--adapter and --use: the reference's logits and tokens, both layouts, names and scales, clear refusals."""
import json
import shutil

import numpy as np
import pytest

from support import call, call_json, fixture, greedy, logits, read_json, read_safetensors

ADAPTERS = ["llama_qv", "llama_all", "gemma3_text_qv", "gemma3_text_all"]
TOLERANCE = 2e-4  # of the fixtures' README


def base(name):
    return fixture(f"models/{read_json(fixture(f'lora/{name}/expected.json'))['base']}")


def prompts(name):
    """[(ids, logits, greedy ids)]"""
    t = read_safetensors(fixture(f"lora/{name}/expected.safetensors"))
    return [(t[f"prompt{i}.ids"], t[f"prompt{i}.logits"], t[f"prompt{i}.greedy"].tolist()) for i in (1, 3)]


def to_mlx(source, folder):
    """The same adapter as mlx_lm writes it."""
    config = read_json(f"{source}/adapter_config.json")
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({
        "fine_tune_type": "lora", "num_layers": -1, "seed": 0, "adapter_path": "adapters", "data": "x",
        "lora_parameters": {"rank": config["r"], "scale": config["lora_alpha"] / config["r"], "dropout": 0.0}}))
    tensors = {}
    for name, value in tensors_of(f"{source}/adapter_model.safetensors").items():
        name = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".lora_a")
        tensors[name.replace(".lora_B.weight", ".lora_b")] = np.ascontiguousarray(value.T)
    rewrite(folder / "adapters.safetensors", tensors)
    return folder


def rewrite(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.asarray(value, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def tensors_of(path):
    return {k: v for k, v in read_safetensors(path).items() if k != "__metadata__"}


def copy(name, folder):
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(f"{fixture(f'lora/{name}')}/{file}", folder / file)
    return folder


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("layout", ["peft", "mlx"])
def test_reference(name, layout, tmp_path):
    adapter = fixture(f"lora/{name}") if layout == "peft" else to_mlx(fixture(f"lora/{name}"), tmp_path / "mlx")
    cases, options = prompts(name), ("--precision", "exact", "--adapter", adapter)
    got = logits(base(name), [c[0] for c in cases], tmp_path, *options)
    for i, (case, rows) in enumerate(zip(cases, got)):
        error = np.abs(rows - case[1]).max()
        assert error <= TOLERANCE, f"prompt {i}: {error}"
    assert greedy(base(name), [c[0] for c in cases], 16, tmp_path, *options) == [c[2] for c in cases]


def test_names_and_scales(tmp_path):
    adapter, model = fixture("lora/llama_qv"), fixture("models/llama")
    ids = [prompts("llama_qv")[0][0]]
    two = ("--adapter", adapter, "--adapter", f"half={adapter}:0.5")

    def of(*options):
        return logits(model, ids, tmp_path, *options)[0].tobytes()

    bare, whole, half = of(), of("--adapter", adapter), of("--adapter", f"{adapter}:0.5")
    assert len({bare, whole, half}) == 3
    assert of(*two) == whole and of(*two, "--use", "llama_qv") == whole  # the first, which is called like its folder
    assert of(*two, "--use", "half") == half and of(*two, "--use", "none") == bare
    assert of("--adapter", f"{adapter}/") == of("--adapter", f"x={adapter}:1e0") == whole
    out = call("logits", model, "--ids", "-", "-o", tmp_path / "o", *two, "--use", "other",
               stdin={"ids": [ids[0].tolist()]})
    assert out.returncode == 1 and b"there is no loaded adapter named other; there are: llama_qv, half" in out.stderr


def test_a_path_with_everything(tmp_path):
    folder = tmp_path / "a=b:2"
    folder.mkdir()
    copy("llama_qv", folder)
    ids = [prompts("llama_qv")[0][0]]
    model = fixture("models/llama")
    plain = logits(model, ids, tmp_path, "--adapter", fixture("lora/llama_qv"))[0]
    got = logits(model, ids, tmp_path, "--adapter", f"n={folder}/")[0]
    assert got.tobytes() == plain.tobytes()


def test_run_and_chat_and_bench():
    adapter, model = fixture("lora/llama_qv"), fixture("models/llama")
    run = ("run", model, "--raw", "-p", "The", "-n", 8, "--ignore-eos", "--json")
    bare, adapted = call_json(*run), call_json(*run, "--adapter", adapter)
    assert adapted["ids"] != bare["ids"]
    assert call_json(*run, "--adapter", adapter, "--use", "none")["ids"] == bare["ids"]
    assert adapted["metrics"]["active_memory_bytes"] > bare["metrics"]["active_memory_bytes"]
    chat = ("chat", model, "--temp", 0, "-n", 8, "--ignore-eos", "--json")
    said = {call(*chat, *more, stdin="Hello\n").stdout
            for more in ((), ("--adapter", adapter), ("--adapter", adapter, "--use", "none"))}
    assert len({json.loads(s.splitlines()[0])["content"] for s in said}) == 2
    bench = call_json("bench", model, "--adapter", adapter, "--prompt-tokens", 8, "--decode-tokens", 2, "--runs", 1,
                      "--json")
    assert bench["results"]


def refused(adapter, *words):
    out = call("run", fixture("models/llama"), "--raw", "-p", "x", "-n", 1, "--adapter", adapter)
    said = out.stderr.decode()
    assert out.returncode == 1 and all(str(w) in said for w in words), said
    assert len(said.splitlines()) == 1


def test_refused(tmp_path):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    refused(tmp_path / "absent", "absent: No such file or directory")
    refused(fixture("models/llama"), "no adapter_config.json")
    refused(f"a b={fixture('lora/llama_qv')}", '"a b" is not a name for an adapter')
    copy("llama_qv", tmp_path)
    file, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"

    def change(tensor, value):
        tensors = tensors_of(f"{fixture('lora/llama_qv')}/adapter_model.safetensors")
        tensors[tensor] = value
        rewrite(file, tensors)

    change(name, np.zeros((63, 4), np.float32))
    refused(tmp_path, f"tensor {name}: shape [63, 4], expected [64, 4]")
    change(name, np.full((64, 4), np.nan, np.float32))
    refused(tmp_path, f"tensor {name}: element 0 is not a number")
    change("base_model.model.model.layers.0.mlp.experts.1.up_proj.lora_A.weight", np.zeros((4, 64), np.float32))
    refused(tmp_path, "experts.1.up_proj.lora_A.weight", "not a linear layer of this model")
    copy("llama_qv", tmp_path)
    config.write_text(json.dumps({**read_json(config), "use_dora": True}))
    refused(tmp_path, "lora_A.weight", "no magnitudes, which DoRA needs")
    config.write_text(json.dumps({**read_json(config), "use_dora": False, "modules_to_save": ["lm_head"]}))
    refused(tmp_path, "adapter_config.json: modules_to_save")
    file.unlink()
    copy("llama_qv", tmp_path)
    file.write_bytes(file.read_bytes()[:5000])
    refused(tmp_path, "adapter_model.safetensors")


def test_usage():
    for text in ("", ":2", "n=", "n=:2"):
        out = call("run", fixture("models/llama"), "-p", "x", "--adapter", text)
        assert out.returncode == 1 and b"--adapter" in out.stderr, (text, out.stderr)
    out = call("run", fixture("models/llama"), "-p", "x", "--adapter", f"{fixture('lora/llama_qv')}:0")
    assert out.returncode == 1 and b"the scale must not be 0" in out.stderr
