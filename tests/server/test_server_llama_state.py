"""What clients of llama.cpp's server rely on beside its answers: defaults by flags, metrics by name, counts, templates
that are left open, forms of inputs, figures of errors, texts of tokens.
"""
import pytest

from server_help import Server, until
from support import fixture

HELLO = [{"role": "user", "content": "Hello"}]
GAUGES = """prompt_tokens_seconds predicted_tokens_seconds requests_processing requests_deferred
    n_busy_slots_per_decode""".split()
COUNTERS = """prompt_tokens_total prompt_tokens_cached_total prompt_seconds_total tokens_predicted_total
    tokens_predicted_seconds_total n_decode_total n_tokens_max spec_decode_num_draft_tokens_total
    spec_decode_num_accepted_tokens_total spec_decode_num_drafts_total""".split()


@pytest.fixture(scope="module")
def server():
    s = Server("mock", "--backend", "mock", "--model-name", "mill", "--context", 256)
    yield s
    assert s.stop() == 0


def ask(server, **fields):
    status, _, got = server.post("/completion", {"prompt": "Hello", "n_predict": 8, **fields})
    assert status == 200, got
    return got


# ---- defaults ----

def test_defaults_by_flags():
    """They hold for each API where a request sets nothing, and for no request that does."""
    s = Server("mock", "--backend", "mock", "--temp", 0.5, "--top-p", 0.75, "--top-k", 7, "--min-p", 0.25,
               "--repeat-penalty", 1.5, "--seed", 42, "--max-tokens", 5)
    given = {"temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.25, "repeat_penalty": 1.5, "seed": 42,
             "n_predict": 5}
    other = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "seed": 7,
             "n_predict": 3}
    try:
        params = s.request("GET", "/props")[2]["default_generation_settings"]["params"]
        assert {k: params[k] for k in given} == given
        first = s.post("/completion", {"prompt": "Hello"})[2]
        assert {k: first["generation_settings"][k] for k in given} == given and first["tokens_predicted"] == 5
        assert s.post("/completion", {"prompt": "Hello"})[2]["content"] == first["content"]
        got = ask(s, **other)
        assert {k: got["generation_settings"][k] for k in other} == other and got["tokens_predicted"] == 3
        assert ask(s, n_predict=-1, stop=["a"])["generation_settings"]["n_predict"] == -1
        text = s.post("/v1/completions", {"prompt": "Hello"})[2]
        assert text["choices"][0]["text"] == first["content"] and text["usage"]["completion_tokens"] == 5
        chats = [s.post("/v1/chat/completions", {"messages": HELLO})[2] for _ in range(2)]
        assert chats[0]["choices"] == chats[1]["choices"] and chats[0]["usage"]["completion_tokens"] == 5
        assert s.post("/api/chat", {"model": "x", "messages": HELLO, "stream": False})[2]["eval_count"] == 5
    finally:
        assert s.stop() == 0


def test_defaults_of_the_api(server):
    params = server.request("GET", "/props")[2]["default_generation_settings"]["params"]
    assert params["seed"] == 2**32 - 1 and params["n_predict"] == -1
    assert server.post("/v1/completions", {"prompt": "Hello"})[2]["usage"]["completion_tokens"] == 16


def test_name_of_the_file():
    s = Server(fixture("models/llama"), "--model-name", "mill")
    try:
        props = s.request("GET", "/props")[2]
        assert props["model_alias"] == "mill" and props["model_path"] == "llama"
    finally:
        assert s.stop() == 0


# ---- metrics ----

def test_metrics_by_llama_names():
    s = Server("mock", "--backend", "mock", "--parallel", 2)

    def own():
        return {k.partition(":")[2]: v for k, v in s.metrics().items() if k.startswith("llamacpp:")}

    try:
        status, headers, text = s.request("GET", "/metrics")
        assert int(headers["process-start-time-unix"]) > 1600000000
        for kind, names in (("gauge", GAUGES), ("counter", COUNTERS)):
            for name in names:
                assert f"# TYPE llamacpp:{name} {kind}\n" in text and f"# HELP llamacpp:{name} " in text
        assert set(own()) == {*GAUGES, *COUNTERS}
        answers = [ask(s, prompt="bubi kaju " * 8, n_predict=n) for n in (1, 4, 16)]
        vectors = s.post("/v1/embeddings", {"input": ["bubi", "kaju"]})[2]["usage"]["prompt_tokens"]
        until(lambda: own()["requests_processing"] == 0)
        got = own()
        assert got["prompt_tokens_total"] == sum(a["timings"]["prompt_n"] for a in answers) + vectors
        assert got["prompt_tokens_cached_total"] == sum(a["timings"]["cache_n"] for a in answers) > 0
        assert got["tokens_predicted_total"] == 21 and got["requests_deferred"] == 0
        assert got["n_tokens_max"] == answers[-1]["tokens_evaluated"] + 16
        wanted = sum(a["timings"]["prompt_ms"] for a in answers) / 1e3
        assert got["prompt_seconds_total"] == pytest.approx(wanted, rel=1e-3)
        own()
        assert own()["predicted_tokens_seconds"] == 0
    finally:
        assert s.stop() == 0


