"""README's examples, pasted as printed: on a golden model in place of the one that is fetched."""
import glob
import os
import re
import subprocess

from support import QUERN, fixture


def block(title):
    with open("README.md", encoding="utf-8") as f:
        return re.search(rf"^## {title}\n.*?```sh\n(.*?)```", f.read(), re.MULTILINE | re.DOTALL).group(1)


def test_examples(tmp_path):
    lines = block("One screen of examples").splitlines()
    assert lines.pop(0).startswith("make ")
    lines.remove(fetched := next(line for line in lines if "tools/fetch-models" in line))
    assert fetched.startswith("MODEL=$(")
    (tmp_path / "build").mkdir()
    (tmp_path / "quern").symlink_to(os.path.abspath(QUERN))
    script = "\n".join([f"MODEL={os.path.abspath(fixture('models/llama'))}", *(f"echo '== {i}'; {line}"
                        for i, line in enumerate(lines))])
    out = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    answers = dict(re.findall(r"^== (\d+)\n(.*?)(?=^== |\Z)", out.stdout, re.MULTILINE | re.DOTALL))
    for i, line in enumerate(lines):
        quiet = " logits " in line or " chat " in line
        assert quiet or answers[str(i)].strip(), f"{line}: said nothing\n{out.stderr}"
    assert (tmp_path / "build/logits.safetensors").stat().st_size > 0


def test_training(tmp_path):
    with open("README.md", encoding="utf-8") as f:
        script = re.search(r"```sh\n([^`]*quern train .*?)```", f.read(), re.DOTALL).group(1)
    (tmp_path / "build").mkdir()
    (tmp_path / "quern").symlink_to(os.path.abspath(QUERN))
    out = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, env={**os.environ, "MODEL": os.path.abspath(fixture("models/llama"))})
    assert out.returncode == 0, out.stdout + out.stderr
    assert "10 of 10 steps" in out.stdout and "perplexity" in out.stdout
    assert (tmp_path / "build/mill/report.html").exists()


def test_commands_are_all_there():
    """Every command of the program, and no other, is in the examples or on the page of the command line."""
    help_text = subprocess.run([QUERN, "--help"], capture_output=True, text=True).stdout
    commands = set(re.findall(r"^  (\w+) ", help_text.split("Commands:\n")[1], re.MULTILINE))
    used = set(re.findall(r"\./quern (\w+)", block("One screen of examples")))
    assert len(used) >= 9 and used <= commands
    with open("docs/cli.md", encoding="utf-8") as f:
        heads = " ".join(line for line in f if line.startswith("## "))
    assert commands == set(re.findall(r"quern (\w+)", heads))


def test_links_lead_somewhere():
    for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md",
                 *glob.glob("docs/**/*.md", recursive=True)]:
        with open(page, encoding="utf-8") as f:
            text = re.sub(r"```.*?```", "", f.read(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                path = os.path.join(os.path.dirname(page), target)
                assert os.path.exists(path), f"{page}: {target} is not there"
