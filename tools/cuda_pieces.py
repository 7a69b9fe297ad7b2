#!/usr/bin/env python3
"""Pieces of real models for tools/cuda-check: small enough to travel to a machine with a card.

    tools/cuda_pieces.py cut FILE.gguf OUT.gguf [LAYERS [TOKENS]]
        the first layers (2), and the first tokens (2048) of the vocabulary; all that stays has the bits that it had
    tools/cuda_pieces.py ids FILE.json N [TOKENS]
        a row of N ids, for `quern logits --ids`
    tools/cuda_pieces.py bits A.safetensors B.safetensors
        fails unless all logits have the same bits
    tools/cuda_pieces.py kl A.safetensors B.safetensors MOST
        fails if the mean KL divergence of B from A, in nats, is larger

Nothing but Python is needed.
"""
import array
import json
import math
import struct
import sys

# Elements of a block and its bytes, by GGUF's number of a type.
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
         11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY, U32 = 8, 9, 4


class Reader:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 0

    def take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self):
        n = self.take("<Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, n = self.take("<I"), self.take("<Q")
            return inner, [self.value(inner) for _ in range(n)]
        return self.take(SCALARS[kind])


def packed(kind, value):
    if kind == STRING:
        return struct.pack("<Q", len(value)) + value
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(packed(inner, i) for i in items)
    return struct.pack(SCALARS[kind], value)


def cut_fields(fields, n_layers, n_tokens):
    whole = next(v for name, (_, v) in fields.items() if name.endswith(b".block_count"))
    tokens = fields[b"tokenizer.ggml.tokens"][1][1][:n_tokens]
    known, out = set(tokens), {}
    for name, (kind, value) in fields.items():
        if name.endswith(b".block_count"):
            value = n_layers
        elif name.endswith(b".vocab_size"):
            value = n_tokens
        elif name.startswith(b"tokenizer.") and name.endswith(b"_token_id") and value >= n_tokens:
            continue
        elif name == b"tokenizer.ggml.merges":
            pairs = ((m, m.split(b" ", 1)) for m in value[1])
            value = value[0], [m for m, p in pairs if p[0] in known and p[1] in known and b"".join(p) in known]
        elif kind == ARRAY and name.startswith(b"tokenizer."):
            value = value[0], value[1][:n_tokens]
        elif kind == ARRAY and len(value[1]) == whole:
            value = value[0], value[1][:n_layers]
        out[name] = kind, value
    return out


def cut(path, out_path, n_layers=2, n_tokens=2048):
    r = Reader(path)
    if r.data[:4] != b"GGUF":
        raise SystemExit(f"{path}: not a GGUF file")
    r.at = 4
    version, n_tensors, n_fields = r.take("<I"), r.take("<Q"), r.take("<Q")
    fields = {}
    for _ in range(n_fields):
        name, kind = r.string(), r.take("<I")
        fields[name] = kind, r.value(kind)
    align = fields.get(b"general.alignment", (U32, 32))[1]
    tensors = []
    for _ in range(n_tensors):
        name, n = r.string(), r.take("<I")
        tensors.append((name, [r.take("<Q") for _ in range(n)], r.take("<I"), r.take("<Q")))
    begin = (r.at + align - 1) // align * align
    fields = cut_fields(fields, n_layers, n_tokens)
    infos, pieces, at = b"", [], 0
    n_kept = 0
    for name, dims, kind, offset in tensors:
        if name.startswith(b"blk.") and int(name.split(b".")[1]) >= n_layers:
            continue
        if name in (b"token_embd.weight", b"output.weight"):
            dims[1] = n_tokens
        block, block_bytes = TYPES[kind]
        size = math.prod(dims) // block * block_bytes
        infos += packed(STRING, name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        infos += struct.pack("<IQ", kind, at)
        piece = r.data[begin + offset:begin + offset + size]
        pieces.append(piece + b"\0" * (-size % align))
        at += len(pieces[-1])
        n_kept += 1
    head = b"GGUF" + struct.pack("<IQQ", version, n_kept, len(fields))
    head += b"".join(packed(STRING, name) + struct.pack("<I", kind) + packed(kind, value)
                     for name, (kind, value) in fields.items()) + infos
    with open(out_path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % align) + b"".join(pieces))


def write_ids(path, n, n_tokens=2048):
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"ids": [[300 + i * i * 7919 % (n_tokens - 300) for i in range(n)]]}, f)


def logits_of(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    about = head["logits.0"]
    values = array.array("f", data[slice(*about["data_offsets"])])
    return about["shape"][1], values


def bits(a, b):
    (_, x), (_, y) = logits_of(a), logits_of(b)
    differ = sum(1 for p, q in zip(x.tobytes()[::4], y.tobytes()[::4]) if p != q) if len(x) == len(y) else -1
    if x.tobytes() != y.tobytes():
        most = max(abs(p - q) for p, q in zip(x, y)) if len(x) == len(y) else math.inf
        raise SystemExit(f"{len(x)} logits have other bits ({differ} in their lowest byte), by up to {most:.3g}")
    print(f"{len(x)} logits have the same bits")


def log_softmax(row):
    most = max(row)
    log_sum = most + math.log(math.fsum(math.exp(x - most) for x in row))
    return [x - log_sum for x in row]


def kl(a, b, most):
    (width, x), (_, y) = logits_of(a), logits_of(b)
    if len(x) != len(y) or not x:
        raise SystemExit("the files have logits of other shapes")
    total, n, same = 0.0, len(x) // width, 0
    for i in range(n):
        p, q = log_softmax(x[i * width:(i + 1) * width]), log_softmax(y[i * width:(i + 1) * width])
        total += math.fsum(math.exp(s) * (s - t) for s, t in zip(p, q))
        same += p.index(max(p)) == q.index(max(q))
    print(f"mean KL {total / n:.2e} of {n} positions, the same best token for {same}")
    if not total / n <= float(most):
        raise SystemExit(f"mean KL {total / n:.2e} is above {most}")


def main():
    commands = {"cut": (cut, 2, 4), "ids": (write_ids, 2, 3), "bits": (bits, 2, 2), "kl": (kl, 3, 3)}
    command, *words = sys.argv[1:] or ["help"]
    if command not in commands or not commands[command][1] <= len(words) <= commands[command][2]:
        raise SystemExit(__doc__.strip())
    is_number = {"cut": 2, "ids": 1}.get(command, 9)
    commands[command][0](*words[:is_number], *map(int, words[is_number:]))


if __name__ == "__main__":
    main()
