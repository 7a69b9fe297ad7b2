"""No call runs up the tree (tools/layers.py), the pages name what exists (tools/page_names.py), and lists of types are
the table's."""
import glob
import os
import re
import subprocess
import sys

from support import QUERN, call, fixture


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


def test_uncalled_functions_are_seen(tmp_path, monkeypatch):
    """Types, and words in comments and strings, do not count; a call does."""
    monkeypatch.syspath_prepend("tools")
    import page_names
    (tmp_path / "x_test.c").write_text('/* qn_ones(s) */ "qn_full(s)" a = qn_zeros(s); // qn_eye(s)\n')
    folder = os.path.relpath(tmp_path) + "/"
    tree = page_names.Tree([folder + "x_test.c", "include/quern/array.h"])
    page = "`qn_zeros`\n`qn_ones`, `qn_array`\n`qn_full` qn_arange\n```c\nqn_scope_open(0);\n```\n"
    assert sorted((line, why.partition(":")[0]) for line, why in page_names.uncalled(page, folder, tree)) == [
        (2, "qn_ones"), (3, "qn_full"), (5, "qn_scope_open")]


def section(text, begin, end):
    """What stands between two marks, as one line; comments of C without their stars."""
    assert text.count(begin) == 1, begin
    return re.sub(r"\s+\*? ?", " ", text.partition(begin)[2].partition(end)[0])


def types_in(text):
    return set(re.findall(r"\b(?:b?f(?:16|32|64)|q\d_\w+|iq\d_\w+|tq\d_\w+|\w+fp[48]|affine\d\w+|gptq\w+)\b", text))


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def test_types_that_fuse_writes_are_listed(tmp_path):
    """The message names what the table of types (src/quant/types.c) has an encoder for; help and pages agree."""
    got = call("fuse", fixture("models/llama"), "-o", str(tmp_path / "x.gguf"), "--type", "nothing")
    known = types_in(section(got.stderr.decode(), "GGUF files can be written with ", "\n"))
    assert {"f32", "q4_0", "mxfp4"} <= known
    for where, text in (
            ("help", section(call("fuse", "--help").stdout.decode(), "  --type TYPE", "--embedding-type")),
            ("cli.md", section(read("docs/cli.md"), "Types of matrices in GGUF:", ";")),
            ("adapter.h", section(read("include/quern/adapter.h"), "For a GGUF file", ", the type of matrices"))):
        assert types_in(text) == known, where


def test_types_of_weights_are_listed():
    listed = read("include/quern/dtype.h").partition("#define QN_DTYPE_LIST(X)")[2].partition("\n\n")[0]
    names = re.findall(r'X\(\w+, "(\w+)"\)', listed)
    blocks = set(names[names.index("f64") + 1:])
    assert {"q4_0", "nvfp4"} <= blocks
    row = section(read("docs/support.md"), "| weights |", "|\n").lower()
    assert types_in(row) == blocks | {"f32", "f16", "bf16"}
    bits = re.findall(r"QN_AFFINE_GROUPS\(X, (\d)\)", read("include/quern/dtype.h"))
    assert re.findall(r"\d", section(row, "affine types of", "bits")) == bits


def test_golden_data_are_small():
    sizes = [os.lstat(os.path.join(folder, name)).st_size for folder, _, files in os.walk("tests/golden")
             for name in files if not name.endswith(".pyc")]
    assert sum(sizes) <= 8 << 20, f"tests/golden has {sum(sizes)} bytes, at most {8 << 20} are allowed"


def test_every_family_is_on_its_page():
    """docs/families.md names each model_type of the rows, with the row's GGUF architecture, and no other."""
    said, wanted = {}, {}
    with open("docs/families.md", encoding="utf-8") as f:
        for line in f:
            cells = [c.strip() for c in line.strip("|\n ").split("|")]
            if line.startswith("| ") and len(cells) == 4 and cells[0] not in ("model_type", "---"):
                said.update((name, cells[2]) for name in cells[0].split(", ") if name not in said)
    for path in glob.glob("src/model/config/family_rows*.c"):
        with open(path, encoding="utf-8") as f:
            rows = re.split(r"(?=\.model_types = LIST\()", f.read())[1:]
        for row in rows:
            gguf = re.search(r'\.gguf_architecture = "([^"]+)"', row)
            wanted.update((name, gguf[1] if gguf else "-") for name in re.findall(r'"([^"]+)"', row[:row.index(")")]))
    wanted["xlm-roberta"] = wanted["roberta"] = wanted["bert"]  # of the row before
    assert said == wanted
