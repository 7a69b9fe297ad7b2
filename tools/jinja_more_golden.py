#!/usr/bin/env python3
"""Golden data of filters and messages that chat templates seldom use: tests/golden/jinja/more.json. Needs jinja2 3.1.
`text` is what jinja2 makes of `template`, `message` the text of its error. tools/jinja_more_golden.py"""
import json, os, random

from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONTEXT = {"messages": [{"role": "user", "content": "hi"}], "s": "text", "n": None, "i": 3, "d": {"a": 1,
         "b c": "x/y é"},
           "l": [["k", 1], ["a b", "&"]]}
MESSAGES = ["messages[9].role", "messages[-2].x", "messages[1.5].x", "messages['x'].y", "s[99].x", "s.nope.x", "n.x.y",
            "n[0].x", "i[0].x", "d[5].x", "d[None].x", "d['q'].x", "d.q.x", "nope.x", "nope[0]", "d[(1, 'a')].x",
            "messages[True].x", "l[0][2].x"]
WORDS = ["a", "the", "long-word", "well-known-fact", "x--y", "--", "-", "e-mail", "é", "naïve", "日本語の文",
         "supercalifragilistic",
         "don't", "end.", "\t", "  ", "\n", "\n\n", "\u00a0", "(paren)", "A-B-C-D", "--option=x-y", "1-2",
         "foo--bar--baz", "🙂"]
VALUES = ["{}", "[]", "()", "{'b': 1, 'a': [1, 2.5, None]}", "('x',)", "{'z': {'y': 1, 'x': 2}}", "'it\\'s'",
         "[True, 'a\\nb']", "5"]


def main():
    r = random.Random(8)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    templates = ["{{ %s }}" % m for m in MESSAGES]
    for _ in range(250):
        text = "".join(r.choice(WORDS) + r.choice(["", " ", " ", "  "]) for _ in range(r.randint(0, 14)))
        args = [str(r.choice([1, 2, 5, 10, 20, 79]))] if r.random() < .9 else []
        for name, v in (("break_long_words", "false"), ("break_on_hyphens", "false"), ("wrapstring", "'|'")):
            if r.random() < .3:
                args.append(f"{name}={v}")
        templates.append("{{ %s|wordwrap(%s) }}" % (json.dumps(text, ensure_ascii=False), ", ".join(args)))
    folds = ["Straße", "ǅ", "İI", "ΑΣ ς", "ﬁﬃ", "ŉ", "Ⅷ", "ᏸꭰ", "ẞß", "K"]
    templates += ["{{ %r.casefold() }}" % f for f in folds]
    templates += ["{{ %s|urlencode }}" % v for v in ("d", "l", "d.items()", "'a b/c'", "{}", "i",
                                                     "{1: none, 'é': true}")]
    templates += ["{{ [1, 2]|urlencode }}", "{{ ['ab', 'c']|urlencode }}"]
    templates += ["{{ %s|pprint }}" % v for v in VALUES]
    templates += ["{{ 'x'|wordwrap(0) }}"]
    edge = [0, 1, -1, 7, 10**9, 2**31, 2**63 - 1, 2**63, -2**63, -2**63 - 1, 2**64, 10**18, 10**19, 10**27, 10**40 + 1]
    number = lambda: r.choice([r.choice(edge), r.randint(-10**30, 10**30), r.randint(-10**20, 10**20), r.randint(1,
        99)])
    for _ in range(400):
        op = r.choice(["+", "-", "*", "//", "%", "<", "==", ">="])
        templates.append("{{ (%d) %s (%d) }}" % (number(), op, number()))
    for _ in range(60):
        templates.append("{{ (%d) ** %d }}" % (r.choice([2, 3, 10, -7, 0, 1, -1, 2**40]), r.randint(0, 90)))
    templates += ["{{ %s }}" % t for t in (
        "2**64", "9223372036854775807 + 1", "-9223372036854775808 - 1", "-(-9223372036854775807 - 1)", "10**40",
        "10**40 / 10**20",
        "2**70 * 1.5", "1.0 < 2**70", "2**70 == 2.0**70", "0xFFFFFFFFFFFFFFFFFF", "0b1%s" % ("0" * 80),
        "1_000_000_000_000_000_000_000",
        "'%d' % 2**70", "'{}'.format(2**70)", "2**70 is integer", "2**70 is number", "(2**70)|string", "(2**70)|int",
        "(2**70)|abs",
        "(-2**70)|abs", "'123456789012345678901234567890'|int", "'-99999999999999999999'|int", "1e22|int", "-1e25|int",
        "(2**70)|float", "{2**70: 1}[2**70]", "[2**70, 1, -2**70]|sort",
        "[2**63, 2**63]|unique|list", "[2**63, 2**63]|sum",
        "2**70 and 1", "not 2**70", "(2**70)|round", "2**70 // 0", "2**70 % 0", "2**70 / 0", "10**400 / 3",
        "10**400 * 1.0",
        "2**-70", "(2**70)**-1", "[1][2**70]", "'x' * 2 ~ 2**65", "2**64 - 2**64 + 5")]
    cases = []
    for t in templates:
        try:
            cases.append({"template": t, "text": env.from_string(t).render(**CONTEXT)})
        except Exception as e:
            cases.append({"template": t, "message": str(e)})
    with open(os.path.join(ROOT, "tests/golden/jinja/more.json"), "w") as f:
        json.dump({"context": CONTEXT, "cases": cases}, f, ensure_ascii=False, indent=0)
        f.write("\n")


if __name__ == "__main__":
    main()
