"""quern chat, from a pipe and on a terminal: what is entered, its commands, how answers appear.

From a pipe every line is answered in turn, a failure ends the run, programs read nothing but answers. On a terminal
(a pty) a paste is one message, failures are reported and the session goes on.
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import stat
import struct
import subprocess
import termios
import time
import unicodedata

import pytest

from server_help import THOUGHT, parrot, stable
from support import QUERN, call, fixture, heed_interrupt

MODEL = "models/llama"
STYLED_PROMPT = re.compile(r"\x1b\[1m((?:\[\d+%\] )?>|\.\.\.)\x1b\[0m $")
PLAIN_PROMPT = re.compile(r"(?:^|(?<=\n))((?:\[\d+%\] )?>|\.\.\.) $")
# A template without a date, so that the number of tokens is the same every day.
PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
THINK_TEMPLATE = PLAIN_TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}(no){% endif %}"


def chat(lines, *options, **more):
    return call("chat", fixture(MODEL), "-t", 1, "-n", 4, "--temp", 0, *options, stdin=lines, **more)


def answers(out):
    assert out.returncode == 0, out.stderr
    return [json.loads(line) for line in out.stdout.decode().splitlines()]


def conversation(path):
    with open(path, encoding="utf-8") as f:
        return [(m["role"], m["content"]) for m in json.load(f)["messages"]]


def questions(path):
    return [content for role, content in conversation(path) if role == "user"]


class Terminal:
    """quern chat on a pty, on the whole a dialogue: ask() enters a line and returns what came up to the next prompt."""

    def __init__(self, *options, columns=300, env=None, model=MODEL):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        own = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "VISUAL", "EDITOR")}
        own.update({"TERM": "xterm", "LC_ALL": "C", "XDG_STATE_HOME": "/nonexistent", **(env or {})})
        self.prompt_pattern = PLAIN_PROMPT if own.get("NO_COLOR") or own["TERM"] == "dumb" else STYLED_PROMPT
        self.process = subprocess.Popen([QUERN, "chat", fixture(model), "-t", "1", "-n", "4", "--temp", "0",
                                         *map(str, options)],
                                        stdin=slave, stdout=slave, stderr=slave, env=own, start_new_session=True,
                                        preexec_fn=lambda: (fcntl.ioctl(0, termios.TIOCSCTTY, 0), heed_interrupt()))
        os.close(slave)
        self.text = ""  # since the last prompt
        self.greeting = self.read_to_prompt()

    def read(self):
        if not select.select([self.master], [], [], 120)[0]:
            raise AssertionError(f"nothing more came after {self.text[-500:]!r}")
        try:
            more = os.read(self.master, 65536)
        except OSError:  # the other side was closed
            more = b""
        self.text += more.decode(errors="replace").replace("\r\n", "\n")
        return more

    def read_to_prompt(self):
        """What came before the prompt; self.prompt is the prompt."""
        while not (found := self.prompt_pattern.search(self.text)):
            assert self.read(), f"quern left: {self.text[-500:]!r}"
        before, self.text, self.prompt = self.text[:found.start()], "", found.group(1)
        return before

    def read_until(self, what):
        while what not in self.text:
            assert self.read(), f"quern left: {self.text[-500:]!r}"

    def send(self, text):
        os.write(self.master, text.encode())

    def ask(self, line):
        """line is shorter than the window, so that its echo is one line."""
        self.send(line + "\r")
        return self.read_to_prompt().split("\n", 1)[1]

    def leave(self):
        """What came last; the exit status is 0."""
        self.send("\x04")
        while self.read():
            pass
        os.close(self.master)
        assert self.process.wait(120) == 0
        return self.text


# ---- from a pipe ----

def test_json_is_one_line_per_answer():
    out = chat("hello\n/help\n\n/show parameters\nand again\n", "--json")
    first, second = answers(out)
    assert [first["role"], second["role"]] == ["assistant"] * 2
    assert first["n_prompt_tokens"] < second["n_prompt_tokens"]
    assert b"/clear" in out.stderr and b"temp 0" in out.stderr


def test_clear_forgets():
    first, _, again = answers(chat("hello\nmore\n/clear\nhello\n", "--json"))
    same = ("content", "n_prompt_tokens", "end")
    assert [first[key] for key in same] == [again[key] for key in same]


def test_help_is_the_result_without_json():
    out = chat("/help\n").stdout.decode()
    assert chat("/?\n/exit\nhello\n").stdout.decode() == out  # other names, and nothing is answered after leaving
    for name in "/help /regen /clear /set /show /save /load /read /stats /bye //TEXT \"\"\" Ctrl-C Ctrl-G".split():
        assert any(line.startswith(name) for line in out.splitlines()), name


def test_a_failure_ends_the_run():
    for line, word in ((b"/nonsense\n", b"/nonsense"), (b"a\xff\n", b"UTF-8"), (b'"""\nopen\n', b'no """ closes it'),
                       (b"/help me\n", b"/help takes no argument: 'me'"), (b"/regen\n", b"no message of yours"),
                       (b"/load\n", b"the name of a file is missing"), (b"/show me\n", b"info, template, parameters")):
        out = chat(line + b"hello\n", "--json")
        assert out.returncode == 1 and out.stdout == b"", out
        assert word in out.stderr and out.stderr.count(b"\n") == 1, out.stderr


def test_leaving():
    for word in ("/bye", "/exit", "/quit"):
        assert answers(chat(f"{word}\nhello\n", "--json")) == []


def test_blocks_and_slashes(tmp_path):
    path = tmp_path / "chat.json"
    cases = [('"""\na\n\n  b\n"""', "a\n\n  b"), ('"""one line"""', "one line"), ('"""a\nb"""  ', "a\nb"),
             ('"""\n/help\n"""', "/help"), ('""" a\n\n"""', " a\n"), ('"""\n\n\n"""', "\n"), ("//help", "/help"),
             ('say """x"""', 'say """x"""'), ('"""a""" b\n"""', 'a""" b')]
    lines = "\n".join(typed for typed, _ in cases)
    assert len(answers(chat(f"{lines}\n/save {path}\n", "--json", "-n", 1))) == len(cases)
    assert questions(path) == [message for _, message in cases]


def test_settings_are_refused_by_name():
    for line, message in (("temp 1001", "temp: 1001 is not in the range 0 to 1000"),
                          ("top-p x", "top-p: 'x' is not a number"), ("top-k -1", "top-k: -1 is not in the range"),
                          ("seed 1.5", "seed: '1.5' is not a whole number"), ("nothing 1", "no setting nothing; /set"),
                          ("max-tokens", "max-tokens: '' is not a whole number"),
                          ("wordwrap maybe", "wordwrap: 'maybe' is neither on nor off"),
                          ("think maybe", "think: 'maybe' is none of on, off and auto"),
                          ("think off", "think: this model's template has no switch for thinking")):
        out = chat(f"/set {line}\n")
        assert out.returncode == 1 and message in out.stderr.decode(), out.stderr


def test_settings_take_effect():
    out = chat("/set max-tokens 2\nhello\n/set max-tokens 3\n/set temp 1\n/set seed 5\nhello\n/set system Be brief.\n"
               "/show system\n/show parameters\nhello\n/set system\n/show system\n/set\n/regen\n", "--json",
               "--ignore-eos")
    got = answers(out)
    assert [a["n_generated_tokens"] for a in got] == [2, 3, 3, 3]
    assert got[1]["seed"] == got[2]["seed"] == 5 and got[3]["seed"] != 5
    assert got[3]["n_prompt_tokens"] < got[2]["n_prompt_tokens"]  # without the system message
    said = out.stderr.decode()
    assert "Be brief." in said and "there is no system message" in said
    assert "temp 1," in said and "seed 5, max-tokens 3" in said
    for name in "temp top-p top-k min-p repeat-penalty seed max-tokens system think wordwrap stats history".split():
        assert any(line.startswith(name + " ") for line in said.splitlines()), name


def test_think_is_a_variable_of_the_template(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(THINK_TEMPLATE)
    out = chat("hello\n/show template\n/set think off\n/show template\n/set think auto\n/show template\n",
               "--template", template)
    assert out.returncode == 0, out.stderr
    shown = out.stdout.decode().split("user: hello\n")[1:]
    assert ["(no)" in text for text in shown] == [False, True, False]


def test_show_template_is_what_the_next_turn_feeds(tmp_path):
    """No generation prompt that nothing follows: it ends with the one of the message to come."""
    template, saved = tmp_path / "t.jinja", tmp_path / "chat.json"
    template.write_text(PLAIN_TEMPLATE + "{% if add_generation_prompt %}assistant:{% endif %}")
    ask = "user: (your message)\nassistant:\n"

    def shown(*lines):
        out = chat("\n".join(lines) + "\n", "--template", template, "-n", 1, "--temp", 0)
        assert out.returncode == 0, out.stderr
        return out.stdout.decode()

    assert shown("/show template") == ask
    text = shown("hello", "/show template")
    assert text.endswith(ask) and text.count("assistant:") == 2 and "user: hello\nassistant: " in text
    saved.write_text('{"messages": [{"role": "user", "content": "hello"}]}')
    assert shown(f"/load {saved}", "/show template").endswith("user: hello\nassistant:\n")


def test_regen_replaces_the_answer(tmp_path):
    path = tmp_path / "chat.json"
    out = chat(f"hello\n/regen\n/save {path}\n", "--json", "--temp", 1, "--ignore-eos", "-n", 12)
    first, second = answers(out)
    assert first["n_prompt_tokens"] == second["n_prompt_tokens"] and first["seed"] != second["seed"]
    kept = second["content"].replace("\0", "\ufffd")  # what a message can hold
    assert conversation(path) == [("user", "hello"), ("assistant", kept)]
    assert b"gives the same answer" not in out.stderr
    assert b"temperature 0 gives the same answer" in chat("hello\n/regen\n").stderr


def test_read_goes_before_the_next_message(tmp_path):
    path, text = tmp_path / "chat.json", tmp_path / "text"
    text.write_text("first\nsecond\n")
    answers(chat(f"/read {text}\nand this?\nmore\n/save {path}\n", "--json"))
    assert questions(path) == ["first\nsecond\n\nand this?", "more"]
    for data, message in ((b"a\xff", "byte 1 is not UTF-8"), (b"ab\0", "byte 2 is a NUL")):
        text.write_bytes(data)
        out = chat(f"/read {text}\n")
        assert out.returncode == 1 and f"{text}: not a text: {message}" in out.stderr.decode()
    assert f"{tmp_path}/absent" in chat(f"/read {tmp_path}/absent\n").stderr.decode()
    assert b"quern: ./-: No such file" in chat("/read -\nhello\n").stderr  # the conversation is no file of its own


def test_stats_and_info():
    out = chat("/stats\nhello\n/stats\n/show info\n/show history\n", "--stats").stdout.decode()
    for word in ("session     0 answers", "session     1 answer, 4 tokens", "prompt  ", "answer      4 tokens",
                 "of 512 tokens", "memory", "family      llama, 4 layers", "user: hello"):
        assert word in out, word
    assert b"new tokens at" in chat("/set stats on\nhello\n").stderr


# ---- saving and loading ----

def test_save_and_load_round_trip(tmp_path):
    first, second, third = (tmp_path / n for n in ("a.json", "b.json", "c.json"))
    settings = "/set temp 0.1\n/set top-p 0.3\n/set top-k 7\n/set min-p 0.01\n/set repeat-penalty 1.3\n" \
               "/set seed 18446744073709551615\n/set max-tokens 3\n/set system \u00fc \"q\" \\ \n"
    answers(chat(f"{settings}hello\n\"\"\"\ntwo\nlines\n\"\"\"\n/save {first}\n", "--json"))
    out = chat(f"other\n/load {first}\n/save {second}\n", "--json", "--temp", 5)
    assert out.returncode == 0 and b"5 messages loaded" in out.stderr, out.stderr
    call("chat", fixture(MODEL), "-t", 1, "--load", first, stdin=f"/save {third}\n")
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    saved = json.loads(first.read_text())
    assert (saved["model"], saved["temperature"], saved["seed"]) == ("llama", 0.1, "18446744073709551615")
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert saved["messages"][3]["content"] == "two\nlines"
    # Conversation and what was computed of it; nothing else is left.
    names = ["a.json", "a.json.state", "b.json", "b.json.state", "c.json", "c.json.state"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    # The conversation goes on as it would have without the way through the file.
    there = answers(chat("hello\nmore\n", "--json"))[1]["content"]
    chat(f"hello\n/save {first}\n", "--json")
    assert answers(chat(f"/load {first}\nmore\n", "--json"))[0]["content"] == there


def test_a_switch_that_the_template_lacks_is_told(tmp_path):
    path, template = tmp_path / "chat.json", tmp_path / "t.jinja"
    template.write_text(THINK_TEMPLATE)
    path.write_text('{"messages": [], "chat_template_kwargs": {"enable_thinking": false}}')
    out = chat(f"/load {path}\n/set\n")
    assert out.returncode == 0 and b"this model's template has no switch for thinking" in out.stderr
    out = chat(f"/load {path}\n/show template\n", "--template", template)
    assert out.stderr == b"" and b"(no)" in out.stdout


def test_a_question_that_was_loaded_is_answered(tmp_path):
    path = tmp_path / "chat.json"
    path.write_text('{"messages": [{"role": "user", "content": "hello"}]}')
    out = chat(f"/load {path}\n/regen\nmore\n/save {path}\n", "--json")
    assert answers(out)[0]["content"] == answers(chat("hello\n", "--json"))[0]["content"]
    assert b"/regen" in out.stderr and questions(path) == ["hello", "more"]


def test_options_win_over_the_file(tmp_path):
    path = tmp_path / "chat.json"
    path.write_text('{"messages": [], "max_tokens": 30, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.2, '
                    '"repeat_penalty": 1.5, "seed": 8}')

    def parameters(*options):
        out = call("chat", fixture(MODEL), "--load", path, *options, stdin="/show parameters\n")
        assert out.returncode == 0, out.stderr
        return out.stdout.decode().splitlines()[-1]

    loaded = {"temp": "0.5", "top-p": "0.5", "top-k": "3", "min-p": "0.2", "repeat-penalty": "1.5", "seed": "8",
              "max-tokens": "30"}
    assert parameters() == ", ".join(f"{name} {value}" for name, value in loaded.items())
    for name, value in (("temp", "0"), ("temp", "0.5"), ("top-p", "0.25"), ("top-k", "7"), ("min-p", "0.5"),
                        ("repeat-penalty", "2"), ("seed", "1"), ("max-tokens", "20")):
        wanted = {**loaded, name: value}
        assert parameters(f"--{name}", value) == ", ".join(f"{n} {v}" for n, v in wanted.items())
    assert "repeat-penalty off" in parameters("--repeat-last-n", 0)
    assert "repeat-penalty 1.5" in parameters("--repeat-last-n", 64)
    assert "seed random" in parameters("--seed", 0) and "max-tokens off" in parameters("-n", 0)


def test_top_k_of_the_model(tmp_path):
    model = shutil.copytree(fixture(MODEL), tmp_path / "m")
    (model / "generation_config.json").write_text('{"top_k": 17}')
    out = call("chat", model, stdin="/show parameters\n")
    assert b"top-k 17" in out.stdout, out
    assert b"top-k off" in call("chat", model, "--top-k", 0, stdin="/show parameters\n").stdout
    # Mirostat chooses how much it cuts, and what is given still holds.
    got = call("chat", model, "--mirostat", 2, stdin="/show parameters\n").stdout
    assert b"top-k off" in got and b"top-p off" in got
    assert b"top-k 5" in call("chat", model, "--mirostat", 2, "--top-k", 5, stdin="/show parameters\n").stdout


HOSTILE = [("", "line 1"), ("[]", "not a JSON object"), ('{"messages": 1}', "messages: not a list"),
           ('{"messages": [{"role": "user"}]}', "messages[0].content: not a text"),
           ('{"messages": [{"role": "x\\u001b[2J", "content": ""}]}', "messages[0].role: 'x?[2J' is none of"),
           ('{"messages": [{"role": "user", "content": "\\u0000"}]}', "messages[0].content: the text has a NUL"),
           ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "line 1"),
           ('{"messages": [], "temperature": -1}', "temperature: -1 is not in the range 0 to 1000"),
           ('{"messages": [], "seed": "x"}', "seed: 'x' is not a whole number"),
           ('{"messages": [], "stop": ["x"]}', "unknown field stop"),
           ("[" * 5000, "nested deeper"), ('{"messages": [' + "{}," * 3 + '{}]}', "messages[0].role")]


def test_hostile_files_change_nothing(tmp_path):
    path, saved = tmp_path / "bad.json", tmp_path / "saved.json"
    terminal = Terminal()
    terminal.ask("hello")
    terminal.ask(f"/save {saved}")
    before = saved.read_bytes()
    for text, message in HOSTILE:
        path.write_text(text)
        said = terminal.ask(f"/load {path}")
        assert said.startswith(f"quern: {path}: ") and message in said, (text[:80], said)
        assert said.count("\n") == 1, said
    assert "not a regular file" in terminal.ask(f"/load {tmp_path}")
    assert "absent" in terminal.ask(f"/load {tmp_path}/absent")
    with open(path, "wb") as f:
        f.truncate((64 << 20) + 1)
    assert "a conversation has at most 67108864" in terminal.ask(f"/load {path}")
    terminal.ask(f"/save {saved}")
    assert saved.read_bytes() == before
    assert "not a regular file" in terminal.ask(f"/save {tmp_path}")
    assert "No such file" in terminal.ask(f"/save {tmp_path}/absent/x")
    terminal.leave()


def test_a_file_cannot_drive_the_terminal(tmp_path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a\x1b]0;title\x07\x9b2Jb"}]}))
    terminal = Terminal()
    terminal.ask(f"/load {path}")
    assert terminal.ask("/show history") == "user: a^[]0;title^G\ufffd2Jb\n"
    terminal.leave()


# ---- on a terminal ----

def test_a_paste_is_one_message(tmp_path):
    path = tmp_path / "chat.json"
    terminal = Terminal()
    assert "\x1b[?2004h" in terminal.greeting
    for pasted in ("one\rtwo h\u00e9\n\tthree\rfour\r", "/one\r/two", "x\x07y\x1b[31mz", "say \x1b[200~ \x1b[20"):
        terminal.send(("/" if pasted[0] == "/" else "") + f"\x1b[200~{pasted}\x1b[201~")
        terminal.send("!\r")
        terminal.read_to_prompt()
    terminal.ask(f"/save {path}")
    assert questions(path) == ["one\ntwo h\u00e9\n\tthree\nfour!", "/one\n/two!", "xy[31mz!", "say [200~ [20!"]
    assert terminal.leave().endswith("\x1b[?2004l")


def test_a_long_paste(tmp_path):
    path = tmp_path / "chat.json"
    text = "".join(f"line {i} of many\n" for i in range(200))
    terminal = Terminal("-c", 5000, "-n", 1)
    for at in range(0, len(text), 1000):  # a terminal takes what it can, not all at once
        terminal.send(("\x1b[200~" if at == 0 else "") + text[at:at + 1000])
    terminal.send("\x1b[201~\r")
    terminal.read_to_prompt()
    terminal.ask(f"/save {path}")
    assert questions(path) == [text[:-1]]
    terminal.leave()


def answering(n):
    """A terminal on which an answer without end has begun: n characters of it.

    It goes on while the test waits for a core, until the terminal holds what it can (16 KB, some 9,000 tokens). The
    context holds that and a message more."""
    terminal = Terminal("-c", 65536, "-n", 0, "--ignore-eos", "--rotate")
    terminal.send("hello\r")
    terminal.read_until("\n")
    while len(terminal.text) < n:
        assert terminal.read(), "quern left"
    return terminal


@pytest.mark.parametrize("columns", [60, 80])
def test_what_commands_say_fits(columns):
    """Long lines go on below their texts, between words."""
    t = Terminal(columns=columns)
    t.ask("hello")
    said = {line: t.ask(line) for line in ("/help", "/set", "/show", "/show parameters", "/stats", "/format", "/nope")}
    for line, text in said.items():
        lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part) for part in text.split("\n")]
        long = [part for part in lines if len(part) > columns and " " in part.strip()[12:]]
        assert len(lines) > 1 and not long, (line, long)
    assert "\n" + " " * 29 in said["/set"] and "\n" + " " * 19 in said["/help"]
    t.leave()


def test_what_is_typed_during_an_answer_is_kept(tmp_path):
    path = tmp_path / "chat.json"
    terminal = answering(100)
    terminal.send("/set max-tokens 2\r\x1b[200~one\rtwo\x1b[201~")
    # Ctrl-C would throw the keys away; the signal itself does not.
    terminal.process.send_signal(signal.SIGINT)
    # The terminal's own echo shows the keys in the answer. Then the command stands behind one prompt, the paste behind
    # the next.
    prompt = re.compile(r"\x1b\[1m(\[\d+%\] )?>\x1b\[0m ")
    while len(prompt.findall(terminal.text)) < 2 or not terminal.text.endswith("one\ntwo"):
        assert terminal.read(), f"quern left: {terminal.text[-500:]!r}"
    terminal.send("\r")
    assert "quern:" not in terminal.read_to_prompt()
    terminal.ask(f"/save {path}")
    assert questions(path) == ["hello", "one\ntwo"]
    assert json.loads(path.read_text())["max_tokens"] == 2
    terminal.leave()


def test_a_block_on_a_terminal(tmp_path):
    path = tmp_path / "chat.json"
    terminal = Terminal()
    terminal.ask('"""first')
    assert terminal.prompt == "..."
    terminal.ask("")
    terminal.send("dropped\x03")
    terminal.read_to_prompt()
    assert terminal.prompt == ">"
    terminal.ask('"""first')
    terminal.ask('second"""')
    terminal.ask(f"/save {path}")
    assert questions(path) == ["first\nsecond"]
    terminal.leave()


