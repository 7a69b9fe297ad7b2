"""What the seed is trained from, in one folder: train, valid and test, a tokenizer, and a model of random numbers.

usage: prepare.py FOLDER     needs the PyPI package tokenizers; Debian packages are fetched by apt-get download

FOLDER/data/{train,valid,test}.jsonl, test-SOURCE.jsonl (the test split by source) and FOLDER/init/ (config.json,
tokenizer.json, tokenizer_config.json, model.safetensors). The same packages give the same bytes. Documents are split,
not lines: which split a document is in depends on its name alone."""
import hashlib
import json
import os
import re
import struct
import sys

import sources
import stories

SEED = 1
CHARACTERS = 1100  # of a line, about 300 tokens
SOURCES = ["austen", "bible", "quern", "stories", "words"]
STORIES = 3000
VOCAB = 3072
SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = ("{{ bos_token }}{% for m in messages %}"
            "{% if m['role'] == 'system' %}<|system|>{% elif m['role'] == 'user' %}<|user|>"
            "{% else %}<|assistant|>{% endif %}"
            "{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
SHAPE = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
             head_dim=32, max_position_embeddings=512)
DEVIATION = 0.02  # of all matrices; of those that write to the residual stream, by sqrt(2 * layers) less


def digest(*parts):
    return hashlib.sha256("\0".join(str(p) for p in (SEED,) + parts).encode()).digest()


def split_of(name):
    """92% train, 3% valid, 5% test; what has no name is trained on."""
    if not name:
        return "train"
    place = int.from_bytes(digest("split", name)[:4], "big") % 100
    return "test" if place < 5 else "valid" if place < 8 else "train"


# ---- lines ----------------------------------------------------------------------------------------------------

def pieces(paragraphs, joint):
    """Paragraphs put together up to CHARACTERS; one that is longer is cut behind sentences."""
    short = []
    for p in paragraphs:
        while len(p) > CHARACTERS:
            at = max(p.rfind(end, 0, CHARACTERS) for end in (". ", "! ", "? ", "; ", ', "'))
            at = at + 1 if at > 0 else CHARACTERS
            short.append(p[:at])
            p = p[at:].strip()
        short.append(p)
    lines, now = [], ""
    for p in short:
        if now and len(now) + len(joint) + len(p) > CHARACTERS:
            lines.append(now)
            now = p
        else:
            now = now + joint + p if now else p
    return lines + [now] if now else lines


def text(t):
    return {"text": t}


