"""Writes the model that stands for those of llama.cpp's tests: a GGUF file of 1 MB with random weights.

    make_model.py OUT TEMPLATE

It has what the tests need of a model: a vocabulary of 512 pieces in SentencePiece's form with <s> as 1, tokens for
gaps, the chat template in the file TEMPLATE, room for 8,192 positions. Component 0 of the hidden state is the same
everywhere, and the head turns it into a large negative logit for control and byte tokens. So an answer never ends by
itself, and is text.
"""
import sys

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT, VOCABULARY = 64, 3, 4, 160, 8192, 512
GAPS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
CONTROL, BYTE, NORMAL, UNKNOWN = 3, 6, 1, 2


def pieces():
    """(text, kind) of each token: control, bytes, then pieces by length, so that longer ones are merged last."""
    letters = [chr(c) for c in range(32, 127) if chr(c) != " "] + ["\n"]
    words = "the and a to was he she it in is they of little that with her his day you said big play wanted".split()
    pairs = ["\u2581" + c for c in "abcdefghijklmnopqrstuvwxyzTSHAI"]
    pairs += [a + b for a in "abcdefghilmnoprstuw" for b in "aeiou"]
    parts = {"\u2581" + w[:n] for w in words for n in range(2, len(w) + 1)}
    text = ["\u2581", *letters, *dict.fromkeys(pairs), *sorted(parts, key=lambda p: (len(p), p))]
    known = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    known += [(f"<0x{i:02X}>", BYTE) for i in range(256)] + [(g, CONTROL) for g in GAPS]
    known += [(t, NORMAL) for t in dict.fromkeys(text)]
    assert len(known) >= VOCABULARY, len(known)
    return known[:VOCABULARY]


def put_vocabulary(out, template):
    known = pieces()
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([text.encode() for text, _ in known])
    out.add_token_scores([float(len(text)) if kind == NORMAL else 0.0 for text, kind in known])
    out.add_token_types([kind for _, kind in known])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_add_bos_token(True)
    out.add_add_eos_token(False)
    with open(template) as f:
        out.add_chat_template(f.read())
    return np.array([kind for _, kind in known])


def main():
    rng = np.random.default_rng(260)
    out = gguf.GGUFWriter(sys.argv[1], "llama")
    out.add_name("quern llama-server tests")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(HIDDEN // HEADS)
    out.add_vocab_size(VOCABULARY)
    kinds = put_vocabulary(out, sys.argv[2])

    def put(name, rows, columns, scale, constant=False):
        weight = rng.standard_normal((rows, columns)).astype(np.float32) * scale
        if constant:
            weight[0] = 0  # component 0 stays as the embedding has it
        out.add_tensor(name, weight)

    embedding = rng.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    embedding[:, 0] = 4
    out.add_tensor("token_embd.weight", embedding)
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v"):
            put(f"blk.{i}.{name}.weight", HIDDEN, HIDDEN, 0.2)
        put(f"blk.{i}.attn_output.weight", HIDDEN, HIDDEN, 0.3, constant=True)
        put(f"blk.{i}.ffn_gate.weight", FEED_FORWARD, HIDDEN, 0.2)
        put(f"blk.{i}.ffn_up.weight", FEED_FORWARD, HIDDEN, 0.2)
        put(f"blk.{i}.ffn_down.weight", HIDDEN, FEED_FORWARD, 0.2, constant=True)
        for name in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"blk.{i}.{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    out.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    head = rng.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32) * 0.3
    head[:, 0] = np.where(kinds == NORMAL, 0, -60)
    out.add_tensor("output.weight", head)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
