#!/usr/bin/env python3
"""Makes a GGUF file of a golden model with llama.cpp's own converter.

    gguf_golden.py LLAMA_CPP MODEL OUT.gguf [--pre NAME] [--outtype bf16]

LLAMA_CPP is a folder with convert_hf_to_gguf.py and gguf-py (vendor/llama.cpp in the sdist of llama-cpp-python 0.3.36).
Needs torch and transformers. The converter knows vocabularies by a hash of what they do, and those of the golden models
are not among them: the tokens of tokenizer.json are written as they are. With --pre the converter writes the vocabulary
in its own way, and NAME is what it takes the hash for (bert-bge, modern-bert). Fields of published files that the
converter needs, and that transformers no longer writes, are put beside the others.
"""
import importlib.machinery
import json
import os
import re
import sys
import types


# Of published files, by model_type: name, and the field of today that has the value, or the value.
PUBLISHED = {
    "modernbert": {"layer_norm_eps": "norm_eps"},
    "nemotron_h": {"mamba_d_head": "mamba_head_dim"},
    "gemma4": {"moe_intermediate_size": None},
    "gemma4_unified": {"moe_intermediate_size": None},
    "nomic_bert": {"n_positions": 8192, "activation_function": "swiglu", "causal": False, "qkv_proj_bias": False,
                   "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "rotary_emb_fraction": 1.0,
                   "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "n_inner": "intermediate_size",
                   "n_embd": "hidden_size"},
}


# Of published files, by model_type: the class of the text.
TEXT_CLASSES = {"smolvlm": "VLlama3ForCausalLM", "internvl": "Qwen3ForCausalLM", "lfm2_vl": "Lfm2ForCausalLM"}

# Of published files, by model_type: fields of vision_config and of the whole that the converter of vision towers needs.
TOWER_FIELDS = {"internvl": ("vision_config", "architectures", ["InternVisionModel"]),
                "gemma4_unified": (None, "audio_config", {"audio_embed_dim": 64})}

# Of published files, by model_type: what transformers calls otherwise in tensors' names.
PUBLISHED_NAMES = {"kimi_linear": (r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj")}


def put_published_text(text):
    """The fields of config.json's text that transformers gives other names or forms. The converter wants as many heads
    of linear attention as of attention, and writes neither number beside the tensors."""
    if text.get("model_type") in ("glm5_next_text", "qwen4_exp_text"):
        text["layer_types"] = ["full_attention" if t == "indexed_attention" else t for t in text["layer_types"]]
    if text.get("model_type") == "glm5_next_text":
        text["linear_attn_config"] = {"num_heads": text["num_attention_heads"], "head_dim": text["linear_head_dim"],
                                      "short_conv_kernel_size": text["linear_conv_kernel_dim"],
                                      "gate_lower_bound": text["linear_lower_bound"]}
        text["mla_use_nope"] = True
        text["first_k_dense_replace"] = text["mlp_layer_types"].count("dense")


def write_unigram(model, tokenizer):
    pieces = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    types = [3 if i in special else 1 for i in range(len(pieces))]
    types[tokenizer["model"]["unk_id"]] = 2
    n_more = model.hparams["vocab_size"] - len(pieces)
    writer = model.gguf_writer
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in pieces] + [f"[PAD{i}]" for i in range(n_more)])
    writer.add_token_scores([score for _, score in pieces] + [-10000.0] * n_more)
    writer.add_token_types(types + [5] * n_more)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_token_type_count(model.hparams.get("type_vocab_size", 1))
    import gguf
    gguf.SpecialVocab(model.dir_model, n_vocab=model.hparams["vocab_size"]).add_to_gguf(writer)


def write_vocabulary(model):
    with open(os.path.join(model.dir_model, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    if tokenizer["model"]["type"] == "Unigram":
        write_unigram(model, tokenizer)
        return
    names = {i: text for text, i in tokenizer["model"]["vocab"].items()}
    names.update({token["id"]: token["content"] for token in tokenizer["added_tokens"]})
    n = model.hparams["vocab_size"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([names.get(i, f"[PAD{i}]") for i in range(n)])
    writer.add_token_types([1] * n)
    writer.add_token_merges(merges)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    llama_cpp, model, out, *options = sys.argv[1:]
    pre = None
    if "--pre" in options:
        at = options.index("--pre")
        pre = options[at + 1]
        del options[at:at + 2]
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    missing = types.ModuleType("sentencepiece")  # asked for, not needed
    missing.__spec__ = importlib.machinery.ModuleSpec("sentencepiece", None)
    missing.SentencePieceProcessor = object
    sys.modules["sentencepiece"] = missing
    import convert_hf_to_gguf

    from conversion.base import ModelBase

    load = ModelBase.load_hparams

    def with_published_fields(*arguments, **named):
        fields = load(*arguments, **named)
        for name, value in PUBLISHED.get(fields.get("model_type"), {}).items():
            fields.setdefault(name, fields.get(value) if isinstance(value, str) and value in fields else value)
        text = fields.get("text_config") or {}
        put_published_text(text)
        if fields.get("model_type") in TEXT_CLASSES and not text.get("architectures"):
            text["architectures"] = [TEXT_CLASSES[fields["model_type"]]]
        if "--mmproj" in options and fields.get("model_type") in TOWER_FIELDS:
            place, name, value = TOWER_FIELDS[fields["model_type"]]
            (fields[place] if place else fields)[name] = value
        return fields

    def patches_of_any_size(found):
        """The converter takes the patches of LFM2-VL for 16 x 16."""
        import conversion.base as base

        def modify(self, data, name, layer):
            if "patch_embedding.weight" in name:
                side = round((data.shape[1] // 3) ** 0.5)
                data = data.view(data.shape[0], side, side, 3).permute(0, 3, 1, 2)
            return base.MmprojModel.modify_tensors(self, data, name, layer)

        found.modify_tensors = modify

    def with_model_in_front(found):
        """The converter knows the tensors of InternVL by the names that they have in Intern-S1."""
        keep = found.filter_tensors

        def filter_tensors(item):
            name, make = item
            return keep((name if name.startswith(("model.", "language_model.")) else "model." + name, make))

        found.filter_tensors = staticmethod(filter_tensors)

    def at_least_8_numbers(arch, n_blocks):
        """Projections are numbered as layers are: models with two layers have projections beyond."""
        return get_map(arch, max(n_blocks, 8))

    import gguf
    get_map = gguf.get_tensor_name_map
    if "--mmproj" in options:
        gguf.get_tensor_name_map = at_least_8_numbers

    ModelBase.load_hparams = staticmethod(with_published_fields)
    find = convert_hf_to_gguf.get_model_class

    def with_names(found):
        modify = found.modify_tensors

        def renamed(self, data, name, layer):
            others = PUBLISHED_NAMES.get(self.hparams.get("model_type"))
            return modify(self, data, re.sub(*others, name) if others else name, layer)

        found.modify_tensors = renamed

    def with_vocabulary(*arguments, **named):
        found = find(*arguments, **named)
        if found.__name__ == "LFM2VLModel":
            patches_of_any_size(found)
        if found.__name__ == "InternVisionModel":
            with_model_in_front(found)
        with_names(found)
        if pre:
            found.get_vocab_base_pre = lambda model, tokenizer: pre
        else:
            inner = [own for own in vars(found).values() if isinstance(own, type)]
            for each in [] if "--mmproj" in options else [found, *inner]:
                each.set_vocab = write_vocabulary
        return found

    convert_hf_to_gguf.get_model_class = with_vocabulary
    sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, *options]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
