#!/usr/bin/env python3
"""Golden data of filters and messages that chat templates seldom use: tests/golden/jinja/more.json. Needs jinja2 3.1.
`text` is what jinja2 makes of `template`, `message` the text of its error.

usage: tools/jinja_more_golden.py [FILE CASES]: another file with so many random values for pprint, for
QUERN_JINJA_MORE=FILE build/release/tests/models/jinja_more_test (make test-jinja)."""
import json, os, random, sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONTEXT = {"messages": [{"role": "user", "content": "hi"}], "s": "text", "n": None, "i": 3, "d": {"a": 1,
         "b c": "x/y é"},
           "l": [["k", 1], ["a b", "&"]],
           "wide": {"a": 2**63, "b": [-2**63 - 1, 2**64 - 1, 10**30, "9" * 30, 1.5], "c": {"d": -10**40}}}
MESSAGES = ["messages[9].role", "messages[-2].x", "messages[1.5].x", "messages['x'].y", "s[99].x", "s.nope.x", "n.x.y",
            "n[0].x", "i[0].x", "d[5].x", "d[None].x", "d['q'].x", "d.q.x", "nope.x", "nope[0]", "d[(1, 'a')].x",
            "messages[True].x", "l[0][2].x"]
WORDS = ["a", "the", "long-word", "well-known-fact", "x--y", "--", "-", "e-mail", "é", "naïve", "日本語の文",
         "supercalifragilistic",
         "don't", "end.", "\t", "  ", "\n", "\n\n", "\u00a0", "(paren)", "A-B-C-D", "--option=x-y", "1-2",
         "foo--bar--baz", "🙂"]
VALUES = ["{}", "[]", "()", "{'b': 1, 'a': [1, 2.5, None]}", "('x',)", "{'z': {'y': 1, 'x': 2}}", "'it\\'s'",
         "[True, 'a\\nb']", "5"]


# Blocks that are rendered once more by self.
BLOCKS = ["{% block a %}x{% endblock %}{{ self.a() }}", "{{ self.a() }}{% block a %}x{{ i }}{% endblock a %}",
          "{% set q = 2 %}{% block a %}{{ q }}{% endblock %}|{{ self.a()|upper }}|{{ self.a().strip() ~ 1 }}",
          "{% block a %}{% block b %}y{% endblock %}z{% endblock %}{{ self.b() }}{{ self['a']() }}",
          "{% for k in [1, 2] %}{{ self.t() }}{% endfor %}{% block t %}-{% endblock %}",
          "{% block a %}{{ s }}{% endblock %}{% block a %}2{% endblock %}", "{{ self is defined }}",
          "{{ self.nope is defined }}",
          "{% macro m() %}{{ 1 }}{% endmacro %}{% block a %}{{ i }}{% endblock %}{{ m() }}"]


# Integers beyond 64 bits that come with the data.
WIDE = ["wide", "wide.a", "wide.b[0]", "wide.b[2]|string", "wide.b|tojson", "wide|tojson(indent=2)", "wide.c.d + 1",
        "wide.a - 1", "wide.a == 9223372036854775808", "wide.a is integer", "wide.a is number", "wide.a is string",
        "wide.a is float", "wide.a is mapping", "wide.a is sequence", "wide.a is iterable", "wide.b|first",
        "-wide.b[0]", "wide.b[0]|abs", "wide.a|int", "wide.a|float", "wide.a ~ '!'", "'%d' % wide.a",
        "'{:,}'.format(wide.a)", "'%s|%x' % (wide.a, wide.a)", "wide.a in wide.b", "wide.b[:3]|sort",
        "wide.b[:3]|sum", "wide.b[:3]|max", "wide.c.items()|list", "wide.c|pprint", "wide.a|length", "wide.a[0]",
        "wide.a.b.c", "{wide.a: 1}", "wide.b|join(', ')", "wide.a if wide.a else 0", "wide.b|map('string')|list",
        "wide.b[wide.a]", "wide.a|round",
        "'{:_x}|{:#X}|{:b}|{:+,d}|{:n}'.format(wide.c.d, wide.a, wide.a, wide.b[2], wide.a)",
        "'{:,x}'.format(wide.a)", "'{:>40}|{:040d}|{:.3f}|{:e}'.format(wide.a, wide.a, wide.a, wide.c.d)",
        "'%X|%#o|%.3f' % (wide.a, wide.a, wide.a)", "'{:_x}|{:_b}|{:#_x}|{:,}'.format(1234567, 99, 1048575, 1234567)",
        "wide.a|default(3)", "wide.a // 10**10", "wide.a % 1000", "wide.a / 2", "wide.c.d < 0", "'x' * wide.a",
        "range(wide.a)", "[1] * wide.b[0]", "wide.a|upper", "'%f' % 10**400", "'{:f}'.format(10**400)"]


def value(r, depth):
    """A random value as Python writes it, with texts that need lines."""
    kind = r.choice(["int", "text", "text", "list", "dict", "tuple", "none"]) if depth else r.choice(["int", "text"])
    if kind == "text":
        return "".join(r.choice(WORDS + ["'", '"', "\\", "word", "another one"]) + r.choice(["", " ", " ", "  "])
                       for _ in range(r.choice([0, 1, 3, 12, 40])))
    if kind == "int":
        return r.choice([0, -1, 10**r.randint(1, 90), 2.5, True])
    if kind == "none":
        return None
    n = r.choice([0, 1, 1, 2, 3, 8])
    if kind == "dict":
        return {value(r, 0) if r.random() < .1 else "".join(r.choices("abcdefgh", k=r.choice([1, 3, 30]))):
                value(r, depth - 1) for _ in range(n)}
    items = [value(r, depth - 1) for _ in range(n)]
    return tuple(items) if kind == "tuple" else items


def pretty(n, seed):
    """Templates of so many values; keys of one dict are of one type, as jinja2 sorts them."""
    r = random.Random(seed)
    while n:
        v = value(r, 3)
        keys = lambda x: not isinstance(x, dict) or all(isinstance(k, str) for k in x)
        inside = lambda x: keys(x) and all(map(inside, x.values() if isinstance(x, dict) else x)) if isinstance(
            x, (dict, list, tuple)) else True
        if inside(v):
            n -= 1
            yield "{{ %r|pprint }}" % (v,)


def main():
    path, n = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) == 3 else (
        os.path.join(ROOT, "tests/golden/jinja/more.json"), 12)
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
    templates += BLOCKS + list(pretty(n, n)) + ["{{ %s }}" % t for t in WIDE]
    cases = []
    for t in templates:
        try:
            cases.append({"template": t, "text": env.from_string(t).render(**CONTEXT)})
        except Exception as e:
            cases.append({"template": t, "message": str(e)})
    with open(path, "w") as f:
        json.dump({"context": CONTEXT, "cases": cases}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
