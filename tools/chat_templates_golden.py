#!/usr/bin/env python3
"""Golden data of where chat templates lie, as transformers 5 takes them: tests/golden/chat_templates/cases.json.
tools/chat_templates_golden.py"""
import json, os, random, tempfile

from transformers import PreTrainedTokenizerFast

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests/golden/chat_templates")
NAMES = ["default", "tool_use", "rag"]


def template(where):
    return where + " {{ messages[0].content }}{% if tools %} {{ tools|length }}{% endif %}"


def make_files(r):
    files = {}
    if r.random() < 0.4:
        files["chat_template.jinja"] = template("file")
    for n in NAMES:
        if r.random() < 0.25:
            files[f"additional_chat_templates/{n}.jinja"] = template("folder-" + n)
    names = [n for n in NAMES if r.random() < 0.5]
    value = r.choice([
        "absent", None, template("text"), {n: template("object-" + n) for n in names},
        [{"name": n, "template": template("list-" + n)} for n in names],
        [{"name": n, "template": template(f"list{i}-" + n)} for i, n in enumerate(names + names)], {}, []])
    files["tokenizer_config.json"] = json.dumps({} if value == "absent" else {"chat_template": value})
    return files


def main():
    r = random.Random(3)
    tokenizer = open(os.path.join(ROOT, "tests/golden/named_tokens/tokenizer.json")).read()
    cases, seen = [], set()
    for _ in range(400):
        files = make_files(r)
        if (key := json.dumps(files, sort_keys=True)) in seen:
            continue
        seen.add(key)
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(d + "/additional_chat_templates")
            for name, text in {**files, "tokenizer.json": tokenizer}.items():
                open(os.path.join(d, name), "w").write(text)
            t = PreTrainedTokenizerFast.from_pretrained(d)
        case = {"files": files}
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        for key, tools in (("without", None), ("none", []), ("with", [tool])):
            try:
                case[key] = t.apply_chat_template([{"role": "user", "content": "hi"}], tools=tools, tokenize=False)
            except ValueError:
                case[key] = None
        cases.append(case)
    os.makedirs(OUT, exist_ok=True)
    with open(OUT + "/cases.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
