#!/usr/bin/env python3
"""Adapters that peft makes for encoders, and what encoders give with them: tests/golden/adapter_encoders.json.

usage: tools/adapter_encoders_golden.py FIXTURES

FIXTURES is the folder families2 of the larger golden files. Needs torch, transformers and peft. Numbers of tensors are
the formula of adapter_forms_golden.py. A form has the first numbers of the last row's hidden state, or the score.
"""
import json
import os
import sys
import tempfile

from adapter_forms_golden import KEYS, PREFIX, ROOT, kind_of, numbers

OUT = os.path.join(ROOT, "tests/golden/adapter_encoders.json")
IDS = [2, 17, 45, 301, 44, 260, 9, 133, 301, 3]
KEPT = 4
BERT = ["query", "key", "value", "dense"]
FORMS = [("projections and pooler", "bert_cls", {"target_modules": BERT}),
         ("pooler of a head", "bert_reranker", {"target_modules": BERT, "task_type": "SEQ_CLS"}),
         ("saved head", "xlm_roberta_reranker", {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}),
         ("names of transformers", "nomic_bert", {"target_modules": r"layers\.1\..*_proj"}),
         ("fused projections", "modernbert", {"target_modules": r"layers\.1\..*\.W(qkv|o|i)"}),
         ("a decoder that sees both ways", "embeddinggemma", {"target_modules": r"layers\.2\..*_proj"})]


def make(path, config):
    """The saved configuration, the tensors, and what the encoder gives."""
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from transformers import AutoModel, AutoModelForSequenceClassification
    is_head = config.get("task_type") == "SEQ_CLS"
    plain = (AutoModelForSequenceClassification if is_head else AutoModel).from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager").eval()
    usual = {"r": 4, "lora_alpha": 6, "task_type": "FEATURE_EXTRACTION"}
    peft = get_peft_model(plain, LoraConfig(**{**usual, **config})).eval()
    state = get_peft_model_state_dict(peft)
    tensors = [(n, list(state[n].shape), *kind_of(n, 0)) for n in sorted(state)]
    set_peft_model_state_dict(peft, {n: torch.from_numpy(numbers(i, s, add, amp))
                                     for i, (n, s, add, amp) in enumerate(tensors)})
    ids = torch.tensor([IDS])
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        out = peft(input_ids=ids, attention_mask=torch.ones_like(ids))
        peft.peft_config["default"].save_pretrained(folder)
        with open(os.path.join(folder, "adapter_config.json")) as f:
            saved = json.load(f)
    for key in ("target_modules", "modules_to_save"):
        if isinstance(saved.get(key), list):
            saved[key].sort()
    kept = KEYS + ("task_type",)
    saved = {k: v for k, v in saved.items() if v not in (None, False, {}, [], "none") and k in kept}
    values = out.logits[0] if is_head else out.last_hidden_state[0][-1]
    return saved, [(n.removeprefix(PREFIX), *more) for n, *more in tensors], values.tolist()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    forms = []
    for name, kind, config in FORMS:
        saved, tensors, values = make(os.path.join(sys.argv[1], kind), config)
        forms.append({"name": name, "model": kind, "config": saved, "tensors": tensors,
                      "values": [float(f"{x:.6g}") for x in values[:KEPT]]})
    with open(OUT, "w") as f:
        f.write(json.dumps({"ids": IDS, "forms": forms}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
