"""--rope-* and --yarn-*: the bits of an edited config.json or of edited metadata; refusals; kept states."""
import json
import math
import os
import shutil
import struct

import numpy as np
import pytest
from support import call, fixture, logits

ROWS = [[3 + (7 * i + i * i * k) % 200 for i in range(40 + 50 * k)] for k in (0, 1, 2)]
YARN = {"rope_type": "yarn", "factor": 4.0}
YARN_ARGS = ["--rope-scaling", "yarn", "--rope-scale", 4]


def bits(arrays):
    return [np.asarray(a, np.float32).view(np.uint32) for a in arrays]


def same(a, b):
    return all((x == y).all() for x, y in zip(bits(a), bits(b), strict=True))


def edited(name, folder, change):
    """A copy of a fixture whose config.json was changed."""
    source = fixture(name)
    target = folder / os.path.basename(name)
    shutil.copytree(source, target)
    path = target / "config.json"
    config = json.loads(path.read_text())
    change(config)
    os.chmod(target, 0o700)
    os.chmod(path, 0o600)
    path.write_text(json.dumps(config))
    return target


def scaling(**more):
    return lambda config: config.update(rope_scaling={**YARN, **more})


CASES = {
    "theta": ("models/llama", ["--rope-theta", 20000], lambda c: c.update(rope_theta=20000.0)),
    "freq-base": ("models/llama", ["--rope-freq-base=20000"], lambda c: c.update(rope_theta=20000.0)),
    "linear": ("models/llama", ["--rope-scaling", "linear", "--rope-scale", 2],
               lambda c: c.update(rope_scaling={"rope_type": "linear", "factor": 2.0})),
    "freq-scale": ("models/qwen3", ["--rope-freq-scale", 0.25],
                   lambda c: c.update(rope_scaling={"rope_type": "linear", "factor": 4.0})),
    "yarn": ("models/llama", YARN_ARGS, scaling()),
    "yarn-original": ("models/qwen3", [*YARN_ARGS, "--yarn-orig-ctx", 100],
                      scaling(original_max_position_embeddings=100)),
    "yarn-attention": ("models/llama", [*YARN_ARGS, "--yarn-attn-factor", 1.25],
                       scaling(attention_factor=1.25 * (0.1 * math.log(4) + 1))),
    "yarn-beta": ("models/llama", [*YARN_ARGS, "--yarn-beta-slow", 2, "--yarn-beta-fast", 20],
                  scaling(beta_slow=2, beta_fast=20)),
    "full-layers": ("models/gemma3_text", ["--rope-theta", 30000, "--rope-scale", 8],
                    lambda c: c.update(rope_theta=30000.0, rope_scaling={"rope_type": "linear", "factor": 8.0})),
    "parameters": ("models/qwen3_5", [*YARN_ARGS, "--rope-theta", 50000],
                   lambda c: c["rope_parameters"].update(YARN, rope_theta=50000.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_an_edited_config(name, tmp_path):
    model, options, change = CASES[name]
    got = logits(fixture(model), ROWS, tmp_path, *options)
    want = logits(edited(model, tmp_path, change), ROWS, tmp_path)
    assert same(got, want)
    assert not same(got, logits(fixture(model), ROWS, tmp_path))


def info(model, *options):
    done = call("run", model, "-t", 1, "--raw", "-n", 1, "--stats", "--json", "-p", "a", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.decode()


def test_the_context_and_the_note(tmp_path):
    own, said = info(fixture("models/llama"))
    assert "rotary" not in said
    want, _ = info(edited("models/llama", tmp_path, scaling()))
    got, said = info(fixture("models/llama"), *YARN_ARGS)
    assert "config.json: base 500000, scaling yarn by 4 of 512 tokens" in said
    assert "the model's context is 2048 tokens" in said
    assert got["ids"] == want["ids"]
    done = call("run", fixture("models/gemma3_text"), "-t", 1, "--raw", "-n", 1, "-p", "a", "--rope-theta", 5e5)
    assert b"sliding layers keep theirs (base 10000)" in done.stderr


# ---- GGUF ------------------------------------------------------------------------------------------------

def gguf_value(value):
    if isinstance(value, str):
        data = value.encode()
        return struct.pack("<IQ", 8, len(data)) + data
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def with_metadata(model, target, more):
    """A copy of a GGUF file with more keys, which must not be there yet."""
    data = open(model, "rb").read()
    n_tensors, n_values = struct.unpack_from("<QQ", data, 8)
    at = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    align = 32

    def skip(kind, at):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind == 9:
            element, count = struct.unpack_from("<IQ", data, at)
            at += 12
            if element in sizes:
                return at + count * sizes[element]
            for _ in range(count):
                at = skip(element, at)
            return at
        return at + sizes[kind]

    for _ in range(n_values):
        n = struct.unpack_from("<Q", data, at)[0]
        key = data[at + 8:at + 8 + n].decode()
        assert key not in more
        kind = struct.unpack_from("<I", data, at + 8 + n)[0]
        if key == "general.alignment":
            align = struct.unpack_from("<I", data, at + 12 + n)[0]
        at = skip(kind, at + 12 + n)
    values_end = at
    for _ in range(n_tensors):
        n = struct.unpack_from("<Q", data, at)[0]
        dims = struct.unpack_from("<I", data, at + 8 + n)[0]
        at += 12 + n + 8 * dims + 12
    head = data[:8] + struct.pack("<QQ", n_tensors, n_values + len(more)) + data[24:values_end]
    for key, value in more.items():
        head += struct.pack("<Q", len(key)) + key.encode() + gguf_value(value)
    head += data[values_end:at]
    body = data[(at + align - 1) // align * align:]
    target.write_bytes(head + b"\0" * (-len(head) % align) + body)
    return target


GGUF = {
    "linear": (["--rope-scale", 2.5], {"type": "linear", "factor": 2.5}),
    "yarn": ([*YARN_ARGS, "--yarn-orig-ctx", 100, "--yarn-attn-factor", 1.25, "--yarn-beta-slow", 2,
              "--yarn-beta-fast", 20],
             {"type": "yarn", "factor": 4.0, "original_context_length": 100, "attn_factor": 1.25,
              "yarn_beta_slow": 2.0, "yarn_beta_fast": 20.0}),
    "yarn-blend": ([*YARN_ARGS, "--yarn-ext-factor", 0.5], {"type": "yarn", "factor": 4.0, "yarn_ext_factor": 0.5}),
    "yarn-no-blend": ([*YARN_ARGS, "--yarn-ext-factor", 0], {"type": "yarn", "factor": 4.0, "yarn_ext_factor": 0.0}),
}


@pytest.mark.parametrize("name", GGUF)
@pytest.mark.parametrize("model", ["llama-F32", "qwen3-Q4_K_M", "gemma3-Q8_0"])
def test_the_bits_of_edited_metadata(model, name, tmp_path):
    options, keys = GGUF[name]
    path = fixture(f"quant/gguf_models/{model}.gguf")
    prefix = model.split("-")[0]
    keys = {f"{prefix}.rope.scaling.{key}": value for key, value in keys.items()}
    got = logits(path, ROWS, tmp_path, *options)
    assert same(got, logits(with_metadata(path, tmp_path / "edited.gguf", keys), ROWS, tmp_path))
    assert not same(got, logits(path, ROWS, tmp_path))


# ---- what is kept ----------------------------------------------------------------------------------------

PROMPT = ("The old mill by the river had not turned for many years when the children found it. " * 3).strip()


def run(model, *args):
    done = call("run", model, "-t", 1, "--raw", "-n", 8, "--ignore-eos", "--json", "-p", PROMPT, *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.decode()


def test_saved_states_belong_to_the_positions(tmp_path):
    model, cache = fixture("models/llama"), tmp_path / "cache"
    theta = ["--rope-theta", 20000]
    run(model, "--prompt-cache", cache)
    got, said = run(model, "--prompt-cache", cache, "--rope-theta", 500000)  # what config.json says
    assert said == "" and got["n_cached_tokens"] > 0
    want, _ = run(model, *theta)
    got, said = run(model, "--prompt-cache", cache, *theta)
    assert "other rotary positions" in said and got["n_cached_tokens"] == 0 and got["ids"] == want["ids"]
    got, said = run(model, "--prompt-cache", cache, *theta)
    assert "is not used" not in said and got["n_cached_tokens"] > 0 and got["ids"] == want["ids"]
    for other in ([], ["--rope-theta", 20001], [*theta, *YARN_ARGS]):
        assert "other rotary positions" in run(model, "--prompt-cache", cache, *other)[1]
        run(model, "--prompt-cache", cache, *theta)


def test_packed_weights_do_not_depend_on_positions(tmp_path):
    model, packed = fixture("models/llama"), tmp_path / "packed"
    assert call("pack", model, "-o", packed).returncode == 0
    options = [*YARN_ARGS, "--rope-theta", 20000]
    got = logits(model, ROWS, tmp_path, "--packed", packed, *options)
    assert same(got, logits(model, ROWS, tmp_path, "--packed", "none", *options))


# ---- training --------------------------------------------------------------------------------------------

@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = [{"text": f"The mill by the river grinds {i} grains."} for i in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def train(model, data, out, *args, code=0):
    done = call("train", model, data, "-o", out, "--steps", 2, "--rank", 2, "--max-length", 32, "-t", 1, *args)
    assert done.returncode == code, done.stderr.decode()
    return done.stderr.decode()


def test_training_as_with_an_edited_config(data, tmp_path):
    model, options = fixture("models/llama"), [*YARN_ARGS, "--yarn-ext-factor", 1]
    said = train(model, data, tmp_path / "a", *options)
    assert "rotary positions differ from " in said
    assert "--rope-scaling yarn --rope-scale 4 --yarn-ext-factor 1\n" in said.split("to use it: ")[1]
    train(edited("models/llama", tmp_path, scaling()), data, tmp_path / "b")
    train(model, data, tmp_path / "c")
    made = [(tmp_path / name / "last" / "adapter_model.safetensors").read_bytes() for name in "abc"]
    assert made[0] == made[1] != made[2]


def test_settings_of_a_training_in_a_file(data, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("rope-scaling: yarn\nrope-scale: 4\nyarn-ext-factor: 0\n")
    train(fixture("models/llama"), data, tmp_path / "a", "--config", file)
    train(fixture("models/llama"), data, tmp_path / "b", *YARN_ARGS, "--yarn-ext-factor", 0)
    made = [(tmp_path / name / "last" / "adapter_model.safetensors").read_bytes() for name in "ab"]
    assert made[0] == made[1]


def test_a_training_goes_on_with_its_positions(data, tmp_path):
    model = fixture("models/llama")
    train(model, data, tmp_path / "a", "--rope-theta", 20000)
    assert "0 of 2 steps" not in train(model, data, tmp_path / "a", "--rope-theta", 20000, "--resume")
    for other in ([], ["--rope-theta", 20001]):
        assert "rotary_positions=" in train(model, data, tmp_path / "a", "--resume", *other, code=1)


def test_a_model_that_is_written_would_not_say_so(data, tmp_path):
    model, out = fixture("models/llama"), tmp_path / "a"
    said = train(model, data, out, "--method", "full", "--rope-theta", 20000, code=1)
    assert "keeps those of its files" in said
    said = train(model, data, out, "--rope-scaling", "linear", "--rope-scale", 2, "--yarn-beta-slow", 2, code=2)
    assert "needs --rope-scaling yarn" in said


def test_losses_of_an_edited_config(data, tmp_path):
    def loss(model, *options):
        done = call("eval", model, data, "--json", "-t", 1, *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["loss"], done.stderr.decode()
    got, said = loss(fixture("models/llama"), *YARN_ARGS, "--yarn-orig-ctx", 16)
    assert "rotary positions differ from " in said
    assert got == loss(edited("models/llama", tmp_path, scaling(original_max_position_embeddings=16)))[0]
    assert got != loss(fixture("models/llama"))[0]


# ---- commands --------------------------------------------------------------------------------------------

def test_all_commands_that_open_a_model_have_them():
    listed = call("--help").stdout.decode().split("Commands:\n")[1].split("\n\n")[0]
    names = [line.split()[0] for line in listed.splitlines()]
    pages = {name: call(name, "--help", "all").stdout.decode() for name in names}
    opens = {name for name, page in pages.items() if "\nLoading:\n" in page} - {"doctor"} | {"train", "eval"}
    assert {name for name, page in pages.items() if "--yarn-beta-fast F" in page} == opens and len(opens) > 10


# ---- refusals --------------------------------------------------------------------------------------------

REFUSED = [
    (["--rope-scale", 2, "--rope-freq-scale", 0.5], "--rope-scale cannot be used with --rope-freq-scale"),
    (["--rope-scale", -2], "--rope-scale: -2 is not in the range"),
    (["--rope-theta", "nan"], "--rope-theta: 'nan' is not a number"),
    (["--rope-freq-scale", 0], "--rope-freq-scale: 0 is not in the range"),
    (["--rope-scaling", "dynamic"], "--rope-scaling: 'dynamic' is none of own|none|linear|yarn"),
    (["--rope-scaling", "none", "--rope-scale", 2], "--rope-scale cannot be used with --rope-scaling none"),
    (["--rope-scaling", "none", "--rope-freq-scale", 2], "--rope-freq-scale cannot be used with --rope-scaling none"),
    (["--rope-scaling", "linear", "--rope-scale", 2, "--yarn-ext-factor", 0],
     "--yarn-ext-factor needs --rope-scaling yarn"),
    (["--yarn-ext-factor", 1.5], "--yarn-ext-factor: 1.5 is not in the range 0 to 1"),
    (["--yarn-orig-ctx", 0], "--yarn-orig-ctx: 0 is not in the range"),
    ([*YARN_ARGS, "--yarn-beta-slow", 9, "--yarn-beta-fast", 3],
     "--yarn-beta-slow 9 must be less than --yarn-beta-fast 3"),
    (["--yarn-orig-ctx", 64], "needs the scaling yarn"),
    (["--rope-scaling", "yarn"], "the scaling yarn needs rope.factor"),
]


@pytest.mark.parametrize("options,words", REFUSED)
def test_refused(options, words):
    done = call("run", fixture("models/llama"), "--raw", "-n", 1, "-p", "a", *options)
    assert done.returncode in (1, 2) and words in done.stderr.decode(), done.stderr


@pytest.mark.parametrize("model,options,words", [
    ("families2/xlm_roberta", ["--rope-theta", 5000], "has no rotary positions (RoPE)"),
    ("models/phi3_longrope", ["--rope-scale", 2], "no effect on the model's own scaling, longrope"),
])
def test_models_that_refuse(model, options, words):
    done = call("embed", fixture(model), "-p", "a", *options)
    assert done.returncode == 1 and words in done.stderr.decode(), done.stderr
