"""The two programs that bench/cuda/run compares, and the limits of the card: what is run, and what its output means."""
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from machines import ROOT, cache_folder, fail  # noqa: E402

KIT_FOLDER = os.path.join(ROOT, ".cuda-kit")
with open(os.path.join(HERE, "llama"), encoding="utf-8") as f:
    PACKAGE = re.search(r"^PACKAGE=(\S+)", f.read(), re.M).group(1)  # that llama.cpp comes from
FIRST_PROMPT = 8  # tokens before the first token of an answer
AHEAD = 128  # tokens of context that the sequences of a batch need besides: they start at different times
BF16_RATE = """
import json, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
best = 0
for run in range(8):
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(10): a @ b
    after.record()
    torch.cuda.synchronize()
    best = max(best, 0 if run < 2 else 10 * 2 * 8192 ** 3 / (before.elapsed_time(after) * 1e-3))
print(json.dumps({"bf16_flops": best, "torch": torch.__version__}))
"""


class Failed(Exception):
    """One program gave no figure. The other rows are measured all the same."""


def output_of(command, seconds, **environment):
    """Standard output of a program that ends within so many seconds."""
    environment = {**os.environ, **environment}
    try:
        out = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: stopped after {seconds:.0f} s") from None
    except OSError as e:
        raise Failed(f"{command[0]}: {e}") from None
    if out.returncode != 0:
        why = " ".join((out.stderr or out.stdout).strip()[-400:].split())
        raise Failed(f"{' '.join(command)}: exit {out.returncode}: {why}")
    return out.stdout