def test_metrics_of_an_engine():
    s = Server(fixture("models/llama"))
    try:
        ask(s, temperature=0, ignore_eos=True)
        got = s.metrics()
        assert got["llamacpp:predicted_tokens_seconds"] > 0 and got["llamacpp:n_busy_slots_per_decode"] >= 1
        assert got["llamacpp:n_decode_total"] >= 7 and got["llamacpp:tokens_predicted_seconds_total"] > 0
        assert s.metrics()["llamacpp:predicted_tokens_seconds"] == 0
    finally:
        assert s.stop() == 0


# ---- chats that are not answered ----

def test_count_of_a_chat(server):
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        status, _, got = server.post(path, {"messages": HELLO})
        chat = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})[2]
        assert status == 200 and got == {"input_tokens": chat["usage"]["prompt_tokens"]}
    status, _, got = server.post(path, {"messages": []})
    assert status == 400 and got["error"]["param"] == "messages"


def test_template_that_is_left_open():
    s = Server(fixture("models/qwen3"))
    try:
        whole = s.post("/apply-template", {"messages": HELLO})[2]["prompt"]
        ended = s.post("/apply-template", {"messages": HELLO, "add_generation_prompt": False})[2]["prompt"]
        assert whole.startswith(ended) and whole[len(ended):].startswith("<|im_start|>assistant")
        status, _, got = s.post("/v1/chat/completions", {"messages": HELLO, "add_generation_prompt": False})
        assert status == 400 and got["error"]["param"] == "add_generation_prompt"
    finally:
        assert s.stop() == 0


# ---- inputs, errors, tokens ----

@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding"])
def test_forms_of_inputs(path):
    """llama.cpp's: lists with ids and texts, and objects, are the texts and ids that they say."""
    s = Server(fixture("models/llama"))

    def vectors(value):
        status, _, got = s.post(path, {"input": value})
        assert status == 200, got
        rows = got["data"] if isinstance(got, dict) else got
        return [row["embedding"] for row in rows]

    def ids(text, **more):
        return s.post("/tokenize", {"content": text, "parse_special": False, **more})[2]["tokens"]

    try:
        (plain,) = vectors("the mill")
        parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "mill"}]
        for same in ({"prompt_string": "the mill"}, {"content": parts}):
            assert vectors(same) == [plain]
            assert vectors(["turns", same]) == [vectors("turns")[0], plain]
        bos = ids("", add_special=True)
        assert vectors([*bos, "the mill"]) == [plain] == vectors([[*bos, "the mill"]])
        assert vectors([5, "the", 6]) == [vectors([5, *ids("the"), 6])[0]]
        for bad in ([], {}, {"content": "a"}, {"content": []}, {"content": [{"type": "unknown"}]}, [1, {}], [5, [6]],
                    {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
                    {"prompt_string": 5}, [["a", 1.5]], [5, 10**6]):
            status, _, got = s.post(path, {"input": bad})
            assert status == 400 and got["error"]["param"] in ("input", "content"), bad
        assert s.post(path, {"input": ["a", 5]})[0] == (200 if path == "/embedding" else 400)
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("path, body", [
    ("/completion", {"prompt": " bubi" * 500}), ("/v1/completions", {"prompt": " bubi" * 500}),
    ("/v1/embeddings", {"input": " bubi" * 500}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": " bubi" * 500}]})])
def test_figures_of_a_prompt_that_is_too_long(server, path, body):
    status, _, got = server.post(path, body)
    error = got["error"]
    assert status == 400 and error["n_ctx"] == 256 and error["n_prompt_tokens"] >= 500
    assert "exceeds the available context size" in error["message"]
    assert "n_ctx" not in server.post(path, {**body, "model": 5})[2]["error"]


@pytest.mark.parametrize("model", ["llama", "mistral", "phi3", "gemma3_text"])
def test_texts_of_tokens(model):
    """Each is what the token adds to the text, with a space that begins a word, and its bytes as they are."""
    s = Server(fixture("models/" + model))
    try:
        words = "the mill turns, and the \u4e2d wheel stands"
        got = ask(s, prompt="the mill", grammar=f'root ::= " " "{words}" [a-z ]*', n_probs=1, n_predict=60, seed=5)
        tokens = got["completion_probabilities"]
        text = b"".join(bytes(t["bytes"]) for t in tokens).decode(errors="replace")
        # The text of an answer has no space before its first piece with some tokenizers; its token has.
        assert text.startswith(" " + words) and text.strip() == got["content"].strip()
        whole = [t for t in tokens if "\ufffd" not in t["token"]]
        assert whole and all(t["token"] == bytes(t["bytes"]).decode() for t in whole)
        pieces = s.post("/tokenize", {"content": "the mill", "with_pieces": True})[2]["tokens"]
        assert "".join(p["piece"] for p in pieces).strip() == "the mill" and all(p["piece"] for p in pieces)
    finally:
        assert s.stop() == 0