def test_a_failure_does_not_end_a_session():
    terminal = Terminal()
    assert terminal.ask("/nonsense").startswith("quern: no command /nonsense; /help lists them")
    assert "neither on nor off" in terminal.ask("/set wordwrap x")
    terminal.send("thrown away\x03")
    terminal.read_to_prompt()
    assert "there are no messages yet" in terminal.ask("/show history")
    terminal.leave()


def columns(line):
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def shown(text):
    """Control characters never reach a terminal."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda m: "^" + chr(ord(m.group()) ^ 64), text)
    return re.sub(r"[\x80-\x9f]", "\ufffd", text)


def test_words_are_wrapped():
    ask = ("-n", 120, "--ignore-eos", "--repeat-penalty", 1.2)
    plain = shown(answers(chat("tell me\n", "--json", *ask))[0]["content"])
    # What the tiny model says must be of use: a long line of narrow characters, no code.
    assert "```" not in plain and max(map(columns, plain.split("\n"))) > 40 and columns(plain) == len(plain)
    terminal = Terminal(*ask, columns=40)
    wrapped = terminal.ask("tell me")
    terminal.leave()
    assert wrapped.split() == plain.split()
    assert wrapped.count("\n") > plain.count("\n") + 1
    for line in wrapped.expandtabs().split("\n"):
        assert columns(line) <= 40 or columns(line.split()[0]) > 40, line
    for options in (["--no-wrap"], []):
        terminal = Terminal(*ask, *options, columns=40)
        if not options:
            terminal.ask("/set wordwrap off")
        assert terminal.ask("tell me") == plain + "\n"
        terminal.leave()


def test_thinking_is_dimmed(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(PLAIN_TEMPLATE + "<think>\n")
    plain = answers(chat("hello\n", "--json", "--template", template))[0]["content"]
    terminal = Terminal("--template", template)
    assert terminal.ask("hello") == f"\x1b[2m{plain}\x1b[0m\n"
    terminal.leave()
    terminal = Terminal("--template", template, env={"NO_COLOR": "1"})
    assert terminal.ask("hello") == f"<think>\n{plain}\n"
    assert "\x1b[2m" not in terminal.leave()
    template.write_text(PLAIN_TEMPLATE + "<think>\n\n</think>\n")
    terminal = Terminal("--template", template)
    assert "\x1b[2m" not in terminal.ask("hello")
    terminal.leave()


def test_a_dumb_terminal_gets_no_escapes():
    terminal = Terminal(env={"TERM": "dumb"})
    plain = answers(chat("hello\n", "--json"))[0]["content"]
    assert terminal.ask("hello").endswith(plain + "\n")
    assert "\x1b" not in terminal.greeting + terminal.leave()


def test_the_context_is_measured(tmp_path):
    path, template = tmp_path / "chat.json", tmp_path / "t.jinja"
    template.write_text(PLAIN_TEMPLATE)
    ask = ("--template", template, "--ignore-eos", "-n", 20)
    n = answers(chat("hello\n", "--json", *ask))[0]["n_prompt_tokens"]
    used = n + 20
    terminal = Terminal(*ask, "-c", 2 * used)
    assert terminal.prompt == ">"
    assert "quern:" not in terminal.ask("hello")
    assert terminal.prompt == "[50%] >"
    terminal.ask("/clear")
    assert terminal.prompt == ">"
    terminal.leave()

    terminal = Terminal(*ask, "-c", used + 1)
    said = terminal.ask("hello")
    percent = 100 * used // (used + 1)
    assert f"the context is {percent}% full ({used} of {used + 1} tokens); /save FILE" in said
    assert terminal.prompt == f"[{percent}%] >"
    terminal.leave()

    terminal = Terminal(*ask, "-c", used - 5)
    said = terminal.ask("hello")
    assert f"the context of {used - 5} tokens is full: the answer ends here; /save FILE keeps" in said
    assert terminal.prompt == "[100%] >"
    terminal.ask(f"/save {path}")
    before = path.read_bytes()
    said = terminal.ask("more")
    assert f"the context holds {used - 5}; the message is dropped; /save FILE keeps" in said
    terminal.ask(f"/save {path}")
    assert path.read_bytes() == before
    terminal.ask("/clear")
    (tmp_path / "long").write_text("too long " * 200)
    terminal.ask(f"/read {tmp_path}/long")
    assert "the message is dropped" in terminal.ask("what is this?")
    assert "quern: the prompt" not in terminal.ask("hello")  # the file went with its message
    terminal.leave()
    out = chat("hello\nmore\n", *ask, "-c", used - 5)
    assert out.returncode == 1 and b"the message is dropped" in out.stderr


def test_interrupt_keeps_what_there_is(tmp_path):
    path = tmp_path / "chat.json"
    terminal = answering(200)
    terminal.send("\x03")
    terminal.read_to_prompt()
    terminal.ask(f"/save {path}")
    (_, question), (_, answer) = conversation(path)
    assert question == "hello" and len(answer) > 50
    terminal.leave()


def test_interrupt_while_the_terminal_holds_the_output():
    terminal = answering(50)
    terminal.send("\x13")
    time.sleep(0.2)  # by now a write waits, most likely
    terminal.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    terminal.send("\x11")
    assert "quern:" not in terminal.read_to_prompt()
    terminal.leave()


def test_editor(tmp_path):
    path, script, seen = tmp_path / "chat.json", tmp_path / "edit", tmp_path / "seen"
    script.write_text(f'stat -c "%a %n" "$1" > {seen}; cat "$1" >> {seen}; printf "two\\nlines\\n" > "$1"\n')
    terminal = Terminal(env={"EDITOR": f"sh {script}", "TMPDIR": str(tmp_path)})
    terminal.send("draft\x02\x02\x07")
    terminal.read_until("lines")
    terminal.send("!\r")
    terminal.read_to_prompt()
    terminal.ask(f"/save {path}")
    assert questions(path) == ["two\nlines!"]
    mode, name = seen.read_text().split("\n")[0].split(" ", 1)
    assert mode == "600" and seen.read_text().endswith("\ndraft\n") and not os.path.exists(name)
    terminal.leave()

    script.write_text("exit 3\n")
    terminal = Terminal(env={"VISUAL": f"sh {script}", "EDITOR": "absent"})
    terminal.send("kept\x07")
    terminal.read_until("failed: the text is unchanged")
    terminal.send("!\r")
    terminal.read_to_prompt()
    terminal.ask(f"/save {path}")
    assert questions(path) == ["kept!"]
    terminal.leave()

    terminal = Terminal()
    terminal.send("kept\x07")
    terminal.read_until("no editor: set the environment variable EDITOR or VISUAL")
    terminal.send("\r")
    terminal.read_to_prompt()
    terminal.leave()


@pytest.mark.parametrize("keep", [True, False])
def test_history(tmp_path, keep):
    terminal = Terminal(env={"XDG_STATE_HOME": str(tmp_path)})
    if not keep:
        terminal.ask("/set history off")
    terminal.ask("remember me")
    terminal.leave()
    path = tmp_path / "quern" / "history"
    assert path.exists() == keep
    if not keep:
        return
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    terminal = Terminal(env={"XDG_STATE_HOME": str(tmp_path)})
    terminal.send("\x1b[A")
    terminal.read_until("remember me")
    terminal.send("\x03")
    terminal.read_to_prompt()
    terminal.leave()


def test_next_turn_is_computed_meanwhile(tmp_path):
    """While the user thinks what to say the conversation is computed as it will be then, without its reasoning."""
    model = parrot(tmp_path, THOUGHT)
    t = Terminal("--json", "-n", "60", model=model)
    first = t.ask("How is the mill today?")
    assert "It grinds corn." in first
    time.sleep(1)
    (second,) = [json.loads(line) for line in t.ask("Next one").split("\n") if line.startswith("{")]
    said = [{"role": "user", "content": "How is the mill today?"},
            {"role": "assistant", "content": "".join(THOUGHT)}]
    assert second["n_cached_tokens"] >= stable(model, said)
    t.leave()
