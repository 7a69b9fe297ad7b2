"""The programs of docs/arrays.md, compiled as they stand there and run: each prints what the page says.

Blocks of C whose first line begins with "static" are functions; all others are one function's statements, in the
page's order. The examples of the headers of arrays that open a scope themselves are compiled and run one by one.
"""
import os
import re
import shlex
import shutil
import subprocess

import pytest

from support import QUERN, leave_out

BUILD = os.path.dirname(os.path.realpath(QUERN))
HEAD = "#include <quern/quern.h>\n#include <stdio.h>\n\n"
HEADERS = ["include/quern/array.h", "include/quern/array_nn.h", "include/quern/array_ops.h"]


def run(source, folder):
    compiler = shutil.which("cc")
    if not compiler:
        leave_out("a C compiler is absent (apt-get install gcc)")
    if not os.path.exists(f"{BUILD}/libquern.a"):
        leave_out("libquern.a is not built (make)")
    libraries = subprocess.run(["pkg-config", "--libs", "jansson", "libpcre2-8", "libutf8proc"], capture_output=True,
                               text=True, check=True).stdout
    (folder / "page.c").write_text(source)
    built = subprocess.run([compiler, "-std=c11", "-Wall", "-Wno-unused-parameter", "-Iinclude", folder / "page.c",
                            f"{BUILD}/libquern.a", *shlex.split(libraries), "-lm", "-pthread", "-o", folder / "page"],
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    out = subprocess.run([folder / "page"], capture_output=True, text=True, cwd=folder, timeout=120)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def test_page(tmp_path):
    with open("docs/arrays.md", encoding="utf-8") as f:
        blocks = re.findall(r"^```(c|text)\n(.*?)^```$", f.read(), re.MULTILINE | re.DOTALL)
    functions = [text for kind, text in blocks if kind == "c" and text.startswith("static ")]
    statements, wanted = [], []
    for kind, text in blocks:
        if kind == "text":
            wanted[-1] = text
        elif not text.startswith("static "):
            statements.append(text + 'printf("\\f");\n')
            wanted.append("")
    body = "\nint main(void)\n{\n" + "\n".join(statements) + "return 0;\n}\n"
    got = run(HEAD + "\n".join(functions) + body, tmp_path).split("\f")
    assert got.pop() == "" and len(got) == len(wanted) >= 8
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert a == b, f"block {i}:\n{statements[i]}"


def examples_of_headers():
    for path in filter(os.path.exists, HEADERS):
        with open(path, encoding="utf-8") as f:
            for i, block in enumerate(re.findall(r"(?:^ \*     .*\n)+", f.read(), re.MULTILINE)):
                if "qn_scope_open(" in block:
                    yield pytest.param(re.sub(r"^ \*     ", "", block, flags=re.MULTILINE), id=f"{path}-{i}")


@pytest.mark.parametrize("text", examples_of_headers())
def test_headers(text, tmp_path):
    assert run(HEAD + "int main(void)\n{\n" + text + "return 0;\n}\n", tmp_path).strip()
