"""What a model file asks of a machine, what the machine can do at that moment, and the limit that follows.

Prefill: the peak of the operands' type over the multiply-adds of a prompt's token: layers, causal attention, the head
once for the whole prompt. Decode: read bandwidth over the bytes of all tensors that a token needs (of experts: of those
that it goes to), and at more than 1,024 tokens of context also its keys and values. A batch: the multiply-adds of its
tokens, the head for each.
"""
import copy
import json
import math
import os
import struct
import subprocess
from dataclasses import dataclass

from machines import fail, model_path

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMITS = os.path.join(ROOT, "build/release/bench/limits")
FILE_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 14: "Q4_K", 15: "Q4_K_M",
              16: "Q5_K", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16"}
KV_COUNTS_FROM = 1024  # tokens of context
KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}  # of a value
LOOKED_UP = ("per_layer_token_embd.weight",)  # a token needs a row of it
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    def __init__(self, f):
        self.f = f

    def number(self, form):
        return struct.unpack("<" + form, self.f.read(struct.calcsize(form)))[0]

    def text(self):
        return self.f.read(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind):
        """A scalar or a text; of an array of scalars a list, else the number of its elements."""
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.number(SCALARS[kind])
        kind, n = self.number("I"), self.number("Q")
        if kind in SCALARS:
            size = struct.calcsize(SCALARS[kind]) * n
            return list(struct.unpack(f"<{n}{SCALARS[kind]}", self.f.read(size)))
        for _ in range(n):
            self.f.seek(self.number("Q"), 1)
        return n


@dataclass
class Tensor:
    """Of a matrix that takes several tensors of a directory (codes, scales, biases): all of them."""
    shape: list
    bytes: int
    operands: str  # what fast precision multiplies with it: int8, bf16, f32


@dataclass
class Contents:
    """What a file or a directory says of its model."""
    type: str
    bytes: int
    tensors: dict  # by name
    embeddings: str  # the name of their tensor
    head: str  # the name that a head of its own would have
    n_heads: int
    kv_heads: list  # of each layer, as all that follows
    dims: list  # of a head
    windows: list  # positions that a query sees; 0: all
    n_experts: int = 0
    n_experts_used: int = 0
    fast_planes: int = 1  # int8 planes of activations that a product takes in fast precision


