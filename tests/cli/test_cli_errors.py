"""Bad input through the command line: one clear sentence, exit status 1 (2 for usage), nothing half done."""
import json
import os
import shutil
import subprocess

import pytest

from support import QUERN, call, fixture, read_json, rewrite_safetensors


def refused(out, *words, status=1):
    text = out.stderr.decode()
    assert out.returncode == status, f"exit {out.returncode}: {text[-500:]}"
    assert text.strip() and len(text.strip().split("\n")) == 1, text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(fixture("models/llama"), tmp_path / "model")


def run(model, *options):
    return call("run", model, "--raw", "-p", "hello", "-n", 4, *options)


def edit_config(model, **changes):
    path = os.path.join(model, "config.json")
    config = {**read_json(path), **changes}
    with open(path, "w") as f:
        json.dump(config, f)


def test_long_options_behind_one_hyphen(model):
    plain = call("run", model, "--raw", "--prompt", "hello", "-n", 4)
    assert plain.returncode == 0 and plain.stdout
    assert call("run", model, "-raw", "-prompt=hello", "-max-tokens", 4).stdout == plain.stdout


@pytest.mark.parametrize("args", [
    ("-m", "MODEL", "-n", 4), ("-model=MODEL", "-n", 4), ("--model", "MODEL", "-n", 4), ("-n", 4, "-m", "MODEL"),
    ("MODEL", "-n", 4, "-ngl", 0), ("MODEL", "-n", 4, "-ngl=0"), ("MODEL", "--n-gpu-layers", 0, "-n", 4),
    ("MODEL", "--n-predict", 4), ("MODEL", "-n-predict=4"), ("MODEL", "--max-new-tokens", 4),
    ("MODEL", "-n4", "-c", 64),
    ("MODEL", "-n4", "-c64"), ("MODEL", "-n4", "--ctx-size", 64), ("MODEL", "-n4", "-ctx-size=64"),
    ("MODEL", "-n4", "--temperature", 0), ("MODEL", "-n4", "-temperature", 0), ("MODEL", "-n4", "--ctk", "auto")])
def test_habits_of_other_programs(model, args):
    plain = call("run", model, "--raw", "-p", "hello", "-n", 4)
    out = call("run", "--raw", "-p", "hello", *[str(a).replace("MODEL", str(model)) for a in args])
    assert out.returncode == 0 and out.stdout == plain.stdout and plain.stdout, out.stderr


def test_prompt_from_a_file(model, tmp_path):
    plain = call("run", model, "--raw", "-p", "hello", "-n", 4).stdout
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "prompt.txt").write_bytes(mark + b"hello\n")
        for option in ("-f", "--file", "--prompt-file"):
            args = ("-f", tmp_path / "prompt.txt") if option == "--file" else (option, tmp_path / "prompt.txt")
            assert call("run", model, "--raw", *args, "-n", 4).stdout == plain
        assert call("run", model, "--raw", "-n", 4, stdin=mark + b"hello\n").stdout == plain
    refused(call("run", model, "-f", tmp_path / "prompt.txt", "-p", "x"), "--prompt cannot be used with --prompt-file",
            status=2)


def test_lora_is_an_adapter(model):
    refused(call("run", model, "-p", "x", "--lora", "/no/such/adapter"), "/no/such/adapter", status=1)
    refused(call("run", model, "-p", "x", "-lora=/no/such/adapter"), "/no/such/adapter", status=1)


@pytest.mark.parametrize("typed, meant", [("rnu", "run"), ("chta", "chat"), ("serv", "serve"), ("tokenise", "tokenize"),
                                          ("benhc", "bench"), ("insepct", "inspect")])
def test_mistyped_commands(typed, meant):
    refused(call(typed), f"unknown command {typed}; did you mean {meant}?", status=2)


def test_model_for_a_command():
    refused(call("model.gguf"), "model.gguf is no command", "quern chat model.gguf", status=2)
    refused(call("/models/llama"), "/models/llama is no command", status=2)
    assert b"did you mean" not in call("no-such-command").stderr


@pytest.mark.parametrize("typed, meant", [("--tmep", "--temp"), ("--max-tokns", "--max-tokens"),
                                          ("--mlock", "--wired-limit")])
def test_mistyped_options(model, typed, meant):
    refused(call("run", model, "-p", "x", typed, 1), f"did you mean {meant}?", status=2)


def test_usage():
    for args in (["no-such-command"], ["run"], ["run", "m", "--no-such-option"], ["tokenize"]):
        assert call(*args).returncode == 2, args
    assert call("--help").returncode == 0 and call("--version").returncode == 0


