"""Which device computes, what is said about it, and what a card's memory allows.

The library of the device cuda is the one that computes on this processor (make CUDA=host): its variables
QUERN_CUDA_HOST_* (src/device/cuda/host/runtime.h) choose the card, the driver and the failures.
"""
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from server_help import Server
from support import QUERN, call, call_json, fixture

LIBRARY = os.environ.get("QUERN_CUDA_HOST") or os.path.join(os.path.dirname(os.path.realpath(QUERN)),
                                                             "libquern-cuda-host.so")
CARD = {"QUERN_CUDA_LIBRARY": LIBRARY, "QUERN_DEVICE": ""}
GIB = 1 << 30
EXACT = ["--precision", "exact"]
INSTEAD = "The CPU computes instead"
# What is missing, and what is said about it.
MISSING = {
    "file": ({"QUERN_CUDA_LIBRARY": "nowhere/library.so"},
             r"the library cannot be loaded \(nowhere/library.so.*CUDA=1"),
    "driver": ({"QUERN_CUDA_HOST_DRIVER": "0"}, r"no NVIDIA driver is installed"),
    "old": ({"QUERN_CUDA_HOST_DRIVER": "12040"},
            r"too old: it has CUDA 12\.4, 13\.0 is needed \(driver 580 or newer\)"),
    "code": ({"QUERN_CUDA_HOST_CODE": "0"},
             r"the library has code for host, this machine has: host \(sm_90\)"),
}


@pytest.fixture(scope="module", autouse=True)
def library():
    assert os.path.exists(LIBRARY), f"{LIBRARY} is missing: make CUDA=host"


@pytest.fixture
def model():
    return fixture("models/llama")


def run(model, *options, env=None, prompt="Hello, world"):
    """(status, what is printed, what is said besides)"""
    out = call("run", model, "--raw", "-p", prompt, "-n", "4", "--ignore-eos", *options, env={**CARD, **(env or {})})
    return out.returncode, out.stdout, out.stderr.decode()


def test_auto_takes_the_card(model):
    on_cpu = run(model, "--device", "cpu", *EXACT)
    assert on_cpu[0] == 0 and on_cpu[2] == ""
    for options in ([], ["--device", "auto"]):
        assert run(model, *options, *EXACT) == (0, on_cpu[1], "quern: computing on cuda: host\n")
    assert run(model, "--device", "cuda", *EXACT) == on_cpu


def test_the_variable_chooses(model):
    on_cpu = run(model, "--device", "cpu")
    assert run(model, env={"QUERN_DEVICE": "cpu"}) == on_cpu
    assert run(model, "--device", "auto", env={"QUERN_DEVICE": "cpu"}) == on_cpu
    assert run(model, env={"QUERN_DEVICE": "auto"})[2] == "quern: computing on cuda: host\n"
    status, _, said = run(model, env={"QUERN_DEVICE": "gpu"})
    assert status == 1 and "QUERN_DEVICE: there is no device 'gpu'; there are: auto, cpu, cuda, mlx" in said


def test_without_a_library_the_cpu_is_silent(model):
    env = {"QUERN_DEVICE": "", "QUERN_CUDA_LIBRARY": ""}
    if b"device cuda: not built (make CUDA=1" not in call("--version", env=env).stdout:
        return  # this machine has the library
    assert run(model, env=env) == run(model, "--device", "cpu")
    status, _, said = run(model, "--device", "cuda", env=env)
    assert status == 1 and "not built (make CUDA=1 in quern's source; see docs/cuda.md)" in said


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing(model, what):
    change, sentence = MISSING[what]
    env = {**CARD, **change}
    status, _, said = run(model, "--device", "cuda", env=env)
    assert status == 1 and re.search(f"^quern: device cuda: .*{sentence}", said), said
    status, printed, said = run(model, env=env)
    assert (status, printed) == run(model, "--device", "cpu")[:2]
    assert re.search(f"{sentence}.*{INSTEAD}$", said.strip()) and said.count("\n") == 1, said
    assert re.search(f"^device cuda: .*{sentence}", call("--version", env=env).stdout.decode(), re.M)
    found = call_json("doctor", model, "--json", "--no-compute", env=env)
    devices = [f for f in found["findings"] if f["step"] == "devices"]
    assert [f["result"] for f in devices] == ["ok"] and re.search(sentence, devices[0]["text"]), devices
    found = json.loads(call("doctor", model, "--json", "--device", "cuda", env=env).stdout)
    assert found["n_failed"] == 1


