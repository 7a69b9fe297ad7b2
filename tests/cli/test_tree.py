"""No call runs up the tree (tools/layers.py), and the pages name what exists (tools/page_names.py)."""
import os
import subprocess
import sys

from support import QUERN


def test_no_call_runs_up():
    build = os.path.dirname(os.path.realpath(QUERN))
    out = subprocess.run([sys.executable, "tools/layers.py", build], capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_a_call_that_runs_up_is_seen(tmp_path):
    """The same check over two objects of which one calls the other's function from below."""
    for path, text in (("src/cache/low.c", "void high(void); void low(void) { high(); }"),
                       ("src/engine/sample/high.c", "void high(void) { }")):
        source = tmp_path / path
        source.parent.mkdir(parents=True)
        source.write_text(text)
        made = tmp_path / "build" / path.replace(".c", ".o")
        made.parent.mkdir(parents=True)
        subprocess.run(["cc", "-c", str(source), "-o", str(made)], check=True)
    out = subprocess.run([sys.executable, os.path.abspath("tools/layers.py"), "build"], cwd=tmp_path,
                         capture_output=True, text=True)
    assert out.returncode == 1
    assert "src/cache/low.c: high of src/engine/sample/high.c: cache may not use engine" in out.stdout


def names(*pages):
    return subprocess.run([sys.executable, "tools/page_names.py", *map(str, pages)], capture_output=True, text=True)


def test_pages_name_what_exists():
    out = names()
    assert out.returncode == 0, out.stdout + out.stderr


def test_invented_names_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`src/base/mem.h`, `base/mem.h`, `matmul_<set>.c`, `QN_NORM_*`, `QN_DTYPE_BF16`,\n"
                    "`qn_pages_keep`, `src/cache/pages.c:qn_pages_keep` and `build/release/src/base/mem_test`\n")
    out = names(page)
    assert out.returncode == 0, out.stdout + out.stderr
    page.write_text("`src/base/mill.h`\n`src/cache/pages.c:qn_pages_grind`\n`qn_pages_grind(p)`\n`QN_DTYPE_GRIST`\n"
                    "`mill_<set>.c`\n```sh\nmake build/release/src/base/mill_test\n```\n")
    out = names(page)
    assert out.returncode == 1
    assert [line.partition("page.md:")[2] for line in sorted(out.stdout.splitlines())] == [
        "1: src/base/mill.h: no such file",
        "2: src/cache/pages.c has no function qn_pages_grind",
        "3: qn_pages_grind: no such symbol",
        "4: QN_DTYPE_GRIST: no such symbol",
        "5: mill_<set>.c: no such file",
        "7: build/release/src/base/mill_test: no such file"]
