"""What bench/peers' figures are judged by: goals of speed as ratios, to llama.cpp and to what the machine can do."""
import statistics

from costs import KV_BYTES

# ik_llama.cpp is in no package index. Its speed over llama.cpp's, prefill and decode, both built and measured side by
# side on two Zen 4 cores, 2 threads, prompt 512, 128 new tokens: (shape, type): (tok/s of ik_llama.cpp / of llama.cpp).
IK_OVER_LLAMA = {
    ("smollm2-135m", "Q4_1"): (1332 / 348, 209 / 152), ("gemma-3-270m", "Q4_K_M"): (1323 / 720, 126 / 75),
    ("qwen3-0.6b", "Q4_0"): (323 / 241, 70 / 69), ("qwen3-0.6b", "Q4_K_M"): (318 / 219, 66 / 59),
    ("qwen3-0.6b", "Q8_0"): (325 / 181, 58 / 39), ("qwen3-0.6b", "BF16"): (288 / 227, 21 / 31),
    ("llama-3.2-1b", "Q4_0"): (195 / 133, 48 / 48), ("llama-3.2-1b", "Q4_K_M"): (189 / 135, 52 / 41),
    ("llama-3.2-1b", "Q8_0"): (203 / 106, 39 / 21), ("gemma-3-1b", "Q4_0"): (281 / 172, 64 / 51),
    ("gemma-3-1b", "Q4_K_M"): (254 / 135, 49 / 29)}
IK_LENGTHS = {"prefill": 512, "decode": 1}  # n_prompt; decode is from the start


def ik_ratio(row, model):
    """Of ik_llama.cpp to llama.cpp, or None where nobody measured it."""
    if row["set"] != "avx512" or row["threads"] != 2 or row["n_prompt"] != IK_LENGTHS.get(row["phase"]):
        return None
    for (shape, kind), ratios in IK_OVER_LLAMA.items():
        if model.name.lower().startswith(shape) and model.type == kind:
            return ratios[row["phase"] == "decode"]
    return None


class Goal:
    """name: what is asked; value, best: what the median and the best of the rounds gave; need: the least."""

    def __init__(self, name, value, best, need, met=None):
        self.name, self.value, self.best, self.need = name, value, best, need
        self.met = (value >= need if met is None else met)


BATCH_RATIOS = {4: 2.5, 8: 3.0, 16: 3.5}  # sequences: ratio to llama.cpp


def goals_of(row, model, fast_row):
    """The goals of one row of results: "ratio" and "share" are (median, best), of the peer and of the limit. fast_row:
    the same work in `fast`, or None. AVX2 has goals of its own. A share above 1 meets no goal: whatever the machine
    could do at that moment, it was not measured."""
    phase, precision, n = row["phase"], row["precision"], row["sequences"]
    (ratio, ratio_best), (share, share_best) = row["ratio"], row["share"]
    quantised, ik, known = model.operands == "int8", ik_ratio(row, model), share <= 1
    long = row["n_prompt"] >= 4096
    out = []

    def peer(need):
        out.append(Goal("ratio to llama.cpp", ratio, ratio_best, need))

    def limit(need):
        out.append(Goal(f"share of the limit ({row['limit']})", share, share_best, need, known and share >= need))

    if precision not in ("fast", "high"):
        return out
    if row["set"] == "avx2":
        if phase != "batch" and not long and precision == "fast":
            peer(1.2)
        return out
    if long:
        if precision == "fast" and row["n_prompt"] == 4096:
            peer(2.0)
    elif model.n_experts:
        if phase == "decode":
            limit(0.8)
        if phase != "batch":
            peer(1.25)
    elif phase == "decode":
        limit(0.9 if model.file_bytes > 300e6 else 0.8)
        if precision == "fast":
            need = 1.3 * max(1, ik or 1)
            out.append(Goal("ratio to llama.cpp, 1.3 x the better peer (or 0.90 of the limit)", ratio, ratio_best, need,
                            ratio >= need or known and share >= 0.9))
    elif phase == "prefill" and precision == "fast":
        limit(0.6 if model.n_parameters >= 300e6 or not quantised else 0.55)
        if quantised:
            peer(5.0 if model.type == "Q4_1" else 2.2)
            if ik:
                out.append(Goal("ratio to ik_llama.cpp (derived)", ratio / ik, ratio_best / ik, 1.35))
        elif model.operands == "bf16":
            peer(1.25)
    elif phase == "prefill" and quantised:
        peer(1.25)
    elif phase == "batch" and precision == "fast" and n in BATCH_RATIOS:
        peer(BATCH_RATIOS[n])
        if n == 16:
            limit(0.55)
    beside_fast = phase == "prefill" and quantised and not long or phase == "batch" and n == 16
    if precision == "high" and fast_row and beside_fast:
        value, best = (row["speed"][i] / fast_row["speed"][i] for i in (0, 1))
        out.append(Goal("ratio to fast", value, best, 0.5))
    return out


# What attention multiplies, by the type of keys and values: (operands, products for one).
ATTENTION_OPERANDS = {"bf16": ("bf16", 1), "q8_0": ("int8", 2)}


def context_goals(model, short, long):
    """Of attention alone, out of the same work behind a short and a long prompt: what grows with the context is its
    own. Each {"n_prompt", "n_generate", "kv", "phase", "speeds": tokens per second of each round}; of the long one also
    "machines": of each round. No goal where a round has the long work not slower than the short one."""
    a, b = short["n_prompt"], long["n_prompt"]
    if long["phase"] == "prefill":
        operands, products = ATTENTION_OPERANDS.get(long["kv"], ("f32", 1))
        amount = (model.attention_macs(b) - b / a * model.attention_macs(a)) * products
        limits, tokens = [m.peaks[operands] for m in long["machines"]], b
        name, need = f"attention alone, share of the {operands} peak (derived)", 0.5
    else:
        depths = [r["n_prompt"] + r["n_generate"] // 2 for r in (short, long)]
        amount = model.kv_bytes(depths[1], KV_BYTES[long["kv"]]) - model.kv_bytes(depths[0], KV_BYTES[short["kv"]])
        limits, tokens = [m.read for m in long["machines"]], 1
        name, need = "keys and values alone, share of the bandwidth (derived)", 0.8
    took = [tokens / fast - tokens / slow for fast, slow in zip(long["speeds"], short["speeds"])]
    if not took or min(took) <= 0:
        return []
    shares = [amount / limit / t for limit, t in zip(limits, took)]
    value = statistics.median(shares)
    return [Goal(name, value, max(shares), need, need <= value <= 1)]


# Bytes of a file, and the milliseconds within which it is ready; between two of them in proportion.
START = [(98e6, 300), (253e6, 600), (1200e6, 1500)]


def start_ms(file_bytes):
    for (less, soon), (more, late) in zip(START, START[1:]):
        if file_bytes <= more:
            return max(soon, soon + (file_bytes - less) / (more - less) * (late - soon))
    return START[-1][1] * file_bytes / START[-1][0]


def start_goals(model, load_ms, anonymous_bytes, kv_bytes):
    """Ready within, and memory that no file stands behind. load_ms: of each run; anonymous_bytes: the peak."""
    most, median = start_ms(model.file_bytes), statistics.median(load_ms)
    room = 1.1 * model.file_bytes + kv_bytes + 24 * 2**20
    return [Goal("start: allowed time over time taken", most / median, most / min(load_ms), 1.0),
            Goal("start: allowed anonymous memory over its peak", room / anonymous_bytes, room / anonymous_bytes, 1.0)]
