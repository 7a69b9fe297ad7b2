#!/usr/bin/env python3
"""Writes docs/api.md from include/quern/*.h: `make docs`. `make lint` says when the page is out of date.

What a header holds besides its opening paragraph is read as entries: a comment and the declarations that follow it
without an empty line. A declaration that this program does not understand is an error, so nothing is left out unseen.
"""
import os
import re
import sys

import made_page
from made_page import ROOT

HEADERS, PAGE = "include/quern", "docs/api.md"
INTRODUCTION = """# The C API

Made from `include/quern/*.h` by `make docs`: change the headers, not this page. `#include <quern/quern.h>` brings all
of it; a whole program is `examples/generate.c`, installed beside this page. To compile one:
`cc app.c $(pkg-config --cflags --libs quern) -o app`; from this repository after `make`, without installing:
`cc -Iinclude app.c build/release/libquern.a -ljansson -lpcre2-8 -lutf8proc -lpthread -lm -o app`.
"""
HIDDEN = ("QN_API", "QN_PRINTF")  # of no use to a caller


class Unreadable(Exception):
    pass


def comment_text(raw):
    """The text of a comment: its lines without the frame, paragraphs kept apart."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in raw.strip()[2:-2].strip().split("\n")]
    return "\n".join(lines).strip()


def prose(text):
    """A comment's text as Markdown: lines joined to paragraphs, identifiers as code, signs escaped. An indented
    paragraph is a program."""
    def sign(part):
        if part.startswith("`"):
            return part
        part = part.replace("\\", "\\\\").replace("<", "&lt;")
        part = re.sub(r"(?<![\w`])((?:qn|QN)_\w+(?:\(\))?)", r"`\1`", part)
        return re.sub(r"\*(?=\w)|(?<=\w)\*|\B\*\B", r"\\*", part)
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        joined, lines = "", block.split("\n")
        if all(line.startswith("    ") for line in lines):  # a program
            paragraphs.append("```c\n" + "\n".join(line[4:] for line in lines) + "\n```")
            continue
        for line in lines:
            joined += ("\n" if re.match(r"\s*[-*] ", line) else " ") + line.strip() if joined else line.strip()
        paragraphs.append("".join(sign(p) for p in re.split(r"(`[^`]*`)", joined)))
    return "\n\n".join(paragraphs)


def cell(text):
    return prose(text).replace("\n", " ").replace("|", "\\|")


def code(text):
    return "`" + re.sub(r"\s+", " ", text).strip().replace("|", "\\|") + "`"


def table(head, rows):
    """A Markdown table; a column that is empty all the way down is left out."""
    keep = [i for i in range(len(head)) if any(r[i] for r in rows)]
    lines = ["| " + " | ".join(r[i] for i in keep) + " |" for r in [head, *rows]]
    return "\n".join([lines[0], "|" + " --- |" * len(keep), *lines[1:]])


# A lexeme is a comment, a string, one of the signs that give structure, an empty line, or text between those.
LEXEME = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"|[{};(),]|\n[ \t]*\n|[^{};(),"/\n]+|/|\n', re.DOTALL)


def split_top(text, separator):
    """Splits at a sign that stands outside of comments, strings and brackets; each part keeps its comments."""
    parts, depth = [""], 0
    for lexeme in LEXEME.findall(text):
        depth += (lexeme in "{(") - (lexeme in "})") if lexeme in "{}()" else 0
        if lexeme == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += lexeme
    return parts


def members(body, separator):
    """(declaration, comment) of each field or constant between braces. A comment belongs to the member it follows on
    the same line, or else to the one that comes after it."""
    parts, out, waiting = split_top(body, separator), [], ""
    for i, part in enumerate(parts):
        m = re.match(r"[ \t]*(/\*.*?\*/)", part, re.DOTALL)
        if m and out:
            out[-1][1] = " ".join(filter(None, [out[-1][1], comment_text(m.group(1))]))
            part = part[m.end():]
        comments = re.findall(r"/\*.*?\*/", part, re.DOTALL)
        declaration = re.sub(r"/\*.*?\*/", " ", part, flags=re.DOTALL).strip()
        inside = " ".join(comment_text(c) for c in comments)
        if declaration:
            out.append([declaration, " ".join(filter(None, [waiting, inside]))])
            waiting = ""
        elif i + 1 < len(parts):
            waiting = inside
        elif out and inside:
            out[-1][1] = " ".join(filter(None, [out[-1][1], inside]))
    return out


def read_list(text):
    """The rows of an X-list: (name, [further arguments], comment)."""
    text = re.sub(r"\\\n", "\n", text)
    rows = []
    for m in re.finditer(r"\bX\(\s*(\w+)\s*((?:,[^)]*)?)\)[ \t]*(/\*.*?\*/)?", text, re.DOTALL):
        arguments = [a.strip() for a in split_top(m.group(2).lstrip(","), ",")] if m.group(2) else []
        rows.append((m.group(1), arguments, comment_text(m.group(3)) if m.group(3) else ""))
    return rows


# The type of a function, of a pointer to one, and any other name for a type.
FUNCTION_TYPE = re.compile(r"typedef [^({]*?\b(qn_\w+)\(.*\)$|typedef [^({]*\(\*(qn_\w+)\)\(.*\)$"
                           r"|typedef [\w ]+?\b(qn_\w+)$", re.DOTALL)


class Header:
    def __init__(self, name, lists):
        self.name, self.lists, self.entries = name, lists, []
        with open(os.path.join(ROOT, HEADERS, name), encoding="utf-8") as f:
            self.text = f.read()
        self.includes = re.findall(r"#include <quern/(\S+)>", self.text)
        m = re.match(r"\s*(/\*.*?\*/)", self.text, re.DOTALL)
        if not m:
            raise Unreadable(f"{HEADERS}/{name}:1: it does not open with a comment")
        self.opening, self.start = comment_text(m.group(1)), m.end()

    def read(self):
        """Walks over the declarations; `comment` is the one that waits for its declaration."""
        text, line = self.text[self.start:], self.text[:self.start].count("\n") + 1
        comment, adjacent = "", False
        at = 0
        while at < len(text):
            rest, here = text[at:], line + text[:at].count("\n")
            m = re.match(r"\n[ \t]*(?=\n)", rest)
            if m:  # an empty line parts entries
                comment, adjacent = "", False
            else:
                m = re.match(r"\s+", rest)
            if not m:
                m = re.match(r"/\*.*?\*/", rest, re.DOTALL)
                if m:
                    comment, adjacent = comment_text(m.group()), False
            if not m:
                m = re.match(r"#(?:\\\n|/\*.*?\*/|[^\n])*", rest, re.DOTALL)
                if m:
                    if self.directive(m.group(), comment):
                        comment = ""
            if not m:
                m = re.match(r'extern "C" \{|\}(?=\s*#endif)', rest)
            if not m:
                end = len(split_top(rest, ";")[0])
                declaration = rest[:end]
                if end == len(rest):
                    raise Unreadable(f"{HEADERS}/{self.name}:{here}: a declaration without an end")
                self.declare(declaration, comment, adjacent, here)
                comment, adjacent = "", True
                at += end + 1
                continue
            at += m.end()

    def directive(self, text, comment):
        m = re.match(r"#define (QN_\w+_LIST)\(X\)(.*)", text, re.DOTALL)
        if m:
            self.lists[m.group(1)] = (read_list(m.group(2)), comment)
            return True
        m = re.match(r"#define (QN_\w+)[ \t]+(\S.*)", text)
        if m and m.group(1) not in HIDDEN:
            if self.entries and self.entries[-1][0] == "constants" and not comment:
                self.entries[-1][1].append(m.group(1))
                self.entries[-1][3].append((m.group(1), m.group(2)))
            else:
                self.entries.append(["constants", [m.group(1)], comment, [(m.group(1), m.group(2))]])
            return True
        return False

    def declare(self, text, comment, adjacent, line):
        bare = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).strip()
        kind = None
        if m := re.match(r"typedef struct(?: \w+)? \{(.*)\} (\w+)$", text, re.DOTALL):
            kind, name, data = "struct", m.group(2), members(m.group(1), ";")
        elif m := re.match(r"(?:typedef )?enum \{(.*)\}\s*(\w*)$", text, re.DOTALL):
            data, told, head = self.constants(m.group(1))
            kind, name, data = "enum", m.group(2) or data[0][0], [head, *data]
            comment = "\n\n".join(filter(None, [comment, told]))
        elif m := re.match(r"typedef struct (\w+) \1$", bare):
            kind, name, data = "opaque", m.group(1), bare
        elif m := re.match(r"QN_API\s[^(]*?\b(qn_\w+)\(.*\)$", bare, re.DOTALL):
            kind, name, data = "function", m.group(1), re.sub(r"\n {7}", "\n", bare.replace("QN_API ", ""))
        elif m := FUNCTION_TYPE.match(bare):
            kind, name, data = "type", next(filter(None, m.groups())), bare
        if not kind:
            raise Unreadable(f"{HEADERS}/{self.name}:{line}: a declaration that cannot be read: {bare[:60]}")
        last = self.entries[-1] if self.entries else None
        if adjacent and kind == "function" and last and last[0] == "function":
            last[1].append(name)
            last[3].append(data)
        else:
            self.entries.append([kind, [name], comment, [data] if kind in ("function", "opaque", "type") else data])

    def constants(self, body):
        """[(constant, its text, comment)] of an enum, what its X-list says of itself, and what it says of the texts."""
        out, told, head = [], "", "text"
        pasted = dict(re.findall(r"#define (\w+)\(.*?\) (\w+##[\w#]+),", body))
        body = re.sub(r"#[^\n]*", "", body)
        for used, macro in re.findall(r"(QN_\w+_LIST)\((\w+)\)", body):
            if used not in self.lists or macro not in pasted:
                raise Unreadable(f"{HEADERS}/{self.name}: {used}({macro}) is not known here")
            rows, of_list = self.lists[used]
            form = re.search(r':?\s*X\(\w+, "?([^")]*)"?\)', of_list)  # "...: X(NAME, "what the text is")."
            if rows and form:
                of_list, head = of_list[:form.start()] + of_list[form.end():], form.group(1)
            prefix = pasted[macro].partition("##")[0]
            out += [(prefix + name, " ".join(arguments), comment) for name, arguments, comment in rows]
            if rows:
                told = of_list
            else:  # made of further macros: the constants are described by their pattern
                parts = pasted[macro].split("##")
                name = "".join(p.upper() if i % 2 else p for i, p in enumerate(parts))
                out.append((name, "", re.sub(r"\s*X\([^)]*\)\.?", "", of_list)))
        body = re.sub(r"QN_\w+_LIST\(\w+\)", "", body)
        return out + [(re.sub(r"\s+", " ", d), "", c) for d, c in members(body, ",")], told, head

    def markdown(self):
        parts = [f"## {self.name}", prose(self.opening)]
        for kind, names, comment, data in self.entries:
            parts.append("### " + ", ".join(names))
            if kind in ("function", "type", "opaque"):
                parts.append("```c\n" + "\n".join(d + ";" for d in data) + "\n```")
            if comment:
                parts.append(prose(comment))
            if kind == "struct":
                parts.append(table(["field", "meaning"], [(code(d), cell(c)) for d, c in data]))
            elif kind == "enum":
                parts.append(table(["constant", data[0], "meaning"],
                                   [(code(n), code(t) if t else "", cell(c)) for n, t, c in data[1:]]))
            elif kind == "constants":
                parts.append(table(["constant", "value"], [(code(n), code(v)) for n, v in data]))
        return "\n\n".join(parts)


def anchor(heading):
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def in_order(headers):
    """quern.h first, then each header after those that it includes."""
    out, left = [h for h in headers if h.name == "quern.h"], sorted(h.name for h in headers if h.name != "quern.h")
    by_name = {h.name: h for h in headers}
    while left:
        ready = [n for n in left if not any(i in left for i in by_name[n].includes)] or left
        out.append(by_name[ready[0]])
        left.remove(ready[0])
    return out


def page():
    """The text of docs/api.md."""
    lists = {}
    names = sorted(n for n in os.listdir(os.path.join(ROOT, HEADERS)) if n.endswith(".h"))
    headers = in_order([Header(n, lists) for n in names])
    contents = []
    for h in headers:
        h.read()
        first = re.split(r"\.(?:\s|$)", h.opening.replace("\n", " "))[0]
        links = ", ".join(f"[{', '.join(e[1])}]({anchor(', '.join(e[1]))})" for e in h.entries)
        contents.append(f"- [{h.name}]({anchor(h.name)}): {prose(first)}" + (f"\n  {links}" if links else ""))
    return "\n\n".join([INTRODUCTION.strip(), "\n".join(contents), *[h.markdown() for h in headers]]) + "\n"


def stale():
    """None, or why the page in the tree is not what the headers give."""
    return made_page.stale(PAGE, page, Unreadable, "headers")


if __name__ == "__main__":
    sys.exit(made_page.write(PAGE, page, Unreadable))
