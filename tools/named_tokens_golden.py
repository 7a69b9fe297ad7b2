#!/usr/bin/env python3
"""Golden data of tokens that are named beside tokenizer.json, as transformers 5 loads them:
tests/golden/named_tokens/cases.json.
Needs transformers 5 and nothing else: tools/named_tokens_golden.py TOKENIZER.json"""
import json, os, random, sys, tempfile

from transformers import PreTrainedTokenizerFast

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/golden/named_tokens")
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token",
         "boi_token"]


def make_case(r, tokenizer):
    """Files of a model with random tokens, some known, some in the base vocabulary, most unknown."""
    old = [t["content"] for t in tokenizer["added_tokens"]]
    base = [t for t in tokenizer["model"]["vocab"] if t.isascii() and len(t) > 1]
    fresh = ["<tool>", "</tool>", "<|new|>", "[X]", "mid", "<a b>", "é", "<image>", "Ａ", "<s>", "tok"]
    text = lambda: r.choice([r.choice(old), r.choice(base), r.choice(fresh), r.choice(fresh)])
    flag = lambda: r.random() < 0.4
    flags = lambda: {k: flag() for k in ("lstrip", "rstrip", "normalized", "single_word") if r.random() < 0.8}
    typed = lambda t: {"__type": "AddedToken", "content": t, **flags(), **({"special": flag()} if flag() else {})}
    files = {}
    config = {}
    if r.random() < 0.5:
        ids = list(range(480, 520))
        r.shuffle(ids)
        config["added_tokens_decoder"] = {
            str(ids.pop()): {"content": text(), **flags(), **({"special": flag()} if r.random() < 0.8 else {})}
            for _ in range(r.randint(0, 5))}
    for n in NAMES:
        if r.random() < 0.3:
            config[n] = r.choice([None, text(), text(), typed(text())])
    extra = lambda: [r.choice([text(), text(), typed(text())]) for _ in range(r.randint(0, 3))]
    if r.random() < 0.3:
        config["additional_special_tokens"] = extra()
    if r.random() < 0.3:
        config["extra_special_tokens"] = extra() if flag() else {n: text() for n in r.sample(
            ["audio_token", "x_token", "video", "image_token"], r.randint(0, 3))}
    if r.random() < 0.3:
        files["special_tokens_map.json"] = {
            n: r.choice([text(), {"content": text(), **flags()}]) for n in NAMES if r.random() < 0.3}
        if flag():
            files["special_tokens_map.json"]["additional_special_tokens"] = [text() for _ in range(2)]
        if flag():
            files["special_tokens_map.json"]["extra_special_tokens"] = r.choice(
                [[text(), {"content": text(), **flags()}], {"audio_token": text()}])
    if r.random() < 0.3:
        files["added_tokens.json"] = {text(): i for i in r.sample(range(495, 515), 3)}
    files["tokenizer_config.json"] = config
    return files


def make_texts(r, tokenizer, files):
    names = set(t["content"] for t in tokenizer["added_tokens"])

    def walk(v):
        if isinstance(v, str):
            names.add(v)
        elif isinstance(v, dict):
            for k, x in v.items():
                names.add(k)
                walk(x)
        elif isinstance(v, list):
            for x in v:
                walk(x)

    walk(files)
    names = sorted(n for n in names if n)
    words = [" ", "  ", "a", "the", "\n", "é", "b c", "x"]
    return ["".join(r.choice([r.choice(names), r.choice(words)]) for _ in range(r.randint(1, 12))) for _ in range(4)]


def main():
    tokenizer = json.load(open(sys.argv[1]))
    r = random.Random(41)
    cases = []
    while len(cases) < 300:
        files = make_case(r, tokenizer)
        texts = make_texts(r, tokenizer, files)
        with tempfile.TemporaryDirectory() as d:
            json.dump(tokenizer, open(d + "/tokenizer.json", "w"))
            for name, value in files.items():
                json.dump(value, open(f"{d}/{name}", "w"))
            try:
                t = PreTrainedTokenizerFast.from_pretrained(d)
            except Exception as e:
                if len(sys.argv) > 2: print(type(e), e)
                continue  # the reference takes no such files
            ids = [t.encode(x, add_special_tokens=False) for x in texts]
            cases.append({"files": files, "texts": texts, "ids": ids, "names": t.special_tokens_map,
                          "plain": [t.decode(i, skip_special_tokens=True) for i in ids]})
    os.makedirs(OUT, exist_ok=True)
    json.dump(tokenizer, open(OUT + "/tokenizer.json", "w"), separators=(",", ":"))
    with open(OUT + "/cases.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
