#!/usr/bin/env python3
"""Makes tests/golden/images/several.json: what transformers makes of a prompt with two pictures, for the kinds of the
larger fixtures that see.

usage: tools/several_pictures_golden.py FIXTURES

The prompt of image.ids stands twice. The second picture is the first one turned by half a circle. `at` are ids, and
`logits` those of the last token at these ids. Needs torch, transformers 5.24, safetensors.
"""
import inspect
import json
import os
import sys

import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "images", "several.json")
KINDS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5_vision", "qwen3_5_moe_vision", "gemma3_vision",
         "smolvlm", "lfm2_vl", "internvl", "mistral3", "gemma4_vision", "gemma4_unified", "llama4"]
KEPT = 16


def folder_of(root, kind):
    own = os.path.join(root, "families2", kind)
    return own if os.path.isdir(own) else os.path.join(root, "models", kind)


def pixels(processor, pictures, width):
    """The processor's tensors of each picture by itself, one behind the other along the axis of pictures."""
    made = [processor(images=[Image.fromarray(p)], return_tensors="pt") for p in pictures]
    out = {}
    for name in made[0]:
        parts = [torch.as_tensor(m[name]) for m in made]
        out[name] = torch.cat(parts, 1 if width and parts[0].dim() > 3 else 0)
    return out


def case(root, kind):
    folder = folder_of(root, kind)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    given = load_file(os.path.join(folder, "expected.safetensors"))
    model = getattr(transformers, config["architectures"][0]).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    first, ids = given["image.rgb"].numpy(), given["image.ids"].long()
    made = pixels(transformers.AutoImageProcessor.from_pretrained(folder), [first, first[::-1, ::-1].copy()],
                  kind == "smolvlm")
    row, takes = torch.cat([ids, ids])[None], inspect.signature(model.forward).parameters
    types = (row == config.get("image_token_id", config.get("image_token_index"))).long()
    more = {k: v.float() if v.is_floating_point() else v for k, v in made.items() if k in takes}
    more.update({k: types for k in ("mm_token_type_ids", "token_type_ids") if k in takes})
    with torch.no_grad():
        last = model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False, **more).logits[0, -1]
    at = sorted({int(last.argmax()), *range(0, len(last), len(last) // (KEPT - 1))})
    return {"at": at, "logits": [round(float(last[i]), 5) for i in at]}


def main(root):
    MoeCausalLMOutputWithPast.image_outputs = None  # transformers 5.24 asks for it
    lines = [f"{json.dumps(kind)}: {json.dumps(case(root, kind))}" for kind in KINDS]
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
