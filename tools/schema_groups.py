#!/usr/bin/env python3
"""Writes into docs/structured-output.md which groups of the official JSON Schema test suite are refused or come out
otherwise, as `quern constrain bench` finds them. The suite is one of the larger fixtures.

usage: tools/schema_groups.py [--check] QUERN SUITE    --check: compare only; exit status 1 if the page differs
"""
import collections
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs/structured-output.md")
BEGIN, END = "<!-- made by tools/schema_groups.py -->\n", "<!-- end -->\n"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def write_suite(suite, path):
    """The groups with names, those of draft 7 with the $schema that their folder stands for."""
    names = []
    with gzip.open(suite, "rt", encoding="utf-8") as f, open(path, "w", encoding="utf-8") as g:
        for group in map(json.loads, f):
            schema = group["schema"]
            if group["file"].startswith("draft7/") and isinstance(schema, dict) and "$schema" not in schema:
                schema = {"$schema": DRAFT_7, **schema}
            names.append(f"{group['file'].removesuffix('.json')}: {' '.join(group['description'].split())}")
            print(json.dumps({"name": f"group {len(names) - 1}", "schema": schema, "tests": group["tests"]}), file=g)
    return names


def run(quern, suite):
    """{name: why} of the groups refused, {name: [what]} of those that come out otherwise, and the counts."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "suite.jsonl")
        names = write_suite(suite, path)
        out = subprocess.run([quern, "constrain", "bench", path, "seed:", "--json", "--names"], capture_output=True,
                             text=True)
    if out.returncode:
        sys.exit(out.stderr.strip())
    refused, others = {}, collections.defaultdict(list)
    for number, what in re.findall(r"^quern: group (\d+): (.*)$", out.stderr, re.MULTILINE):
        name = names[int(number)]
        if what.startswith("refused: "):
            refused[name] = re.sub(r"^[^:]*: ", "", what.removeprefix("refused: "))
        else:
            others[name].append(re.sub(r"^test \d+: ", "", what))
    return refused, others, json.loads(out.stdout)


def section(quern, suite):
    refused, others, counts = run(quern, suite)
    lines = [f"Of the suite's {counts['schemas']} groups for draft 7 and 2020-12, {counts['passed']} pass and "
             f"{counts['refused']} are refused. {len(others)} come out otherwise.",
             "", "| refused group | why |", "| --- | --- |"]
    cell = lambda s: s.replace("|", "\\|").replace("<", "&lt;")  # noqa: E731
    lines += [f"| {cell(name)} | {cell(why)} |" for name, why in refused.items()]
    if others:
        lines += ["", "| group that comes out otherwise | what |", "| --- | --- |"]
        lines += [f"| {cell(name)} | {cell('; '.join(dict.fromkeys(what)))} |" for name, what in others.items()]
    return "\n".join(lines) + "\n"


def main():
    check = "--check" in sys.argv
    quern, suite = [a for a in sys.argv[1:] if a != "--check"]
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    made = page[:begin] + section(quern, suite) + page[end:]
    if check:
        if made != page:
            print("docs/structured-output.md: its list of refused groups is out of date (tools/schema_groups.py)")
        return made != page
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(made)
    return 0


sys.exit(main())
