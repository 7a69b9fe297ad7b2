"""Holds the texts of random walks (walk_test.c) against PyPI's jsonschema; `make test-constrain` runs it.

usage: check_walks.py SCHEMAS WALKS    SCHEMAS: JSON lines with "schema", perhaps gzip; WALKS: {"line", "text"}
"""
import collections
import gzip
import json
import re
import sys
import warnings

from jsonschema import FormatChecker, ValidationError, validators

warnings.simplefilter("ignore", FutureWarning)  # of Python's re, about patterns of others
# Python's re means other characters by these than ECMA-262 does, and its $ takes a line end more.
SPACES = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
CLASSES = {"s": SPACES, "d": "0-9", "w": "A-Za-z0-9_"}


def python_pattern(pattern):
    out, in_class, i = "", False, 0
    while i < len(pattern):
        c, pair = pattern[i], pattern[i:i + 2]
        if c == "\\":
            letter, i = pair[1:], i + 2
            if letter in CLASSES:
                out += CLASSES[letter] if in_class else f"[{CLASSES[letter]}]"
            elif letter.lower() in CLASSES and not in_class and letter:
                out += f"[^{CLASSES[letter.lower()]}]"
            else:
                out += pair
            continue
        if c in "[]":
            in_class = c == "[" or (in_class and c != "]")
        out += r"\Z" if c == "$" and not in_class else r"[^\n\r\u2028\u2029]" if c == "." and not in_class else c
        i += 1
    return out


def check_pattern(validator, pattern, instance, schema):
    if validator.is_type(instance, "string") and not re.search(python_pattern(pattern), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


# Without $schema quern holds 2020-12 with arrays as items and dependencies: the draft of PyPI's package that has both.
OTHERWISE = validators.Draft201909Validator
OTHERWISE = validators.extend(OTHERWISE, {"dependencies": validators.Draft7Validator.VALIDATORS["dependencies"],
                                          "prefixItems": validators.Draft202012Validator.VALIDATORS["prefixItems"]})


def with_all_times(checker):
    """PyPI's package knows no leap seconds and no year 0; RFC 3339 does. Which leap seconds there are, quern's
    validator checks. The year 0 has the days of the year 2000."""
    out = FormatChecker(formats=())
    out.checkers = dict(checker.checkers)
    for name in ("date-time", "time", "date"):
        if name in out.checkers:
            function, raises = out.checkers[name]
            out.checkers[name] = (lambda text, f=function: f(re.sub(r"^0000-", "2000-",
                                                                    re.sub(r"(:\d\d):60", r"\1:59", text))
                                                             if isinstance(text, str) else text), raises)
    return out


def main():
    schemas, walks = sys.argv[1:]
    with (gzip.open if schemas.endswith(".gz") else open)(schemas, "rt", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    checkers, counts, shown = {}, collections.Counter(), 0
    with open(walks, encoding="utf-8") as f:
        for row in map(json.loads, f):
            if row["line"] < 0:
                continue
            if row["line"] not in checkers:
                schema = lines[row["line"]]["schema"]
                kind = validators.validator_for(schema, default=OTHERWISE)
                checker = with_all_times(kind.FORMAT_CHECKER)
                kind = validators.extend(kind, {"pattern": check_pattern})
                checkers[row["line"]] = kind(schema, format_checker=checker)
            try:
                value = json.loads(row["text"])
                errors = list(checkers[row["line"]].iter_errors(value))
            except Exception as e:  # a pattern that Python's re does not take: quern's validator has checked the text
                counts[f"not checked ({type(e).__name__})"] += 1
                continue
            counts["not valid" if errors else "valid"] += 1
            if errors and shown < 20:
                shown += 1
                print(f"line {row['line']} ({lines[row['line']]['name']}): {row['text'][:300]}")
                print(f"  {errors[0].message[:300]}")
    print(f"{len(checkers)} schemas; " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if counts["not valid"] or not counts["valid"] else 0


sys.exit(main())
