#!/usr/bin/env python3
"""Makes tests/golden/images/llama4.safetensors: what transformers makes of the picture of families2/llama4.

usage: tools/picture_golden.py FAMILIES2

The maker of families2 casts models with to(dtype). That drops the imaginary part of the numbers by which Llama 4's
tower rotates queries and keys, so that image.features, image.logits and image.greedy of its expected.safetensors are
those of a tower that multiplies by cosines alone. Nothing is cast here. Needs torch, transformers 5.24, safetensors.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import Llama4ForConditionalGeneration
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "images", "llama4.safetensors")
GREEDY, MIN_MARGIN = 16, 4e-3


def main(folder):
    MoeCausalLMOutputWithPast.image_outputs = None  # transformers 5.24 asks for it
    given = load_file(os.path.join(folder, "llama4", "expected.safetensors"))
    model = Llama4ForConditionalGeneration.from_pretrained(
        os.path.join(folder, "llama4"), dtype=torch.float32, attn_implementation="eager").eval()
    pixels, ids, positions = given["image.pixel_values"].float(), given["image.ids"].long(), given["image.positions"]

    def logits(row):
        return model(input_ids=row[None], attention_mask=torch.ones_like(row)[None], pixel_values=pixels,
                     use_cache=False).logits[0]

    with torch.no_grad():
        features = model.multi_modal_projector(model.get_image_features(pixels).last_hidden_state.flatten(0, 1))
        row = ids
        for _ in range(GREEDY):
            best = logits(row)[-1].topk(2)
            if best.values[0] - best.values[1] < MIN_MARGIN:
                sys.exit("two tokens are nearly as good")
            row = torch.cat([row, best.indices[:1]])
        kept = logits(row[:-1])[positions.long()]
    save_file({
        "image.features": features.contiguous(), "image.positions": positions, "image.logits": kept.contiguous(),
        "image.greedy": row[len(ids):].to(torch.int32)}, OUT)
    os.chmod(OUT, 0o644)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
