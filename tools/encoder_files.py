#!/usr/bin/env python3
"""Makes GGUF files of encoders and of further families among the fixtures, with llama.cpp's own converter
(tools/gguf_golden.py). It reads the older spelling of config.json, as published files have it.

    encoder_files.py LLAMA_CPP FIXTURES OUT

OUT gets gguf/KIND.gguf, of models that see gguf/towers/KIND with the text, its vision tower in two types and
preprocessor_config.json, and links to all else that lies in FIXTURES: tests take it for QUERN_FIXTURES. Files that are
there already are kept.
"""
import os
import subprocess
import sys
import tempfile

FILES = {
    "bert_cls": ["--outtype", "f16", "--pre", "bert-bge"],
    "nomic_bert": ["--outtype", "f16", "--pre", "bert-bge"],
    "modernbert": ["--outtype", "f16", "--pre", "modern-bert"],
    "xlm_roberta_reranker": ["--outtype", "f16"],
    "embeddinggemma": ["--outtype", "f32", "--sentence-transformers-dense-modules"],
    "lfm2": ["--outtype", "f32"],
    "lfm2_moe": ["--outtype", "f32"],
    "granitemoehybrid": ["--outtype", "f32"],
    "nemotron_h": ["--outtype", "f32"],
    "falcon_h1": ["--outtype", "f32"],
    "kimi_linear": ["--outtype", "f32"],
    "qwen3_next": ["--outtype", "f32", "--no-mtp"],
    "glm5_next": ["--outtype", "f32"],
    "qwen4_exp": ["--outtype", "f32"],
    "qwen3_5_vision": ["--outtype", "f32", "--no-mtp"],
    "qwen3_5_moe_vision": ["--outtype", "f32", "--no-mtp"],
    "qwen2_vl": ["--outtype", "f32"],
    "qwen2_5_vl": ["--outtype", "f32"],
    "qwen3_vl": ["--outtype", "f32"],
    "qwen3_vl_moe": ["--outtype", "f32"],
    "llama4": ["--outtype", "f32"],
    "mistral3": ["--outtype", "f32"],
    "muse_glimmer": ["--outtype", "f32"],
    "smolvlm": ["--outtype", "f32"],
    "internvl": ["--outtype", "f32"],
    "lfm2_vl": ["--outtype", "f32"],
    "gemma3_vision": ["--outtype", "f32"],
    "gemma4_unified": ["--outtype", "f32"],
    "gemma4_vision": ["--outtype", "f32"],
}


# Models whose vision towers the converter knows, and can make of files so small.
TOWERS = ["qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen3_5_vision", "qwen3_5_moe_vision", "gemma3_vision",
          "mistral3", "smolvlm", "internvl", "lfm2_vl", "llama4", "gemma4_vision", "gemma4_unified", "muse_glimmer",
          "glm5_next", "qwen4_exp"]


def link_published(model, folder):
    """The files of a model with config.hub.json in place of config.json."""
    for name in os.listdir(model):
        own = "config.hub.json" if name == "config.json" and "config.hub.json" in os.listdir(model) else name
        os.symlink(os.path.abspath(os.path.join(model, own)), os.path.join(folder, name))


def model_of(fixtures, kind):
    model = os.path.join(fixtures, "families2", kind)
    return model if os.path.isdir(model) else os.path.join(fixtures, "models", kind)


def convert(tool, llama_cpp, model, path, options):
    if os.path.exists(path):
        return
    with tempfile.TemporaryDirectory() as folder:
        link_published(model, folder)
        made = subprocess.run([sys.executable, tool, llama_cpp, folder, path, *options], capture_output=True, text=True,
                              check=False)
    if made.returncode:
        sys.exit(f"{os.path.basename(path)}: the converter failed\n{made.stderr[-2000:]}")


def make_towers(tool, llama_cpp, fixtures, out, kind):
    model, folder = model_of(fixtures, kind), os.path.join(out, "gguf", "towers", kind)
    os.makedirs(folder, exist_ok=True)
    for name, target in ((f"{kind}.gguf", os.path.join(out, "gguf", f"{kind}.gguf")),
                         ("preprocessor_config.json", os.path.join(model, "preprocessor_config.json"))):
        if not os.path.lexists(os.path.join(folder, name)):
            os.symlink(os.path.abspath(target), os.path.join(folder, name))
    for outtype in ("f32", "f16"):
        path = os.path.join(folder, f"mmproj-{kind}-{outtype}.gguf")
        convert(tool, llama_cpp, model, path, ["--outtype", outtype, "--mmproj"])


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    llama_cpp, fixtures, out = sys.argv[1:]
    os.makedirs(os.path.join(out, "gguf"), exist_ok=True)
    for name in os.listdir(fixtures):
        link = os.path.join(out, name)
        if name != "gguf" and not os.path.lexists(link):
            os.symlink(os.path.abspath(os.path.join(fixtures, name)), link)
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_golden.py")
    for kind, options in FILES.items():
        path = os.path.join(out, "gguf", f"{kind}.gguf")
        convert(tool, llama_cpp, model_of(fixtures, kind), path, options)
    for kind in TOWERS:
        make_towers(tool, llama_cpp, fixtures, out, kind)


if __name__ == "__main__":
    main()
