#!/usr/bin/env python3
"""Writes what Jinja makes of small templates, in the environment that transformers gives to chat templates.

dump_jinja.py CASES.json: renders every `template` of the file again with its `context` and stores `text`, or `error`
true where rendering fails. Needs jinja2 3.1. The clock stands at 2026-03-14 15:09:26.
"""
import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 14, 15, 9, 26)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(template, context):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    try:
        return {"text": env.from_string(template).render(**context)}
    except Exception:
        return {"error": True}


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as f:
        d = json.load(f)
    d["cases"] = [{"template": c["template"], **render(c["template"], d["context"])} for c in d["cases"]]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(d, f, ensure_ascii=False, indent=0)
        f.write("\n")


main()
