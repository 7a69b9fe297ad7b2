#!/usr/bin/env python3
"""Golden data of tokenizers of vocab.json and merges.txt, as transformers 5 makes them:
tests/golden/vocab_files/. tools/vocab_files_golden.py"""
import json, os, random, tempfile

from transformers import AutoTokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests/golden/vocab_files")
RANGES = [(32, 126), (9, 13), (160, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x900, 0x97f), (0x1e00, 0x1eff),
          (0x2000, 0x206f), (0x3040, 0x30ff), (0x4e00, 0x4fff), (0xac00, 0xac7f), (0xfb00, 0xfb06), (0x1f300, 0x1f64f)]
CONFIGS = [
    {"tokenizer_class": "GPT2Tokenizer"},
    {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    {"tokenizer_class": "Qwen2TokenizerFast", "bos_token": None, "additional_special_tokens": ["<|x|>"],
     "pad_token": None,
     "added_tokens_decoder": {"510": {"content": "<tool>", "special": False, "normalized": False},
                              "495": {"content": "<|endoftext|>", "special": True, "normalized": False}}},
    {"tokenizer_class": "GPT2TokenizerFast", "unk_token": "the", "eos_token": "</s>"},
]


def make_text(r, words):
    parts = []
    for _ in range(r.randint(0, 12)):
        low, high = r.choice(RANGES)
        letters = "".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 4)))
        parts.append(r.choice([r.choice(words), letters, " "]))
    return "".join(parts)


def main():
    r = random.Random(9)
    tokenizer = json.load(open(os.path.join(ROOT, "tests/golden/named_tokens/tokenizer.json")))
    words = ["the ", "don't", " and", "123", "  ", "\n\n", "<|endoftext|>", "<tool>", "<|x|>", "</s>", "I'LL", "_x"]
    merges = [" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]]
    files = {"vocab.json": json.dumps(tokenizer["model"]["vocab"], ensure_ascii=False),
             "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n"}
    os.makedirs(OUT, exist_ok=True)
    cases = []
    for config in CONFIGS:
        with tempfile.TemporaryDirectory() as d:
            for name, text in {**files, "tokenizer_config.json": json.dumps(config)}.items():
                open(os.path.join(d, name), "w").write(text)
            t = AutoTokenizer.from_pretrained(d)
            texts = [make_text(r, words) for _ in range(600)]
            cases.append({"config": config, "names": t.special_tokens_map,
                          "texts": texts, "ids": [t.encode(x, add_special_tokens=False) for x in texts]})
    for name, text in files.items():
        open(os.path.join(OUT, name), "w").write(text)
    json.dump(cases, open(os.path.join(OUT, "cases.json"), "w"), separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    main()