def seconds_to_output(command, seconds, **environment):
    """Seconds from the start of a program to the first byte on its standard output; all of its errors go to a file."""
    with tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **environment})
        try:
            select.select([process.stdout], [], [], max(seconds, 1))
            took = time.monotonic() - start
            first = took < seconds and os.read(process.stdout.fileno(), 1)
            process.communicate(timeout=max(seconds - took, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed(f"{' '.join(command)}: stopped after {seconds:.0f} s") from None
        if process.returncode != 0 or not first:
            errors.seek(0)
            why = " ".join(errors.read().decode(errors="replace")[-400:].split())
            raise Failed(f"{' '.join(command)}: exit {process.returncode}: {why}")
        return took


def jsons(text):
    """The JSON objects that stand on lines of their own."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Quern:
    """The program of a kit that tools/cuda-check packed, or of this tree."""
    name = "quern"

    def __init__(self, kit, work, args):
        self.device, self.precision, self.environment = args.device, args.precision, {}
        self.program = os.path.join(ROOT, "build/release/quern")
        if kit:
            if subprocess.run(["tar", "-C", work, "-xJf", kit, "bin", "lib"]).returncode != 0:
                fail(f"{kit} cannot be unpacked", "tools/cuda-check pack FILE quern makes one.")
            self.program = os.path.join(work, "bin/quern")
            self.environment = {"LD_LIBRARY_PATH": os.path.join(work, "lib")}
        library = os.path.join(os.path.dirname(self.program), "libquern-cuda.so")
        if os.path.exists(library) and "QUERN_CUDA_LIBRARY" not in os.environ:
            self.environment["QUERN_CUDA_LIBRARY"] = library
        self.ids = os.path.join(work, "ids.json")
        with open(self.ids, "w", encoding="utf-8") as f:
            json.dump({"ids": [list(range(1, FIRST_PROMPT + 1))]}, f)

    def version(self):
        return output_of([self.program, "--version"], 20, **self.environment).splitlines()[0]

    def measure(self, row, path, seconds):
        """Tokens a second; of the first token the seconds that it takes."""
        common = ["--device", self.device, "--precision", self.precision, "--kv-type", "f16"]
        if row.kind == "first":
            command = [self.program, "run", path, "--ids", self.ids, "-n", "1", *common]
            return seconds_to_output(command, seconds, **self.environment)
        n_prompt, n_generate = max(row.n_prompt, 1), 2 if row.kind == "prefill" else row.n_generate
        context = n_prompt + n_generate + 64 + (AHEAD if row.n_sequences > 1 else 0)
        command = [self.program, "bench", path, "--json", "--only-speed", "--runs", str(row.n_runs),
                   "--prompt-tokens", str(n_prompt), "--decode-tokens", str(n_generate),
                   "--sequences", str(row.n_sequences), "--context", str(context), *common]
        result = json.loads(output_of(command, seconds, **self.environment))["results"][0]
        return result[("prefill" if row.kind == "prefill" else "decode") + "_tokens_per_sec"]["median"]


class Llama:
    """llama.cpp's llama-bench and llama-batched-bench, built where they run if they are not there yet."""
    name = "llama.cpp"

    def __init__(self, archive, args):
        self.is_cuda = args.device != "cpu"
        kind = "cuda" if self.is_cuda else "cpu"
        self.folder = args.llama_folder or os.path.join(cache_folder(), "peers", f"llama.cpp-{kind}-bench")
        self.bin = os.path.join(self.folder, "build/bin")
        if not all(os.path.exists(os.path.join(self.bin, p)) for p in ("llama-bench", "llama-batched-bench")):
            if not archive:
                fail("no archive of llama.cpp", "bench/cuda/llama pack .cuda-kit/llama.tar.xz makes one.")
            script = os.path.join(HERE, "llama")
            if subprocess.run([script, "build", archive, self.folder, kind]).returncode != 0:
                fail("llama.cpp could not be built")
            if self.is_cuda and os.environ.get("OUT"):
                subprocess.run([script, "keep", self.folder, os.path.join(os.environ["OUT"], "llama-built.tar.xz")])
        self.environment = {"LD_LIBRARY_PATH": ":".join([self.bin, os.environ.get("LD_LIBRARY_PATH", "")])}
        self.common = ["-ngl", "99", "-fa", "on"] if self.is_cuda else ["-ngl", "0", "-t", str(os.cpu_count())]

    def measure(self, row, path, seconds):
        if row.kind == "first":
            command = [os.path.join(self.bin, "llama-bench"), "-m", path, "-o", "jsonl", *self.common,
                       "-p", str(FIRST_PROMPT), "-n", "0", "-r", "1", "--no-warmup"]
            return seconds_to_output(command, seconds, **self.environment)
        if row.n_sequences > 1:
            return self.batch(row, path, seconds)
        lengths = ["-p", "0", "-n", str(row.n_generate), "-d", str(row.n_prompt)]
        if row.kind == "prefill":
            # The default of 512 tokens a step, and four times as many: the better counts.
            lengths = ["-p", str(row.n_prompt), "-n", "0", "-ub", "512,2048"]
        command = [os.path.join(self.bin, "llama-bench"), "-m", path, "-o", "jsonl", *self.common, *lengths,
                   "-r", str(row.n_runs)]
        found = [r["avg_ts"] for r in jsons(output_of(command, seconds, **self.environment))]
        return max(found) if found else self.nothing(command)

    def batch(self, row, path, seconds):
        n = row.n_sequences
        command = [os.path.join(self.bin, "llama-batched-bench"), "-m", path, *self.common,
                   "-c", str(n * (row.n_prompt + row.n_generate + 64)), "-npp", str(row.n_prompt),
                   "-ntg", ",".join([str(row.n_generate)] * row.n_runs), "-npl", str(n), "--output-format", "jsonl"]
        found = sorted(r["speed_tg"] for r in jsons(output_of(command, seconds, **self.environment)))
        return found[len(found) // 2] if found else self.nothing(command)

    @staticmethod
    def nothing(command):
        raise Failed(f"{' '.join(command)}: no figures in its output")


class Limits:
    """Read bandwidth and bf16 rate of the card at this moment; 0 where they cannot be measured."""

    def __init__(self, work):
        self.work, self.read, self.bf16, self.card = work, 0.0, 0.0, "no card"
        self.readings = []
        self.program = os.path.join(work, "limits")
        try:
            text = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], 20)
            arch = re.sub(r"\D", "", text.splitlines()[0])
            output_of(["nvcc", "-O3", "-std=c++17", f"-arch=sm_{arch}", "-o", self.program,
                       os.path.join(HERE, "limits.cu")], 90)
        except Failed as e:
            print(f"bench/cuda: no limits: {e}", file=sys.stderr)
            self.program = None

    def take(self):
        """Measures again; the better figures count."""
        if not self.program:
            return
        for command in ([self.program], ["python3", "-c", BF16_RATE]):
            try:
                for r in jsons(output_of(command, 90)):
                    self.card = r.get("card", self.card)
                    self.read = max(self.read, r.get("read_bytes_per_sec", 0))
                    self.bf16 = max(self.bf16, r.get("bf16_flops", 0))
                    self.readings.append(r)
            except Failed as e:
                print(f"bench/cuda: {e}", file=sys.stderr)
