"""What quern's bridge needs of mlx_lm, without a model: the answer is what the prompt orders, a word a token.

"say A B C"   these words        "count N"  0 1 2 ... up to N, a millisecond each
"throw"       an exception       "die"      the process ends by signal 9
"noise"       print, then "ok"   "garbage"  bytes that are no answer    "long"  a line that never ends
"deaf"        sleeps for ever    "length"   how long the prompt is
"""
import os
import signal
import sys
import time
from types import SimpleNamespace

from . import sample_utils


class Tokenizer:
    chat_template = "there"
    _eos_token_ids = {0}
    text = "count 1000"  # of prompts that are ids

    @property
    def eos_token_ids(self):
        return self._eos_token_ids

    def encode(self, text, add_special_tokens=True):
        self.text = text
        return [1] * add_special_tokens + list(text.encode()[:100])

    def apply_chat_template(self, messages, tokenize=True, add_generation_prompt=True, tools=None, **variables):
        if messages[-1]["role"] != "user":
            raise ValueError("the last message is not the user's")
        return self.encode(messages[-1]["content"])


class Model:
    def parameters(self):
        return {"layers": [{"weight": SimpleNamespace(nbytes=1000)}]}


def load(path, tokenizer_config=None, adapter_path=None):
    return Model(), Tokenizer()


def words(text):
    verb, _, rest = text.partition(" ")
    if verb == "throw":
        raise RuntimeError("the model does not want to")
    if verb == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "noise":
        print("a library prints")
        os.system("echo a program prints")
    if verb == "garbage":
        sys.modules["__main__"].answers.write(b"\x00\xffHello\n")
    if verb == "long":
        for _ in range(40):
            sys.modules["__main__"].answers.write(b"x" * (1 << 20))
    if verb == "deaf":
        time.sleep(3600)
    if verb == "length":
        return iter([str(len(text))])
    if verb == "count":
        return (f"{i} " for i in range(int(rest)))
    return iter(rest.split("|")) if rest else iter(["ok"])


def stream_generate(model, tokenizer, prompt, max_tokens=256, sampler=None, logits_processors=None,
                    prompt_progress_callback=None):
    text = tokenizer.text if not isinstance(prompt, str) else prompt
    prompt_progress_callback(0, len(prompt))
    made = words(text)
    figures = dict(prompt_tokens=len(prompt), prompt_tps=10.0, generation_tps=20.0, peak_memory=0.001)
    for n, word in enumerate(made):
        time.sleep(0.001)
        end = "length" if n + 1 == max_tokens else None
        yield SimpleNamespace(text=word, token=n + 10, finish_reason=end, **figures)
        if end:
            return
    yield SimpleNamespace(text="", token=0, finish_reason="stop", **figures)
