"""Help, the manual page and shell completions say the same: all come from the tables that commands parse by."""
import os
import re
import shutil
import subprocess
import sys

import pytest

from support import QUERN, call, fixture, leave_out

sys.path.insert(0, "tools")
import man_page  # noqa: E402

SHELLS = ["bash", "zsh", "fish"]


def text(*args):
    out = call(*args)
    assert out.returncode == 0, out.stderr.decode()
    return out.stdout.decode()


@pytest.fixture(scope="module")
def options():
    """command -> its options as its help lists them: [letter, name, value, text]."""
    commands = re.findall(r"^  (\w+) ", text("--help").split("Commands:\n")[1], re.M)
    assert len(commands) >= 11
    out = {}
    for c in commands:
        _, about, groups = man_page.read_help(text(c, "--help", "all"))
        assert about, c
        out[c] = [o for group in groups.values() for o in group]
    return out


def test_rules_name_options(options):
    n_rules = 0
    for command, rows in options.items():
        _, _, rules = text(command, "--help", "all").partition("\nRules:\n")
        named = set(re.findall(r"--[\w-]+", rules))
        assert named <= {name for _, name, _, _ in rows}, command
        n_rules += " ".join(rules.split()).count(" cannot be used with ")
    assert n_rules >= 8


def test_help_fits_80_columns(options):
    for command in options:
        for more in ((), ("all",)):
            long = [line for line in text(command, "--help", *more).split("\n") if len(line) > 80]
            assert not long, (command, long)


@pytest.mark.parametrize("command", ["run", "train"])
def test_common_options_come_first(options, command):
    short = text(command, "--help")
    _, _, groups = man_page.read_help(short)
    assert list(groups) == ["Common options"] and "--help all` lists all options" in short
    common = [name for _, name, _, _ in groups["Common options"]]
    known = [name for _, name, _, _ in options[command]]
    assert set(common) <= set(known) and 10 <= len(common) < len(known) / 2


def has_shell(name):
    return shutil.which(name) or leave_out(f"{name} is not installed")


