#!/usr/bin/env python3
"""Tokenizers of every kind, trained on this repository's pages, with ids of random texts as the references give them.

    tools/tokenizer_kinds.py OUT COUNT [KIND ...]     OUT/KIND/ gets the files and cases.jsonl of COUNT texts
    tools/tokenizer_kinds.py tests/golden/tokenizer_kinds 80

`make test-tokenizers` does it with 10,000 texts of each kind and compares. References: the packages tokenizers,
sentencepiece, tiktoken and transformers.

A line of cases.jsonl: "text", "ids" (without the tokens around it), "around" (with them), "decoded" (from "ids");
or "pair", "types", "ids", "max" (0: no limit).
"""
import base64
import glob
import json
import os
import random
import sys
import tempfile

import sentencepiece
import tiktoken
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from fixtures.tokenizers import texts as golden  # noqa: E402

RANGES = [(0, 0x10ffff), (0, 0x3000), (32, 126), (9, 13), (0x80, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x600, 0x8ff),
          (0x900, 0xdff), (0xe00, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x20ff), (0x3000, 0x30ff), (0x4e00, 0x4fff),
          (0xac00, 0xac7f), (0xf900, 0xffff), (0x1d400, 0x1d7ff), (0x1f300, 0x1f64f), (0x31300, 0x323ff),
          (0xe0000, 0xe01ff)]


def page_lines():
    lines = []
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))[:12]:
        lines += open(path, encoding="utf-8").read().split("\n")
    return [line for line in lines + golden.BASE_TEXTS * 3 if line.strip()]


LINES = page_lines()
is_small = False


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


def charsmap(rule):
    """The precompiled map of one of SentencePiece's rules."""
    with tempfile.TemporaryDirectory() as d:
        train_pieces(d, model_type="char", vocab_size=200, normalization_rule_name=rule)
        return read_pieces(d).normalizer_spec.precompiled_charsmap


# The stored set has a map of a few rules, because one of SentencePiece's takes 240 kB.
FEW_RULES = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\u200b": " ", "\u0001": "", "\ufb01": "fi",
             "\uff21": "A", "e\u0301": "\u00e9", "\u00aa": "a", "\u00bd": "1\u20442", "\u1112\u1161\u11ab": "\ud55c",
             "A": "a", "\u0130": "i\u0307", "...": "\u2026", "..": "\u2025", "\u2126": "\u03a9",
             "\ufdfa": "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647"}


def few_rules(folder):
    path = os.path.join(folder, "rules.tsv")
    with open(path, "w") as f:
        for source, to in FEW_RULES.items():
            f.write("\t".join(" ".join("%X" % ord(c) for c in text) for text in (source, to)) + "\n")
    return path


def train_pieces(folder, **options):
    if is_small and options.get("normalization_rule_name", "nmt_nfkc") != "identity":
        options.pop("normalization_rule_name", None)
        options["normalization_rule_tsv"] = few_rules(folder)
    text = os.path.join(folder, "text.txt")
    with open(text, "w") as f:
        f.write("\n".join(line.replace("\n", " ") for line in LINES))
    given = {"model_type": "unigram", "vocab_size": 1200, "character_coverage": 0.99, "minloglevel": 2,
             "num_threads": 1, "hard_vocab_limit": False, **options}
    sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=os.path.join(folder, "m"), **given)


def read_pieces(folder):
    model = sentencepiece_model_pb2.ModelProto()
    with open(os.path.join(folder, "m.model"), "rb") as f:
        model.ParseFromString(f.read())
    return model


def xlmr(rule, scheme="always", byte_fallback=False, split=True):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(rule)),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    t.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    t.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=1000, special_tokens=special, unk_token="<unk>",
                                                         show_progress=False))
    if byte_fallback:
        model = json.loads(t.to_str())["model"]
        vocab = [tuple(v) for v in model["vocab"]] + [("<0x%02X>" % i, -20.0) for i in range(256)]
        t.model = models.Unigram(vocab, model["unk_id"], True)
        t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    ids = [(name, t.token_to_id(name)) for name in ("<s>", "</s>")]
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                                     special_tokens=ids)
    return t


