#!/usr/bin/env python3
"""Writes docs/primitives.md from the tables of primitives: `make docs`. `make lint` says when it is out of date.

Read are src/prim/primitives.def and elementwise.def (names, and shapes in the comments behind them), the rules of
shapes (src/prim), those of gradients, tangents and fallbacks (src/array), the functions of the CPU (src/device/cpu,
its kernels) and the tests that name a primitive. A primitive of which one of these is missing, and no reason stands
in its place, is an error.
"""
import glob
import os
import re
import sys

import made_page
from made_page import ROOT

LIST, ELEMENTWISE, PAGE = "src/prim/primitives.def", "src/prim/elementwise.def", "docs/primitives.md"
INTRODUCTION = """# Primitives

Made from the tables of the source by `make docs`: change these, not this page. How to add one:
[adding-a-primitive.md](adding-a-primitive.md). Dimensions are written slowest first; R, S and L are the symbols of a
program's first dimensions, `..` is any dimensions. Names of parameters (`qn_params_..`) are those of `src/prim/prim.h`.

What holds for all: a rule of shapes refuses a call before anything is built, in a sentence; a fallback is the same
thing in smaller primitives, which a device that lacks the primitive computes, and which gives gradient or tangent where
the table says so; "none" has its reason behind it. `tests/primitives/gradients_test.c` compares all of them with
central differences, over random shapes and views and each floating type that they take.
"""
TABLES = ("gradient", "tangent", "fallback")
HELPERS = {  # rules of tangents that several primitives share
    "linear": "linear in its first input; by the others none",
    "bilinear": "linear in each of its two inputs",
    "elementwise": "the derivative by each input times its tangent",
}
TESTS_SHOWN = 4


class Unstated(Exception):
    pass


def read(*patterns):
    """Texts of files by their path from the root."""
    texts = {}
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
            with open(path, encoding="utf-8") as f:
                texts[os.path.relpath(path, ROOT)] = f.read()
    return texts


def entries():
    """(letter, name, argument, comment) of each line of the list, with those of the list that it includes."""
    texts = read(LIST, ELEMENTWISE)
    text = texts[LIST].replace('#include "prim/elementwise.def"\n', texts[ELEMENTWISE])
    pattern = r"^([SEP])\((\w+)(?:, *(\d))?\)[ \t]*(?:/\*(.*?)\*/)?"
    return [(m[1], m[2], m[3], re.sub(r"\s+", " ", (m[4] or "").strip()))
            for m in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)]


def plain(text):
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def strings(code):
    """The string literals of a piece of code, adjacent ones joined."""
    one = r'"((?:\\.|[^"\\])*)"'
    return ["".join(re.findall(one, m[0])) for m in re.finditer(f"(?:{one}\\s*)+", code)]


