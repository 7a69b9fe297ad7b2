"""The seed beside a trigram model on text that neither was trained on, and what it says.

usage: check.py QUERN MODEL FOLDER     FOLDER as prepare.py made it; exit status 1: the trigram model is better

Both see the same tokens and the same targets; `all` is the whole test split, the others are its sources."""
import json
import math
import os
import subprocess
import sys

import prepare
import trigram

ASKED = ["What is quern?", "Tell me a story.", "Tell me a story about an owl.", "Write like the Bible.",
         "Write like Jane Austen.", "What is a river?", "How do I fine-tune a model?"]


def quern(program, *arguments):
    return subprocess.run([program] + list(arguments), capture_output=True, text=True, check=True).stdout


def main(program, model, folder):
    from tokenizers import Tokenizer
    data = os.path.join(folder, "data")
    tokenizer = Tokenizer.from_file(os.path.join(folder, "init", "tokenizer.json"))
    other = trigram.Trigram(trigram.sequences(tokenizer, os.path.join(data, "train.jsonl")), tokenizer.get_vocab_size())
    is_better = True
    print("| test split | tokens | seed: perplexity | bits/byte | trigram: perplexity | bits/byte |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("test", *("test-" + s for s in prepare.SOURCES)):
        path = os.path.join(data, name + ".jsonl")
        seed = json.loads(quern(program, "eval", model, path, "--mask", "all", "--max-length",
                                str(prepare.SHAPE["max_position_embeddings"]), "--json"))
        total, n = other.loss(trigram.sequences(tokenizer, path))
        if n != seed["n_counted"]:
            raise ValueError("%s: %d targets, and quern counts %d" % (path, n, seed["n_counted"]))
        per_byte = n / math.log(2) / trigram.text_bytes(path)
        is_better &= seed["loss"] < total / n
        print("| %s | %d | %.2f | %.3f | %.2f | %.3f |" % (
            name[5:] or "all", n, math.exp(seed["loss"]), seed["loss"] * per_byte, math.exp(total / n),
            total / n * per_byte), flush=True)
    for question in ASKED:
        said = quern(program, "run", model, "-p", question, "-n", "150", "--temp", "0.7", "--seed", "1").strip()
        print("\n> %s\n%s" % (question, said))
    return 0 if is_better else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
