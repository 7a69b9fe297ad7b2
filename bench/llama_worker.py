"""llama.cpp on one model file, in a process of its own, under the Python that has llama_cpp; bench/peers starts it.

usage: llama_worker.py '{"model": PATH, "n_prompt": N, "n_generate": N, "n_sequences": N, "n_threads": N}'

Prints {"prefill", "decode" (tokens per second, of all sequences together), "load_ms", "version", "system"}. Its best
settings: what llama_cpp takes by itself (flash attention where it pays, weights repacked for this chip, the file
mapped), ubatches of 512, and a window's cache no longer than the window. One prompt is read; further sequences begin
with a copy of its keys: of their bytes, in a stream of their own (kv_unified off, its default), so that decoding reads
as many as behind prompts of their own, which llama-batched-bench reads unless told -pps. Measured on SmolLM2 with 8
sequences: 162 and 173 tokens/s with copies, 160 and 162 with prompts of their own; 138 with kv_unified.
"""
import ctypes
import json
import sys
import time

import llama_cpp as llama

UBATCH, WARM_PROMPT, WARM_STEPS = 512, 256, 8


def main():
    wish = json.loads(sys.argv[1])
    n_prompt, n_sequences = wish["n_prompt"], wish["n_sequences"]
    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    start = time.perf_counter()
    model = llama.llama_model_load_from_file(wish["model"].encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx = (n_prompt + wish["n_generate"] + 64) * n_sequences
    params.n_seq_max = n_sequences
    params.n_batch, params.n_ubatch = max(UBATCH, n_sequences), UBATCH
    params.n_threads = params.n_threads_batch = wish["n_threads"]
    params.swa_full = params.kv_unified = False
    context = llama.llama_init_from_model(model, params) if model else None
    if not context:
        sys.exit(f"llama.cpp cannot load {wish['model']}")
    load_ms = (time.perf_counter() - start) * 1e3
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    memory = llama.llama_get_memory(context)
    batch = llama.llama_batch_init(max(UBATCH, n_sequences), 0, 1)

    def decode(rows):
        """rows: [(id, position, sequence, whether logits are wanted)]"""
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if llama.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        llama.llama_synchronize(context)

    def run(n_prompt, n_steps):
        """Seconds of the prompt and of the steps behind it."""
        llama.llama_memory_clear(memory, True)
        prompt = [(1 + (i * 7919) % (n_vocab - 20), i, 0, i == n_prompt - 1) for i in range(n_prompt)]
        t0 = time.perf_counter()
        for i in range(0, n_prompt, UBATCH):
            decode(prompt[i:i + UBATCH])
        t1 = time.perf_counter()
        for i in range(1, n_sequences):
            llama.llama_memory_seq_cp(memory, 0, i, -1, -1)
        decode([(1, n_prompt, s, True) for s in range(n_sequences)])  # what the copies cost is not decode
        t2 = time.perf_counter()
        for i in range(1, n_steps):
            decode([(1 + (i * 104729 + s * 31) % (n_vocab - 20), n_prompt + i, s, True) for s in range(n_sequences)])
        return t1 - t0, time.perf_counter() - t2

    run(min(n_prompt, WARM_PROMPT), WARM_STEPS)
    prefill, steps = run(n_prompt, wish["n_generate"])
    print(json.dumps({"prefill": n_prompt / prefill, "decode": (wish["n_generate"] - 1) * n_sequences / steps,
                      "load_ms": load_ms, "version": llama.__version__,
                      "system": llama.llama_print_system_info().decode()}))


if __name__ == "__main__":
    main()
