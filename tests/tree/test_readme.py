"""The examples of README and docs/cli.md, pasted as printed: on a golden model in place of the one that is fetched."""
import contextlib
import glob
import io
import os
import re
import shutil
import socket
import subprocess

import pytest

from server_help import openai, server  # noqa: F401 (a fixture)
from support import QUERN, fixture, leave_out


def read(page):
    with open(page, encoding="utf-8") as f:
        return f.read()


def block(page, title):
    return re.search(rf"^## {title}\n.*?```sh\n(.*?)```", read(page), re.MULTILINE | re.DOTALL).group(1)


def block_with(words, language="sh"):
    """README's block of this language that has these words."""
    return next(b for b in re.findall(rf"```{language}\n(.*?)```", read("README.md"), re.DOTALL) if words in b)


def paste(script, folder):
    """Runs it in a folder that has ./quern and build/."""
    (folder / "build").mkdir()
    (folder / "quern").symlink_to(os.path.abspath(QUERN))
    return subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=folder, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True,
                          env={**os.environ, "MODEL": os.path.abspath(fixture("models/llama"))})


@pytest.mark.parametrize("page, title", [("README.md", "Examples"), ("docs/cli.md", "One screen of examples")])
def test_examples(page, title, tmp_path):
    lines = block(page, title).splitlines()
    assert lines.pop(0).startswith("make ")
    lines.remove(fetched := next(line for line in lines if "tools/fetch-models" in line))
    assert fetched.startswith("MODEL=$(")
    out = paste("\n".join(f"echo '== {i}'; {line}" for i, line in enumerate(lines)), tmp_path)
    assert out.returncode == 0, out.stdout + out.stderr
    answers = dict(re.findall(r"^== (\d+)\n(.*?)(?=^== |\Z)", out.stdout, re.MULTILINE | re.DOTALL))
    for i, line in enumerate(lines):
        quiet = " logits " in line or " chat " in line
        assert quiet or answers[str(i)].strip(), f"{line}: said nothing\n{out.stderr}"
    if page == "docs/cli.md":
        assert (tmp_path / "build/logits.safetensors").stat().st_size > 0


def test_training(tmp_path):
    out = paste(block_with("quern train "), tmp_path)
    assert out.returncode == 0, out.stdout + out.stderr
    assert "10 of 10 steps" in out.stdout and "perplexity" in out.stdout
    assert (tmp_path / "build/mill/report.html").exists()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def test_serving(tmp_path):
    script = block_with("quern serve ")
    assert script.count("8080") == 2
    out = paste(script.replace("8080", free_port()) + "\nkill $!; wait $!", tmp_path)
    assert out.returncode == 0, out.stdout + out.stderr
    assert '"finish_reason"' in out.stdout, out.stdout + out.stderr


def test_python_client(server):
    code = block_with("openai", "python")
    openai()  # left out where the package is not there
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code.replace("http://127.0.0.1:8080", server.url), "README.md", "exec"), {})
    assert said.getvalue().strip()


def test_program_in_c(tmp_path):
    for program in ("cc", "pkg-config"):
        shutil.which(program) or leave_out(f"{program} is absent")
    root, build = os.getcwd(), os.path.relpath(os.path.dirname(os.path.realpath(QUERN)))
    script = block_with("make install").replace("make install", f"make -s -C {root} B={build} install")
    out = paste(f"HOME={tmp_path}\n{script.replace(' examples/', f' {root}/examples/')}", tmp_path)
    assert out.returncode == 0, out.stdout + out.stderr
    assert (tmp_path / ".local/lib/pkgconfig/quern.pc").exists() and out.stdout.strip()


def test_commands_are_all_there():
    """Every command of the program, and no other, is in the examples or on the page of the command line."""
    help_text = subprocess.run([QUERN, "--help"], capture_output=True, text=True).stdout
    commands = set(re.findall(r"^  (\w+) ", help_text.split("Commands:\n")[1], re.MULTILINE))
    used = set(re.findall(r"\./quern (\w+)", block("docs/cli.md", "One screen of examples")))
    assert len(used) >= 9 and used <= commands
    heads = " ".join(line for line in read("docs/cli.md").splitlines() if line.startswith("## "))
    assert commands == set(re.findall(r"quern (\w+)", heads))


# Lines about other programs, and words that only look like an option.
OTHERS = re.compile(r"\b(curl|cc|kernel_check|train_bench|submit_bench)\b|bench/|tools/")
NO_OPTIONS = {"docs/cli.md": {"--name", "--yarn-", "--lora-scaled", "--adapter-path"},
              "docs/mlx.md": {"--arch"}, "CONTRIBUTING.md": {"--tiny"},
              "docs/internals/matmul.md": {"--kernel", "--rows"}}


def code_of(page):
    """Its code: blocks line by line, and spans."""
    block = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    for text in block.findall(read(page)):
        yield from text.replace("\\\n", " ").splitlines()
    for _, text in re.findall(r"(`+)(.+?)\1", block.sub("", read(page)), re.DOTALL):
        yield " ".join(text.split())


def test_options_of_the_pages_exist():
    """Each --option in code is one of the named command's, else one of any command's."""
    def shown(*args):
        return subprocess.run([QUERN, *args], capture_output=True, text=True)

    def takes(command, name):
        return name in known[command] or "unknown option" not in shown(command, name).stderr

    commands = re.findall(r"^  (\w+) ", shown("--help").stdout.split("Commands:\n")[1], re.MULTILINE)
    known = {c: set(re.findall(r"^ +(?:-., )?(--[\w-]+)", shown(c, "--help", "all").stdout, re.MULTILINE))
             | {"--help", "--version"} for c in commands}
    n_checked, bad = 0, []
    for page in ["README.md", "CONTRIBUTING.md", *glob.glob("docs/**/*.md", recursive=True)]:
        for line in code_of(page):
            if OTHERS.search(line) and "quern " not in line.split(" --")[0]:
                continue
            of = [c for c in re.findall(r"quern (\w+)", line) if c in known] or commands
            for name in set(re.findall(r"(?<![\w-])--[a-z][\w-]*", line)) - NO_OPTIONS.get(page, set()):
                n_checked += 1
                if not any(takes(c, name) for c in of):
                    bad.append((page, name, line[:100]))
    assert not bad and n_checked > 300, (n_checked, bad)


def test_links_lead_somewhere():
    for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md",
                 *glob.glob("docs/**/*.md", recursive=True)]:
        text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                path = os.path.join(os.path.dirname(page), target)
                assert os.path.exists(path), f"{page}: {target} is not there"
