"""A plugin of pytest for llama.cpp's server tests: which are left out, and what came of all of them.

left_out.txt has a line for what does not apply: the name of a test or of a file, or a pattern of names, two spaces, the
reason. These tests run too. One that passes counts as passed and is named; a line whose tests all pass is an error, and
must go. A reason that begins with "words:" does not leave the test out. It runs, and only its comparisons of texts with
those of their model (match_regex) do not count.

The tests and their helper utils.py stay as they are, but for what is downloaded: load_all fetches models, and
download_file a draft model.
"""
import fnmatch
import os
import re

import pytest
import utils

HERE = os.path.dirname(os.path.abspath(__file__))


def read_left_out():
    """[(pattern, reason)]"""
    rows = []
    with open(os.path.join(HERE, "left_out.txt")) as f:
        for n, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, reason = line.rstrip("\n").partition("  ")
            if not reason.strip():
                raise SystemExit(f"left_out.txt:{n}: no reason")
            rows.append((name, reason.strip()))
    return rows


def shorten(nodeid):
    """The name of a test as left_out.txt has it."""
    return nodeid.removeprefix("unit/").replace("\n", "\\n")


class Outcomes:
    def __init__(self):
        self.rows = read_left_out()
        self.verdict = {}  # of each test: the worst of setup, call and teardown
        self.skipped = {}  # by llama.cpp's own files: reasons
        self.test = ""     # that runs
        self.differing = set()  # tests whose texts are not those of their model

    def row(self, name):
        """(pattern, why a test is left out); (None, None): it is not."""
        for pattern, reason in self.rows:
            if pattern in (name, name.split("[")[0], name.split("::")[0]) or fnmatch.fnmatchcase(
                    name, pattern.replace("[", "[[]")):
                return pattern, reason
        return None, None

    def counts_words(self):
        return not (self.row(self.test)[1] or "").startswith("words:")

    def match_regex(self, regex, text):
        is_same = re.search(regex, text, re.IGNORECASE | re.MULTILINE | re.DOTALL) is not None
        if is_same or self.counts_words():
            return is_same
        self.differing.add(self.test)
        return True

    def sort(self, is_whole):
        """{kind: names of tests, or of lines}"""
        kinds = {k: [] for k in ("passed", "words", "beyond", "left out", "failed", "stale", "unknown")}
        lines = {pattern: [] for pattern, _ in self.rows}  # kinds of the tests of each
        for name, is_good in self.verdict.items():
            pattern, reason = self.row(name)
            if name in self.skipped:
                kind = "left out"
            elif reason is None:
                kind = "passed" if is_good else "failed"
            elif reason.startswith("words:"):
                kind = "failed" if not is_good else "words" if name in self.differing else "beyond"
            else:
                kind = "beyond" if is_good else "left out"
            kinds[kind].append(name)
            if pattern:
                lines[pattern].append(kind)
        kinds["stale"] = [p for p, of in lines.items() if of and set(of) == {"beyond"}]
        if is_whole:
            kinds["unknown"] = [p for p, of in lines.items() if not of]
        return kinds


outcomes = Outcomes()
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.download_file = lambda url, output_file_path=None: os.path.join(os.environ["QUERN_TOY_MODELS"], "hello.gguf")
utils.match_regex = outcomes.match_regex


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    outcomes.test = shorten(item.nodeid)


def pytest_runtest_logreport(report):
    name = shorten(report.nodeid)
    if report.skipped:
        outcomes.skipped[name] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if report.when == "call" or not report.passed:
        outcomes.verdict[name] = outcomes.verdict.get(name, True) and report.passed


def pytest_terminal_summary(terminalreporter, config):
    kinds = outcomes.sort(is_whole=os.environ.get("QUERN_ALL") == "1")
    say = terminalreporter.write_line
    for name in kinds["beyond"]:
        say(f"passes, though left_out.txt has a line for it: {name}")
    for name in kinds["failed"]:
        say(f"failed: {name}")
    for pattern in kinds["stale"]:
        say(f"failed: all tests of this line of left_out.txt pass: {pattern}")
    for pattern in kinds["unknown"]:
        say(f"failed: no test has the name of this line of left_out.txt: {pattern}")
    for reason in sorted(set(outcomes.skipped.values())):
        say(f"left out by llama.cpp: {reason}")
    say(f"{len(kinds['words'])} of those that passed say other words than their model")
    n_good = sum(len(kinds[k]) for k in ("passed", "words", "beyond"))
    n_bad = sum(len(kinds[k]) for k in ("failed", "stale", "unknown"))
    say(f"{n_good} passed, {len(kinds['left out'])} left out, {n_bad} failed")
    config.n_bad = n_bad


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    if hasattr(config, "n_bad"):
        os._exit(1 if config.n_bad else 0)
