"""A GGUF file in parts, as llama.cpp's gguf-split writes them: the keys stand in the first part, the tensors in all."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U16, I32 = 8, 9, 2, 5


def number(data, at, form):
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def text(data, at):
    n, at = number(data, at, "<Q")
    return data[at:at + n], at + n


def skip_value(data, at, kind):
    if kind == STRING:
        return text(data, at)[1]
    if kind != ARRAY:
        return at + SIZES[kind]
    kind, at = number(data, at, "<I")
    n, at = number(data, at, "<Q")
    if kind in SIZES:
        return at + n * SIZES[kind]
    for _ in range(n):
        at = skip_value(data, at, kind)
    return at


def read(data):
    """The keys' bytes, how many they are, and (head without the offset, bytes) of each tensor."""
    assert data[:4] == b"GGUF" and number(data, 4, "<I")[0] == 3
    n_tensors, at = number(data, 8, "<Q")
    n_keys, begin = number(data, at, "<Q")
    at = begin
    for _ in range(n_keys):
        at = text(data, at)[1]
        kind, at = number(data, at, "<I")
        at = skip_value(data, at, kind)
    end, heads = at, []
    for _ in range(n_tensors):
        first = at
        at = text(data, at)[1]
        n_dims, at = number(data, at, "<I")
        at += 8 * n_dims + 4
        offset, at = number(data, at, "<Q")
        heads.append((data[first:at - 8], offset))
    base = -(-at // 32) * 32
    starts = sorted(offset for _, offset in heads) + [len(data) - base]
    return data[begin:end], n_keys, [(head, data[base + o:base + starts[starts.index(o) + 1]]) for head, o in heads]


def key(name, kind, value):
    return struct.pack("<Q", len(name)) + name + struct.pack({U16: "<IH", I32: "<Ii"}[kind], kind, value)


def write_part(keys, n_keys, tensors, no, count, n_tensors):
    keys += key(b"split.no", U16, no) + key(b"split.count", U16, count) + key(b"split.tensors.count", I32, n_tensors)
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys + 3) + keys, b""
    for tensor_head, raw in tensors:
        head += tensor_head + struct.pack("<Q", len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def split_gguf(data, n, first_is_empty=False):
    """The bytes of n parts. first_is_empty: the first has no tensor (gguf-split --no-tensor-first-split)."""
    keys, n_keys, tensors = read(data)
    shares = n - 1 if first_is_empty else n
    groups = [tensors[len(tensors) * i // shares:len(tensors) * (i + 1) // shares] for i in range(shares)]
    groups = [[]] + groups if first_is_empty else groups
    return [write_part(*((keys, n_keys) if i == 0 else (b"", 0)), group, i, n, len(tensors))
            for i, group in enumerate(groups)]


def part_names(stem, n):
    return [f"{stem}-{i + 1:05d}-of-{n:05d}.gguf" for i in range(n)]
