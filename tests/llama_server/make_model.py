"""Writes a model that stands for those of llama.cpp's tests: a GGUF file of 1 MB with random weights.

    make_model.py OUT TENSORS [MERGE...]

A file holds TENSORS tensors, and others follow it; 0: one file holds all. MERGEs are added to the vocabulary.

It has what the tests need of a model: a vocabulary of 512 pieces in SentencePiece's form with <s> as 1, tokens for
gaps, the chat template that llama-server has for models without one, room for 8,192 positions. Component 0 of the
hidden state is the same everywhere, and the head turns it into a large negative logit for control and byte tokens. So
an answer never ends by itself, and is text.
"""
import sys

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT, VOCABULARY = 64, 3, 4, 160, 8192, 512
GAPS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
CONTROL, BYTE, NORMAL, UNKNOWN = 3, 6, 1, 2
# The template that llama-server has for models without one, with tools and calls. llama-server puts <s> before every
# chat; quern leaves that to templates.
CHATML = r"""{{- bos_token -}}
{%- if tools -%}{{- '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' -}}{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') -}}
    {%- for call in message.tool_calls or [] -%}
        {{- '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


# Merges in the order of their scores. With these and single characters the texts of llama.cpp's tests have as many
# tokens as with the tokenizer of stories260K; a search found them.
MERGES = """on _f lo _d st _T _b _o ul mi tu _k _e _y _a _v at en ss ow di _A _i te ve _do _p in ok ent _n ol an ry
    im ot _in _h _is re er _m ch el he ou _w _lo oo em it ak _I _u _H qu _wh _you ir ll _of um ed ar ing om
    ri ta id _s _re ill out _an _he ea _t _c _l _the""".replace("_", "\u2581").split()


def pieces(merges):
    """(text, kind) of each token: control, bytes, characters, merges; Cyrillic letters fill the rest."""
    letters = ["\u2581", *(chr(c) for c in range(33, 127)), "\n"]
    known = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    known += [(f"<0x{i:02X}>", BYTE) for i in range(256)] + [(g, CONTROL) for g in GAPS]
    known += [(t, NORMAL) for t in letters + merges]
    return known + [(chr(0x410 + i), NORMAL) for i in range(VOCABULARY - len(known))]


def put_vocabulary(out, merges):
    known = pieces(merges)
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([text.encode() for text, _ in known])
    scores = {text: -float(i) for i, text in enumerate(merges)}
    out.add_token_scores([scores.get(text, -1000.0) if kind == NORMAL else 0.0 for text, kind in known])
    out.add_token_types([kind for _, kind in known])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_add_bos_token(True)
    out.add_add_eos_token(False)
    out.add_chat_template(CHATML)
    return np.array([kind for _, kind in known])


def main():
    rng = np.random.default_rng(260)
    out = gguf.GGUFWriter(sys.argv[1], "llama", split_max_tensors=int(sys.argv[2]))
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
    kinds = put_vocabulary(out, MERGES + [m.replace("_", "\u2581") for m in sys.argv[3:]])

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