@pytest.mark.parametrize("arch", ["80", "89", "120"])
def test_untried_chips(model, arch):
    env = {**CARD, "QUERN_CUDA_HOST_ARCH": arch}
    sentence = f"sm_{arch} runs the simple kernels alone, and quern has not been tried on such a card"
    assert f"cuda: host, set sm_{arch}" in call("--version", env=env).stdout.decode()
    assert sentence in call("--version", env=env).stdout.decode()
    found = call_json("doctor", model, "--json", "--no-compute", env=env)
    assert [f["text"] for f in found["findings"] if f["result"] == "warning"] == [f"host: {sentence}"]
    assert run(model, env=env)[:2] == run(model)[:2]


def test_a_full_card(model):
    env = {**CARD, "QUERN_CUDA_HOST_USED": str(8 * GIB - 300000)}
    status, _, said = run(model, "--device", "cuda", env=env)
    assert status == 1, said
    figures = re.search(r"device cuda: the model needs (\S+ MiB) of the card's memory \(weights \S+ MiB, keys and "
                        r"values of 32 tokens in f16 \S+ MiB, steps about \S+ MiB\), and 0\.29 MiB are free\. "
                        r"What fits: ", said)
    assert figures and float(figures[1].split()[0]) > 0.29, said
    status, printed, said = run(model, env=env)
    assert (status, printed) == run(model, "--device", "cpu")[:2] and figures[0] in said and INSTEAD in said
    found = json.loads(call("doctor", model, "--json", "--no-compute", env=env).stdout)
    assert any("the memory of the card host is full: 293 KiB of 8.0 GiB are free" in f["text"]
               for f in found["findings"] if f["result"] == "warning"), found
    assert found["n_failed"] == 1 and any("of the card's memory are available" in f["text"]
                                          for f in found["findings"] if f["result"] == "failed"), found


def test_what_would_fit(model):
    env = {"QUERN_CUDA_HOST_BYTES": str(1600000)}
    status, _, said = run(model, "--device", "cuda", "-c", 4000, env=env)
    assert status == 1
    fits = re.search(r"What fits: a context of (\d+); keys and values in q8_0 with a context of (\d+); "
                     r"keys and values in q4_0 with a context of (\d+); no layer on the card", said)
    assert fits and int(fits[1]) < int(fits[2]) < int(fits[3]), said
    assert run(model, "--device", "cuda", "-c", 4000, env={"QUERN_CUDA_HOST_BYTES": str(64 << 20)})[0] == 0
    status, _, said = run(model, "-c", 4000, env=env)
    assert status == 0 and "keys and values of 4000 tokens" in said and INSTEAD in said


def test_layers(model):
    on_cpu, on_card = run(model, "--device", "cpu"), run(model, "--device", "cuda")
    assert run(model, "--gpu-layers", 0) == on_cpu
    status, printed, said = run(model, "--gpu-layers", 0, "--device", "cuda")
    assert (status, printed) == on_cpu[:2] and "the CPU computes all of them" in said
    for n in ("all", 99):
        assert run(model, "--gpu-layers", n, "--device", "cuda") == on_card
    for n in (1, 3):
        status, printed, said = run(model, "--gpu-layers", n, "--device", "cuda", *EXACT)
        assert (status, printed) == run(model, "--device", "cpu", *EXACT)[:2]
        assert said == f"quern: warning: the device cuda computes the first {n} of 4 layers, the CPU the others\n"
        assert run(model, "-ngl", n, "--device", "auto", *EXACT)[:2] == (status, printed)
    assert run(model, "--gpu-layers", "auto", "--device", "cuda") == on_card
    assert "device cuda computes" not in run(model, "--gpu-layers", 2, "--device", "cpu")[2]
    assert call("run", model, "-p", "x", "--gpu-layers", "some").returncode == 1


def test_layers_that_fit(model):
    """auto: as many as fit; a number that does not fit is refused with what would, and --device auto takes the CPU."""
    options = ["-c", 4000, "--chunk", 16, "--device-memory-limit", "1600K"]
    on_cpu = run(model, "--device", "cpu", *options, *EXACT)
    for device in ("cuda", "auto"):
        status, printed, said = run(model, "--gpu-layers", "auto", "--device", device, *options, *EXACT)
        assert (status, printed) == on_cpu[:2], said
        assert re.search(r"the card has no room for all layers: the device cuda computes the first 1 of 4 layers", said)
    status, _, said = run(model, "--gpu-layers", 3, "--device", "cuda", *options, *EXACT)
    assert status == 1 and re.search(r"the first 3 of 4 layers need \S+ MiB of the card's memory .* 1\.56 MiB are left "
                                     r"under the device memory limit\. What fits: .*; the first 1 of 4 layers on the "
                                     r"card \(gpu_layers: 1\)", said), said
    status, printed, said = run(model, "--gpu-layers", 3, "--device", "auto", *options, *EXACT)
    assert (status, printed) == on_cpu[:2] and INSTEAD in said
    found = call_json("doctor", model, "--json", "--device", "cuda", "--gpu-layers", 1, *options, env=CARD)
    said = [f["text"] for f in found["findings"] if f["step"] == "memory"]
    assert any(re.search("the first 1 of 4 layers go to the card, the others to the CPU", text) for text in said), found


