"""Answers requests of quern's backend mlx_lm: JSON Lines on stdin and stdout, one generation at a time, in order.

load     {id, path, context_size?, adapter_path?}    -> {id, ok, model_type, vocab_size, layers, hidden_size, ...}
generate {id, prompt | ids, max_tokens, ...}         -> {id, token, token_id} each, then {id, done, text, ...}
chat     {id, messages, tools?, variables?, ...}     -> the same
info     {id}                                        -> {id, model_type, vocab_size, layers, hidden_size}
cancel   {of}                                        -> generation `of` ends with its done, within one token
quit     {}

Any request may be answered by {id, error, kind}. Nothing but answers goes to stdout; whatever libraries print
goes to stderr. The process ends when stdin does, so it never outlives the program that started it.
"""
import inspect
import json
import os
import queue
import signal
import sys
import threading

answers = os.fdopen(os.dup(1), "wb", 0)
os.dup2(2, 1)  # what others print must not stand between the answers

requests = queue.SimpleQueue()
cancelled = set()


class Cancelled(Exception):
    pass


class Refused(Exception):
    """A request that cannot be answered, in a sentence for the user."""


def say(id, **fields):
    line = json.dumps({"id": id, **fields}, ensure_ascii=True).encode() + b"\n"
    at = 0
    while at < len(line):
        at += answers.write(line[at:])


def listen():
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
            operation = request["op"]
        except (ValueError, TypeError, KeyError) as e:
            say(None, error=f"not a request: {e}", kind="protocol")
            continue
        if operation == "cancel":
            cancelled.add(request.get("of"))
        elif operation == "quit":
            break
        else:
            requests.put(request)
    os._exit(0)


def known(function, arguments):
    """Those arguments that this version of a function has."""
    names = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values()):
        return arguments
    return {k: v for k, v in arguments.items() if k in names}


class Stops:
    """Holds text back that may be the beginning of a stop string."""

    def __init__(self, strings):
        self.strings, self.held, self.hit = strings, "", False

    def add(self, text):
        self.held += text
        found = [i for i in (self.held.find(s) for s in self.strings) if i >= 0]
        if found:
            self.hit = True
            out, self.held = self.held[:min(found)], ""
            return out
        keep = 0
        for s in self.strings:
            for n in range(min(len(s) - 1, len(self.held)), keep, -1):
                if self.held.endswith(s[:n]):
                    keep = n
                    break
        out = self.held[:len(self.held) - keep]
        self.held = self.held[len(self.held) - keep:]
        return out

    def rest(self):
        out, self.held = self.held, ""
        return out


