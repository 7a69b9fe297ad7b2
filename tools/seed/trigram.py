"""A trigram model of the seed's own tokens, to be compared with it: interpolated modified Kneser-Ney (Chen and Goodman
1998), trained on the train split.

usage: trigram.py FOLDER FILE.jsonl...     FOLDER as prepare.py made it; prints the loss of each file

Every token but a line's first is a target, as for the seed; nothing is outside the vocabulary, and what was never seen
gets its share of the uniform distribution."""
import json
import math
import os
import sys
from collections import Counter, defaultdict

ORDER = 3


def sequences(tokenizer, path):
    """Ids of each line, as the chat template and the trainer make them."""
    begin, end, user, assistant = (tokenizer.token_to_id("<|%s|>" % n) for n in ("begin", "end", "user", "assistant"))
    turn = {"user": user, "assistant": assistant}

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    with open(path, encoding="utf-8") as f:
        for line in map(json.loads, f):
            if "text" in line:
                yield [begin] + ids(line["text"]) + [end]
            else:
                yield [begin] + [i for m in line["messages"] for i in [turn[m["role"]]] + ids(m["content"]) + [end]]


def discount(k, y, of):
    """What a count of k (3: and more) gives away, from how many grams were seen 1 to 4 times; where there are too few
    to tell, as with single tokens, half of it."""
    d = k - (k + 1) * y * of[k + 1] / of[k] if of[k] else 0
    return d if 0.05 * k < d < k else 0.5 * k


class Trigram:
    def __init__(self, lines, vocab):
        self.vocab = vocab
        counts = [Counter() for _ in range(ORDER)]  # counts[n]: of n + 1 tokens
        for ids in lines:
            padded = [ids[0]] * (ORDER - 1) + ids[1:]
            for i in range(ORDER - 1, len(padded)):
                counts[ORDER - 1][tuple(padded[i - ORDER + 1:i + 1])] += 1
        for n in range(ORDER - 2, -1, -1):  # lower orders count in how many contexts a word was seen
            for gram in counts[n + 1]:
                counts[n][gram[1:]] += 1
        self.counts = counts
        self.discount, self.total, self.kinds = [], [], []
        for c in counts:
            of = Counter(min(v, 4) for v in c.values())
            y = of[1] / max(of[1] + 2 * of[2], 1)
            self.discount.append([0] + [discount(k, y, of) for k in (1, 2, 3)])
            total, kinds = Counter(), defaultdict(lambda: [0, 0, 0, 0])
            for gram, v in c.items():
                total[gram[:-1]] += v
                kinds[gram[:-1]][min(v, 3)] += 1
            self.total.append(total)
            self.kinds.append(kinds)

    def probability(self, context, word):
        p = 1 / self.vocab
        for n in range(ORDER):
            before = context[len(context) - n:]
            total = self.total[n].get(before)
            if not total:
                continue
            d = self.discount[n]
            count = self.counts[n].get(before + (word,), 0)
            kept = sum(d[k] * self.kinds[n][before][k] for k in (1, 2, 3))
            p = (max(count - d[min(count, 3)], 0) + kept * p) / total
        return p

    def loss(self, lines):
        """(sum of -log p, targets)."""
        total, n = 0.0, 0
        for ids in lines:
            padded = [ids[0]] * (ORDER - 1) + ids[1:]
            for i in range(ORDER - 1, len(padded)):
                total -= math.log(self.probability(tuple(padded[i - ORDER + 1:i]), padded[i]))
                n += 1
        return total, n


def text_bytes(path):
    """Of what a line says, without its keys and special tokens."""
    n = 0
    with open(path, encoding="utf-8") as f:
        for line in map(json.loads, f):
            n += sum(len(t.encode()) for t in ([line["text"]] if "text" in line
                                               else [m["content"] for m in line["messages"]]))
    return n


def main(folder, files):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(folder, "init", "tokenizer.json"))
    model = Trigram(sequences(tokenizer, os.path.join(folder, "data", "train.jsonl")), tokenizer.get_vocab_size())
    context = tuple(next(sequences(tokenizer, files[0]))[1:3])
    sum_of_all = sum(model.probability(context, w) for w in range(model.vocab))
    if abs(sum_of_all - 1) > 1e-9:
        raise ValueError("the probabilities after %s sum to %g" % (context, sum_of_all))
    for path in files:
        total, n = model.loss(sequences(tokenizer, path))
        size = text_bytes(path)
        print(json.dumps({"file": os.path.basename(path), "targets": n, "bytes": size, "loss": round(total / n, 4),
                          "perplexity": round(math.exp(total / n), 2),
                          "bits_per_byte": round(total / math.log(2) / size, 4)}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
