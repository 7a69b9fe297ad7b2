"""quern train: what it writes, how it goes on, what it refuses, and that file and flags say the same."""
import fcntl
import html.parser
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import numpy as np
import pytest

from support import QUERN, call, call_json, fixture, heed_interrupt, logits, read_json, read_safetensors
from support import rewrite_safetensors

FLAGS = ["--lr", "0.01", "--batch-size", "4", "--max-length", "128", "--rank", "4", "--alpha", "8", "--dropout", "0.1",
         "--seed", "3", "--targets", "q_proj,v_proj", "--clip-norm", "0"]
# The same, as a file.
SETTINGS = {"lr": 0.01, "batch-size": 4, "max_length": 128, "rank": 4, "alpha": 8, "dropout": 0.1, "seed": 3,
            "targets": ["q_proj", "v_proj"], "clip_norm": 0}
TIMES = {"seconds", "tokens_per_s", "eta_s", "unix_s", "memory_bytes", "peak_memory_bytes"}


@pytest.fixture(scope="module")
def model():
    return fixture("models/llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sums of two digits: a few lines for training, a few to validate with."""
    folder = tmp_path_factory.mktemp("data")
    sums = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(6) for b in range(5)]
    for name, lines in (("train", sums[:24]), ("valid", sums[24:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(s) + "\n" for s in lines))
    return str(folder)


def train(*args, code=0, **options):
    out = call("train", *args, **options)
    assert out.returncode == code, out.stderr.decode()[-2000:]
    return out.stderr.decode()


def refused(*args, code=1, **options):
    said = train(*args, code=code, **options)
    assert said.count("\n") == 1 and said.startswith("quern: "), said
    return said


def read_log(folder, *events):
    with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [{k: v for k, v in e.items() if k not in TIMES} for e in lines if not events or e["event"] in events]


def losses(folder):
    return [e["loss"] for e in read_log(folder, "step")]


def bytes_of(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


@pytest.fixture(scope="module")
def trained(model, data, tmp_path_factory):
    """A whole training: (folder, what it said)."""
    out = str(tmp_path_factory.mktemp("trained") / "out")
    return out, train(model, data, "-o", out, *FLAGS, "--steps", 40, "--validate-every", 10)


# ---- results ----

def test_loss_falls(trained):
    out, said = trained
    steps = losses(out)
    assert len(steps) == 40 and np.mean(steps[-5:]) < 0.6 * np.mean(steps[:5])
    assert [e["step"] for e in read_log(out, "valid")] == [10, 20, 30, 40]
    assert set(os.listdir(out)) == {"last", "best", "state.safetensors", "log.jsonl", "report.html"}
    assert "step 1/40: loss" in said and "step 40/40: loss" in said and "step 10: validation loss" in said
    assert "\r" not in said and "\x1b" not in said


def test_says_its_result(model, data, tmp_path):
    out = str(tmp_path / "out")
    r = call_json("train", model, data, "-o", out, *FLAGS, "--steps", 3, "--json")
    assert r["state"] == "done" and r["output"] == out and r["step"] == r["n_steps"] == 3
    assert r["loss"] == pytest.approx(losses(out)[-1], rel=1e-5) and r["n_trained"] > 0
    assert r["best_loss"] == pytest.approx(read_log(out, "valid")[-1]["best_loss"], rel=1e-5)
    text = call("train", model, data, "-o", out, *FLAGS, "--steps", 3, "--overwrite").stdout.decode()
    assert out in text and "3 of 3 steps" in text


def test_adapter_is_used_and_fused(trained, model, data, tmp_path):
    before = call_json("eval", model, data, "--json")
    after = call_json("eval", model, data, "--adapter", f"{trained[0]}/best", "--json")
    assert after["loss"] < 0.8 * before["loss"] and after["n_counted"] == before["n_counted"] > 0
    assert after["loss"] == pytest.approx(min(e["valid_loss"] for e in read_log(trained[0], "valid")), rel=1e-4)
    answers = [call("run", model, "-p", "2+2=", "-n", 8, "--temp", 0, *more).stdout
               for more in ([], ["--adapter", f"{trained[0]}/last"])]
    assert answers[0] != answers[1]
    fused = str(tmp_path / "fused")
    report = call_json("fuse", model, "--adapter", f"{trained[0]}/best", "-o", fused, "--json")
    assert abs(report["check"]["kl"]) < 1e-3
    assert call_json("eval", fused, data, "--json")["loss"] == pytest.approx(after["loss"], rel=1e-3)


def test_mlx_layout(trained, model, data, tmp_path):
    out = str(tmp_path / "out")
    train(model, data, "-o", out, *FLAGS, "--steps", 40, "--validate-every", 10, "--layout", "mlx")
    assert "adapters.safetensors" in os.listdir(f"{out}/last")
    assert losses(out) == losses(trained[0])
    whole = [call_json("eval", model, data, "--adapter", f"{o}/last", "--json")["loss"] for o in (out, trained[0])]
    assert whole[0] == pytest.approx(whole[1], rel=1e-6)


def test_before_the_first_step_nothing_changes(model, data, tmp_path):
    """B is zero: logits with the fresh adapter are the model's own bits."""
    out = str(tmp_path / "out")
    process = subprocess.Popen([QUERN, "train", model, data, "-o", out, *FLAGS, "--steps", "1000000"],
                               stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=heed_interrupt)
    while not os.path.exists(f"{out}/last") and process.poll() is None:
        time.sleep(0.002)
    shutil.copytree(f"{out}/last", tmp_path / "first")
    process.send_signal(signal.SIGINT)
    process.wait(60)
    rows = [[i * 7 % 600 for i in range(20)]]
    base, with_adapter = (logits(model, rows, tmp_path, *more)[0]
                          for more in ([], ["--adapter", str(tmp_path / "first")]))
    assert (base == with_adapter).all()


@pytest.mark.parametrize("name", ["llama_qv", "llama_all", "gemma3_text_qv", "gemma3_text_all"])
def test_ten_steps_of_the_reference(name, tmp_path):
    """peft's losses, lengths of gradients, and weights after ten steps, from its first weights."""
    source = fixture(f"lora/{name}")
    expected, stored = read_json(f"{source}/expected.json"), read_safetensors(f"{source}/train.safetensors")
    config, of = read_json(f"{source}/adapter_config.json"), expected["train"]
    start, out = str(tmp_path / "start"), str(tmp_path / "out")
    shutil.copytree(source, start)

    def begin(tensors):
        for n in tensors:
            tensors[n][2] = np.ascontiguousarray(stored[f"start.{n}"]).tobytes()
    rewrite_safetensors(f"{source}/adapter_model.safetensors", f"{start}/adapter_model.safetensors", begin)
    lines = [{"ids": i.tolist(), "counts": m.tolist()} for i, m in zip(stored["ids"], stored["mask"])]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    o = of["optimizer"]
    train(fixture(f"models/{expected['base']}"), tmp_path / "train.jsonl", "-o", out, "--start", start, "--targets",
          ",".join(config["target_modules"]), "--rank", config["r"], "--alpha", config["lora_alpha"], "--lr", o["lr"],
          "--beta1", o["betas"][0], "--beta2", o["betas"][1], "--eps", o["eps"], "--weight-decay", o["weight_decay"],
          "--clip-norm", 0, "--batch-size", 16, "--in-order", "--steps", len(of["losses"]), "--precision", "exact")
    steps = read_log(out, "step")
    assert np.abs(np.array([s["loss"] for s in steps]) - of["losses"]).max() < 2e-5
    assert np.abs(np.array([s["grad_norm"] for s in steps]) / of["grad_norms"] - 1).max() < 1e-4
    for n, w in read_safetensors(f"{out}/last/adapter_model.safetensors").items():
        if n != "__metadata__":
            assert np.abs(w - stored[f"final.{n}"]).max() < 5e-5, n


# ---- the same bits ----

def same(a, b):
    """Two trainings did and wrote the same."""
    assert read_log(a, "step", "valid") == read_log(b, "step", "valid")
    for part in ("last", "best"):
        name = "adapter_model.safetensors"
        assert bytes_of(a, part, name) == bytes_of(b, part, name)


@pytest.mark.parametrize("form", ["yaml", "json", "partly"])
def test_config_equals_flags(trained, model, data, tmp_path, form):
    settings = {**SETTINGS, "steps": 40, "validate-every": 10, "model": model, "data": data,
                "output": str(tmp_path / "out")}
    file, more = tmp_path / f"t.{form}", []
    if form == "yaml":
        file.write_text("# a training\n" + "".join(f"{k}: {json.dumps(v)}\n" for k, v in settings.items()))
    elif form == "json":
        file.write_text(json.dumps(settings, indent="\t"))
    else:  # what is given beside the file wins
        settings.update({"lr": 1.0, "steps": 7, "data": "nowhere", "output": "nowhere"})
        file.write_text(json.dumps(settings))
        more = [model, data, "--lr", 0.01, "--steps", 40, "-o", tmp_path / "out"]
    train("--config", file, *more)
    same(str(tmp_path / "out"), trained[0])


@pytest.mark.parametrize("settings", [
    {"method": "dora", "layers": "1:3", "rslora": True, "init": "normal", "adapter-type": "bf16", "schedule": "cosine",
     "warmup": 2, "end-rate": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight-decay": 0, "accumulate": 2,
     "checkpoint-layers": True, "in-order": True, "epochs": 2, "validate-batches": 1, "batch-size": 4},
    {"method": "full", "optimizer": "sgd", "momentum": 0.9, "weight-decay": 0.1, "schedule": "linear", "mask": "all",
     "batch-tokens": 170, "save-type": "f32", "threads": 2, "memory-limit": "1G", "steps": 4},
    {"no-bias-correction": True, "layout": "mlx", "alpha": 4, "save-every": 2, "validate-every": 3, "clip-norm": 0.5,
     "strict": True, "steps": 5, "dropout": 0.2, "batch-size": 3, "precision": "fast",
     "seed": 18446744073709551615}], ids=["dora", "full", "mlx"])
def test_every_setting(model, data, tmp_path, settings):
    """From a file as from flags; and each of them is heeded: without it something else comes out."""
    settings = {"lr": 0.01, "max-length": 82, **settings}

    def flags(of):
        return [w for k, v in of.items() for w in ([f"--{k}"] if v is True else [f"--{k}", str(v)])]

    def result(out):
        files = sorted(os.path.join(f, n) for f, _, names in os.walk(f"{out}/last") for n in names)
        return read_log(out, "step", "valid"), [bytes_of(f) for f in files]

    train(model, data, "-o", tmp_path / "a", *flags(settings))
    (tmp_path / "t.json").write_text(json.dumps(settings))
    train(model, data, "-o", tmp_path / "b", "--config", tmp_path / "t.json")
    assert result(tmp_path / "a") == result(tmp_path / "b")
    same_bits = {"threads", "memory-limit", "save-every", "strict", "checkpoint-layers", "save-type"}
    for k in settings.keys() - same_bits:
        rest = flags({n: v for n, v in settings.items() if n != k})
        train(model, data, "-o", tmp_path / "c", "--overwrite", *rest)
        assert result(tmp_path / "a") != result(tmp_path / "c"), k


def test_threads_do_not_matter(trained, model, data, tmp_path):
    out = str(tmp_path / "out")
    train(model, data, "-o", out, *FLAGS, "--steps", 40, "--validate-every", 10, "--threads", 1)
    same(out, trained[0])


def interrupted(args, out, at_step):
    """Ctrl-C once the log has this step; what was said."""
    process = subprocess.Popen([QUERN, "train", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=heed_interrupt)
    log = os.path.join(out, "log.jsonl")
    while process.poll() is None:
        if os.path.exists(log) and f'"event":"step","step":{at_step},'.encode() in bytes_of(log):
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.001)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, said
    return said


def test_interrupt_and_resume(model, data, tmp_path):
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "some parts")
    flags = [*FLAGS, "--steps", 150, "--validate-every", 60, "--save-every", 40]
    train(model, data, "-o", whole, *flags)
    args = [model, data, "-o", parts, *flags]
    said = interrupted(args, parts, 5)
    stopped = read_log(parts)[-1]
    assert stopped["event"] == "stopped" and 5 <= stopped["step"] < 150
    command = re.search(r"to continue: quern (.*)", said).group(1)
    assert command.endswith("--resume") and "'" + parts + "'" in command
    said = interrupted([*args, "--resume"], parts, stopped["step"] + 3)
    os.makedirs(tmp_path / "bin")
    os.symlink(os.path.abspath(QUERN), tmp_path / "bin" / "quern")
    subprocess.run(["sh", "-c", re.search(r"to continue: (.*)", said).group(1)], check=True, capture_output=True,
                   env={**os.environ, "PATH": f"{tmp_path}/bin:" + os.environ["PATH"]})
    same(parts, whole)
    assert len(read_log(parts, "start")) == 3


def test_second_interrupt_quits_at_once(model, tmp_path):
    """While data are read there is nothing to save: the first is heeded afterwards, the second ends it."""
    file = tmp_path / "long.jsonl"
    file.write_text(('{"text": "' + "the mill grinds grain " * 20 + '"}\n') * 60000)
    process = subprocess.Popen([QUERN, "train", model, str(file), "-o", str(tmp_path / "out")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interrupt)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert process.wait(30) == -signal.SIGINT and time.monotonic() - began < 2
    assert not (tmp_path / "out").exists()


def test_killed_and_resumed(model, data, tmp_path):
    """SIGKILL: it goes on from what was saved last, and the log says nothing twice."""
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    flags = [*FLAGS, "--steps", 100, "--save-every", 11]
    train(model, data, "-o", whole, *flags)
    process = subprocess.Popen([QUERN, "train", *map(str, [model, data, "-o", parts, *flags])],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and b'"step":25,' not in (
            bytes_of(parts, "log.jsonl") if os.path.exists(f"{parts}/log.jsonl") else b""):
        time.sleep(0.001)
    process.kill()
    process.wait()
    train(model, data, "-o", parts, *flags, "--resume")
    same(parts, whole)


def test_what_a_killed_one_left_behind(model, data, tmp_path):
    """What was not whole yet goes when the training goes on; what is somebody else's stays."""
    out = tmp_path / "out"
    train(model, data, "-o", out, *FLAGS, "--steps", 4)
    for name in ("state.safetensors.31-0.tmp", "report.html.7-12.tmp", "state.safetensors.31-0.tmp.old",
                 "state.safetensors.tmp", "last.x-0.tmp", "state.safetensors.-0.tmp", "mine.31-0.tmp"):
        (out / name).write_text("half")
    for folder in ("last.31-0.tmp", "best.31-0.tmp", "other.31-0.tmp"):
        (out / folder).mkdir()
        (out / folder / "adapter_config.json").write_text("{")
    (out / "last.31-0.tmp" / "notes.txt").write_text("mine")
    kept = {"state.safetensors.31-0.tmp.old", "state.safetensors.tmp", "last.x-0.tmp", "state.safetensors.-0.tmp",
            "mine.31-0.tmp", "other.31-0.tmp", "last.31-0.tmp"}
    train(model, data, "-o", out, *FLAGS, "--steps", 6, "--resume")
    assert {n for n in os.listdir(out) if ".tmp" in n} == kept
    assert os.listdir(out / "last.31-0.tmp") == ["notes.txt"]


# ---- before it begins ----

def test_dry_run(model, data, tmp_path):
    out = str(tmp_path / "out")
    i = call_json("train", model, data, "-o", out, *FLAGS, "--dry-run", "--json")
    assert i["n_lines"] == 24 and i["n_valid_lines"] == 6 and i["n_steps"] == 6 and i["step"] == 0
    assert i["n_trained"] < i["n_model_parameters"]
    assert i["uniform_loss"] == pytest.approx(np.log(i["vocab_size"]))
    text = call("train", model, data, *FLAGS, "--dry-run").stdout.decode()
    assert "24, 0 bad" in text and str(i["n_trained"]) in text
    assert not os.path.exists(out)


def test_show_batch(model, data):
    text = call("train", model, data, "--batch-size", 2, "--in-order", "--show-batch").stdout.decode()
    assert "0+0=" in text and "0+1=" in text and "0+2=" not in text and "\x1b" not in text
    assert len(re.findall("\u27e6.*?\u27e7", text, re.S)) == 2


@pytest.fixture(scope="module")
def spoiled(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("spoiled") / "train.jsonl"
    good = open(f"{data}/train.jsonl").read().split("\n")
    file.write_text("\n".join(good[:2] + ["{not json", '{"prompt": 1, "completion": "x"}'] + good[2:]))
    return file


def test_schema(model, tmp_path):
    """Answers that do not satisfy a schema are told by line: of chats all, or the last; reasoning is left out."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"x": {"type": "integer"}}, "required": ["x"]}')
    file = tmp_path / "train.jsonl"
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>\n{}"}]
    good = [{"role": "user", "content": "q"}, {"role": "assistant", "content": '{"x": 1}'}]
    file.write_text("\n".join(json.dumps(line) for line in (
        {"prompt": "a", "completion": '{"x": 1}'}, {"prompt": "a", "completion": '{"x": "y"}'},
        {"messages": turn + good}, {"text": "abc"}, {"prompt": "a", "completion": "oh"})))
    said = call("train", model, file, "--dry-run", "--schema", schema).stderr.decode()
    assert re.findall(r"train\.jsonl:(\d+): an answer", said) == ["2", "3", "5"]
    assert "/x: type" in said and "3 of 5 answers do not satisfy" in said and "1 lines have no answer" in said
    said = call("train", model, file, "--dry-run", "--schema", schema, "--mask", "last").stderr.decode()
    assert "2 of 4 answers" in said
    said = train(model, file, "-o", tmp_path / "out", "--steps", 1, "--schema", schema)
    assert "3 of 5 answers" in said
    assert "schema" in refused(model, file, "--dry-run", "--schema", tmp_path / "schema.none")
    schema.write_text('{"type": "objekt"}')
    assert "/type" in refused(model, file, "--dry-run", "--schema", schema)


def test_bad_lines(model, spoiled, tmp_path):
    said = train(model, spoiled, "-o", tmp_path / "out", *FLAGS, "--steps", 2)
    assert re.search(r"train\.jsonl:3: left out: ", said) and re.search(r"train\.jsonl:4: left out: ", said)
    assert call_json("train", model, spoiled, "--dry-run", "--json")["n_bad_lines"] == 2
    said = refused(model, spoiled, "-o", tmp_path / "strict", "--strict")
    assert "train.jsonl:3" in said and not os.path.exists(tmp_path / "strict")
    page = open(tmp_path / "out" / "report.html", encoding="utf-8").read()
    assert "train.jsonl:3: left out" in page


def test_refusals(model, data, trained, tmp_path):
    out = tmp_path / "out"
    assert "MODEL" in refused(code=2) and "DATA" in refused(model, code=2) and "-o DIR" in refused(model, data, code=2)
    for args, words in [(["--rank", "0"], "--rank"), (["--lr", "0"], "--lr"), (["--lr", "1e999"], "--lr"),
                        (["--layers", "4:2"], "--layers"), (["--layers", "0:0"], "--layers"),
                        (["--method", "qlora"], "lora|dora|full"), (["--learning-rate", "1"], "did you mean --lr?"),
                        (["--epoch", "1"], "did you mean --epochs?"), (["--resume", "--overwrite"], "--overwrite")]:
        assert words in refused(model, data, "-o", out, *args, code=2)
    assert "nowhere" in refused("nowhere", data, "-o", out)
    assert "nowhere" in refused(model, "nowhere", "-o", out)
    assert "train.jsonl" in refused(model, str(tmp_path), "-o", out)
    assert "no_such_proj" in refused(model, data, "-o", out, "--targets", "q_proj,no_such_proj")
    assert "layers" in refused(model, data, "-o", out, "--layers", "100:")
    assert str(out) in refused(model, data, "-o", out, "--resume")
    assert not out.exists()
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert "empty.jsonl" in refused(model, empty, "-o", out)
    before = {f: bytes_of(trained[0], f) for f in ("state.safetensors", "log.jsonl", "report.html")}
    assert "training in this folder" in refused(model, data, "-o", trained[0], *FLAGS)
    assert "rate" in refused(model, data, "-o", trained[0], *FLAGS, "--steps", 50, "--lr", 0.02, "--resume")
    assert before == {f: bytes_of(trained[0], f) for f in before}


def test_config_refusals(model, data, tmp_path):
    file = tmp_path / "t.yaml"
    for text, line, words in [("rank: 4\nrnak: 4\n", 2, "did you mean rank?"), ("rank: four\n", 1, "whole number"),
                              ("rank: '4'\n", 1, "number"), ("targets: [b\n", 2, "YAML"), ("config: x\n", 1, "config"),
                              ("strict: 2\n", 1, "true"), ("\nlearning_rate: 1\n", 2, "did you mean lr?"),
                              ("data: &x y\nmodel: *x\n", 1, "aliases"), ("rank: 4\nrank: 5\n", 2, "line 1"),
                              ("rank: {a: 1}\n", 1, "one value"), ("- rank\n", 1, "keys and values")]:
        file.write_text(text)
        said = refused("--config", file, model, data, "-o", tmp_path / "out", code=2)
        assert f"t.yaml:{line}: " in said and words in said
    assert "none.yaml" in refused("--config", tmp_path / "none.yaml", model, data, code=2)
    file.write_bytes(os.urandom(4096))
    refused("--config", file, model, data, code=2)


def test_what_lies_in_the_folder_stays(model, data, tmp_path):
    """What a training would write over is refused; what it does not know is left alone."""
    out = tmp_path / "out"
    (out / "best").mkdir(parents=True)
    (out / "best" / "mine").write_text("x")
    assert "already contains best" in refused(model, data, "-o", out, *FLAGS, "--steps", 1)
    assert (out / "best" / "mine").read_text() == "x"
    (out / "best").rename(out / "other")
    train(model, data, "-o", out, "--method", "full", "--steps", 1, "--batch-size", 4)
    assert "model.safetensors" in os.listdir(out / "last") and (out / "other" / "mine").exists()
    train(model, data, "-o", out, *FLAGS, "--steps", 1, "--overwrite")
    assert set(os.listdir(out / "last")) == {"adapter_config.json", "adapter_model.safetensors"}


def limited():
    """No file may be larger than 64 KiB; a write beyond is an error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))


def test_where_nothing_can_be_written(model, data, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in refused(model, data, "-o", tmp_path / "file", *FLAGS)
    assert "file/x" in refused(model, data, "-o", tmp_path / "file" / "x", *FLAGS)
    out = str(tmp_path / "out")
    got = subprocess.run([QUERN, "train", model, data, "-o", out, "--rank", "64", "--steps", "2"], capture_output=True,
                         preexec_fn=limited)
    said = got.stderr.decode()
    assert got.returncode == 1 and out in said and "too large" in said
    assert not os.path.exists(f"{out}/last") and not os.path.exists(f"{out}/state.safetensors")


def test_what_is_not_finite_ends_it(model, data, tmp_path):
    """The message says where it came from, the log and the page that it failed; what was saved before stays."""
    spoiled, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(model, spoiled)

    def spoil(tensors):
        name = next(n for n in sorted(tensors) if "layers.2." in n and "down_proj" in n)
        dtype, shape, raw = tensors[name]
        width = {"F32": 4, "BF16": 2, "F16": 2}[dtype]
        tensors[name][2] = raw[:-width] + b"\xff" * width
    rewrite_safetensors(f"{model}/model.safetensors", f"{spoiled}/model.safetensors", spoil)
    said = train(spoiled, data, "-o", out, *FLAGS, "--steps", 3, code=1)
    assert "finite" in said and "layer" in said and "to continue" not in said
    assert read_log(out)[-1]["event"] == "failed"
    assert "failed" in open(out / "report.html", encoding="utf-8").read()
    assert (out / "last" / "adapter_model.safetensors").exists()


def test_memory_limit(model, data, tmp_path):
    assert "memory limit" in refused(model, data, "-o", tmp_path / "out", "--memory-limit", "200K")
    assert not (tmp_path / "out").exists()


# ---- on a terminal ----

def on_terminal(args, columns, **env):
    """What a training writes to a terminal of so many columns."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([QUERN, "train", *map(str, args)], stdout=subprocess.DEVNULL, stderr=child,
                               env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **env})
    os.close(child)
    out = b""
    while True:
        if not select.select([parent], [], [], 60)[0]:
            process.kill()
            raise AssertionError("it hangs")
        try:
            out += os.read(parent, 65536)
        except OSError:  # the other side is closed
            break
    os.close(parent)
    assert process.wait() == 0, out
    return out.decode()


@pytest.mark.parametrize("columns", [24, 50, 100])
def test_live_line(model, data, tmp_path, columns):
    text = on_terminal([model, data, "-o", tmp_path / "out", *FLAGS, "--steps", 60, "--validate-every", 30], columns)
    lines = [re.sub(r"\x1b\[[0-9;]*[mK]", "", s) for s in re.split(r"[\r\n]+", text)]
    live = [s for s in lines if re.match(r"\d+/60", s)]
    assert len(live) > 1 and max(map(len, live)) < columns
    assert ("[" in live[-1]) == (columns > 60) and ("tok/s" in live[-1]) == (columns > 40)
    assert sum("validation loss" in s for s in lines) == 2
    assert "\x1b[1m" in text
    assert not lines[-1], "the line that is written over is taken away"


def test_no_colour_is_heeded(model, data, tmp_path):
    args = [model, data, "-o", tmp_path / "out", *FLAGS, "--steps", 5, "--overwrite"]
    text = on_terminal(args, 80, NO_COLOR="1")
    assert "\r" in text and not re.search(r"\x1b\[[0-9;]*m", text)
    assert "\x1b" not in on_terminal(args, 80, TERM="dumb")


# ---- the page ----

class Page(html.parser.HTMLParser):
    """Elements with their attributes; checks that they are closed as they were opened."""
    VOID = {"meta", "link", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def curves(page, name):
    """Points of each curve of the chart with this name."""
    inside, out = None, []
    for tag, a in page.elements:
        if tag == "svg":
            inside = a["aria-label"]
        if tag == "polyline" and inside == name:
            out.append(len(a["points"].split()))
    return out


def test_report(trained, model, data, tmp_path):
    text = open(f"{trained[0]}/report.html", encoding="utf-8").read()
    page = Page(text)
    assert curves(page, "Loss") == [40, 40, 4] and curves(page, "Learning rate") == [40]
    assert curves(page, "Gradient norm") == [40] and curves(page, "Validation loss") == [4]
    assert not re.search(r"https?:|<script|\bon\w+=|url\(|@import", text)
    assert all(not ({"src", "href", "action"} & set(a)) or a.get("href", "").startswith("data:")
               for _, a in page.elements)
    said = " ".join(page.texts)
    assert "q_proj,v_proj" in said and "done, step 40 of 40" in said and "llama" in said
    # Names are shown, not obeyed.
    odd = tmp_path / "<b>&odd"
    shutil.copytree(data, odd)
    train(model, odd, "-o", tmp_path / "out", *FLAGS, "--steps", 1)
    text = open(tmp_path / "out" / "report.html", encoding="utf-8").read()
    assert "<b>" not in text and "<b>&odd" in " ".join(Page(text).texts)


def test_report_of_a_resumed_training(model, data, tmp_path):
    out = str(tmp_path / "out")
    for steps in (5, 12):
        train(model, data, "-o", out, *FLAGS, "--steps", steps, *(["--resume"] if steps > 5 else []))
    text = open(f"{out}/report.html", encoding="utf-8").read()
    assert curves(Page(text), "Loss")[0] == 12 and "2, each resumed from the one before" in text


def test_report_in_a_browser(trained, tmp_path):
    """Chromium, where there is one: it draws the page, says nothing on its console and asks for nothing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    path = os.path.abspath(f"{trained[0]}/report.html")
    if not browser:
        return  # test_report has looked at the same file
    net = tmp_path / "net.json"
    got = subprocess.run([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                          "--disable-component-update", "--enable-logging=stderr", "--dump-dom", f"--log-net-log={net}",
                          f"--user-data-dir={tmp_path}/profile", f"file://{path}"], capture_output=True, timeout=120)
    page = Page(got.stdout.decode())
    assert curves(page, "Loss") == [40, 40, 4]
    assert b":CONSOLE" not in got.stderr
    started = [e["params"] for e in json.loads(net.read_text())["events"] if "initiator" in e.get("params", {})]
    assert not [p["url"] for p in started if p["initiator"] != "not an origin"]  # those are the browser's own