class Model:
    def __init__(self, request):
        try:
            import mlx.core
            import mlx_lm
            import mlx_lm.sample_utils
        except ImportError as e:
            extra = "mlx-lm" if sys.platform == "darwin" else "'mlx[cpu]' mlx-lm"
            raise Refused(f"{sys.executable} cannot import mlx_lm ({e}); "
                          f"install it by: {sys.executable} -m pip install {extra}")
        self.mx, self.lm, self.sampling = mlx.core, mlx_lm, mlx_lm.sample_utils
        arguments = {"adapter_path": request.get("adapter_path")}
        self.model, self.tokenizer = mlx_lm.load(request["path"], **known(mlx_lm.load, arguments))
        with open(os.path.join(request["path"], "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.text_config = self.config.get("text_config", self.config)
        own = self.text_config.get("max_position_embeddings")
        self.context = request.get("context_size") or own or 131072
        self.own_context = own or 0

    def info(self):
        of = lambda *names: next((self.text_config[n] for n in names if n in self.text_config), 0)
        return {"model_type": self.config.get("model_type", ""), "vocab_size": of("vocab_size"),
                "layers": of("num_hidden_layers", "n_layers", "num_layers"), "hidden_size": of("hidden_size", "n_embd")}

    def load_info(self):
        from importlib.metadata import PackageNotFoundError, version

        def of(name):
            try:
                return f"{name} {version(name)}"
            except PackageNotFoundError:
                return name

        quantization = self.config.get("quantization") or {}
        parameters = self.model.parameters()
        count = 0
        flat = [parameters]
        while flat:
            p = flat.pop()
            if isinstance(p, dict):
                flat.extend(p.values())
            elif isinstance(p, (list, tuple)):
                flat.extend(p)
            else:
                count += p.nbytes
        return {**self.info(), "context_size": self.context, "model_context_size": self.own_context,
                "bits": quantization.get("bits", 0), "weights_bytes": count,
                "has_chat_template": getattr(self.tokenizer, "chat_template", None) is not None,
                "versions": f"{of('mlx-lm')}, mlx {self.mx.__version__}, Python {sys.version.split()[0]}"}

    def prompt(self, request):
        if "ids" in request:
            return request["ids"]
        if "messages" in request:
            if getattr(self.tokenizer, "chat_template", None) is None:
                raise Refused("the model has no chat template")
            variables = {"add_generation_prompt": True, **(request.get("variables") or {})}
            if request.get("tools"):
                variables["tools"] = request["tools"]
            ids = self.tokenizer.apply_chat_template(request["messages"], tokenize=True, **variables)
            return list(ids["input_ids"]) if hasattr(ids, "keys") else list(ids)
        return list(self.tokenizer.encode(request["prompt"], add_special_tokens=not request.get("no_bos")))

    def generate(self, request):
        id = request["id"]

        def look(*_):
            if id in cancelled:
                raise Cancelled

        look()
        ids = self.prompt(request)
        if not ids:
            raise Refused("the prompt is empty")
        if len(ids) >= self.context:
            raise Refused(f"the prompt has {len(ids)} tokens, the context {self.context}")
        say(id, prompt_tokens=len(ids))
        most = min(request.get("max_tokens") or self.context, self.context - len(ids))
        sampler_arguments = {"temp": request.get("temperature", 0.0), "top_p": request.get("top_p", 0.0),
                             "min_p": request.get("min_p", 0.0), "top_k": request.get("top_k", 0)}
        processors = {"logit_bias": {int(k): v for k, v in (request.get("logit_bias") or {}).items()} or None,
                      "repetition_penalty": request.get("repeat_penalty"),
                      "repetition_context_size": len(ids) + most,
                      "presence_penalty": request.get("presence_penalty"),
                      "presence_context_size": len(ids) + most,
                      "frequency_penalty": request.get("frequency_penalty"),
                      "frequency_context_size": len(ids) + most}
        make_sampler, make_processors = self.sampling.make_sampler, self.sampling.make_logits_processors
        for name, value in (("sampler", sampler_arguments), ("processors", processors)):
            function = make_sampler if name == "sampler" else make_processors
            lost = [k for k, v in value.items() if v and k not in known(function, value) and not k.endswith("size")]
            if lost:
                raise Refused(f"this version of mlx_lm has no {', '.join(lost)}")
        if "seed" in request:
            self.mx.random.seed(request["seed"])
        stream = self.lm.stream_generate(
            self.model, self.tokenizer, ids, max_tokens=most,
            sampler=make_sampler(**known(make_sampler, sampler_arguments)),
            logits_processors=make_processors(**known(make_processors, processors)),
            prompt_progress_callback=look)
        self.answer(request, ids, stream, look)

    def answer(self, request, ids, stream, look):
        id, stops, stop_ids = request["id"], Stops(request.get("stop") or []), set(request.get("stop_ids") or [])
        last, reason, n = None, "length", 0
        own = set(self.tokenizer.eos_token_ids)
        if request.get("ignore_eos"):
            self.tokenizer._eos_token_ids = set()
        try:
            for r in stream:
                last = r
                if r.finish_reason == "stop" or r.token in stop_ids:
                    reason = "stop"
                    stops.held += r.text if r.finish_reason == "stop" else ""
                    break
                n += 1
                say(id, token=stops.add(r.text), token_id=int(r.token))
                if stops.hit:
                    reason = "stop_string"
                    break
                if r.finish_reason:
                    break
                look()
        except Cancelled:
            reason = "cancelled"
        finally:
            stream.close()
            if request.get("ignore_eos"):
                self.tokenizer._eos_token_ids = own
        figure = lambda name: float(getattr(last, name, 0) or 0)
        say(id, done=reason, text=stops.add("") + stops.rest(), prompt_tokens=len(ids), generated_tokens=n,
            generation_tps=figure("generation_tps"),
            peak_memory_bytes=int(figure("peak_memory") * 1e9))


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: it is for the program that started this
    say(None, ready=True)
    threading.Thread(target=listen, daemon=True).start()
    model = None
    while True:
        request = requests.get()
        id, operation = request.get("id"), request["op"]
        try:
            if operation == "load":
                model = Model(request)
                say(id, ok=True, **model.load_info())
            elif model is None:
                raise Refused("no model is loaded")
            elif operation == "info":
                say(id, **model.info())
            elif operation in ("generate", "chat"):
                model.generate(request)
            else:
                raise Refused(f"no such operation: {operation}")
        except Cancelled:
            say(id, done="cancelled", text="", prompt_tokens=0, generated_tokens=0)
        except Refused as e:
            say(id, error=str(e), kind="refused")
        except Exception as e:  # whatever a model, a template or MLX throws is this request's alone
            say(id, error=f"{type(e).__name__}: {e}", kind="failed")
        cancelled.difference_update({i for i in cancelled if i is None or i <= id})


main()
