"""Who may use whom in src: by includes, which lint.py checks, and by the calls that the objects show.

    tools/layers.py BUILD    e.g. build/release: checks the symbols of its objects; nm is needed

A call passes a public header without an include that would show it, so includes alone prove little.
"""
import os
import re
import subprocess
import sys

# A folder and the folders that it may use, besides itself, base and include/quern.
MAY_USE = {
    "base": "",
    "quant": "",
    "seed": "",
    "prim": "quant",
    "format": "quant seed",
    "media": "",
    "device": "prim",
    "device/cpu": "device prim device/cpu/kernels quant",
    # Kernels take from prim the sizes (units.h) and names (elementwise.def) that they share with it, and no function.
    "device/cpu/kernels": "prim quant",
    "device/cuda": "device prim quant device/cpu/kernels",
    "device/mlx": "device prim quant",
    "array": "device prim format quant",
    "text": "format",
    "constrain": "text",
    "model": "array prim format quant device",
    "convert": "model format quant text",
    "cache": "device prim",
    "engine": "model array prim cache text constrain format device quant",
    "train": "api backend convert model array prim text constrain format device quant",
    "backend": "engine model text constrain format device seed",
    "api": "backend engine model text constrain format seed",
    "hub": "",
    "server": "api backend text media",
    "cli": "server hub api backend train convert text constrain format engine media seed model device quant",
}
# The registry names the tables of the devices that were built in.
NAMES_TABLES_OF = {"device": "device/cpu device/cuda device/mlx"}
# The sub-folders of a folder, with all in them: each may use those before it. "": the files of the folder itself.
STOREYS = {
    "backend": ["text", "native", "mlx_lm", "mock", ""],
    "base": ["", "bytes", "json"],
    "cli": ["term", "options", "chat", "train", "constrain", "doctor", "commands", ""],
    "device/cpu/kernels": ["matmul", "attention", "vector", ""],
    "constrain": ["automaton", "grammar", "machine", "validate", "json", ""],
    "engine": ["sample", "machine", "schedule", "clients"],
    "format": ["files", "gguf", "safetensors", "source", "state"],
    "hub": ["names", "net", "store", ""],
    "model": ["config", "sentence", "weights", "adapter", "forward", "vision"],
    "server": ["archive", "http", "core", "openai", "responses", "anthropic", "ollama", "llama", "files", "rerank",
               "admin", ""],
    "text": ["tokenizer", "jinja", "tools", "chat"],
    "train": ["data", "step", "files", "run", "function"],
}


def place_of(path):
    """src/text/chat/x.c -> ("text", "chat"); (None, "") outside src."""
    parts = path.split("/")
    if parts[0] != "src" or len(parts) < 3:
        return None, ""
    for n in range(len(parts) - 1, 1, -1):
        if "/".join(parts[1:n]) in MAY_USE:
            return "/".join(parts[1:n]), "/".join(parts[n:-1])
    return parts[1], "/".join(parts[2:-1])


def objection(user, used):
    """Why the file `user` may not use what the file `used` defines; None: it may."""
    (a, storey_a), (b, storey_b) = place_of(user), place_of(used)
    if a == b:
        storeys = STOREYS.get(a)
        storey_a, storey_b = storey_a.split("/")[0], storey_b.split("/")[0]
        if storeys and storeys.index(storey_b) > storeys.index(storey_a):
            return f"{a}/{storey_a} may not use {a}/{storey_b}, which lies above it"
        return None
    if b == "base" or b in MAY_USE[a].split():
        return None
    return f"{a} may not use {b}"


def is_fresh(source, made):
    return os.path.exists(made) and os.path.getmtime(made) >= os.path.getmtime(source)


def symbols(build, sources):
    """{name: source that defines it}, {source: names that it needs} of the objects of a build that are not stale."""
    objects = [o for s in sources if is_fresh(s, o := os.path.join(build, s[:-2] + ".o"))]
    if not objects:
        return {}, {}
    listed = subprocess.run(["nm", "-A", "-P", *objects], capture_output=True, text=True, check=True).stdout
    defined, needed = {}, {}
    for line in listed.splitlines():
        path, name, kind = re.match(r"(.+?):? (\S+) (\S)", line).groups()
        source = os.path.relpath(path.rstrip(":"), build)[:-2] + ".c"
        if kind == "U":
            needed.setdefault(source, set()).add(name)
        elif kind in "TDBRC":
            defined.setdefault(name, source)
    return defined, needed


def sources_of(paths):
    return [p for p in paths if p.startswith("src/") and p.endswith(".c") and not p.endswith(("_test.c", "_fuzz.c"))]


def check_symbols(build, sources):
    """Lines that say which calls run up. From the root of the tree."""
    found = set()
    defined, needed = symbols(build, sources_of(sources))
    for user, names in needed.items():
        for name in names & defined.keys():
            used = defined[name]
            if place_of(used)[0] in NAMES_TABLES_OF.get(place_of(user)[0], "").split():
                continue
            if why := objection(user, used):
                found.add(f"{user}: {name} of {used}: {why}")
    return sorted(found)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    found = check_symbols(sys.argv[1], [os.path.join(f, n) for f, _, names in os.walk("src") for n in names])
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