def embed(encoder, *options, env=None):
    """(status, the vectors, what is said besides)"""
    out = call("embed", encoder, *EXACT, *options, stdin="A cat.\nOne more sentence, which is longer.\nno\n",
               env={**CARD, **(env or {})})
    return out.returncode, [json.loads(line)["embedding"] for line in out.stdout.splitlines()], out.stderr.decode()


def near(got, wanted):
    return len(got) == len(wanted) and all(
        len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-5 for a, b in zip(got, wanted))


def test_encoders(monkeypatch):
    encoder, judge = fixture("families2/bert_mean"), fixture("families2/bert_reranker")
    on_cpu, on_card, free = embed(encoder, "--device", "cpu"), embed(encoder, "--device", "cuda"), embed(encoder)
    assert on_cpu[0] == 0 and len(on_cpu[1]) == 3 and on_cpu[2] == ""
    assert on_card[::2] == (0, "") and near(on_card[1], on_cpu[1])
    assert free == (0, on_card[1], "quern: computing on cuda: host\n")
    scores = [[[float(word) for word in line.split() if re.fullmatch(r"-?[0-9.]+(e-?\d+)?", word)]
               for line in call("rerank", judge, "-q", "Which animal?", "-p", "A cat.", "-p", "A stone.", *EXACT,
                                "--device", device, env=CARD).stdout.decode().splitlines()]
              for device in ("cuda", "cpu")]
    assert len(scores[0]) >= 2 and any(scores[0]) and near(*scores)
    # What does not fit goes to the CPU, or is refused: an encoder is never divided.
    full = {"QUERN_CUDA_HOST_USED": str(8 * GIB - 200000)}
    status, _, said = embed(encoder, "--device", "cuda", env=full)
    assert status == 1 and re.search(r"device cuda: the model needs .* are left\. What fits: the device cpu$",
                                     said.strip()), said
    assert embed(encoder, env=full)[:2] == on_cpu[:2]
    status, _, said = embed(encoder, "--device", "cuda", "--gpu-layers", "1")
    assert status == 1 and "an encoder is computed by one device" in said
    for name, value in CARD.items():
        monkeypatch.setenv(name, value)
    server = Server(encoder, "--device", "cuda", *EXACT)
    try:
        status, _, got = server.request("POST", "/v1/embeddings", {"input": ["A cat.", "no"]})
        assert status == 200 and near([row["embedding"] for row in got["data"]], [on_cpu[1][0], on_cpu[1][2]])
    finally:
        server.process.terminate()
        server.process.wait()


def test_limits(model):
    """The card's limit and the host's are apart."""
    status, _, said = run(model, "--device", "cuda", "--device-memory-limit", "1000K")
    assert status == 1 and "0.98 MiB are left under the device memory limit" in said, said
    status, _, said = run(model, "--device", "cuda", "--memory-limit", "100K")
    assert status == 1 and "memory limit: " in said and "device memory limit" not in said, said
    assert run(model, "--device", "cuda", "--device-memory-limit", "1G", "--memory-limit", "1G")[0] == 0
    status, printed, said = run(model, "--device-memory-limit", "1000K")
    assert (status, printed) == run(model, "--device", "cpu")[:2] and INSTEAD in said
    assert run(model, "--device", "cpu", "--device-memory-limit", "1K") == run(model, "--device", "cpu")


def test_a_lost_card(model):
    """Nothing is computed after a fault, whether while a model is loaded or in a step, and the sentence says so."""
    for n in (5, 100):
        status, _, said = run(model, "--device", "cuda", "-n", 64, env={"QUERN_CUDA_HOST_LOST": str(n)})
        assert status == 1 and "the card is lost to this process" in said and "illegal memory access" in said, said
    status, printed, said = run(model, env={"QUERN_CUDA_HOST_LOST": "5"})
    assert (status, printed) == run(model, "--device", "cpu")[:2] and INSTEAD in said, said


