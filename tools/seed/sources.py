"""Text of Debian packages for the seed: documents, each a list of paragraphs.

Packages are fetched by name with apt-get download and unpacked into a folder, not installed. What each is, its
version and its licence: docs/training-the-seed.md."""
import os
import re
import struct
import subprocess
import zlib

PACKAGES = ["bible-kjv", "bible-kjv-text", "r-cran-janeaustenr", "wordnet-base"]


def fetch(folder):
    """The packages' files below folder/files, and {package: version}."""
    files = os.path.join(folder, "files")
    os.makedirs(files, exist_ok=True)
    versions = {}
    for name in PACKAGES:
        have = [f for f in os.listdir(folder) if f.startswith(name + "_") and f.endswith(".deb")]
        if not have:
            subprocess.run(["apt-get", "-q", "download", name], cwd=folder, check=True, stderr=subprocess.DEVNULL)
            have = [f for f in os.listdir(folder) if f.startswith(name + "_") and f.endswith(".deb")]
        subprocess.run(["dpkg-deb", "-x", os.path.join(folder, have[0]), files], check=True)
        versions[name] = have[0].split("_")[1].replace("%3a", ":")
    return files, versions


# ---- the King James Bible: a chapter is a document, a verse a paragraph ---------------------------------------

def bible(files):
    """[(name, [verse, ...])]. The text lies compressed in the package; its own program prints it."""
    program = [os.path.join(files, "usr/bin/bible"), "-p", os.path.join(files, "usr/lib"), "-l0"]
    out = subprocess.run(program, input="gen1:1-rev22:21\n", capture_output=True, text=True, check=True).stdout
    documents = []
    for line in out.splitlines():
        heading = re.fullmatch(r"((?:\d )?[A-Z][A-Za-z ]+) (\d+)", line)
        verse = re.fullmatch(r" +\d+ (.+)", line)
        if heading:
            documents.append(("%s %s" % heading.groups(), []))
        elif verse and documents:
            documents[-1][1].append(" ".join(verse.group(1).split()))
    documents = documents[1:]  # it greets with its first verse
    if len(documents) != 1189:
        raise ValueError("the Bible has %d chapters, not 1189" % len(documents))
    return documents


# ---- Jane Austen's novels: a chapter is a document ------------------------------------------------------------

class RValues:
    """Reads what R's serialize() wrote (XDR): the few types that a package's lists of strings are made of."""

    def __init__(self, data):
        self.data, self.at, self.names = data, 2, []
        version = self.number()
        self.at += 8
        if version == 3:
            size = self.number()
            self.at += size

    def number(self):
        self.at += 4
        return struct.unpack_from(">i", self.data, self.at - 4)[0]

    def value(self):
        flags = self.number()
        kind = flags & 255
        if kind == 254:
            return None
        if kind == 255:
            return self.names[(flags >> 8) - 1]
        if kind == 1:
            self.names.append(self.value())
            return self.names[-1]
        if kind == 2:
            if flags & 0x200:
                self.value()
            pair = {self.value() if flags & 0x400 else None: self.value()}
            pair.update(self.value() or {})
            return pair
        if kind == 9:
            n = self.number()
            self.at += max(n, 0)
            return self.data[self.at - n:self.at].decode("utf-8") if n >= 0 else ""
        n = self.number()
        if kind in (10, 13):
            self.at += 4 * n
            found = list(struct.unpack_from(">%di" % n, self.data, self.at - 4 * n))
        elif kind in (16, 19):
            found = [self.value() for _ in range(n)]
        else:
            raise ValueError("R type %d" % kind)
        if flags & 0x200:
            names = self.value().get("names")
            if names and kind == 19:
                found = dict(zip(names, found))
        return found


def austen(files):
    folder = os.path.join(files, "usr/lib/R/site-library/janeaustenr/data/Rdata")
    with open(folder + ".rdx", "rb") as f:
        index = RValues(zlib.decompress(f.read(), 31)).value()["variables"]
    with open(folder + ".rdb", "rb") as f:
        data = f.read()
    documents = []
    for book in sorted(index):
        begin, size = index[book]
        lines = RValues(zlib.decompress(data[begin + 4:begin + size])).value()
        chapter = []
        for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
            paragraph = " ".join(paragraph.replace("_", "").split())
            if re.match(r"(chapter|volume) [ivxlc\d]+", paragraph, re.I):
                documents.append(("%s %d" % (book, len(documents)), []))
                chapter = documents[-1][1]
            elif len(paragraph) > 3 and not paragraph.isupper():
                chapter.append(paragraph)
    return [d for d in documents if d[1]]


# ---- WordNet: what common nouns mean --------------------------------------------------------------------------

def definitions(files, at_least):
    """[(noun, gloss)] of the first sense of nouns that were met at_least times in the texts that were counted."""
    folder = os.path.join(files, "usr/share/wordnet/")
    counted = {}
    with open(folder + "cntlist.rev") as f:
        for line in f:
            sense, number, count = line.split()
            word, place = sense.split("%")
            if place.startswith("1:") and number == "1" and word.isalpha():
                counted[word] = int(count)
    glosses = {}
    with open(folder + "data.noun") as f:
        for line in f:
            if line.startswith(" "):
                continue
            if re.search(r"offensive|disparag|slang|obscen|derogat|sexual|vulgar", line):
                continue
            gloss = re.split(r'; "', line.split(" | ")[1].strip())[0].strip()
            glosses[line.split()[0]] = re.sub(r"^\([^)]*\) ", "", gloss)
    found = []
    with open(folder + "index.noun") as f:
        for line in f:
            fields = line.split()
            if not line.startswith(" ") and counted.get(fields[0], 0) >= at_least:
                first = fields[6 + int(fields[3])]
                gloss = glosses.get(first, "")
                if 15 < len(gloss) < 160 and gloss.isascii() and "`" not in gloss:
                    found.append((fields[0], gloss))
    return found