def pieces_kind(out, name, count, unused=0, config=None, **options):
    """tokenizer.model, against SentencePiece itself. unused: every so manieth normal piece becomes unused."""
    with tempfile.TemporaryDirectory() as d:
        train_pieces(d, **options)
        model = read_pieces(d)
    for i, piece in enumerate(model.pieces):
        if unused and piece.type == 1 and len(piece.piece) > 1 and i % unused == 0:
            piece.type = 5
    data = model.SerializeToString()
    sp = sentencepiece.SentencePieceProcessor(model_proto=data)
    special = options.get("user_defined_symbols", []) + ["\u2581", "\u2581\u2581", "   "]
    cases = []
    for text in texts_of(name, count, special):
        if any(p in text for p in ("<s>", "</s>", "<unk>")):
            continue  # SentencePiece takes them for text, which they are not where special tokens count
        ids = sp.encode(text)
        case = {"text": text, "ids": ids, "around": [sp.bos_id()] + ids}
        if not any(sp.is_unknown(i) for i in ids):
            case["decoded"] = sp.decode(ids)
        cases.append(case)
    write(out, name, {"tokenizer.model": data, "tokenizer_config.json": json.dumps(config or {})}, cases)


def byte_ranks():
    """Ranks of a byte-level BPE that tiktoken's own trainer for teaching would make."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=1300, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    vocab = json.loads(t.to_str())["model"]["vocab"]
    letters = bytes_of_letters()
    return {bytes(letters[c] for c in token): i for token, i in vocab.items()}


def bytes_of_letters():
    known = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in known]
    return {**{chr(b): b for b in known}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def tiktoken_kind(out, name, count, file, pattern, special, config, composes=False):
    ranks = byte_ranks()
    special = {text: len(ranks) + i for i, text in enumerate(special)}
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    cases = []
    for text in texts_of(name, count, list(special)[:8]):
        composed = normalizers.NFC().normalize_str(text)
        if composes and any(composed.count(token) != text.count(token) for token in special):
            continue  # Qwen's class composes first, so that ">" with a mark behind it is no end of a token any more
        ids = encoding.encode(composed if composes else text, allowed_special="all")
        cases.append({"text": text, "ids": ids, "decoded": encoding.decode(ids)})
    data = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    files = {file: data} if config is None else {file: data, "tokenizer_config.json": json.dumps(config)}
    write(out, name, files, cases)


def vocab_txt_kind(out, name, count, config):
    """vocab.txt alone, against transformers."""
    t = bert(lowercase=True)
    vocab = sorted(t.get_vocab().items(), key=lambda item: item[1])
    data = "".join(token + "\n" for token, _ in vocab)
    with tempfile.TemporaryDirectory() as d:
        for path, text in (("vocab.txt", data), ("tokenizer_config.json", json.dumps(config))):
            with open(os.path.join(d, path), "w") as f:
                f.write(text)
        t = transformers.BertTokenizer.from_pretrained(d)._tokenizer
    texts, cases = texts_of(name, count, BERT), []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "around": t.encode(text).ids,
                      "decoded": t.decode(ids, skip_special_tokens=False)})
    cases += pair_cases(random.Random(name), t, texts)
    write(out, name, {"vocab.txt": data, "tokenizer_config.json": json.dumps(config)}, cases)


CUT = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+" + CUT
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"]) + CUT
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
KIMI_CONFIG = {"tokenizer_class": "TikTokenTokenizer",
               "added_tokens_decoder": {"1300": {"content": "[BOS]", "special": True},
                                        "1303": {"content": "<|im_end|>", "special": True}},
               "eos_token": "<|im_end|>"}
SYMBOLS = {"user_defined_symbols": ["<sep>", "the ", "\u2581\u2581", "\n", "\u00e9\u00e9", "ab", "abc"]}


def kimi_special():
    return ["[BOS]", "<|reserved_token_1301|>", "<|reserved_token_1302|>", "<|im_end|>"] + [
        f"<|reserved_token_{i}|>" for i in range(1304, 1558)]


XLMR = ["<s>", "</s>", "<mask>", "<unk>"]
BERT = ["[CLS]", "[SEP]", "[UNK]", "[MASK]", "##a", "[cls]"]
KINDS = {
    "bert": lambda *a: json_kind(*a, bert(lowercase=True), BERT),
    "bert_cased": lambda *a: json_kind(*a, bert("bert", lowercase=False), BERT),
    "bert_accents": lambda *a: json_kind(*a, bert(lowercase=False, strip_accents=True, clean_text=False), BERT),
    "bert_raw": lambda *a: json_kind(*a, bert(lowercase=True, strip_accents=False, handle_chinese_chars=False), BERT),
    "roberta": lambda *a: json_kind(*a, roberta(), ["<s>", "</s>", "<mask>"]),
    "nfkd": lambda *a: json_kind(*a, normalized(normalizers.NFKD(), normalizers.StripAccents(),
                                                normalizers.Lowercase()), ["[UNK]"]),
    "xlmr": lambda *a: json_kind(*a, xlmr("nmt_nfkc"), XLMR),
    "xlmr_fold": lambda *a: json_kind(*a, xlmr("nfkc_cf", "first"), XLMR),
    "xlmr_bytes": lambda *a: json_kind(*a, xlmr("nmt_nfkc_cf", "never", True, False), XLMR),
    "pieces_bpe": lambda *a: pieces_kind(*a, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                                         remove_extra_whitespaces=False, split_digits=True),
    "pieces_bpe_nfkc": lambda *a: pieces_kind(*a, 7, model_type="bpe", **SYMBOLS),
    "pieces_bpe_bare": lambda *a: pieces_kind(*a, model_type="bpe", add_dummy_prefix=False, byte_fallback=True,
                                              remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
                                              **SYMBOLS),
    "pieces": lambda *a: pieces_kind(*a),
    "pieces_bytes": lambda *a: pieces_kind(*a, 9, byte_fallback=True, normalization_rule_name="nmt_nfkc_cf", **SYMBOLS),
    "pieces_suffix": lambda *a: pieces_kind(*a, treat_whitespace_as_suffix=True, normalization_rule_name="identity",
                                            add_dummy_prefix=True),
    "tiktoken": lambda *a: tiktoken_kind(*a, "tokenizer.model", LLAMA3, [], None),
    "tiktoken_qwen": lambda *a: tiktoken_kind(*a, "qwen.tiktoken", LLAMA3.replace("{1,3}", ""), QWEN_SPECIAL,
                                              {"tokenizer_class": "QWenTokenizer"}, True),
    "tiktoken_kimi": lambda *a: tiktoken_kind(*a, "tiktoken.model", KIMI, kimi_special(), KIMI_CONFIG),
    "tiktoken_o200k": lambda *a: tiktoken_kind(*a, "o200k_base.tiktoken", O200K, [], {}),
    "tiktoken_cl100k": lambda *a: tiktoken_kind(*a, "cl100k_base.tiktoken", CL100K, [], {}),
    "tiktoken_own": lambda *a: tiktoken_kind(*a, "x.tiktoken", r"\w+|\W", [], {"pat_str": r"\w+|\W"}),
    "vocab_txt": lambda *a: vocab_txt_kind(*a, {"tokenizer_class": "BertTokenizer"}),
    "vocab_txt_cased": lambda *a: vocab_txt_kind(*a, {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}),
    "nfkc": lambda *a: json_kind(*a, normalized(normalizers.NFKC()), ["[UNK]"]),
}


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    global is_small
    out, count = sys.argv[1], int(sys.argv[2])
    is_small = count < 1000
    for name in sys.argv[3:] or KINDS:
        KINDS[name](out, name, count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
