"""What the benches share: which models they are given, and where their results go."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def fail(text, what_to_do=""):
    print(f"bench: {text}" + (f"\n  {what_to_do}" if what_to_do else ""), file=sys.stderr)
    sys.exit(1)


def cache_folder():
    own, xdg = os.environ.get("QUERN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return own or os.path.join(xdg or os.path.expanduser("~/.cache"), "quern")


def cpu_name():
    with open("/proc/cpuinfo") as f:
        m = re.search(r"model name\s*:\s*(.+)", f.read())
    return m.group(1).strip() if m else os.uname().machine


def model_path(name):
    if os.path.exists(name):
        return name
    if ":" in name:
        shape, kind = name.split(":", 1)
        folder = os.path.join(cache_folder(), "models", "synthetic")
        path = os.path.join(folder, f"{shape}-{kind}.gguf")
        if not os.path.exists(path):
            os.makedirs(folder, exist_ok=True)
            if subprocess.run([os.path.join(ROOT, "bench/generate"), shape, kind, path]).returncode != 0:
                fail(f"no model {name}")
        return path
    fetch = subprocess.run([os.path.join(ROOT, "tools/fetch-models"), name], stdout=subprocess.PIPE, text=True)
    return fetch.stdout.strip() or fail(f"no model {name}", "A file, smollm2, gemma3-270m, or SHAPE:TYPE.")


def best_set():
    """By the processor's flags: virtual machines of different chips may bear one name ("AMD EPYC")."""
    with open("/proc/cpuinfo") as f:
        flags = set(re.findall(r"\w+", f.read()))
    for name, need in (("avx512-amx", "amx_bf16"), ("avx512", "avx512_bf16"), ("avx2-vnni", "avx_vnni"),
                       ("avx2", "avx2"), ("neon", "asimd")):
        if need in flags:
            return name
    return "plain"


def results_path(kind=""):
    """The CSV file of this machine; kind: a folder of its own below bench/results."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{cpu_name()} {best_set()}".lower()).strip("-")
    folder = os.path.join(ROOT, "bench", "results", kind)
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"{slug}-{os.cpu_count()}.csv")


def commit_name():
    """With -dirty where other files differ from it than those that benches write."""
    def git(*args):
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    written = [f":!{path}" for path in ("bench/results", "docs/performance", "docs/*.md", "README.md")]
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
