#!/usr/bin/env python3
"""Checks that files and symbols which the pages name exist, and that tests call the functions of some pages.

`make lint` runs it.

    tools/page_names.py [PAGE...]    default: README, ARCHITECTURE, CONTRIBUTING and docs/**/*.md

It looks at code spans (`src/base/mem.h`, `qn_malloc`, `src/cache/pages.c:qn_pages_keep`) and code blocks. A path may be
the end of one (`base/mem.h`). It may have wildcards; <words>, X, XX and NAME are wildcards too. One match is enough.
"""
import fnmatch
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("src", "include", "tests", "tools", "docs", "bench", "examples", "packaging", ".ci")
SOURCE = r"(?:c|h|cu|cuh|cpp|py|def|md|jinja)"
# What cannot exist: programs and files of users, forms of names, names in the examples of the guides.
EXEMPT = {
    "": {  # every page
        "llama.cpp": "a program, not a file",
    },
    "CONTRIBUTING.md": {
        "qn_object_verb": "the form of names",
    },
    "docs/api.md": {
        "app.c": "a user's program",
        "QN_DTYPE_AFFINEBITS_GGROUP_SCALE": "the form of names",
    },
    "docs/adding-a-format.md": {
        "qn_decode_iq4_nl": "the example's", "qn_encode_iq4_nl": "the example's", "QN_CODES_NL": "the example's",
        "qn_x_open": "the example's", "qn_x_open_bytes": "the example's",
        "src/quant/iq.h": "a plan's", "iq_tables.c": "a plan's",
        "QN_SCALE_ODD": "a plan's", "QN_CODES_GRID": "a plan's",
        "src/quant/gptq.h": "a plan's", "gptq.c": "a plan's", "gptq_test.c": "a plan's", "qn_gptq_join": "a plan's",
        "qn_gptq_order": "a plan's", "QN_SCALE_ZERO": "a plan's",
    },
    "docs/adding-a-primitive.md": {
        "qn_softsign": "the example's", "qn_name": "the example's", "QN_PRIM_SOFTSIGN": "the example's",
        "qn_cpu_NAME": "a macro pastes it",
    },
}

# Pages that promise: a test in the folder calls each public function that the page names.
CALLED = {"docs/go-mlx.md": "tests/go_mlx/"}

# Files whose words prove nothing: this one and its test name what does not exist.
NO_SOURCE = ("tests/golden/", "tests/corpus/", "docs/", "tools/page_names.py", "tests/tree/test_tree.py")

SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"\b(?:qn|QN)_\w+\*?")
PATH = re.compile(rf"(?<![\w./$~>-])((?:(?:{'|'.join(map(re.escape, FOLDERS))}|build/\w+)/(?:<\w+>|[\w./*-])*|"
                  rf"(?:<\w+>|[\w*])(?:<\w+>|[\w./*-])*\.{SOURCE}\b)(?::[A-Za-z_]\w*)?)(?![\w/])")
DECLARED = re.compile(r"^QN_API\b[^;(]*?\b(qn_\w+)\(", re.MULTILINE)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
MADE_BY_MAKE = re.compile(r"^build/\w+/")


def pattern(name):
    """A name with placeholders as a pattern of fnmatch."""
    name = re.sub(r"<\w+>", "*", name)
    return re.sub(r"(?<![A-Za-z])(?:XX?|NAME)(?![A-Za-z])", "*", name)