def read_gguf(path):
    with open(path, "rb") as f:
        r = Reader(f)
        if f.read(4) != b"GGUF" or r.number("I") not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        n_tensors, n_values = r.number("Q"), r.number("Q")
        meta, places = {}, []
        for _ in range(n_values):
            key = r.text()
            meta[key] = r.value(r.number("I"))
        for _ in range(n_tensors):
            name = r.text()
            shape = [r.number("Q") for _ in range(r.number("I"))]
            kind = r.number("I")
            places.append((r.number("Q"), name, shape, kind))
        data = os.path.getsize(path) - (f.tell() + 31) // 32 * 32
    places.sort()
    tensors = {name: Tensor(shape, end - offset, "bf16" if kind == 30 else "f32" if kind in (0, 1) else "int8")
               for (offset, name, shape, kind), end in zip(places, [t[0] for t in places[1:]] + [data])}
    a = meta["general.architecture"]
    heads, n = meta[f"{a}.attention.head_count"], meta[f"{a}.block_count"]
    dim = meta.get(f"{a}.attention.key_length", meta[f"{a}.embedding_length"] // heads)
    window, period = meta.get(f"{a}.attention.sliding_window", 0), {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}.get(a, 1)
    slides = meta.get(f"{a}.attention.sliding_window_pattern", period)
    if not isinstance(slides, list):
        slides = [(i + 1) % slides for i in range(n)]
    kv_heads = meta.get(f"{a}.attention.head_count_kv", heads)
    return Contents(type=FILE_TYPES.get(meta.get("general.file_type"), "?"), bytes=os.path.getsize(path),
                    tensors=tensors, embeddings="token_embd.weight", head="output.weight", n_heads=heads,
                    kv_heads=kv_heads if isinstance(kv_heads, list) else [kv_heads] * n,
                    dims=[meta.get(f"{a}.attention.key_length_swa", dim) if s else dim for s in slides],
                    windows=[window if s else 0 for s in slides],
                    n_experts=meta.get(f"{a}.expert_count", 0), n_experts_used=meta.get(f"{a}.expert_used_count", 0))


def read_directory(path):
    """Of safetensors: dense models of 16 bits or of MLX's affine types."""
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    quantization = config.get("quantization", {})
    mode = quantization.get("mode", "affine")
    if mode != "affine":
        raise ValueError(f"{path}/config.json: quantization.mode {mode} is not counted: affine alone is")
    if any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise ValueError(f"{path}/config.json: experts are counted in GGUF files alone")
    entries, tensors = {}, {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            with open(os.path.join(path, name), "rb") as f:
                header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            header.pop("__metadata__", None)
            entries.update(header)
    sizes = {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in entries.items()}
    for name, t in entries.items():
        module, part = name.rsplit(".", 1)
        if part in ("scales", "biases"):
            continue
        shape, operands = t["shape"], "bf16" if t["dtype"] == "BF16" else "f32"
        if t["dtype"] == "U32":
            bits = (quantization.get(module) or quantization)["bits"]
            shape, operands = shape[:-1] + [shape[-1] * 32 // bits], "int8"
        n_bytes = sizes[name] + sizes.get(f"{module}.scales", 0) + sizes.get(f"{module}.biases", 0)
        tensors[name] = Tensor(shape, n_bytes, operands)
    heads, n = config["num_attention_heads"], config["num_hidden_layers"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    window, kinds = config.get("sliding_window") or 0, config.get("layer_types", ["full_attention"] * n)
    return Contents(type=f"MLX affine {quantization['bits']}" if quantization else config.get("torch_dtype", "?"),
                    bytes=sum(sizes.values()), tensors=tensors, embeddings="model.embed_tokens.weight",
                    head="lm_head.weight", n_heads=heads, kv_heads=[config.get("num_key_value_heads", heads)] * n,
                    dims=[dim] * n, windows=[window if k == "sliding_attention" else 0 for k in kinds],
                    fast_planes=2 if quantization else 1)


class Model:
    """What computing with a GGUF file or a directory takes: n_parameters, weight_bytes (that a token needs),
    layer_macs, head_macs, operands (of most multiply-adds), and of each layer its window, the width of its queries, its
    values of keys and values a position."""

    def __init__(self, path):
        found = (read_directory if os.path.isdir(path) else read_gguf)(path)
        self.path, self.name = path, os.path.basename(os.path.normpath(path)).removesuffix(".gguf")
        self.type, self.file_bytes, self.n_experts = found.type, found.bytes, found.n_experts
        self.fast_planes, self.windows = found.fast_planes, found.windows
        self.attention_widths = [found.n_heads * d for d in found.dims]
        self.kv_values = [2 * n * d for n, d in zip(found.kv_heads, found.dims)]
        head = found.head if found.head in found.tensors else found.embeddings
        self.weight_bytes = self.layer_macs = self.head_macs = self.n_parameters = 0
        of_operands = {"int8": 0, "bf16": 0, "f32": 0}
        for name, t in found.tensors.items():
            of_experts = found.n_experts and len(t.shape) == 3
            share, elements = found.n_experts_used / found.n_experts if of_experts else 1, math.prod(t.shape)
            self.n_parameters += elements
            if name in LOOKED_UP or name == found.embeddings and name != head:
                continue
            self.weight_bytes += round(share * t.bytes)
            if name == head:
                self.head_macs = elements
            elif len(t.shape) >= 2:
                self.layer_macs += round(share * elements)
                of_operands[t.operands] += elements
        self.operands = max(of_operands, key=of_operands.get)

    def planes(self, precision):
        """How often a product runs over its weights: once for each int8 plane of the activations."""
        if self.operands_of(precision) != "int8":
            return 1
        return self.fast_planes if precision == "fast" else 2

    def attention_macs(self, n):
        """Of a prompt of n tokens: each query with the keys up to its own, and the same number of values."""
        macs = 0
        for w, width in zip(self.windows, self.attention_widths):
            seen = n * (n + 1) // 2 if not w or n <= w else w * (w + 1) // 2 + (n - w) * w
            macs += 2 * seen * width
        return macs

    def prompt_macs(self, n):
        return n * self.layer_macs + self.attention_macs(n) + self.head_macs

    def kv_bytes(self, depth, bytes_per_value=2):
        """Read for one token at this depth."""
        return sum(min(depth, w or depth) * n for w, n in zip(self.windows, self.kv_values)) * bytes_per_value

    def token_macs(self, depth):
        return (self.layer_macs + self.head_macs +
                2 * sum(min(depth, w or depth) * width for w, width in zip(self.windows, self.attention_widths)))

    def operands_of(self, precision):
        if precision == "fast":
            return self.operands
        return "int8" if self.operands == "int8" and precision == "high" else "f32"


def model_of(name):
    """What computing with a file, a directory or what else model_path knows takes."""
    path = model_path(name)
    try:
        return Model(path)
    except (OSError, ValueError, KeyError, struct.error) as e:
        fail(f"{path} cannot be counted: {type(e).__name__}: {e}")


class Machine:
    """Bytes read per second and multiply-adds per second with n threads, at this moment: the best of some readings."""

    def __init__(self, n_threads, cpu_set=None):
        command = [LIMITS, "--json", "--mib", "256", "--repeats", "9", "--threads", str(n_threads)]
        out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
        self.read = max(r["best"] for r in out["read_gb_per_sec"]) * 1e9
        self.peaks = {}
        for r in out["gmac_per_sec"]:
            if cpu_set in (None, r["set"]):
                self.peaks[r["type"]] = max(self.peaks.get(r["type"], 0), r["best"] * 1e9)
        # What a set has no instruction for is done in float32.
        for kind in ("int8", "bf16", "f32"):
            self.peaks.setdefault(kind, self.peaks.get("f32", 0))

    def best(self, other):
        """The better figures of two moments."""
        both = copy.copy(self)
        both.read = max(self.read, other.read)
        both.peaks = {k: max(v, other.peaks[k]) for k, v in self.peaks.items()}
        return both


def limit(machine, model, phase, precision, n_prompt, n_generate, kv="f16"):
    """(tokens per second, what limits). kv: type of keys and values."""
    operands = model.operands_of(precision)
    peak = machine.peaks[operands] / model.planes(precision)
    if operands == "int8" and model.planes(precision) == 2:
        peak = max(peak, machine.peaks.get("int16", 0))
    depth = n_prompt + n_generate // 2
    if phase == "prefill":
        return peak * n_prompt / model.prompt_macs(n_prompt), operands
    if phase == "batch":
        return peak / model.token_macs(depth), operands
    kv_bytes = model.kv_bytes(depth, KV_BYTES[kv]) if depth > KV_COUNTS_FROM else 0
    return machine.read / (model.weight_bytes + kv_bytes), "read"
