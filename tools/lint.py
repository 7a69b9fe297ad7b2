#!/usr/bin/env python3
"""Checks the rules of the tree that a compiler does not: includes, lengths, banned calls, leftovers, layout, the
names in pages.

Run from anywhere; `make lint`. One line per finding, exit status 1 when there is any.
"""
import os
import re
import shutil
import subprocess
import sys

import api_docs
import layers
import page_names
import primitive_docs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A foreign library is wrapped in one place.
FOREIGN = {
    "pcre2.h": ("src/text/", "src/model/adapter/name_pattern.c"),
    "utf8proc.h": ("src/text/", "src/base/"),
    "png.h": ("src/media/",),
    "jpeglib.h": ("src/media/",),
    "histedit.h": ("src/cli/",),
    "editline/readline.h": ("src/cli/",),
    "yaml.h": ("src/cli/train/config_file.c",),
    "zlib.h": ("src/cli/constrain/json_lines.c",),
    "immintrin.h": ("src/device/cpu/kernels/", "bench/"),
    "cpuid.h": ("src/device/cpu/kernels/", "bench/"),
    "arm_neon.h": ("src/device/cpu/kernels/", "bench/"),
    "cuda.h": ("src/device/cuda/",),
    "cuda_fp16.h": ("src/device/cuda/",),
    "cuda_runtime.h": ("src/device/cuda/", "bench/cuda/"),
    "curl/curl.h": ("src/hub/net/net_curl.c",),
    "sqlite3.h": ("src/server/archive/",),
    "event2/buffer.h": ("src/server/",),
    "event2/bufferevent.h": ("src/server/",),
    "event2/event.h": ("src/server/",),
    "event2/listener.h": ("src/server/",),
}
CHIP = re.compile(r"\b(__x86_64__|__i386__|__aarch64__|__ARM_\w+|__AVX\w*|__SSE\w*)\b")
# The emulation of a card, for tests: a library of its own, which is not installed.
EMULATION = "src/device/cuda/host/"
CHIP_PLACES = ("src/device/cpu/kernels/", "src/base/threads.c", "bench/", EMULATION)

PAGE_BYTES_MAX = {"ARCHITECTURE.md": 8000, "README.md": 5120}
C_LIKE = (".c", ".h", ".cu", ".cuh", ".cpp", ".hpp")
LINES_MAX, LINES_THINK, COLUMNS_MAX = 1500, 800, 120
ALLOCATION = """malloc calloc realloc free aligned_alloc posix_memalign strdup strndup asprintf vasprintf
    alloca""".split()
UNSAFE = """strcpy strcat strncpy strncat stpcpy sprintf vsprintf gets atoi atol atoll atof strtok rand srand
    setlocale system""".split()
ENDING = "exit _exit _Exit quick_exit abort".split()
# In pieces, so that this file does not find itself.
WORDS = ["TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK", "not imple" "mented", "unimple" "mented", "st" "ub",
         "place" "holder", "for n" "ow"]
UNFINISHED = re.compile(r"\b(" + "|".join(WORDS) + r")\b", re.IGNORECASE)
MACHINE = re.compile(r"(?<![\w.])/(?:w[o]rk|f[a]rm|r[o]ot)/|/tm[p]/[a-z]")
# The servers that names of models lead to stand in one table, so that one page says whom the program may call.
HOSTS = re.compile(r"huggingface\.co|registry\.ollama\.ai|hf\.co/")
HOSTS_TABLE = "src/hub/names/hosts_table.h"
REGISTRY = re.compile(r"py" r"pi\.org|python" r"hosted|deb\.deb" r"ian\.org|registry\.npm" r"js")

findings = []


def say(path, line, text):
    findings.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def tracked_files():
    """Files of the tree that git knows or would take, relative to the root."""
    names = []
    if shutil.which("git"):
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True,
                               text=True).stdout.split("\n")
    if not any(names):  # a source archive, or a machine without git
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [f for f in folders if f == ".ci" or (not f.startswith(".") and f != "build")]
            names += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return sorted(n for n in set(names) if n and os.path.isfile(os.path.join(ROOT, n)))


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


