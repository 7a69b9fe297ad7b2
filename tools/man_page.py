#!/usr/bin/env python3
"""Writes the manual page out of what the program itself says: `tools/man_page.py [QUERN] > docs/quern.1`.

Commands and options are those of `quern --help` and `quern COMMAND --help`; the prose around them stands here.
tests/cli/test_cli_help.py compares docs/quern.1 with the output.
"""
import os
import re
import subprocess
import sys

SHARED = ["Sampling", "Loading", "Rotary positions"]  # groups that several commands share: described once

INTRO = r"""
.SH DESCRIPTION
.B quern
runs language models: directories as Hugging Face and MLX publish them, and GGUF files. A
.I MODEL
is such a directory, a directory with one GGUF file, or a file. Results go to standard output, everything else to
standard error.
Control characters in names and texts from model files are not shown.
"""

OUTRO = r"""
.SH "EXIT STATUS"
.TP
.B 0
Done.
.TP
.B 1
Failed; one sentence on standard error says why. Also:
.B doctor
found a fault, or
.B trace diff
found a difference.
.TP
.B 2
Wrong usage.
.TP
.B 130
Ended by Ctrl\-C.
.SH ENVIRONMENT
.TP
.B QUERN_CPU
Forces an instruction set:
.IR scalar ,
.IR avx2 ,
.IR avx2_vnni ,
.IR avx512 ,
.IR avx512_amx ,
.IR neon ,
.IR neon_i8mm .
.TP
.B QUERN_TRACE
If set, every computed step appends a line to this file.
.B quern trace
reads it.
.TP
.B NO_COLOR
If set, terminal output has no styles.
.TP
.BR VISUAL ", " EDITOR
The editor that
.B chat
opens for a message. The first that is set is used.
.TP
.BR XDG_STATE_HOME
Folder in which
.B chat
keeps its history, in quern/history (default ~/.local/state).
.TP
.BR HF_HUB_CACHE ", " HF_HOME ", " HF_ENDPOINT ", " HF_TOKEN ", " HF_TOKEN_PATH ", " HF_HUB_OFFLINE
As in Python's huggingface_hub: where fetched models lie, a mirror of the Hub, the token, no network.
.TP
.B QUERN_OFFLINE
If 1, nothing is fetched.
.TP
.B QUERN_OLLAMA_ENDPOINT
A mirror of Ollama's registry.
.SH EXAMPLES
.nf
quern run qwen3:0.6b \-p 'Why is the sky blue?'
quern models .
quern doctor model.gguf
quern run model.gguf \-p 'Why is the sky blue?'
quern train model.gguf data \-o out \-\-lr 1e\-4
quern inspect \-\-json model.gguf | jq \-r '.tensors[].name'
.fi
.SH "SEE ALSO"
The page cli.md describes the output of
.BR \-\-json ;
the page api.md describes the C interface. Both are in share/doc/quern of the prefix where quern is installed
(/usr/local/share/doc/quern), and in docs of its sources.
"""


def roff(text):
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text[:1] in ".'" else text


def sentence(text):
    text = roff(text[:1].upper() + text[1:])
    return text if text.endswith(".") else text + "."


def option(letter, name, value, text):
    names = ([rf"\fB\-{letter}\fR"] if letter else []) + [rf"\fB{roff(name)}\fR"]
    return f".TP\n{', '.join(names)}" + (rf" \fI{roff(value)}\fR" if value else "") + f"\n{sentence(text)}\n"


def read_help(text):
    """(usage, about, {group: [[letter, name, value, help], ...]})"""
    head, _, rest = text.partition("\n\n")
    usage = head[len("Usage: "):]
    about, groups, group = [], {}, None
    for line in rest.split("\n"):
        heading = re.fullmatch(r"([A-Z][\w ]*):", line)
        row = re.fullmatch(r"  (?:-(\w),|   ) (--[\w-]+)(?: (\S+))?(?:\s{2,}(.*))?", line)
        if heading:
            group = groups.setdefault(heading.group(1), [])
        elif row and group is not None:
            group.append([row.group(1), row.group(2), row.group(3), row.group(4) or ""])
        elif group and line.strip():
            group[-1][3] += (" " if group[-1][3] else "") + line.strip()
        elif group is None:
            about.append(line)
    return usage, "\n".join(about).strip(), groups


def make_page(quern):
    def call(*args):
        return subprocess.run([quern, *args], capture_output=True, text=True, check=True).stdout
    version = call("--version").split("\n")[0].split()[1]
    top = call("--help")
    commands = re.findall(r"^  (\w+) +(.+)$", top.split("Commands:\n")[1].split("\n\n")[0], re.M)
    page = [f'.\\" Made by tools/man_page.py.\n.TH QUERN 1 "" "quern {version}" "User Commands"\n.SH NAME\n'
            "quern \\- runs language models\n.SH SYNOPSIS\n.nf\n\\fBquern\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n"
            "\\fBquern\\fR \\fB\\-\\-help\\fR | \\fB\\-\\-version\\fR\n.fi" + INTRO + ".SH COMMANDS\n"]
    shared = {}
    for name, summary in commands:
        text = call(name, "--help", "all")
        usage, about, groups = read_help(text)
        page.append(f".SS quern {name} \\- {roff(summary)}\n.B {roff(usage)}\n.PP\n")
        for line in about.split("\n"):
            page.append((".br\n" if line.startswith("  ") else "") + roff(line.strip()) + "\n")
        also = []
        for group, options in groups.items():
            if group in SHARED:
                also.append(group)
                if len(options) > len(shared.get(group, [])):
                    shared[group] = options
            else:
                page += [option(*o) for o in options]
        rules = re.findall(r"^  (--\S+ cannot be used with .+(?:\n    .+)*)$", text, re.M)
        rules = [re.sub(r"\n +", " ", rule) for rule in rules]
        if rules:
            page.append(".PP\n" + ".br\n".join(sentence(r) + "\n" for r in rules))
        if also:
            listed = " and ".join(filter(None, [", ".join(also[:-1]), also[-1]]))
            page.append(f".PP\nAlso the options of {listed} below.\n")
    for group in SHARED:
        page.append(f".SH {group.upper()}\n" + "".join(option(*o) for o in shared[group]))
    return "".join(page) + OUTRO.lstrip("\n")


if __name__ == "__main__":
    sys.stdout.write(make_page(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUERN", "./quern")))
