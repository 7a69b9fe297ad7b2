"""DPO of SmolLM2 by examples/dpo.c: the margin of preferences that it was not trained on rises."""
import os
import re
import subprocess

from support import real_model

DPO = os.path.join(os.path.dirname(os.environ["QUERN"]), "examples", "dpo")


def test_margin_of_held_out_pairs_rises():
    command = [DPO, real_model("smollm2"), "examples/dpo.tsv"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
    margins = [float(x) for x in re.findall(r"held-out margin ([-+0-9.]+)", out)]
    assert len(losses) == len(margins) == 4
    assert losses == sorted(losses, reverse=True)
    assert margins[-1] > 1 and margins[-1] > margins[0]
