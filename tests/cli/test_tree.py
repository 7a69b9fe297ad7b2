"""What the objects of the build say of the tree: no call runs up (tools/layers.py)."""
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
