#!/usr/bin/env python3
"""Writes tests/golden/images/sizes.json: what transformers' image processors make of pictures of random sizes.

    tools/image_sizes.py [FILE [N]]     needs transformers 5.24, torch and torchvision; N sizes of each processor, 16
                                        if it is not given. Nothing needs them to run the tests

A case has the tower's sizes, the processor's file and rows [width, height, views, rows, columns, tokens]: the views
that the picture becomes, rows and columns of its tiles (of one view: of its patches), and the vectors that stand for it
in a prompt. tests/models/image_sizes_test.c computes the same; values of pixels are in image_values_test.c beside it.
"""
import json
import math
import os
import random
import sys

import numpy as np
import transformers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATCH = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}


def edges(least, most):
    return {"shortest_edge": least, "longest_edge": most}


def tiles(whole, side):
    return {"size": {"longest_edge": whole}, "max_image_size": {"longest_edge": side}}


# name of the model, class, patch, merge, times, options
CASES = [
    ("qwen2_5_vl", "Qwen2VLImageProcessor", 14, 2, 2, {**PATCH, "size": edges(3136, 401408)}),
    ("qwen3_vl", "Qwen2VLImageProcessor", 16, 2, 2, {**PATCH, "patch_size": 16, "size": edges(65536, 1048576)}),
    ("glm5_next", "Glm5NextImageProcessor", 14, 2, 2, {**PATCH, "min_image_tokens": 16, "max_image_tokens": 600}),
    ("glm5_next", "Glm5NextImageProcessor", 6, 2, 2, {**PATCH, "patch_size": 6, "min_image_tokens": 500,
                                                      "max_image_tokens": 900}),
    ("muse_glimmer", "MuseGlimmerImageProcessor", 14, 2, 2, {**PATCH, "max_image_tokens": 300}),
    ("muse_glimmer", "MuseGlimmerImageProcessor", 20, 1, 2, {**PATCH, "patch_size": 20, "merge_size": 1,
                                                             "max_image_tokens": 9}),
    ("gemma3", "Gemma3ImageProcessor", 14, 4, 1, {"size": {"height": 112, "width": 112}}),
    ("gemma4", "Gemma4ImageProcessor", 16, 3, 1, {"patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 280}),
    ("gemma4_unified", "Gemma4UnifiedImageProcessor", 16, 3, 1, {"patch_size": 16, "pooling_kernel_size": 3,
                                                                 "max_soft_tokens": 70}),
    ("mistral3", "PixtralImageProcessor", 14, 2, 1, {"patch_size": 28, "size": {"longest_edge": 500}}),
    ("smolvlm", "SmolVLMImageProcessor", 16, 4, 1, tiles(1024, 256)),
    ("smolvlm", "SmolVLMImageProcessor", 16, 2, 1, {**tiles(512, 128), "do_image_splitting": False}),
    ("idefics3", "Idefics3ImageProcessor", 14, 2, 1, tiles(600, 196)),
    ("internvl", "GotOcr2ImageProcessor", 14, 2, 1, {"size": {"height": 112, "width": 112}, "crop_to_patches": True,
                                                     "min_patches": 1, "max_patches": 12}),
    ("internvl", "GotOcr2ImageProcessor", 14, 2, 1, {"size": {"height": 56, "width": 84}, "crop_to_patches": True,
                                                     "min_patches": 3, "max_patches": 7}),
    ("llama4", "Llama4ImageProcessor", 14, 2, 1, {"size": {"height": 112, "width": 112}, "max_patches": 16}),
    ("llama4", "Llama4ImageProcessor", 14, 2, 1, {"size": {"height": 84, "width": 84}, "max_patches": 9,
                                                  "resize_to_max_canvas": True}),
    ("lfm2_vl", "Lfm2VlImageProcessor", 16, 2, 1, {"encoder_patch_size": 16, "downsample_factor": 2, "tile_size": 128,
                                                   "min_image_tokens": 16, "max_image_tokens": 64, "max_tiles": 10}),
    ("lfm2_vl", "Lfm2VlImageProcessor", 8, 2, 1, {"encoder_patch_size": 8, "downsample_factor": 2, "tile_size": 64,
                                                  "min_image_tokens": 8, "max_image_tokens": 40,
                                                  "use_thumbnail": False}),
]


def counts(values, patch, merge, grid):
    """[views, rows, columns, tokens] of what a processor gave."""
    ceil = lambda n: math.ceil(n / merge)
    if "image_grid_thw" in values:
        _, rows, columns = (int(v) for v in values["image_grid_thw"][0])
        return [1, rows, columns, ceil(rows) * ceil(columns)]
    if "image_position_ids" in values:
        at = values["image_position_ids"][0]
        columns, rows = (int(at[:, i].max()) + 1 for i in (0, 1))
        return [1, rows, columns, int(values["num_soft_tokens_per_image"][0])]
    if "image_rows" in values:
        shapes = [[int(v) for v in s] for s in values["spatial_shapes"]]
        tokens = sum(ceil(r) * ceil(c) for r, c in shapes)
        if len(shapes) == 1:
            return [1, *shapes[0], tokens]
        return [len(shapes), int(values["image_rows"][0]), int(values["image_cols"][0]), tokens]
    height, width = values["pixel_values"].shape[-2:]
    views = values["pixel_values"].shape[1] if values["pixel_values"].ndim == 5 else values["pixel_values"].shape[0]
    tokens = views * ceil(height // patch) * ceil(width // patch)
    if views == 1:
        return [1, height // patch, width // patch, tokens]
    if "aspect_ratios" in values:
        grid = [int(v) for v in values["aspect_ratios"][0]]
    elif "rows" in values:
        grid = values["rows"][0][0], values["cols"][0][0]
    return [views, *grid, tokens]


def sizes(rng, n):
    """Small and large, square and long."""
    out = [(rng.randint(8, 90),) * 2, (rng.randint(200, 900),) * 2]
    while len(out) < n:
        long, ratio = int(math.exp(rng.uniform(math.log(24), math.log(1600)))), math.exp(rng.uniform(0, 1.8))
        size = long, max(5, int(long / ratio))
        out.append(size if rng.random() < 0.5 else size[::-1])
    return out


def case(model, name, patch, merge, times, options, rng, n):
    processor = getattr(transformers, name)(**options)
    # Splitting is costly and the sizes alone count: the picture is a byte that is repeated.
    rows = []
    for width, height in sizes(rng, n):
        image = np.broadcast_to(np.uint8(7), (height, width, 3)).copy()
        more = {"return_row_col_info": True} if model in ("smolvlm", "idefics3", "lfm2_vl") else {}
        grid = None
        if model == "internvl":
            from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas
            side = options["size"]
            grid = get_optimal_tiled_canvas((height, width), (side["height"], side["width"]), options["min_patches"],
                                             options["max_patches"])[::-1]
        try:
            values = processor(images=[image], return_tensors="pt", input_data_format="channels_last", **more)
        except (ValueError, RuntimeError):
            rows.append([width, height, 0, 0, 0, 0])
            continue
        rows.append([width, height] + [int(v) for v in counts(values, patch, merge, grid)])
    return {"model_type": model, "patch_size": patch, "merge_size": merge, "temporal_patch_size": times,
            "preprocessor": {"image_processor_type": name, **options}, "rows": rows}


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "golden", "images", "sizes.json")
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    rng = random.Random(n)
    lines = [json.dumps(case(*c, rng, n)) for c in CASES]
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