def shell(name, script, *args):
    out = subprocess.run([has_shell(name), *args, "-c", script], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PATH": os.path.dirname(os.path.abspath(QUERN)) + ":" + os.environ["PATH"]})
    assert out.returncode == 0, out.stderr
    return out.stdout.split("\n")


def test_manual_page_is_up_to_date():
    with open("docs/quern.1", encoding="utf-8") as f:
        assert f.read() == man_page.make_page(QUERN), "run: tools/man_page.py ./quern > docs/quern.1"


def test_manual_page_names_everything(options):
    with open("docs/quern.1", encoding="utf-8") as f:
        page = f.read().replace(r"\-", "-")
    for command, rows in options.items():
        assert f".SS quern {command} - " in page
        for letter, name, value, _ in rows:
            line = (rf"\fB-{letter}\fR, " if letter else "") + rf"\fB{name}\fR" + (rf" \fI{value}\fR" if value else "")
            assert line + "\n" in page, (command, name)


def test_manual_page_is_sound():
    out = subprocess.run([has_shell("mandoc"), "-T", "lint", "-W", "warning", "docs/quern.1"],
                         capture_output=True, text=True)
    rest = [line for line in out.stdout.split("\n") if line and "missing date" not in line]
    assert not rest, rest


@pytest.mark.parametrize("name", SHELLS)
def test_scripts_name_everything(options, name):
    script = text("completions", name)
    for command, rows in options.items():
        assert re.search(rf"\b{command}\b", script)
        for letter, long, value, _ in rows:
            if name == "fish":
                pattern = rf"subcommand_from {command}' -l {long[2:]}{f' -s {letter}' if letter else ''}[ \n]"
            elif name == "zsh":
                pattern = rf"(?s)\n    {command}\)\n(?:(?!;;).)*?{long}\W"
            else:
                pattern = rf"'{command} -'\*\) words='[^']* {long}{f' -{letter}' if letter else ''}[ ']"
            assert re.search(pattern, script), (command, long)
            if value and "|" in value:
                assert value.replace("|", " ") in script


@pytest.mark.parametrize("name", SHELLS)
def test_scripts_are_sound(name, tmp_path):
    path = tmp_path / "script"
    path.write_text(text("completions", name))
    out = subprocess.run([has_shell(name), "-n", path], capture_output=True, text=True)
    assert out.returncode == 0 and out.stderr == "", out.stderr


BASH = [
    (["quern", "mo"], ["models"]), (["quern", "--v"], ["--version"]), (["quern", "run", "--prec"], ["--precision"]),
    (["quern", "run", "--precision", "h"], ["high"]), (["quern", "run", "--precision", "=", "f"], ["fast"]),
    (["quern", "run", "--precision", "="], ["high", "fast", "exact"]),
    (["quern", "logits", "m", "--positions", ""], ["all", "last"]), (["quern", "trace", "d"], ["diff"]),
    (["quern", "trace", "diff", "d"], []), (["quern", "completions", ""], ["bash", "zsh", "fish"]),
    (["quern", "template", "--builtin", ""], ["gemma", "qwen", "llama3"]), (["quern", "run", "--temp", ""], []),
    (["quern", "run", "m"], []), (["quern", "nothing", "-"], [])]


def test_bash():
    script = "source <(quern completions bash)\n"
    for words, _ in BASH:
        listed = " ".join(f"'{w}'" for w in words)
        script += f'COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _quern; echo "= ${{COMPREPLY[*]}}"\n'
    assert [line.split()[1:] for line in shell("bash", script) if line] == [offered for _, offered in BASH]


FISH = [("quern mo", ["models"]), ("quern run --prec", ["--precision"]), ("quern run --precision f", ["fast"]),
        ("quern trace ", ["diff", "sum"]), ("quern doctor --no", ["--no-compute"])]


def test_fish():
    script = "quern completions fish | source\n" + "".join(f"echo '='; complete -C '{line}'\n" for line, _ in FISH)
    got = "\n".join(shell("fish", script, "--no-config")).split("=\n")[1:]
    for (line, offered), out in zip(FISH, got):
        words = [w.split("\t")[0] for w in out.split("\n") if w]
        assert set(offered) <= set(words), (line, words)
        assert all(w.startswith(line.split(" ")[-1]) for w in words)
    assert len(got) == len(FISH)


def test_zsh(tmp_path):
    """The function is defined and bound to quern, and autoloads from a folder as zsh's own do."""
    (tmp_path / "_quern").write_text(text("completions", "zsh"))
    got = shell("zsh", f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump; "
                "print -r -- ${_comps[quern]}", "-f")
    assert got[0] == "_quern"
    got = shell("zsh", f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump2; source <(quern completions zsh); "
                "print -r -- ${_comps[quern]} ${+functions[_quern]}", "-f")
    assert got[0] == "_quern 1"


def test_help_of_a_command():
    assert text("help", "run") == text("run", "--help") and text("help") == text("--help")
    out = call("help", "nothing")
    assert out.returncode == 2 and b"unknown command nothing" in out.stderr


def test_help_promises_what_there_is(options):
    """What is said not to work is refused or noted, and the only names are taken."""
    said = {name: words for _, name, _, words in options["run"]}
    model = fixture("models/llama")
    assert all(w in said["--device"] for w in ("auto", "cpu", "cuda", "mlx"))
    assert all(w in said["--backend"] for w in ("native", "mlx_lm", "mock"))
    assert "not split between two devices" in said["--gpu-layers"] and "auto" in said["--gpu-layers"]
    assert "run: 0; chat: the model's, else 0.7" in said["--temp"] and "default 1" in said["--slots"]
    run = ["run", model, "--raw", "-p", "x", "-n", 1]
    assert call(*run, "--device", "gpu").returncode == call(*run, "--backend", "other").returncode == 1
    out = call(*run, "--device", "cpu", "--backend", "native", "--gpu-layers", 3)
    assert out.returncode == 0 and b"gpu_layers" in out.stderr, out.stderr


def test_unknown_shell():
    out = call("completions", "tcsh")
    assert out.returncode == 2 and b"'tcsh'" in out.stderr and b"bash|zsh|fish" in out.stderr
    assert call("completions").returncode == 2


def test_version():
    """Version, and for each device its chip, the set in use, all sets and the threads; a forced set shows."""
    lines = text("--version").strip().split("\n")
    assert re.fullmatch(r"quern \d+\.\d+\.\d+", lines[0])
    assert re.fullmatch(r"cpu: .+, set \w+ \(of scalar[\w ]*\), \d+ threads", lines[1])
    assert text("version") == text("-v") == "\n".join(lines) + "\n"
    forced = call("--version", env={"QUERN_CPU": "scalar"}).stdout.decode()
    assert ", set scalar (of scalar" in forced