class Tree:
    def __init__(self, files):
        self.files = files
        self.folders = {os.path.dirname(f) for f in files}
        for folder in list(self.folders):
            while folder := os.path.dirname(folder):
                self.folders.add(folder)
        self.words, self.pasted = set(), set()
        for path in files:
            if path.endswith(".md") or path.startswith(NO_SOURCE):
                continue
            text = self.read(path)
            self.words.update(re.findall(r"\w+", text))
            self.pasted.update(re.findall(r"\b(\w*)##", text))

    @staticmethod
    def read(path):
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                return f.read()
        except UnicodeDecodeError:
            return ""

    def find(self, path):
        """Files and folders that a path, or the end of one, can mean."""
        wanted = pattern(path.rstrip("/."))
        if MADE_BY_MAKE.match(wanted):
            wanted = MADE_BY_MAKE.sub("", wanted)
            if not wanted.startswith(("src/", "tests/", "bench/", "examples/")):
                return [path]  # the libraries and the program
            wanted = re.sub(r"\.o$", "", wanted) + ".c"
        names = [wanted] if "." in os.path.basename(wanted) else [wanted, wanted + ".c", wanted + ".py"]
        if "*" not in wanted:
            return [f for f in (*self.files, *self.folders) for n in names if f == n or f.endswith("/" + n)]
        return [f for f in (*self.files, *self.folders) for n in names
                if fnmatch.fnmatch(f, n) or fnmatch.fnmatch(f, "*/" + n)]

    def public_functions(self):
        headers = (f for f in self.files if f.startswith("include/quern/"))
        return {name for f in headers for name in DECLARED.findall(self.read(f))}

    def calls(self, folder):
        """Names that are called in the C files of a folder."""
        sources = (f for f in self.files if f.startswith(folder) and f.endswith(".c"))
        return {name for f in sources for name in re.findall(r"\b(\w+)\(", COMMENT.sub(" ", self.read(f)))}

    def has_symbol(self, name):
        wanted = pattern(name)
        if "*" in wanted:
            return any(fnmatch.fnmatchcase(w, wanted) for w in self.words) or wanted.rstrip("*") in self.pasted
        return name in self.words or any(p and name.startswith(p) and name[len(p):] in self.words for p in self.pasted)


def why_path(tree, name):
    path, _, function = name.partition(":")
    found = tree.find(path)
    if not found:
        return f"{path}: no such file"
    defined = re.compile(rf"^(?:\w[\w \t*]*?[ *])?{function}\(", re.MULTILINE)
    if function and not any(f in tree.files and defined.search(tree.read(f)) for f in found):
        return f"{path} has no function {function}"
    return None


def pieces(text):
    """(offset, content) of code spans and blocks."""
    for m in FENCE.finditer(text):
        yield m.start(2), m.group(2)
    plain = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    for m in SPAN.finditer(plain):
        yield m.start(2), m.group(2)


def check(page, text, tree):
    """(line, what is wrong) of one page."""
    exempt = {**EXEMPT[""], **EXEMPT.get(page, {})}
    for begin, content in pieces(text):
        for m in PATH.finditer(content):
            name = m.group(1)
            if name not in exempt and (why := why_path(tree, name)):
                yield text.count("\n", 0, begin + m.start()) + 1, why
        for m in SYMBOL.finditer(PATH.sub(lambda m: " " * len(m.group(0)), content)):
            if m.group(0) not in exempt and not tree.has_symbol(m.group(0)):
                yield text.count("\n", 0, begin + m.start()) + 1, f"{m.group(0)}: no such symbol"


def uncalled(text, folder, tree):
    """(line, what is wrong) of the public functions in a page's text that no test in the folder calls."""
    public, called = tree.public_functions(), tree.calls(folder)
    for begin, content in pieces(text):
        for m in SYMBOL.finditer(content):
            if m.group(0) in public and m.group(0) not in called:
                yield text.count("\n", 0, begin + m.start()) + 1, f"{m.group(0)}: no test in {folder} calls it"


def is_page(path):
    return path.endswith(".md") and ("/" not in path or path.startswith("docs/"))


def find_all(files, pages=None):
    """(page, line, what is wrong)."""
    tree = Tree(files)
    for page in pages or filter(is_page, files):
        text = tree.read(page)
        for line, why in check(page, text, tree):
            yield page, line, why
        for line, why in uncalled(text, CALLED[page], tree) if page in CALLED else ():
            yield page, line, why


def main():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.splitlines()
    found = list(find_all([f for f in files if os.path.isfile(os.path.join(ROOT, f))], sys.argv[1:]))
    for page, line, why in found:
        print(f"{page}:{line}: {why}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