def body(texts, name):
    """(path, text) of the body of a function, or None. It ends at the first `}` in column 0, as clang-format has it."""
    for path, text in texts.items():
        m = re.search(r"^[\w *]*\b" + name + r"\([^;{]*\)\n\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
        if m:
            return path, m[1]
    return None


def rule_of(texts, name, seen=()):
    """What the rule of shapes asks for, in its own words, and what it gives."""
    found = body(texts, name)
    if not found or name in seen:
        return [], []
    asks, gives = [], []
    code = found[1]
    for m in re.finditer(r"\b(NEED|bad)\((.*?)\);", code, re.DOTALL):
        asks += strings(m[2])[-1:]
    for m in re.finditer(r"\*dtype = (.*?);", code):
        gives.append(m[1])
    for m in re.finditer(r"\b((?:rule|check|norm|same)_\w+)\(c\b", code):
        more = rule_of(texts, m[1], (*seen, name))
        asks, gives = more[0] + asks, gives + more[1]
    return list(dict.fromkeys(asks)), list(dict.fromkeys(gives))


def dtype_words(values):
    """`QN_DTYPE_F32`, `c->dtype[0]` and the like as a reader says them."""
    words = []
    for v in values:
        v = re.sub(r"c->dtype\[(\d)\]", lambda m: f"dtype of input {m[1]}", v)
        words.append(re.sub(r"QN_DTYPE_(\w+)", lambda m: m[1].lower(), v))
    return ", ".join(words)


def macro(texts, name):
    """What a macro of array/ stands for, looked up until it is none any more; None where there is no such macro."""
    value = None
    for text in texts.values():
        m = re.search(r"^#define " + name + r"\b((?:.*\\\n)*.*)$", text, re.MULTILINE)
        if m:
            value = re.sub(r"/\*.*?\*/", "", m[1].replace("\\\n", " ")).strip()
    if value and re.fullmatch(r"[A-Z_]+", value) and value not in ("NULL", "QN_BY_FALLBACK"):
        return macro(texts, value)
    return value


def stated(texts, table, letter, name):
    """How a table of array/ states a primitive."""
    if letter == "E" and table == "gradient":
        table = "derivative"
    if letter == "E" and table == "tangent":
        return HELPERS["elementwise"]
    value = macro(texts, f"{table}_{name}")
    if value and value.startswith("QN_NONE("):
        return "none: " + strings(value)[0]
    if value == "QN_BY_FALLBACK":
        if "none" in stated(texts, "fallback", letter, name)[:4]:
            raise Unstated(f"src/array: {table}_{name} is by a fallback that is not there")
        return "by the fallback"
    if value in HELPERS:
        return HELPERS[value]
    found = body(texts, value if value and re.fullmatch(r"[a-z_]\w+", value) else f"{table}_{name}")
    if not found:
        raise Unstated(f"src/array: {table}_{name} is neither a rule nor QN_BY_FALLBACK nor QN_NONE and why")
    code = found[1]
    joint = body(texts, f"joint_{name}") if table == "gradient" else None
    refused = [s.strip() for m in re.finditer(r"refuse\(s, a, (\"[^;]*?)\)", code + (joint[1] if joint else ""))
               for s in strings(m[1])]
    return ("by all inputs at once" if joint else "rule") + "".join(f"; none {r}" for r in refused)


def on_cpu(texts, letter, name):
    if letter == "E":
        where, what = "src/device/cpu/kernels/vector/elementwise.body.h", f"op_{name}("
        if what not in texts[where]:
            raise Unstated(f"{where}: no op_{name}")
        return f"`op_{name}` ({os.path.basename(where)})"
    for path, text in texts.items():
        if re.search(r"\bqn_cpu_prim qn_cpu_" + name + r"\b\s*=", text):
            return f"`qn_cpu_{name}` ({os.path.basename(path)})"
    raise Unstated(f"src/device/cpu: no qn_cpu_{name}")


BUILDERS = {"DATA": "from_data", "SLICE": "slice_last"}


def tested(tests, name):
    name = name.removesuffix("_GRAD")
    builder = BUILDERS.get(name, name.lower())
    pattern = re.compile(r"\b(?:QN_PRIM|QN_EW)_" + name + r"\b|\bqn_" + builder + r"\(")
    pattern = re.compile(r"\b(?:QN_PRIM|QN_EW)_" + name + r"\b|\bqn_" + BUILDERS.get(name, name.lower())
                         + r"\(|\b(?:ROW|REFUSED)\(" + name + r"\b")
    named = [os.path.basename(p) for p, t in tests.items() if pattern.search(t)]
    if not named:
        raise Unstated(f"tests: none names {name}")
    more = len(named) - TESTS_SHOWN
    return ", ".join(named[:TESTS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def table(head, rows):
    return "\n".join("| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows])


def page():
    """The text of docs/primitives.md."""
    rules, array = read("src/prim/*.c"), read("src/array/*.c")
    cpu = read("src/device/cpu/*.c", "src/device/cpu/*/*.c", "src/device/cpu/kernels/vector/elementwise.body.h")
    tests = read("tests/primitives/gradients*.c", "src/array/*_test.c", "tests/primitives/ops_cases.c",
                 "src/device/cpu/kernels/*/*_test.c", "src/device/cpu/*_test.c", "src/device/cpu/*/*_test.c",
                 "tests/*/*_test.c", "src/train/*/*_test.c")
    sources, elementwise, others = [], [], []
    for letter, name, argument, comment in entries():
        how = [plain(stated(array, t, letter, name)) for t in TABLES]
        test = tested(tests, name)
        title = f"**{name}**"
        if letter == "E":
            elementwise.append([title, argument, *[how[i] for i in (0, 2)], on_cpu(cpu, letter, name), test])
            continue
        asks, gives = rule_of(rules, f"rule_{name}")
        says = plain("; ".join(asks)) or "-"
        result = plain(dtype_words(gives)) or "as asked for"
        if letter == "S":
            sources.append([title, plain(comment), says, result, how[0], how[1], test])
        else:
            row = "alone" if argument == "1" else "with others"
            others.append(f"### {name}\n" + (plain(comment) + "\n" if comment else "") + "\n" + table(
                ["", ""],
                [["shape rule", says], ["result", result], ["rows", row], ["gradient", how[0]], ["tangent", how[1]],
                 ["fallback", how[2]], ["CPU", on_cpu(cpu, letter, name)], ["tests", test]]))
    return "\n".join([
        INTRODUCTION,
        "## Sources and views\nNo device computes them: a plan turns them into strides.\n",
        table(["", "what", "the rule of shapes asks", "result", "gradient", "tangent", "tests"], sources),
        "\n## Element-wise\nValue i of the result depends on value i of the inputs, which broadcast as in "
        "NumPy.\nChains of them are computed tile by tile in one step. A tangent is "
        + HELPERS["elementwise"] + ".\n",
        table(["", "inputs", "gradient", "fallback", "CPU", "tests"], elementwise),
        "\n## All others\n\"rows alone\": row i of the result depends on row i of the inputs, so that workers go on "
        "with their rows\nwithout waiting for others.\n",
        "\n\n".join(others)]) + "\n"


def stale():
    """None, or why the page in the tree is not what the tables give."""
    return made_page.stale(PAGE, page, Unstated, "tables")


if __name__ == "__main__":
    sys.exit(made_page.write(PAGE, page, Unstated))
