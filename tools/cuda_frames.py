#!/usr/bin/env python3
"""Stack frames and spills of the device cuda's kernels: what ptxas says of each, held against a table of bounds.

usage: tools/cuda_frames.py [--table FILE] [--list] REPORT ...

A REPORT is what `nvcc -Xptxas -v` prints for one .cu file (make CUDA=1 keeps it beside the object). No function may
have a stack frame or spills, except those that the table names, which must stay within its bounds. A line of it is

    architecture   part of the function's mangled name   bytes of frame   bytes of spills (stores and loads)

where * is every architecture; of several lines that fit a function the last one counts. A line `clean NAME` names what
must be there, without a frame, and in no other line of the table. A line `checked ARCHITECTURE` names one that all this
is about: of others the number of functions with a frame is printed. Ends with 1, and a sentence for each fault, if a
function exceeds its bounds, or if a line fits no function of a checked architecture that the reports are of.
--list prints the functions that have a frame or spills.
"""
import argparse
import collections
import os
import re
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make/cuda_frames.txt")
ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for '(\S+)'")
FUNCTION = re.compile(r"ptxas info\s*: Function properties for (\S+)")
SIZES = re.compile(r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
Line = collections.namedtuple("Line", "number arch name frame spills")


class Fault(Exception):
    pass


def read_report(lines):
    """{(architecture, function): (frame, spills)}; of a function in several kernels the most."""
    found, arch, function = {}, None, None
    for line in lines:
        if m := ENTRY.match(line):
            arch = m.group(2)
        elif m := FUNCTION.match(line):
            function = m.group(1)
        elif m := SIZES.match(line):
            if not arch or not function:
                raise Fault("sizes that belong to no function: the report is none of ptxas -v")
            frame, stores, loads = (int(n) for n in m.groups())
            most = found.get((arch, function), (0, 0))
            found[arch, function] = max(most[0], frame), max(most[1], stores + loads)
    return found


def read_table(lines):
    checked, clean, bounds = [], [], []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if len(words) == 2 and words[0] == "checked":
            checked.append(words[1])
        elif len(words) == 2 and words[0] == "clean":
            clean.append(Line(number, "*", words[1], 0, 0))
        elif len(words) == 4 and words[2].isdigit() and words[3].isdigit():
            bounds.append(Line(number, words[0], words[1], int(words[2]), int(words[3])))
        elif words:
            raise Fault(f"line {number} of the table is none of the three kinds")
    return checked, clean, bounds


def fits(line, arch, function):
    return line.arch in ("*", arch) and line.name in function


def check(found, checked, clean, bounds):
    """The faults, as sentences."""
    faults, used = [], set()
    archs = {arch for arch, _ in found if arch in checked}
    for (arch, function), (frame, spills) in sorted(found.items()):
        if arch not in archs:
            continue
        lines = [b for b in bounds if fits(b, arch, function)]
        musts = [c for c in clean if fits(c, arch, function)]
        used.update((line.number, arch) for line in lines + musts)
        most = (lines[-1].frame, lines[-1].spills) if lines and not musts else (0, 0)
        if lines and musts:
            faults.append(f"{function} is in line {musts[0].number}, which wants it clean, "
                          f"and in line {lines[-1].number}")
        if frame > most[0] or spills > most[1]:
            faults.append(f"{arch}: {function} has {frame} bytes of stack frame and {spills} of spills; "
                          f"{most[0]} and {most[1]} are allowed")
    for line in clean + bounds:
        for arch in sorted(archs):
            if line.arch in ("*", arch) and (line.number, arch) not in used:
                faults.append(f"{arch}: line {line.number} of the table ({line.name}) fits no function")
    if not found:
        faults.append("the reports name no function")
    return faults


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("--table", default=TABLE)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("reports", nargs="+")
    args = parser.parse_args()
    found = {}
    try:
        for path in args.reports:
            with open(path, encoding="utf-8") as f:
                found.update(read_report(f))
        if args.list:
            for (arch, function), (frame, spills) in sorted(found.items()):
                if frame or spills:
                    print(arch, function, frame, spills)
            return 0
        with open(args.table, encoding="utf-8") as f:
            table = read_table(f)
        faults = check(found, *table)
    except (Fault, OSError) as e:
        faults = [str(e)]
    for fault in faults:
        print(f"cuda_frames: {fault}", file=sys.stderr)
    if not faults:
        for arch in sorted({arch for arch, _ in found}):
            sizes = [any(s) for (a, _), s in found.items() if a == arch]
            end = "all within their bounds" if arch in table[0] else "not checked"
            print(f"  FRAMES  {arch}: {len(sizes)} functions, {sum(sizes)} with a frame, {end}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