def chat(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def lines_of_books(documents, joint, request):
    """The first piece of a document is the answer to a request, the others are text."""
    for name, paragraphs in documents:
        for i, piece in enumerate(pieces(paragraphs, joint)):
            yield name, text(piece) if i else chat(request, piece)


def lines_of_words(nouns):
    for noun, gloss in nouns:
        ways = ["What is %s?", "What does %s mean?", "What is the meaning of %s?", "Define %s.", "What is a %s?"]
        if noun[0] in "aeiou":
            ways[-1] = "What is an %s?"
        yield noun, chat(ways[digest("way", noun)[0] % len(ways)] % noun, gloss[0].upper() + gloss[1:] + ".")


def lines_of_stories(n):
    for i in range(n):
        story, words = stories.story(i)
        yield str(i), chat(stories.request(i, story, words), story)


def lines_about_quern():
    """Each way to ask is a document; the first of each answer is always trained on."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "quern.txt")) as f:
        entries = re.findall(r"^Q: (.+)\nA: (.+)$", f.read(), re.M)
    for ways, answer in entries:
        for i, way in enumerate(ways.split("|")):
            bare = way.rstrip("?.!")
            for asked in dict.fromkeys((way, way.lower(), bare, bare.lower(), "Please: " + way, bare + "?")):
                yield way if i else "", chat(asked, answer)


def all_lines(folder):
    """(source, document, line)."""
    files, versions = sources.fetch(folder)
    found = []
    for source, lines in (
            ("austen", lines_of_books(sources.austen(files), "\n", "Write like Jane Austen.")),
            ("bible", lines_of_books(sources.bible(files), " ", "Write like the Bible.")),
            ("quern", lines_about_quern()),
            ("stories", lines_of_stories(STORIES)),
            ("words", lines_of_words(sources.definitions(files, 2)))):
        found += [(source, source + " " + name if name else "", line) for name, line in lines]
    return found, versions


# ---- tokenizer ------------------------------------------------------------------------------------------------

def write_tokenizer(folder, texts):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(texts, trainer)
    t.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    t.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE,
                   "tokenizer_class": "PreTrainedTokenizerFast"}, f, indent=1)
    return t


# ---- a model of random numbers --------------------------------------------------------------------------------

def normal(name, n, deviation):
    """n numbers, the sum of 12 uniform ones of 16 bits each less 6 (Irwin-Hall), which any machine computes alike."""
    import numpy
    bits = hashlib.shake_256(digest("init", name)).digest(24 * n)
    uniform = numpy.frombuffer(bits, "<u2").reshape(n, 12).sum(1, dtype=numpy.int64)
    return ((uniform + 6 - 6 * 65536) / 65536 * deviation).astype("<f4").tobytes()


def tensors(vocab):
    c = SHAPE
    d, ff, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    into = DEVIATION / (2 * layers) ** 0.5
    yield "model.embed_tokens.weight", (vocab, d), DEVIATION
    for i in range(layers):
        p = "model.layers.%d." % i
        yield p + "input_layernorm.weight", (d,), None
        yield p + "mlp.down_proj.weight", (d, ff), into
        yield p + "mlp.gate_proj.weight", (ff, d), DEVIATION
        yield p + "mlp.up_proj.weight", (ff, d), DEVIATION
        yield p + "post_attention_layernorm.weight", (d,), None
        yield p + "self_attn.k_proj.weight", (kv, d), DEVIATION
        yield p + "self_attn.o_proj.weight", (d, q), into
        yield p + "self_attn.q_proj.weight", (q, d), DEVIATION
        yield p + "self_attn.v_proj.weight", (kv, d), DEVIATION
    yield "model.norm.weight", (d,), None


def write_model(folder, vocab):
    head, data, at = {}, [], 0
    for name, shape, deviation in tensors(vocab):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data.append(struct.pack("<f", 1) * n if deviation is None else normal(name, n, deviation))
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * n]}
        at += 4 * n
    text_of = json.dumps(head).encode()
    text_of += b" " * (-len(text_of) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text_of)) + text_of + b"".join(data))
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=vocab, rms_norm_eps=1e-5,
                  rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu", bos_token_id=0, eos_token_id=1,
                  torch_dtype="float32", **SHAPE)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    return at // 4


# ---------------------------------------------------------------------------------------------------------------

def text_of_line(line):
    return line["text"] if "text" in line else "\n".join(m["content"] for m in line["messages"])


def main(folder):
    data, init = os.path.join(folder, "data"), os.path.join(folder, "init")
    for path in (data, init):
        os.makedirs(path, exist_ok=True)
    lines, versions = all_lines(folder)
    of = {"train": [], "valid": [], "test": []}
    for source, document, line in lines:
        of[split_of(document)].append((source, line))
    parts = dict(of)
    for source in SOURCES:
        parts["test-" + source] = [x for x in of["test"] if x[0] == source]
    for name, part in parts.items():
        with open(os.path.join(data, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(line) + "\n" for _, line in part)
    t = write_tokenizer(init, (text_of_line(line) for _, line in of["train"]))
    n = write_model(init, t.get_vocab_size())
    for name, version in sorted(versions.items()):
        print("package %s %s" % (name, version))
    for name in sorted(parts):
        texts = [text_of_line(line) for _, line in parts[name]]
        print("%-12s %6d lines %9d bytes %8d tokens" % (name, len(texts), sum(len(x.encode()) for x in texts),
                                                        sum(len(e.ids) for e in t.encode_batch(texts))))
    print("model: %d numbers, %d tokens in the vocabulary" % (n, t.get_vocab_size()))


if __name__ == "__main__":
    main(sys.argv[1])
