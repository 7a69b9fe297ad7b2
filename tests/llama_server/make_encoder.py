"""Writes the encoders that stand for bge-small and jina-reranker-v1-tiny of llama.cpp's tests: small GGUF files.

    make_encoder.py OUT embedding|reranker

Texts of the tests have as many tokens as with these models: most of their words are whole tokens, and other
characters are tokens of their own. The score of the reranker grows with the share of words about machines and
learning.
"""
import re
import sys

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 128, 512
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONTROL, NORMAL = 3, 1
WORDS = """i believe the meaning of life is this a test write joke about ai from very long prompt which will not be
    truncated machine learn data city what par cap france"""
ENDS = ["ing", "is", "ital"]
SUBJECT = ("machine", "learn", "data")


def pieces():
    """Words and characters that begin a word have U+2581 before them, as GGUF writes BERT's vocabulary."""
    characters = [chr(c) for c in range(33, 127) if not "A" <= chr(c) <= "Z"]
    begins = ["\u2581" + t for t in dict.fromkeys(WORDS.split() + characters)]
    return SPECIAL + begins + ENDS + [c for c in characters if re.match(r"\w", c)]


def put_vocabulary(out):
    known = pieces()
    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("default")
    out.add_token_list([t.encode() for t in known])
    out.add_token_types([CONTROL if t in SPECIAL else NORMAL for t in known])
    out.add_token_type_count(2)
    for i, add in enumerate((out.add_pad_token_id, out.add_unk_token_id, out.add_bos_token_id, out.add_sep_token_id,
                             out.add_mask_token_id)):
        add(i)
    out.add_eos_token_id(3)
    return known


def put_keys(out, is_reranker):
    out.add_name("quern llama-server tests")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_layer_norm_eps(1e-12)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.RANK if is_reranker else gguf.PoolingType.CLS)


def main():
    is_reranker = sys.argv[2] == "reranker"
    rng = np.random.default_rng(512)
    out = gguf.GGUFWriter(sys.argv[1], "bert")
    put_keys(out, is_reranker)
    known = put_vocabulary(out)

    def put(name, *shape, scale=0.2):
        out.add_tensor(name, (rng.standard_normal(shape) * scale).astype(np.float32))

    def put_norm(name):
        out.add_tensor(name + ".weight", np.ones(HIDDEN, dtype=np.float32))
        out.add_tensor(name + ".bias", np.zeros(HIDDEN, dtype=np.float32))

    embedding = rng.standard_normal((len(known), HIDDEN)).astype(np.float32)
    if is_reranker:
        embedding[:, 0] = [10 * (t.strip("\u2581") in SUBJECT) for t in known]
    out.add_tensor("token_embd.weight", embedding)
    put("position_embd.weight", CONTEXT, HIDDEN)
    put("token_types.weight", 2, HIDDEN)
    put_norm("token_embd_norm")
    for i in range(LAYERS):
        for name, rows, columns in (("attn_q", HIDDEN, HIDDEN), ("attn_k", HIDDEN, HIDDEN), ("attn_v", HIDDEN, HIDDEN),
                                    ("attn_output", HIDDEN, HIDDEN), ("ffn_up", FEED_FORWARD, HIDDEN),
                                    ("ffn_down", HIDDEN, FEED_FORWARD)):
            if is_reranker:  # each position sees the mean of component 0
                weight = np.zeros((rows, columns), dtype=np.float32)
                weight[0, 0] = name in ("attn_v", "attn_output")
                out.add_tensor(f"blk.{i}.{name}.weight", weight)
            else:
                put(f"blk.{i}.{name}.weight", rows, columns)
            out.add_tensor(f"blk.{i}.{name}.bias", np.zeros(rows, dtype=np.float32))
        put_norm(f"blk.{i}.attn_output_norm")
        put_norm(f"blk.{i}.layer_output_norm")
    if is_reranker:
        score = np.zeros((1, HIDDEN), dtype=np.float32)
        score[0, 0] = 1
        out.add_tensor("cls.output.weight", score)
        out.add_tensor("cls.output.bias", np.zeros(1, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
