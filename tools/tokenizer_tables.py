#!/usr/bin/env python3
"""Writes src/text/tokenizer/split/reference_tables.c: classes of code points as the package tokenizers has them.

    tools/tokenizer_tables.py

Each part of that package knows another version of Unicode, from 8 to 17, so the classes are asked from the package
itself (`pip install tokenizers sentencepiece protobuf unicodedata2`). Run the script again when a newer package
says something else.
"""
import os
import unicodedata as old_unicode

import tokenizer_kinds
import unicodedata2 as unicode
from tokenizers import Regex, normalizers, pre_tokenizers

assert old_unicode.unidata_version < "15", "an older Python is needed, such as 3.11"

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                   "src/text/tokenizer/split/reference_tables.c")
ALL = [c for c in range(0x110000) if not 0xd800 <= c <= 0xdfff]


def bert(**flags):
    given = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False, **flags}
    return normalizers.BertNormalizer(**given).normalize_str


def deleted(normalize):
    """Code points that leave nothing. U+0041 in front, because a text without anything else is left alone."""
    return {c for c in ALL if normalize("A" + chr(c)) == "A"}


def split_off(pre_tokenizer):
    """Code points that a pre-tokenizer drops."""
    return set(ALL) - {ord(c) for piece, _ in pre_tokenizer.pre_tokenize_str("".join(map(chr, ALL))) for c in piece}


def digits():
    cut = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
    return {c for c in ALL if len(cut("A" + chr(c))) == 2}


def inert():
    """What a newer Unicode normalises and the package does not."""
    nfd, nfkd = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
    found = set()
    for c in ALL:
        s = chr(c)
        if unicode.combining(s) == 0 and not unicode.decomposition(s):
            continue
        if nfkd(s) == s and nfd(s + "\u0334") == s + "\u0334" and nfd("\u0345" + s) == "\u0345" + s:
            if unicode.normalize("NFKD", s) != s or unicode.combining(s) not in (0, 1):
                found.add(c)
    return found


def late_extends():
    """What joins the letter before it, and is younger than this Python: a map makes one text of such a cluster."""
    normalize = normalizers.Precompiled(tokenizer_kinds.charsmap("nfkc_cf")).normalize_str
    return {c for c in ALL if old_unicode.category(chr(c)) == "Cn" and normalize("A" + chr(c)) == "a"}


def check_normalized(skipped):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        normalize = getattr(normalizers, form)().normalize_str
        for c in ALL:
            if c not in skipped and normalize(chr(c)) != unicode.normalize(form, chr(c)):
                print(f"{form} of {c:x} is {normalize(chr(c))!a}, not {unicode.normalize(form, chr(c))!a}")


def lowercase():
    """Pairs that came with Unicode 16 and later: (from, to, how many letters)."""
    rows = []
    for c in ALL:
        low = bert(lowercase=True)(chr(c))
        if low == chr(c) or len(low) != 1 or unicode_age(c) < 15.1:
            continue
        if rows and rows[-1][0] + rows[-1][2] == c and rows[-1][1] + rows[-1][2] == ord(low):
            rows[-1][2] += 1
        else:
            rows.append([c, ord(low), 1])
    return rows


CATEGORIES = ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
              "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co")
SCRIPTS = ("Alphabetic", "Han", "Hiragana", "Katakana", "Hangul", "Latin")


def stand_ins():
    """Rows of code points that expressions know and Unicode 14 does not: first, last, an older one of the same kind.

    The package tiktoken gives each the same category as the package tokenizers (both know Unicode 16)."""
    def matched(name):
        return split_off(pre_tokenizers.Split(Regex(f"\\p{{{name}}}"), "removed"))

    category = {c: name for name in CATEGORIES for c in matched(name)}
    scripts = [matched(name) for name in SCRIPTS]
    older, young = {}, []
    for c in ALL:
        kind = (category.get(c), len(chr(c).encode()), *(c in s for s in scripts))
        if category.get(c, "Cn") == old_unicode.category(chr(c)):
            older.setdefault(kind, []).append(c)
        else:
            young.append((c, kind))
    rows = []
    for c, kind in young:
        if rows and rows[-1][1] == c - 1 and rows[-1][3] == kind:
            rows[-1][1] = c
        else:
            rows.append([c, c, min(older[kind], key=lambda o: abs(o - c)), kind])
    return [row[:3] for row in rows]


def unicode_age(c):
    return 0 if old_unicode.category(chr(c)) != "Cn" and chr(c).lower() != chr(c) else 16


def ranges(found):
    out = []
    for c in sorted(found):
        if out and (out[-1][1] == c - 1 or (c == 0xe000 and out[-1][1] == 0xd7ff)):
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    skipped = inert()
    check_normalized(skipped)
    tables = [
        ("qn_removed_by_bert", deleted(bert(clean_text=True))),
        ("qn_marks_of_bert", deleted(bert(strip_accents=True))),
        ("qn_accents", deleted(normalizers.StripAccents().normalize_str)),
        ("qn_punctuation", split_off(pre_tokenizers.Punctuation("removed"))),
        ("qn_digits", digits()),
        ("qn_never_normalized", skipped),
        ("qn_late_extends", late_extends()),
    ]
    with open(OUT, "w") as out:
        out.write("/* generated by tools/tokenizer_tables.py: do not edit */\n// clang-format off\n"
                  "#include \"text/tokenizer/split/reference.h\"\n")
        for name, found in tables:
            rows = ranges(found)
            text = [f"{{0x{lo:x}, 0x{hi:x}}}," for lo, hi in rows]
            out.write(f"\nstatic const qn_cp_range {name}_rows[] = {{\n")
            line = "   "
            for item in text:
                if len(line) + 1 + len(item) > 110:
                    out.write(line + "\n")
                    line = "   "
                line += " " + item
            out.write(line + f"\n}};\nconst qn_cp_set {name} = {{{name}_rows, {len(rows)}}};\n")
        out.write("\nconst qn_cp_lower qn_late_lower[] = {\n")
        rows = lowercase()
        for row in rows:
            out.write("    {0x%x, 0x%x, %d},\n" % tuple(row))
        out.write(f"}};\nconst int qn_late_lower_count = {len(rows)};\n")
        rows = stand_ins()
        out.write("\nconst qn_cp_stand_in qn_stand_ins[] = {\n")
        for row in rows:
            out.write("    {0x%x, 0x%x, 0x%x},\n" % tuple(row))
        out.write(f"}};\nconst int qn_stand_in_count = {len(rows)};\n")
        pages = sorted({c >> 6 for lo, hi, _ in rows for c in range(lo, hi + 1) if c < 0x10000})
        words = [sum(1 << (p & 31) for p in pages if p >> 5 == i) for i in range(32)]
        out.write("\nconst uint32_t qn_stand_in_pages[32] = {\n")
        for i in range(0, 32, 8):
            out.write("    " + ", ".join(f"0x{w:08x}" for w in words[i:i + 8]) + ",\n")
        out.write("};\n")


if __name__ == "__main__":
    main()
