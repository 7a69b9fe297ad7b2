"""A fixture of the type qwen3_vl as two GGUF files, text and vision tower, as llama.cpp's converter writes them."""
import os
import struct

import numpy as np

from support import fixture, read_json, read_safetensors

MODEL = "families2/qwen3_vl"
TYPES = {"u32": 4, "f32": 6, "bool": 7, "string": 8}
ARRAY = 9


def put_text(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def put_one(kind, value):
    if kind == "string":
        return put_text(value)
    return struct.pack({"u32": "<I", "f32": "<f", "bool": "<B"}[kind], value)


def put_value(kind, value):
    if not isinstance(value, (list, tuple)):
        return struct.pack("<I", TYPES[kind]) + put_one(kind, value)
    return struct.pack("<IIQ", ARRAY, TYPES[kind], len(value)) + b"".join(put_one(kind, v) for v in value)


def write_gguf(path, keys, tensors):
    """keys: name -> (kind, value or list); tensors: name -> array of float32 or float16."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for name, (kind, value) in keys.items():
        head += put_text(name) + put_value(kind, value)
    at, data = 0, b""
    for name, array in tensors.items():
        shape = array.shape[::-1]
        head += put_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", {"float32": 0, "float16": 1}[array.dtype.name], at)
        raw = np.ascontiguousarray(array).tobytes()
        data += raw + bytes(-len(raw) % 32)
        at = len(data)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)
    return path


def floats(bits):
    """BF16 as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def weights():
    return {name: floats(t) for name, t in read_safetensors(fixture(f"{MODEL}/model.safetensors")).items()
            if name != "__metadata__"}


def vocabulary():
    tokenizer = read_json(fixture(f"{MODEL}/tokenizer.json"))
    names = {i: text for text, i in tokenizer["model"]["vocab"].items()}
    names.update({t["id"]: t["content"] for t in tokenizer["added_tokens"]})
    special = {t["id"] for t in tokenizer["added_tokens"] if t["special"]}
    n = read_json(fixture(f"{MODEL}/config.json"))["text_config"]["vocab_size"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    return {"tokenizer.ggml.model": ("string", "gpt2"), "tokenizer.ggml.pre": ("string", "qwen2"),
            "tokenizer.ggml.tokens": ("string", [names.get(i, f"[PAD{i}]") for i in range(n)]),
            "tokenizer.ggml.token_type": ("u32", [3 if i in special else 1 for i in range(n)]),
            "tokenizer.ggml.merges": ("string", merges)}


def write_text(path):
    c = read_json(fixture(f"{MODEL}/config.json"))
    t = c["text_config"]
    at = "qwen3vl."
    keys = {"general.architecture": ("string", "qwen3vl"), at + "block_count": ("u32", t["num_hidden_layers"]),
            at + "context_length": ("u32", t["max_position_embeddings"]),
            at + "embedding_length": ("u32", t["hidden_size"]),
            at + "feed_forward_length": ("u32", t["intermediate_size"]),
            at + "attention.head_count": ("u32", t["num_attention_heads"]),
            at + "attention.head_count_kv": ("u32", t["num_key_value_heads"]),
            at + "rope.dimension_sections": ("u32", [*t["rope_parameters"]["mrope_section"], 0]),
            at + "rope.freq_base": ("f32", t["rope_parameters"]["rope_theta"]),
            at + "attention.layer_norm_rms_epsilon": ("f32", t["rms_norm_eps"]),
            at + "attention.key_length": ("u32", t["head_dim"]), at + "attention.value_length": ("u32", t["head_dim"]),
            at + "n_deepstack_layers": ("u32", len(c["vision_config"]["deepstack_visual_indexes"])), **vocabulary()}
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    tensors, prefix = {}, "model.language_model."
    for name, array in weights().items():
        if not name.startswith(prefix):
            continue
        own = name[len(prefix):-len(".weight")]
        if own == "embed_tokens":
            own = "token_embd"
        elif own == "norm":
            own = "output_norm"
        else:
            _, layer, rest = own.split(".", 2)
            own = f"blk.{layer}.{names[rest]}"
        tensors[own + ".weight"] = array
    return write_gguf(path, keys, tensors)


def tower():
    """The keys and tensors of the tower, to be written as they are or changed."""
    c = read_json(fixture(f"{MODEL}/config.json"))
    v, images = c["vision_config"], read_json(fixture(f"{MODEL}/preprocessor_config.json"))
    at, deep = "clip.vision.", v["deepstack_visual_indexes"]
    keys = {"general.architecture": ("string", "clip"), "general.type": ("string", "mmproj"),
            "clip.has_vision_encoder": ("bool", True), "clip.projector_type": ("string", "qwen3vl_merger"),
            "clip.use_gelu": ("bool", True), at + "projection_dim": ("u32", c["text_config"]["hidden_size"]),
            at + "patch_size": ("u32", v["patch_size"]), at + "image_size": ("u32", 30),
            at + "embedding_length": ("u32", v["hidden_size"]),
            at + "feed_forward_length": ("u32", v["intermediate_size"]), at + "block_count": ("u32", v["depth"]),
            at + "attention.head_count": ("u32", v["num_heads"]),
            at + "attention.layer_norm_epsilon": ("f32", 1e-6),
            at + "spatial_merge_size": ("u32", v["spatial_merge_size"]),
            at + "is_deepstack_layers": ("bool", [i in deep for i in range(v["depth"])]),
            at + "image_mean": ("f32", images["image_mean"]), at + "image_std": ("f32", images["image_std"]),
            at + "image_min_pixels": ("u32", images["size"]["shortest_edge"]),
            at + "image_max_pixels": ("u32", images["size"]["longest_edge"])}
    names = {"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
             "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"}
    whole = {"pos_embed": "v.position_embd", "merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0",
             "merger.linear_fc2": "mm.2", "patch_embed.proj": "v.patch_embd"}
    tensors, prefix = {}, "model.visual."
    for name, array in weights().items():
        if not name.startswith(prefix):
            continue
        stem, end = name[len(prefix):].rsplit(".", 1)
        parts = stem.split(".")
        if parts[0] == "blocks":
            stem = f"v.blk.{parts[1]}.{names['.'.join(parts[2:])]}"
        elif parts[0] == "deepstack_merger_list":
            stem = f"v.deepstack.{deep[int(parts[1])]}.{parts[2].replace('linear_', '')}"
        else:
            stem = whole[stem]
        if array.ndim == 5:
            tensors["v.patch_embd.weight"] = array[:, :, 0]
            tensors["v.patch_embd.weight.1"] = array[:, :, 1]
        else:
            tensors[f"{stem}.{end}"] = array
    return keys, tensors


def write_tower(path, change=None, dtype=np.float32):
    """change(keys, tensors) edits both in place. Matrices are of dtype."""
    keys, tensors = tower()
    if change:
        change(keys, tensors)
    return write_gguf(path, keys, {n: t.astype(dtype if t.ndim > 1 else np.float32) for n, t in tensors.items()})


def write_pair(folder, name="model"):
    """folder/NAME.gguf and folder/mmproj-NAME-F16.gguf."""
    write_tower(os.path.join(folder, f"mmproj-{name}-F16.gguf"), dtype=np.float16)
    return write_text(os.path.join(folder, f"{name}.gguf"))