def test_failing_allocations(model):
    """Whichever fails while a model is opened, the CPU takes over, and by name the failure is told."""
    failed = 0
    for n in range(1, 60, 3):
        env = {"QUERN_CUDA_HOST_FAIL": str(n)}
        status, printed, said = run(model, env=env)
        if status == 0 and INSTEAD in said:
            assert printed == run(model, "--device", "cpu")[1]
            failed += 1
        else:
            assert status == 0 or "the card's memory is full" in said, said
        status, _, said = run(model, "--device", "cuda", env=env)
        assert status == 0 or "the card's memory is full" in said, said
    assert failed > 3


def test_a_state_of_another_device(model, tmp_path):
    file = tmp_path / "prompts.state"
    prompt = "one two three four five six seven eight nine ten " * 3
    options = ["--prompt-cache", file, *EXACT]
    assert run(model, "--device", "cpu", *options, prompt=prompt)[0] == 0 and file.exists()
    status, _, said = run(model, "--device", "cuda", *options, prompt=prompt)
    left_aside = r"its device is cpu \w+, the model's is cuda sm_90; the prompt cache is not used"
    assert status == 0 and re.search(left_aside, said), said
    assert run(model, "--device", "cuda", *options, prompt=prompt)[2] == ""


def test_training_goes_on_where_it_began(model, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"text": f"a line of text with the number {i}"}) + "\n" for i in range(4)))

    def train(*options, device):
        out = call("train", model, data, "--mask", "all", "-o", tmp_path / device, "--rank", 2, "--targets", "q_proj",
                   "--json", *options, env=CARD)
        assert out.returncode == 0, out.stderr.decode()
        return json.loads(out.stdout), out.stderr.decode()

    for device in ("cpu", "cuda"):
        began, _ = train("--steps", 1, "--device", device, device=device)
        assert began["device"] == device
        assert ("device_peak_memory_bytes" in began) == (device == "cuda")
        went_on, said = train("--steps", 2, "--resume", device=device)
        assert went_on["device"] == device and "began on" not in said
    went_on, said = train("--steps", 3, "--resume", "--device", "cuda", device="cpu")
    assert went_on["device"] == "cuda" and "the training began on the device cpu, so the bits" in said


def test_a_divided_model_in_the_server(model, monkeypatch):
    """Both sides have weights and pages, and answers are those of the CPU, alone and beside others."""
    for name, value in CARD.items():
        monkeypatch.setenv(name, value)
    answers = {}
    for options in (["--device", "cpu"], ["--device", "cuda", "--gpu-layers", 2]):
        server = Server(model, *options, *EXACT, "--slots", 2)
        try:
            with ThreadPoolExecutor(2) as pool:
                got = list(pool.map(lambda prompt: server.request("POST", "/v1/completions", {
                    "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}),
                    ("Hello", "one two three")))
            answers[options[1]] = [body["choices"][0]["text"] for status, _, body in got if status == 200]
            text = server.request("GET", "/metrics")[2]
            text = text if isinstance(text, str) else text.decode()
        finally:
            server.process.terminate()
            said = server.process.stderr.read().decode()
            server.process.wait()
    assert len(answers["cuda"]) == 2 and answers["cuda"] == answers["cpu"]
    value = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line and line[0] != "#"}
    for name in ("quern_device_memory_bytes", "quern_memory_bytes"):
        assert value[name + '{entry="weights"}'] > 0
        assert value[name + '{entry="kv"}'] + value[name + '{entry="cache"}'] > 0
    assert "the device cuda computes the first 2 of 4 layers, the CPU the others" in said


def test_figures_of_the_server(model, monkeypatch):
    for name, value in CARD.items():
        monkeypatch.setenv(name, value)
    server = Server(model, "--device-memory-limit", "1G", "--memory-limit", "900M")
    try:
        status, _, _ = server.request("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 4})
        assert status == 200
        text = server.request("GET", "/metrics")[2]
        text = text if isinstance(text, str) else text.decode()
    finally:
        server.process.terminate()
        said = server.process.stderr.read().decode()
        server.process.wait()
    value = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line and line[0] != "#"}
    assert value['quern_device_memory_bytes{entry="weights"}'] > 0 == value['quern_memory_bytes{entry="weights"}']
    assert value["quern_device_memory_limit_bytes"] == GIB and value["quern_memory_limit_bytes"] == 900 << 20
    assert 0 < value["quern_device_memory_peak_bytes"] < GIB
    assert value["quern_device_memory_free_bytes"] > 0
    assert "computing on cuda: host" in said
