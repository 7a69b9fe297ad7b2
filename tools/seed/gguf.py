"""A trained folder of the seed (config.json, tokenizer.json, model.safetensors in f32) as one GGUF file.

usage: gguf.py FOLDER OUT.gguf TYPE [EMBEDDING_TYPE]     types: f32 q4_0 q4_1 q5_0 q5_1 q6_k q8_0

Matrices get TYPE, the embedding (which is the head, too) EMBEDDING_TYPE; vectors stay f32. Each block's scale is the
one of some candidates that gives the least squared error. The same input gives the same bytes."""
import json
import os
import struct
import sys

import numpy

TYPES = {"f32": 0, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q6_k": 14}
FILE_TYPES = {"f32": 0, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q6_k": 18}
NAME = "quern seed"
ABOUT = "A toy inside quern, trained from nothing by quern itself: docs/training-the-seed.md"
STEPS = numpy.linspace(0.75, 1.1, 36, dtype=numpy.float32)


# ---- blocks ---------------------------------------------------------------------------------------------------

def half(x):
    return x.astype("<f2").astype(numpy.float32)


def inverse(d):
    return numpy.where(d == 0, 0, 1 / numpy.where(d == 0, 1, d)).astype(numpy.float32)


def best(x, candidates, lowest, highest):
    """Of candidates (scale, offset), each [n, 1], the codes and the pair of each row of x with the least error."""
    found = None
    for d, m in candidates:
        d, m = half(d), half(m)
        q = numpy.clip(numpy.rint((x - m) * inverse(d)), lowest, highest).astype(numpy.float32)
        error = ((q * d + m - x) ** 2).sum(1, keepdims=True)
        if found is None:
            found = [error, q, d, m]
        else:
            for i, new in reversed(list(enumerate((error, q, d, m)))):
                found[i] = numpy.where(error < found[0], new, found[i])
    return found[1].astype(numpy.int32), found[2], found[3]


def symmetric(x, bits):
    """x = d * q, q in -2^(bits-1) to 2^(bits-1) - 1; the largest takes the end that reaches further."""
    most = numpy.take_along_axis(x, numpy.abs(x).argmax(1)[:, None], 1)
    top = 2 ** (bits - 1)
    return best(x, [(most / numpy.float32(-top) * s, 0 * most) for s in STEPS], -top, top - 1)


def affine(x, bits):
    """x = d * q + m, q from 0 to 2^bits - 1."""
    low, high = numpy.minimum(x.min(1, keepdims=True), 0), x.max(1, keepdims=True)
    top = 2 ** bits - 1
    return best(x, [((high - low) * s / top, low + (high - low) * (1 - s) / 2) for s in STEPS], 0, top)


def nibbles(q):
    return (q[:, :16] & 15 | (q[:, 16:] & 15) << 4).astype(numpy.uint8)


def fifth_bits(q):
    return ((q >> 4 & 1).astype(numpy.uint64) << numpy.arange(32, dtype=numpy.uint64)).sum(1).astype("<u4")


def columns(*parts):
    return numpy.concatenate([numpy.ascontiguousarray(p).view(numpy.uint8).reshape(len(p), -1) for p in parts], 1)


def encode(x, kind):
    """Bytes of a matrix, row by row."""
    if kind == "f32":
        return x.astype("<f4").tobytes()
    if kind == "q6_k":
        return q6_k(x.reshape(-1, 16))
    x = x.reshape(-1, 32)
    if kind == "q8_0":
        d = half(numpy.abs(x).max(1, keepdims=True) / 127)
        q = numpy.clip(numpy.rint(x * inverse(d)), -127, 127).astype(numpy.int8)
        return columns(d.astype("<f2"), q).tobytes()
    bits = int(kind[1])
    q, d, m = symmetric(x, bits) if kind.endswith("_0") else affine(x, bits)
    if kind.endswith("_0"):
        q = q + 2 ** (bits - 1)
    parts = [d.astype("<f2")] + ([m.astype("<f2")] if kind.endswith("_1") else [])
    return columns(*parts, *([fifth_bits(q)[:, None]] if bits == 5 else []), nibbles(q)).tobytes()


def q6_k(x):
    """Blocks of 256: 16 scales of 8 bits by one of f16, codes of 6 bits."""
    _, scale, _ = symmetric(x, 6)
    scale = scale.reshape(-1, 16)
    d = half(numpy.abs(scale).max(1, keepdims=True) / 127)
    scales = numpy.clip(numpy.rint(scale * inverse(d)), -127, 127).astype(numpy.int8)
    each = (d * scales.astype(numpy.float32)).reshape(-1, 1)
    q = (numpy.clip(numpy.rint(x * inverse(each)), -32, 31).astype(numpy.int32) + 32).reshape(-1, 2, 4, 32)
    low = numpy.concatenate([q[:, :, 0] & 15 | (q[:, :, 2] & 15) << 4, q[:, :, 1] & 15 | (q[:, :, 3] & 15) << 4], 2)
    high = q[:, :, 0] >> 4 | (q[:, :, 1] >> 4) << 2 | (q[:, :, 2] >> 4) << 4 | (q[:, :, 3] >> 4) << 6
    flat = [a.astype(numpy.uint8).reshape(len(d), -1) for a in (low, high)]
    return columns(*flat, scales, d.astype("<f2")).tobytes()


# ---- the file -------------------------------------------------------------------------------------------------

def string(s):
    b = s.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def pair(key, value):
    if isinstance(value, bool):
        return string(key) + struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return string(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return string(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    if isinstance(value[0], str):
        return string(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    return string(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack("<%di" % len(value), *value)


def metadata(c, tokenizer, tokenizer_config, kind):
    vocab = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    tokens = sorted(vocab, key=vocab.get)
    special = {t["content"] for t in tokenizer["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    yield from {
        "general.architecture": "llama", "general.name": NAME, "general.description": ABOUT, "general.license": "mit",
        "general.file_type": FILE_TYPES[kind], "general.quantization_version": 2,
        "llama.block_count": c["num_hidden_layers"], "llama.context_length": c["max_position_embeddings"],
        "llama.embedding_length": c["hidden_size"], "llama.feed_forward_length": c["intermediate_size"],
        "llama.attention.head_count": c["num_attention_heads"],
        "llama.attention.head_count_kv": c["num_key_value_heads"],
        "llama.attention.key_length": c["head_dim"], "llama.attention.value_length": c["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "llama.rope.freq_base": c["rope_theta"],
        "llama.rope.dimension_count": c["head_dim"], "llama.vocab_size": c["vocab_size"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in special else 1 for t in tokens], "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": c["bos_token_id"], "tokenizer.ggml.eos_token_id": c["eos_token_id"],
        "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": tokenizer_config["chat_template"],
    }.items()


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack_from("<Q", data)[0]
    for name, t in sorted(json.loads(data[8:8 + size]).items()):
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            if t["dtype"] != "F32":
                raise ValueError("%s: %s is %s, not F32" % (path, name, t["dtype"]))
            yield name, numpy.frombuffer(data[8 + size + begin:8 + size + end], "<f4").reshape(t["shape"])


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_tensor(name, x, c):
    if name == "model.embed_tokens.weight":
        return "token_embd.weight", x
    if name == "model.norm.weight":
        return "output_norm.weight", x
    layer, module = name[len("model.layers."):-len(".weight")].split(".", 1)
    if module in ("self_attn.q_proj", "self_attn.k_proj"):  # the format has the halves of a head's rows in turns
        x = x.reshape(-1, 2, c["head_dim"] // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
    return "blk.%s.%s.weight" % (layer, NAMES[module]), x


def write(folder, out, kind, embedding_kind):
    def load(name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return json.load(f)

    c = load("config.json")
    pairs = list(metadata(c, load("tokenizer.json"), load("tokenizer_config.json"), kind))
    infos, data, at = [], [], 0
    for name, x in read_safetensors(os.path.join(folder, "model.safetensors")):
        name, x = gguf_tensor(name, x, c)
        t = "f32" if x.ndim == 1 else embedding_kind if name == "token_embd.weight" else kind
        blocks = encode(x, t)
        infos.append(string(name) + struct.pack("<I%dQIQ" % x.ndim, x.ndim, *reversed(x.shape), TYPES[t], at))
        data.append(blocks + b"\0" * (-len(blocks) % 32))
        at += len(data[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + b"".join(pair(k, v) for k, v in pairs)
    head += b"".join(infos)
    with open(out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + b"".join(data))


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else sys.argv[3])
