#!/usr/bin/env python3
"""Makes GGUF files of the encoders among the fixtures, with llama.cpp's own converter (tools/gguf_golden.py).

    encoder_files.py LLAMA_CPP FIXTURES OUT

OUT gets gguf/KIND.gguf, and links to all else that lies in FIXTURES: tests take it for QUERN_FIXTURES. Files that are
there already are kept.
"""
import os
import subprocess
import sys

FILES = {
    "bert_cls": ["--outtype", "f16", "--pre", "bert-bge"],
    "nomic_bert": ["--outtype", "f16", "--pre", "bert-bge"],
    "modernbert": ["--outtype", "f16", "--pre", "modern-bert"],
    "xlm_roberta_reranker": ["--outtype", "f16"],
    "embeddinggemma": ["--outtype", "f32", "--sentence-transformers-dense-modules"],
}


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
        if os.path.exists(path):
            continue
        model = os.path.join(fixtures, "families2", kind)
        made = subprocess.run([sys.executable, tool, llama_cpp, model, path, *options], capture_output=True, text=True,
                              check=False)
        if made.returncode:
            sys.exit(f"{kind}: the converter failed\n{made.stderr[-2000:]}")


if __name__ == "__main__":
    main()
