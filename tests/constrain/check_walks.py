"""Holds the texts of random walks (walk_test.c) against PyPI's jsonschema; `make test-constrain` runs it.

usage: check_walks.py SCHEMAS WALKS    SCHEMAS: JSON lines with "schema", perhaps gzip; WALKS: {"line", "text"}
"""
import collections
import gzip
import json
import sys
import warnings

from jsonschema import validators

warnings.simplefilter("ignore", FutureWarning)  # of Python's re, about patterns of others
# Without $schema quern holds 2020-12 with arrays as items and dependencies: the draft of PyPI's package that has both.
OTHERWISE = validators.Draft201909Validator
OTHERWISE = validators.extend(OTHERWISE, {"dependencies": validators.Draft7Validator.VALIDATORS["dependencies"],
                                          "prefixItems": validators.Draft202012Validator.VALIDATORS["prefixItems"]})


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
                checkers[row["line"]] = kind(schema, format_checker=kind.FORMAT_CHECKER)
            try:
                value = json.loads(row["text"])
                errors = list(checkers[row["line"]].iter_errors(value))
            except Exception as e:  # a pattern that Python's re does not take: quern's validator has checked the text
                counts[f"not checked ({type(e).__name__})"] += 1
                continue
            counts["not valid" if errors else "valid"] += 1
            if errors and shown < 20:
                shown += 1
                print(f"line {row['line']} ({lines[row['line']]['name']}): {row['text'][:300]}\n  {errors[0].message[:300]}")
    print(f"{len(checkers)} schemas; " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if counts["not valid"] or not counts["valid"] else 0


sys.exit(main())
