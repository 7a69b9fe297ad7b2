#!/usr/bin/env python3
"""Line coverage of the files whose lines must all run in tests; `make coverage` calls it after the tests.

usage: tools/coverage.py BUILD FILE.c...

Reads what a build with --coverage left under BUILD, by gcov. Prints a line a file and ends with status 1 when
a line did not run that tests/uncovered.txt does not excuse, or when a row there excuses nothing.

A row of tests/uncovered.txt is FILE | LINE | REASON. LINE is the text of a line without the spaces around it.
Lines that follow one another can share a row: LINE is then their texts, joined by " \\ ".
"""
import json
import os
import subprocess
import sys

EXCUSES = "tests/uncovered.txt"
JOINT = " \\ "


def read_excuses():
    rows = {}
    for number, line in enumerate(open(EXCUSES), 1):
        if line.startswith("#") or not line.strip():
            continue
        parts = [p.strip() for p in line.split(" | ")]
        if len(parts) != 3 or not all(parts):
            sys.exit(f"{EXCUSES}:{number}: expected FILE | LINE | REASON")
        rows[parts[0], parts[1]] = number
    return rows


def excused_in(lines, rows):
    """The numbers of a file's lines that rows excuse, each with its row's text."""
    found = {}
    for text in rows:
        wanted = text.split(JOINT)
        for first in range(len(lines) - len(wanted) + 1):
            if lines[first : first + len(wanted)] == wanted:
                found.update((first + 1 + i, text) for i in range(len(wanted)))
    return found


def counts_of(build, source):
    """How often each line of a file ran; of a line that is there several times, the most."""
    data = os.path.join(build, source[:-2] + ".gcda")
    if not os.path.exists(data):
        sys.exit(f"{source}: no test ran any of it (no {data})")
    out = subprocess.run(["gcov", "--json-format", "--stdout", data], check=True, capture_output=True).stdout
    counts = {}
    for text in out.splitlines():
        for file in json.loads(text)["files"]:
            if os.path.normpath(file["file"]) != source:
                continue
            for line in file["lines"]:
                number = line["line_number"]
                counts[number] = max(counts.get(number, 0), line["count"])
    return counts


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    excuses, used, failed, n_ran, n_excused = read_excuses(), set(), 0, 0, 0
    for source in sys.argv[2:]:
        counts, lines = counts_of(sys.argv[1], source), [line.strip() for line in open(source)]
        known = excused_in(lines, [text for file, text in excuses if file == source])
        left_out = sorted(n for n, count in counts.items() if count == 0)
        missing = [n for n in left_out if n not in known]
        used.update((source, known[n]) for n in left_out if n in known)
        excused, ran = len(left_out) - len(missing), len(counts) - len(left_out)
        share = 100 * (ran + excused) / max(1, len(counts))
        print(f"{source}: {ran} of {len(counts)} lines{f', {excused} excused' if excused else ''}: {share:.1f}%")
        for number in missing:
            print(f"    {source}:{number}: {lines[number - 1]}")
        failed, n_ran, n_excused = failed + len(missing), n_ran + ran, n_excused + excused
    for key in sorted(set(excuses) - used):
        print(f"{EXCUSES}:{excuses[key]}: excuses nothing: {key[0]} | {key[1]}")
        failed += 1
    print(f"coverage: {n_ran} lines ran in {len(sys.argv) - 2} files, {n_excused} are excused")
    if failed:
        print(f"coverage: {failed} line{'s' if failed > 1 else ''} to look at")
    return failed > 0


sys.exit(main())