def test_one_argument_too_many():
    refused(call("run", "m", "Hi"), "'Hi' is one argument too many (use -p for a prompt)", status=2)
    assert b"too many (see" in call("logits", "m", "Hi").stderr


def test_values_of_letters():
    model = fixture("models/llama")
    for options in (("-n", 3), ("-n3",), ("-n=3",), ("--max-tokens=3",)):
        out = call("run", model, "--raw", "-p", "hello", "--ignore-eos", "--json", *options)
        assert out.returncode == 0 and json.loads(out.stdout)["n_generated_tokens"] == 3, (options, out.stderr)
    for option, words in (("-n3x", "--max-tokens: '3x' is not a whole number"), ("-n=", "--max-tokens: '' is not a"),
                          ("-q3", "unknown option -q3"), ("-h3", "unknown option -h3")):
        refused(call("run", model, "-p", "hello", option), words, status=2)


def test_options_that_exclude_each_other():
    refused(call("run", "m", "--raw", "--system", "s", "-p", "x"), "--system", "--raw", status=2)
    refused(call("run", "m", "--ids", "ids.json", "--special"), "--ids cannot be used with --special", status=2)
    refused(call("run", "m", "--ids", "ids.json", "-p", "x"), "--ids cannot be used with --prompt", status=2)
    refused(call("bench", "m", "-p", "x", "--prompt-tokens", 3), "--prompt cannot be used with --prompt-tokens",
            status=2)
    refused(call("train", "m", "d", "-o", "out", "--resume", "--overwrite"),
            "--resume cannot be used with --overwrite", status=2)


