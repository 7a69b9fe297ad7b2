#!/usr/bin/env python3
"""Adapters that a trainer wrote, loaded by the libraries that their layouts come from: `make test-peft`.

usage: tools/peft_check.py TEST... QUERN

The test programs leave adapters of all kinds, in both layouts, for the models of the fixtures. peft and mlx_lm load
each beside its base, in 32 bits; their logits must be those that `quern logits` gives, and no tensor of the file may be
left over. The libraries (torch among them: some gigabytes) are installed into build/peft at the first run; QUERN_PYTHON
names a Python that has them already. Not for CI.
"""
import json
import os
import subprocess
import sys
import tempfile

PACKAGES = ["torch", "transformers", "peft", "safetensors", "numpy", "gguf", "mlx[cpu]", "mlx-lm"]
TOLERANCE = 2e-4  # the fixtures' own for logits
VENV = os.path.join("build", "peft")


class Unloadable(Exception):
    """The library cannot load the base, whatever the adapter."""


def in_venv(arguments):
    """Goes on as the Python that has the libraries."""
    python = os.environ.get("QUERN_PYTHON") or os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    environment = dict(os.environ, QUERN_IN_PEFT="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                       TRANSFORMERS_VERBOSITY="error", PYTHONWARNINGS="ignore")
    os.execve(python, [python, *arguments], environment)


def make_adapters(programs, folder):
    for program in programs:
        result = subprocess.run([program], env=dict(os.environ, QUERN_ADAPTERS=folder), capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{program}: {result.stderr}")
    return sorted(os.listdir(folder))


def own_logits(quern, base, adapter, ids, folder):
    from safetensors.numpy import load_file
    rows, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.safetensors")
    with open(rows, "w") as f:
        json.dump({"ids": [ids]}, f)
    more = ["--adapter", adapter] if adapter else []
    subprocess.run([quern, "logits", base, *more, "--ids", rows, "-o", out, "--precision", "exact"], check=True,
                   capture_output=True)
    return load_file(out)["logits.0"]


def peft_logits(base, adapter, ids):
    """The logits, without the adapter too, and the names that peft has numbers for."""
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.disable_progress_bar()
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
        bare = model(torch.tensor([ids])).logits[0].numpy()
        model = PeftModel.from_pretrained(model, adapter).eval()
        return model(torch.tensor([ids])).logits[0].numpy(), bare, set(get_peft_model_state_dict(model))


def mlx_logits(base, adapter, ids):
    import mlx.core as mx
    import mlx_lm
    import numpy as np
    from mlx.utils import tree_flatten

    def logits(**more):
        model, _ = mlx_lm.load(base, **more)
        model.set_dtype(mx.float32)
        return np.array(model(mx.array([ids]))[0]), model

    try:
        bare = logits()[0]
    except ValueError as error:
        raise Unloadable(f"mlx_lm does not load {base}: {error}") from error
    with_adapter, model = logits(adapter_path=adapter)
    names = {n for n, _ in tree_flatten(model.parameters()) if n.rsplit(".", 1)[1] in ("lora_a", "lora_b", "m")}
    return with_adapter, bare, names


def check(quern, adapter, folder):
    """What is wrong with an adapter, "" when nothing is, None when it was left out. Prints a line."""
    import numpy as np
    from safetensors import safe_open
    with open(os.path.join(adapter, "adapter_config.json")) as f:
        config = json.load(f)
    is_peft = "peft_type" in config
    base = config["base_model_name_or_path" if is_peft else "model"]
    if not os.path.isdir(base):
        return None  # a base in GGUF is quern's own
    ids = [int(x) for x in np.random.default_rng(1).integers(1, 300, 24)]
    name = "adapter_model.safetensors" if is_peft else "adapters.safetensors"
    with safe_open(os.path.join(adapter, name), "numpy") as f:
        written = set(f.keys())
    try:
        theirs, bare, loaded = (peft_logits if is_peft else mlx_logits)(base, adapter, ids)
    except Unloadable as why:
        print(f"{os.path.basename(adapter)}: left out: {why}", flush=True)
        return None
    unlike = abs(own_logits(quern, base, None, ids, folder) - bare).max()
    if unlike > TOLERANCE:
        print(f"{os.path.basename(adapter)}: left out: without an adapter the library's logits differ by {unlike:.1e}",
              flush=True)
        return None
    ours = own_logits(quern, base, adapter, ids, folder)
    worst, moved = abs(ours - theirs).max(), abs(theirs - bare).max()
    # mlx_lm makes factors for whole layers: those that were not trained change nothing.
    fits = written == loaded if is_peft else written <= loaded
    print(f"{os.path.basename(adapter)}: {'peft' if is_peft else 'mlx_lm'}, largest difference of logits {worst:.1e} "
          f"where the adapter changes them by {moved:.2g}, {len(written)} tensors", flush=True)
    if not fits:
        return f"{adapter}: tensors that are left over: {sorted(written ^ loaded)[:4]}"
    return "" if worst <= TOLERANCE and moved > 0.05 else f"{adapter}: {worst} (moved by {moved})"


def main():
    *programs, quern = sys.argv[1:]
    if not os.environ.get("QUERN_IN_PEFT"):
        in_venv(sys.argv)
    with tempfile.TemporaryDirectory() as folder:
        adapters = os.path.join(folder, "adapters")
        os.mkdir(adapters)
        wrong = [check(quern, os.path.join(adapters, a), folder) for a in make_adapters(programs, adapters)]
    failed = [w for w in wrong if w]
    if failed:
        sys.exit("\n".join(failed))
    if "" not in wrong:
        sys.exit("no adapter was checked")
    print(f"{wrong.count('')} adapters agree, {wrong.count(None)} were left out: their bases are quern's alone, or "
          "computed otherwise")


if __name__ == "__main__":
    main()
