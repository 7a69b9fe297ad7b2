#!/usr/bin/env python3
"""Tokenizers of every kind, trained on this repository's pages, with ids of random texts as the references give them.

    tools/tokenizer_kinds.py OUT COUNT [KIND ...]     OUT/KIND/ gets the files and cases.jsonl of COUNT texts
    tools/tokenizer_kinds.py tests/golden/tokenizer_kinds 80

`make test-tokenizers` does it with 10,000 texts of each kind and compares. References: the packages tokenizers,
sentencepiece, tiktoken and transformers.

A line of cases.jsonl: "text", "ids" (without the tokens around it), "around" (with them), "decoded" (from "ids");
or "pair", "types", "ids", "max" (0: no limit).
"""
import glob
import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from fixtures.tokenizers import texts as golden  # noqa: E402

RANGES = [(0, 0x10ffff), (0, 0x3000), (32, 126), (9, 13), (0x80, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x600, 0x8ff),
          (0x900, 0xdff), (0xe00, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x20ff), (0x3000, 0x30ff), (0x4e00, 0x4fff),
          (0xac00, 0xac7f), (0xf900, 0xffff), (0x1d400, 0x1d7ff), (0x1f300, 0x1f64f), (0xe0000, 0xe01ff)]


def page_lines():
    lines = []
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))[:12]:
        lines += open(path, encoding="utf-8").read().split("\n")
    return [line for line in lines + golden.BASE_TEXTS * 3 if line.strip()]


LINES = page_lines()


def letter(r, low, high):
    while True:
        c = r.randint(low, high)
        if not 0xd800 <= c <= 0xdfff:
            return chr(c)


def random_text(r, special):
    parts = []
    for _ in range(r.choice([0, 1, 2, 4, 8, 16])):
        kind = r.randrange(8)
        if kind < 3:
            low, high = r.choice(RANGES)
            parts.append("".join(letter(r, low, high) for _ in range(r.randint(1, 6))))
        elif kind == 3:
            parts.append(r.choice(special + [" ", "  ", "\n", "\t", "\u3000", "\u00a0"]))
        elif kind == 4:
            parts.append(r.choice(golden.BASE_TEXTS))
        else:
            line = r.choice(LINES)
            start = r.randrange(len(line))
            parts.append(line[start:start + r.randint(1, 40)])
        if r.randrange(3) == 0:
            parts.append(" ")
    return "".join(parts)


def texts_of(name, count, special):
    r = random.Random("texts of " + name)
    made = [random_text(r, special) for _ in range(count)]
    return made if count < 1000 else golden.BASE_TEXTS + made


def write(out, name, files, cases):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    for path, data in files.items():
        with open(os.path.join(folder, path), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
    with open(os.path.join(folder, "cases.jsonl"), "w") as f:
        for case in cases:
            f.write(json.dumps(case, separators=(",", ":")) + "\n")
    print(f"{name}: {len(cases)} cases")


# ---- tokenizers ------------------------------------------------------------------------------------------


def pair_cases(r, t, texts):
    for _ in range(len(texts) // 10):
        pair, most = [r.choice(texts), r.choice(texts)], r.choice([0, 0, 8, 11, 32])
        if most:
            t.enable_truncation(most, strategy="longest_first")
        else:
            t.no_truncation()
        e = t.encode(*pair)
        yield {"pair": pair, "ids": e.ids, "types": e.type_ids, "max": most}
    t.no_truncation()


def json_kind(out, name, count, t, special):
    texts = texts_of(name, count, special)
    cases = []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "around": t.encode(text).ids,
                      "decoded": t.decode(ids, skip_special_tokens=False)})
    cases += pair_cases(random.Random(name), t, texts)
    write(out, name, {"tokenizer.json": t.to_str()}, cases)


def bert(processor=None, **flags):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(**flags)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(cleanup=flags.get("lowercase", True))
    t.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=special,
                                                           show_progress=False))
    cls, sep = (("[CLS]", t.token_to_id("[CLS]")), ("[SEP]", t.token_to_id("[SEP]")))
    if processor == "bert":
        t.post_processor = processors.BertProcessing(sep, cls)
    else:
        t.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[cls, sep])
    return t


def roberta():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=1200, special_tokens=special, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def normalized(*steps):
    """One letter a token: what the normalizers make of a text is what the ids say."""
    t = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2}, unk_token="[UNK]", max_input_chars_per_word=7))
    t.normalizer = normalizers.Sequence(list(steps))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.Punctuation(), pre_tokenizers.WhitespaceSplit()])
    t.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    vocab = {"[UNK]": 0}
    for line in LINES:
        for c in line:
            for text in (c, "##" + c):
                vocab.setdefault(text, len(vocab))
    t.model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=7)
    return t


BERT = ["[CLS]", "[SEP]", "[UNK]", "[MASK]", "##a", "[cls]"]
KINDS = {
    "bert": lambda *a: json_kind(*a, bert(lowercase=True), BERT),
    "bert_cased": lambda *a: json_kind(*a, bert("bert", lowercase=False), BERT),
    "bert_accents": lambda *a: json_kind(*a, bert(lowercase=False, strip_accents=True, clean_text=False), BERT),
    "bert_raw": lambda *a: json_kind(*a, bert(lowercase=True, strip_accents=False, handle_chinese_chars=False), BERT),
    "roberta": lambda *a: json_kind(*a, roberta(), ["<s>", "</s>", "<mask>"]),
    "nfkd": lambda *a: json_kind(*a, normalized(normalizers.NFKD(), normalizers.StripAccents(),
                                                normalizers.Lowercase()), ["[UNK]"]),
    "nfkc": lambda *a: json_kind(*a, normalized(normalizers.NFKC()), ["[UNK]"]),
}


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    out, count = sys.argv[1], int(sys.argv[2])
    for name in sys.argv[3:] or KINDS:
        KINDS[name](out, name, count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
