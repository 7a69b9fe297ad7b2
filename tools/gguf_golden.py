#!/usr/bin/env python3
"""Makes a GGUF file of a golden model with llama.cpp's own converter.

    gguf_golden.py LLAMA_CPP MODEL OUT.gguf [--outtype bf16]

LLAMA_CPP is a folder with convert_hf_to_gguf.py and gguf-py (vendor/llama.cpp in the sdist of llama-cpp-python 0.3.36).
Needs torch and transformers. The converter knows vocabularies by a hash of what they do, and those of the golden models
are not among them: the tokens of tokenizer.json are written as they are.
"""
import importlib.machinery
import json
import os
import sys
import types


def write_vocabulary(model):
    with open(os.path.join(model.dir_model, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
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
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    missing = types.ModuleType("sentencepiece")  # asked for, not needed
    missing.__spec__ = importlib.machinery.ModuleSpec("sentencepiece", None)
    missing.SentencePieceProcessor = object
    sys.modules["sentencepiece"] = missing
    import convert_hf_to_gguf

    find = convert_hf_to_gguf.get_model_class

    def with_vocabulary(*arguments, **named):
        found = find(*arguments, **named)
        found.set_vocab = write_vocabulary
        return found

    convert_hf_to_gguf.get_model_class = with_vocabulary
    sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, *options]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
