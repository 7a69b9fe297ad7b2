"""One other engine over a file of schemas; bench/constrain starts it. Prints "ready", then one JSON line a schema.

usage: constrain_worker.py llguidance|xgrammar SCHEMAS FOLDER FIRST
"""
import json
import os
import sys
import time

import numpy
import tokenizers

ENDS = ["<|end_of_text|>", "<|endoftext|>", "<eos>", "</s>"]
now = time.process_time_ns  # of all threads: on a shared machine the clock also counts other programs


class Llguidance:
    def __init__(self, folder, tokenizer, end):
        import llguidance
        import llguidance.numpy
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
            self.tokenizer = llguidance.LLTokenizer(f.read(), eos_token=end)
        self.module, self.fill = llguidance, llguidance.numpy.fill_next_token_bitmask
        self.mask = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, schema):
        grammar = self.module.LLMatcher.grammar_from_json_schema(schema)
        matcher = self.module.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def begin(self, compiled):
        return compiled.deep_copy()

    def take(self, matcher, token):
        self.fill(matcher, self.mask, 0)
        if not self.mask[0, token >> 5] >> (token & 31) & 1:
            return False
        return matcher.consume_token(token)

    def may_end(self, matcher):
        return matcher.is_accepting()


class Xgrammar:
    def __init__(self, folder, tokenizer, end):
        import xgrammar
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        words = [tokenizer.id_to_token(i) or "" for i in range(size)]
        kind = xgrammar.VocabType.BYTE_FALLBACK if "<0x0A>" in words else xgrammar.VocabType.BYTE_LEVEL
        self.info = xgrammar.TokenizerInfo(words, kind, vocab_size=size, stop_token_ids=[end])
        self.module, self.end = xgrammar, end
        self.mask = xgrammar.allocate_token_bitmask(1, size)
        self.words = self.mask.numpy()
        self.compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)

    def begin(self, compiled):
        return self.module.GrammarMatcher(compiled)

    def allows(self, matcher, token):
        matcher.fill_next_token_bitmask(self.mask)
        return bool(self.words[0, token >> 5] >> (token & 31) & 1)

    def take(self, matcher, token):
        return self.allows(matcher, token) and matcher.accept_token(token)

    def may_end(self, matcher):
        return self.allows(matcher, self.end)


def walk(engine, compiled, tokens, times):
    matcher = engine.begin(compiled)
    for token in tokens:
        begin = now()
        good = engine.take(matcher, token)
        times.append(now() - begin)
        if not good:
            return False
    return bool(engine.may_end(matcher))


def try_schema(engine, tokenizer, line):
    schema = json.dumps(line["schema"], ensure_ascii=False)
    begin = now()
    try:
        compiled = engine.compile(schema)
    except Exception as e:  # whatever it raises is a refusal
        return {"error": str(e)[:300]}
    row = {"compile_ns": now() - begin, "tests": [], "mask_ns": []}
    for test in line["tests"]:
        texts = (json.dumps(test["data"], indent=indent, ensure_ascii=False) for indent in (None, 4))
        row["tests"].append((test["valid"], [walk(engine, compiled, tokenizer.encode(t, add_special_tokens=False).ids,
                                                  row["mask_ns"]) for t in texts]))
    return row


def main():
    name, schemas, folder, first = sys.argv[1:]
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    end = next(i for i in map(tokenizer.token_to_id, ENDS) if i is not None)
    engine = {"llguidance": Llguidance, "xgrammar": Xgrammar}[name](folder, tokenizer, end)
    numpy.seterr(all="ignore")
    print("ready", flush=True)
    with open(schemas, encoding="utf-8") as f:
        for i, line in enumerate(f):
            if i >= int(first):
                print(json.dumps(try_schema(engine, tokenizer, json.loads(line))), flush=True)


main()