LEXEMES = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def code_only(text):
    """The text with comments, strings and characters blanked out; lines stay where they are."""
    return LEXEMES.sub(blank, text)


def is_own_header(module, name):
    """What the storeys of a folder share lies in the folder itself."""
    return name.startswith(module + "/") and "/" not in name[len(module) + 1:]


def is_test(path):
    return path.startswith("tests/") or path.endswith(("_test.c", "_fuzz.c"))


def check_includes(path, text):
    module = layers.place_of(path)[0]
    if module and module not in layers.MAY_USE:
        say(path, 0, f"src/{module} is not a folder of the tree (tools/layers.py)")
        return
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not m:
            continue
        name = m.group(2)
        if m.group(1) == "<":
            places = FOREIGN.get(name)
            if places and not is_test(path) and not path.startswith(places):
                say(path, n, f"<{name}> may be included only in {' '.join(places)}")
            continue
        if not module or is_test(path):
            continue
        if ".." in name:
            say(path, n, f'"{name}": write the path from src/')
            continue
        target = layers.place_of("src/" + name)[0]
        if target is None:
            say(path, n, f'"{name}": write the path from src/ ("{module}/{name}")')
        elif target in ("device/cuda", "device/mlx") and module != target:
            say(path, n, f"nobody includes {target}: the build lists it in the registry")
        elif is_own_header(module, name):
            continue
        elif why := layers.objection(path, "src/" + name):
            say(path, n, why)


