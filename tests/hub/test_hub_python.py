"""The cache beside Python's huggingface_hub: what one of them fetched, the other finds."""
import json
import os
import subprocess
import sys

import pytest

from hub_help import GGUF, Made, call, hub, pull, tiny_files  # noqa: F401
from gguf_split import part_names
from support import leave_out

# QUERN_HF_PYTHON names a Python that has the package; else the one that runs the tests, with what tools/test fetched.
PYTHON = os.environ.get("QUERN_HF_PYTHON") or sys.executable


def python(env, code, *args):
    path = "" if os.environ.get("QUERN_HF_PYTHON") else os.pathsep.join(p for p in sys.path if p)
    env = {**env, "PYTHONPATH": path, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
           "HF_HUB_DISABLE_XET": "1"}
    got = subprocess.run([PYTHON, "-c", "import sys, json\nfrom huggingface_hub import *\n" + code, *args], env=env,
                         capture_output=True, text=True, timeout=120)
    assert got.returncode == 0, got.stderr[-2000:]
    return got.stdout.strip()


@pytest.fixture(autouse=True)
def has_package():
    probe = [PYTHON, "-c", f"import sys; sys.path += {sys.path!r}; import huggingface_hub"]
    if subprocess.run(probe, capture_output=True).returncode:
        leave_out("Python's huggingface_hub is absent (tools/test fetches it)")


def test_python_finds_what_quern_pulled(hub, tmp_path):
    files = tiny_files()
    hub.add("org/tiny", {**files, "README.md": b"# no"})
    env = hub.env(tmp_path)
    path = pull(env, "org/tiny")
    n = len(hub.log)
    assert python(env, "print(snapshot_download('org/tiny', local_files_only=True))") == path
    assert python({**env, "HF_HUB_OFFLINE": "1"}, "print(hf_hub_download('org/tiny', 'config.json'))").startswith(path)
    assert python(env, "print(try_to_load_from_cache('org/tiny', 'model.safetensors'))").startswith(path)
    assert not [s for s in hub.log[n:] if "tiny" in s.path]  # the package asks for pages of its own
    sent = hub.sent()
    assert python(env, "print(snapshot_download('org/tiny'))") == path  # fetches the README alone
    assert hub.sent() - sent == 4
    assert python(env, "print(snapshot_download('org/tiny', local_files_only=True))") == path


def test_pythons_scan_sees_no_fault(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    hub.add("org/many", {"m-Q8_0.gguf": Made(100000, GGUF), "sub/n-Q4_0.gguf": Made(50000, GGUF, 2)}, commit="b" * 40)
    env = hub.env(tmp_path)
    pull(env, "org/tiny")
    pull(env, "org/tiny@pr/1")
    pull(env, "org/many:Q8_0")
    pull(env, "org/many:Q4_0")
    scan = json.loads(python(env, """
info = scan_cache_dir()
print(json.dumps({"warnings": [str(w) for w in info.warnings], "repos": sorted(
    [r.repo_id, r.nb_files, sorted(ref for v in r.revisions for ref in v.refs)] for r in info.repos)}))"""))
    assert scan == {"warnings": [], "repos": [["org/many", 2, ["main"]], ["org/tiny", 5, ["main", "pr/1"]]]}


def test_quern_finds_what_python_fetched(hub, tmp_path):
    hub.add("org/tiny", tiny_files())
    env = hub.env(tmp_path)
    path = python(env, "print(snapshot_download('org/tiny'))")
    sent, n = hub.sent(), len(hub.log)
    assert call(env, "run", "hf:org/tiny", "-p", "x", "-n", "2").code == 0 and len(hub.log) == n
    assert pull(env, "org/tiny") == path and hub.sent() == sent
    assert "hf:org/tiny\n" in call(env, "list").out
    assert call(env, "rm", "org/tiny", "--yes").code == 0
    assert json.loads(python(env, "print(json.dumps([r.repo_id for r in scan_cache_dir().repos]))")) == []


def test_a_part_that_python_fetched_is_completed(hub, tmp_path):
    """No tokenizer and not all files yet: `run` asks the server for the rest."""
    files = tiny_files()
    hub.add("org/tiny", files)
    env = hub.env(tmp_path)
    python(env, "hf_hub_download('org/tiny', 'config.json'); hf_hub_download('org/tiny', 'model.safetensors')")
    sent = hub.sent()
    got = call(env, "run", "hf:org/tiny", "-p", "x", "-n", "2")
    assert got.code == 0 and "is not here yet" in got.err, got
    assert hub.sent() - sent == sum(len(d) for n, d in files.items() if n not in ("config.json", "model.safetensors"))


def test_a_split_model_that_python_fetched(hub, tmp_path):
    """All parts are a model; the first one alone is none, and `pull` fetches the others."""
    names = part_names("Q8_0/m-Q8_0", 3)
    hub.add("org/split", {name: Made(1000, GGUF, i) for i, name in enumerate(names)})
    env = hub.env(tmp_path)
    first = python(env, "print(hf_hub_download('org/split', sys.argv[1]))", names[0])
    assert call(env, "pull", "org/split:Q8_0", "--offline").code == 1
    assert "only 1 of its 3 parts exist" in call(env, "list").out
    sent = hub.sent()
    assert pull(env, "org/split:Q8_0") == first and hub.sent() - sent == 2000
    assert call(env, "rm", "org/split", "--yes").code == 0
    python(env, "snapshot_download('org/split', allow_patterns='*Q8_0*')")
    assert call(env, "pull", "org/split:Q8_0", "--offline").out.strip() == first


def test_both_at_once(hub, tmp_path):
    """Python and quern fetch the same model at the same time: both end well, and the files are whole."""
    hub.add("org/many", {"m-Q8_0.gguf": Made(30 << 20, GGUF)})
    hub.pause = 0.001
    env = hub.env(tmp_path)
    from support import QUERN
    other = subprocess.Popen([QUERN, "pull", "org/many"], env=env, stdout=subprocess.PIPE, text=True)
    path = python(env, "print(hf_hub_download('org/many', 'm-Q8_0.gguf'))")
    assert other.communicate(timeout=60)[0].strip() == path and other.returncode == 0
    assert pull(env, "org/many") == path and os.path.getsize(path) == 30 << 20