def test_options_that_need_another():
    refused(call("run", "m", "--logprobs", 0, "-p", "x"), "--logprobs needs --json or --ids", status=2)
    refused(call("score", "m", "--tokens", "-p", "x"), "--tokens needs --json", status=2)
    refused(call("classify", "m", "--logprobs", 0, "-p", "x"), "--logprobs needs --json", status=2)


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("run", "--help")])
def test_standard_output_is_full(args):
    with open("/dev/full", "w") as full:
        out = subprocess.run([QUERN, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
    refused(out, "standard output")


def test_missing_path(tmp_path):
    refused(run(tmp_path / "nowhere"), "nowhere")


def test_empty_directory(tmp_path):
    refused(run(tmp_path), str(tmp_path))


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated_weights(model, keep):
    path = os.path.join(model, "model.safetensors")
    size = os.path.getsize(path)
    os.truncate(path, keep if keep >= 0 else size - 1)
    refused(run(model), "model.safetensors")


def test_truncated_gguf(tmp_path):
    path = shutil.copy(fixture("quant/gguf_models/llama-Q8_0.gguf"), tmp_path / "m.gguf")
    size = os.path.getsize(path)
    for keep in (size - 1, size // 2, 3000, 30, 0):
        os.truncate(path, keep)
        refused(run(path), "m.gguf")


def test_shapes_that_do_not_fit(model):
    edit_config(model, hidden_size=read_json(os.path.join(model, "config.json"))["hidden_size"] * 2)
    refused(run(model), "tensor", "expected")


def test_missing_tensor(model):
    path = os.path.join(model, "model.safetensors")
    gone = "model.layers.1.mlp.up_proj.weight"
    rewrite_safetensors(path, path + ".new", lambda t: t.pop(gone))
    os.replace(path + ".new", path)
    refused(run(model), gone, "model.safetensors")


def test_unknown_architecture(model):
    edit_config(model, model_type="perceptron", architectures=["PerceptronForCausalLM"])
    refused(run(model), "perceptron", "llama", "qwen3", "gemma3")


def test_damaged_config(model):
    with open(os.path.join(model, "config.json"), "w") as f:
        f.write('{"model_type": "llama", ')
    refused(run(model), "config.json")


@pytest.mark.parametrize("field, value", [
    ("num_attention_heads", 0), ("hidden_size", -8), ("num_hidden_layers", 1 << 40), ("rms_norm_eps", "tiny"),
    ("vocab_size", 1e30)])
def test_values_out_of_range(model, field, value):
    edit_config(model, **{field: value})
    refused(run(model), field)


def test_two_formats_in_one_directory(model):
    shutil.copy(fixture("quant/gguf_models/llama-Q8_0.gguf"), os.path.join(model, "other.gguf"))
    refused(run(model), "other.gguf", "model.safetensors")


def test_prompt_longer_than_the_context(model, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps({"ids": [[1] * 100]}))
    refused(call("run", model, "--ids", ids, "-n", 4, "--temp", 0, "--json", "--context", 64), "100", "64")


@pytest.mark.parametrize("options, words", [
    ((), "quern: ended: the context of 40 tokens is full\n"),
    (("-n", 1000), "quern: ended: the context of 40 tokens is full\n"),
    (("-n", 5), ""), (("--json",), "")])
def test_a_context_that_is_full_is_told(options, words):
    out = call("run", fixture("models/llama"), "--raw", "-p", "hello", "-c", 40, "--ignore-eos", *options)
    assert out.returncode == 0 and out.stderr.decode() == words
    if "--json" in options:
        assert json.loads(out.stdout)["end"] == ["length"]


def test_unknown_cpu_set():
    refused(call("run", fixture("models/llama"), "--raw", "-p", "hi", "-n", 1, env={"QUERN_CPU": "abacus"}),
            "abacus", "scalar")


@pytest.mark.parametrize("options, words", [
    (("--temp", "nan"), "--temp: 'nan' is not a number"),
    (("--temp", "inf"), "--temp: 'inf' is not a number"),
    (("--temp", "-1"), "--temp: -1 is not in the range 0 to 1000"),
    (("--temp", "1e999"), "--temp: '1e999' is not a number"),
    (("--top-p", "nan"), "--top-p: 'nan' is not a number"),
    (("--top-p", "2"), "--top-p: 2 is not in the range 0 to 1"),
    (("--min-p", "-1"), "--min-p: -1 is not in the range 0 to 1"),
    (("--top-k", "-3"), "--top-k: -3 is not in the range 0 to 2147483647"),
    (("--top-k", "1.5"), "--top-k: '1.5' is not a whole number"),
    (("--repeat-penalty", "nan"), "--repeat-penalty: 'nan' is not a number"),
    (("-n", "-5"), "--max-tokens: -5 is not in the range 0 to 2147483647"),
    (("-n", "9" * 20), "--max-tokens: '99999999999999999999' is not a whole number"),
    (("--top-k", "\t1"), "--top-k: '?1' is not a whole number"),
    (("--temp", "\n1"), "--temp: '?1' is not a number"),
    (("--seed", "-1"), "--seed: '-1' is not a whole number"),
    (("--context", "99999999999999"), "--context: 99999999999999 is not in the range 1 to 2147483647"),
    (("--threads", "99999"), "--threads: 99999 is not in the range 1 to 1024"),
    (("--slots", "0"), "--slots: 0 is not in the range 1 to 1024"),
    (("--deadline-ms", "-1"), "--deadline-ms: -1 is not in the range 1 to 2147483647"),
    (("--memory-limit", "-1"), "--memory-limit: '-1' is not a size"),
    (("--memory-limit", "9" * 20 + "G"), "G' is not a size"),
    (("--cache-limit", "1x"), "--cache-limit: '1x' is not a size"),
    (("--stop-id", "-1"), "--stop-id: '-1' is not a token id"),
    (("--stop", ""), "--stop: the text is empty"),
    (("--sampler-order", "abacus"), "--sampler-order: 'abacus'"),
    (("--samplers", "top_k;abacus"), "--samplers: 'abacus'"),
    (("--samplers", "top_k", "--sampler-order", "top_p"),
     "--samplers cannot be used with --sampler-order: both set the order"),
    (("--typical", "1.5"), "--typical: 1.5 is not in the range 0 to 1"),
    (("--top-nsigma", "-2"), "--top-nsigma: -2 is not in the range -1 to 1000"),
    (("--xtc-probability", "2"), "--xtc-probability: 2 is not in the range 0 to 1"),
    (("--xtc-threshold", "-1"), "--xtc-threshold: -1 is not in the range 0 to 1"),
    (("--dynatemp-range", "-1"), "--dynatemp-range: -1 is not in the range 0 to 1000"),
    (("--dynatemp-exp", "101"), "--dynatemp-exp: 101 is not in the range 0 to 100"),
    (("--mirostat", "3"), "--mirostat: 3 is not in the range 0 to 2"),
    (("--mirostat-ent", "-1"), "--mirostat-ent: -1 is not in the range 0 to 100"),
    (("--mirostat-lr", "2"), "--mirostat-lr: 2 is not in the range 0 to 1"),
    (("--dry-multiplier", "-1"), "--dry-multiplier: -1 is not in the range 0 to 100"),
    (("--dry-base", "0.5"), "--dry-base: 0.5 is not in the range 1 to 100"),
    (("--dry-allowed-length", "-1"), "--dry-allowed-length: -1 is not in the range 0 to 2147483647"),
    (("--dry-penalty-last-n", "-2"), "--dry-penalty-last-n: -2 is not in the range -1 to 2147483647"),
    (("--repeat-last-n", "-2"), "--repeat-last-n: -2 is not in the range -1 to 2147483647"),
    (("--dry-sequence-breaker", ""), "--dry-sequence-breaker: the text is empty"),
    (("--bad-word", ""), "--bad-word: the text is empty"),
    (("--bad-ids", "1,x"), "--bad-ids: '1,x' is not a list of token ids"),
    (("--bad-ids", "1,,2"), "--bad-ids: '1,,2' is not a list of token ids"),
    (("--allowed-ids", "-1"), "--allowed-ids: '-1' is not a list of token ids"),
    (("--allowed-ids", ",".join(["1"] * 4097)), "--allowed-ids: more than 4096 ids are given"),
    (("--precision", "abacus"), "--precision: 'abacus' is none of high|fast|exact"),
])
def test_options_out_of_range(options, words):
    refused(run(fixture("models/llama"), *options), words, status=2)


@pytest.mark.parametrize("options, words", [
    (("--stop-id", 640), "stop_ids: token id 640 is outside the vocabulary of 640"),
    (("--sampler-order", "top_p,top_p"), "sampler_order: top_p appears twice"),
    (("--samplers", "mirostat;top_p", "--mirostat", "1"), "sampler_order: top_p comes after mirostat"),
    (("--bad-ids", 640), "bad_ids: token id 640 is outside the vocabulary of 640"),
    (("--allowed-ids", 640), "allowed_ids: token id 640 is outside the vocabulary of 640"),
])
def test_options_that_do_not_fit_the_model(options, words):
    refused(run(fixture("models/llama"), *options), words)


@pytest.mark.parametrize("text, words", [
    ('{"ids":[[1,NaN]]}', "ids.json: line 1 column 14: invalid token near 'NaN'"),
    ('{"ids":[[1,2.5]]}', "ids.json: element 1 of row 0 is not a token id"),
    ('{"ids":[[9007199254740992]]}', "ids.json: element 0 of row 0 is not a token id"),
    ('{"ids":[[1],[-1]]}', "ids.json: element 0 of row 1 is not a token id"),
    ('{"ids":[[3,640]]}', "token id 640 at position 1 is outside the vocabulary of 640"),
    ('{"ids":[[]]}', "row 0 has no token ids"),
    ('{"ids":{"a":1}}', 'ids.json: "ids" is not a list of rows of token ids'),
    ("[" * 3000, "ids.json: "),
])
def test_ids_that_are_none(text, words, tmp_path):
    path = tmp_path / "ids.json"
    path.write_text(text)
    refused(call("run", fixture("models/llama"), "--ids", path, "-n", 1), words)


@pytest.mark.parametrize("options", [("--raw",), ()])
def test_a_prompt_of_10_megabytes(options):
    out = call("run", fixture("models/llama"), *options, "-n", 1, stdin="hello world " * 900000)
    refused(out, "the prompt has 6300", " tokens, the context holds 512")


@pytest.mark.parametrize("options, words", [
    (("--raw",), "the prompt: not valid UTF-8 at byte 3"), ((), "content: not valid UTF-8 at byte 3")])
def test_a_prompt_that_is_no_text(options, words):
    refused(call("run", fixture("models/llama"), *options, "-n", 1, stdin=b"abc\xff\xfe" * 100), words)


def test_a_template_that_recurses(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    refused(call("run", fixture("models/llama"), "--template", path, "-p", "hi", "-n", 1),
            "line 1: the template nests or recurses deeper than 1000 levels")


def test_closed_standard_streams(model, tmp_path):
    """`quern chat <&-` waited for ever; with standard output closed, results could go into a file opened later."""
    ids, out = tmp_path / "ids.json", tmp_path / "out.safetensors"
    ids.write_text('{"ids": [[1, 2]]}')
    shell = ["sh", "-c", '"$0" chat "$1" <&-', QUERN, str(model)]
    refused(subprocess.run(shell, capture_output=True, timeout=600), "standard input")
    shell = ["sh", "-c", '"$0" logits "$1" --ids "$2" -o "$3" --json >&-', QUERN, str(model), str(ids), str(out)]
    refused(subprocess.run(shell, capture_output=True, timeout=600), "standard output")