def call_pattern(names):
    return re.compile(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(")


# .cu files are linked to the library quern-cuda, which has nothing of base in it.
CALLS = [
    (call_pattern(ALLOCATION), "allocate through base/mem.h",
     lambda p: p == "src/base/mem.c" or p.startswith(("examples/", EMULATION)) or p.endswith(".cu")),
    (call_pattern(UNSAFE), "banned call", lambda p: False),
    (call_pattern(ENDING), "the library never ends the process",
     lambda p: p.startswith(("src/cli/", "bench/", "examples/", EMULATION)) or is_test(p)),
]


def check_calls(path, text, code):
    lines, plain = text.split("\n"), code.split("\n")
    for n, line in enumerate(plain, 1):
        for pattern, why, exempt in CALLS:
            m = pattern.search(line)
            # A block that a foreign library allocated is freed as it asks; the line says so.
            if m and not exempt(path) and "foreign" not in lines[n - 1]:
                say(path, n, f"{m.group(1)}(): {why}")
        if CHIP.search(line) and not path.startswith(CHIP_PLACES):
            say(path, n, f"{CHIP.search(line).group(1)}: chips are known to src/device/cpu/kernels alone")


def check_text(path, text):
    prose = path.endswith(".md") or path.startswith("docs/")
    for n, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip() and not prose:
            say(path, n, "white space at the end of the line")
        if not prose and UNFINISHED.search(line):
            say(path, n, f"unfinished: {UNFINISHED.search(line).group(1)}")
        if MACHINE.search(line) and "mktemp" not in line and not path.startswith(".ci/"):
            say(path, n, "a path of one machine")
        if REGISTRY.search(line):
            say(path, n, "the name of a registry's host")
        if HOSTS.search(line) and path.startswith(("src/", "include/")) and path != HOSTS_TABLE:
            say(path, n, f"the hosts of models stand in {HOSTS_TABLE}")
        if len(line) > COLUMNS_MAX and path.endswith(".py"):  # C is clang-format's business
            say(path, n, f"{len(line)} columns")


def check_comments(path, text):
    """A formatter that breaks comments puts the dashes of a heading on the next line."""
    for n, line in enumerate(text.split("\n"), 1):
        if re.fullmatch(r"\s*\* -{20,}( \*/)?", line):
            say(path, n, "a comment that was torn apart: the dashes belong to the line before")


def check_guard(path, text):
    """src/text/chat/chat.h is guarded by QN_TEXT_CHAT_CHAT_H, so that no two headers share a name."""
    guard = re.search(r"^#ifndef (QN_\w+_H)$", text, re.MULTILINE)
    if guard and path.startswith(("src/", "tests/")):
        name = "QN_" + re.sub(r"\W", "_", path.removeprefix("src/")[:-2]).upper() + "_H"
        if guard.group(1) != name:
            say(path, 0, f"guarded by {guard.group(1)}, not by {name}")


def check_length(path, text):
    n = text.count("\n")
    head = text[:600]
    if "generated by" in head or path.endswith((".def", "_table.c", "_table.h", "_tables.c", "_tables.h")):
        return
    if n > LINES_MAX:
        say(path, 0, f"{n} lines; {LINES_MAX} is the end: split it by idea")
    elif n > LINES_THINK:
        print(f"{path}: {n} lines (past {LINES_THINK}: think about splitting it by idea)")


def check_layout(paths):
    """clang-format changes its mind between versions, so only the version of Debian 12 is asked."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout if tool else ""
    if "version 14." not in version:
        print(f"lint: layout not checked: clang-format 14 is absent ({version.strip() or 'none here'}); "
              "apt-get install clang-format")
        return
    jobs, size = [], max(1, (len(paths) + 3) // 4)
    for i in range(0, len(paths), size):
        jobs.append(subprocess.Popen([tool, "--dry-run", "-Werror", *paths[i:i + size]], cwd=ROOT, text=True,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    bad = {}
    for job in jobs:
        for line in job.communicate()[1].split("\n"):
            m = re.match(r"(.+?):(\d+):\d+: error:", line)
            if m:
                bad.setdefault(m.group(1), int(m.group(2)))
    for path, line in sorted(bad.items()):
        say(path, line, "layout differs from .clang-format (make format)")


def check_script(path, text):
    first = text.split("\n", 1)[0]
    if path.endswith(".py") or "python3" in first:
        try:
            compile(text, path, "exec")
        except SyntaxError as e:
            say(path, e.lineno, f"Python: {e.msg}")
    elif first.startswith("#!") and first.endswith(("sh", "bash")):
        shell = "bash" if first.endswith("bash") else "sh"
        out = subprocess.run([shell, "-n", os.path.join(ROOT, path)], capture_output=True, text=True)
        if out.returncode:
            say(path, 0, out.stderr.strip())


def check_calls_between_folders(paths):
    if not shutil.which("nm") or not os.path.isdir(os.path.join(ROOT, "build/release/src")):
        print("lint: calls between folders not checked: nothing is built")
        return
    os.chdir(ROOT)
    for line in layers.check_symbols("build/release", paths):
        path, _, why = line.partition(": ")
        say(path, 0, why)


def main():
    c_files, files = [], tracked_files()
    for path in files:
        if path.startswith(("tests/golden/", "tests/corpus/", "tools/fixtures/corpus.txt")):
            continue
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                text = f.read()
        except UnicodeDecodeError:
            if path.endswith((".c", ".h", ".py", ".md")):
                say(path, 0, "is not UTF-8")
            continue
        check_text(path, text)
        if path.endswith((*C_LIKE, ".py")):
            check_length(path, text)
        if path.endswith(C_LIKE):
            c_files.append(path)
            code = code_only(text)
            check_includes(path, text)
            check_calls(path, text, code)
            check_comments(path, text)
            check_guard(path, text)
        else:
            check_script(path, text)
    check_layout(c_files)
    check_calls_between_folders(c_files)
    for page, most in PAGE_BYTES_MAX.items():
        if (n := os.path.getsize(os.path.join(ROOT, page))) > most:
            say(page, 0, f"{n} bytes; {most} is the end: depth goes to docs")
    for page, line, why in page_names.find_all(files):
        say(page, line, why)
    for docs in (api_docs, primitive_docs):
        if why := docs.stale():
            say(why.partition(": ")[0], 0, why.partition(": ")[2])
    for line in findings:
        print(line)
    if findings:
        print(f"lint: {len(findings)} finding(s)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
