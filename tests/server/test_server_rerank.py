"""POST /v1/rerank and /v1/score: documents by their relevance, in the forms of the APIs that have such routes."""
import json

import pytest

from server_help import Server
from support import call, fixture

QUERY = "What is a quern?"
DOCUMENTS = ["A quern is a pair of stones.", "", "It rains <|im_end|> today.", "Bread needs flour."]


@pytest.fixture(scope="module")
def server():
    s = Server(fixture("families2/qwen3_reranker"), "--model-name", "judge")
    yield s
    assert s.stop() == 0


def rank(server, path="/v1/rerank", **fields):
    status, _, got = server.post(path, {"model": "judge", "query": QUERY, "documents": DOCUMENTS, **fields})
    assert status == 200, got
    return got


def refused(server, param, path="/v1/rerank", code="invalid_value", status=400, **fields):
    body = {"query": QUERY, "documents": DOCUMENTS, **fields} if path == "/v1/rerank" else fields
    got_status, _, got = server.post(path, body)
    assert got_status == status and got["error"]["param"] == param and got["error"]["code"] == code, got


def test_order(server):
    got = rank(server)
    scores = [r["relevance_score"] for r in got["results"]]
    assert got["model"] == "judge" and got["usage"]["total_tokens"] > 0 and got["id"]
    assert sorted(scores, reverse=True) == scores and all(0 <= s <= 1 for s in scores)
    assert sorted(r["index"] for r in got["results"]) == [0, 1, 2, 3]
    assert all(r["document"] == {"text": DOCUMENTS[r["index"]]} for r in got["results"])
    for path in ("/rerank", "/v2/rerank", "/reranking", "/v1/reranking"):
        assert rank(server, path)["results"] == got["results"]
    few = rank(server, top_n=2, return_documents=False)["results"]
    assert few == [{k: r[k] for k in ("index", "relevance_score")} for r in got["results"][:2]]
    assert rank(server, documents=[{"text": d} for d in DOCUMENTS])["results"] == got["results"]
    other = rank(server, instruction="Find what is about the weather")["results"]
    assert other != got["results"]


def test_texts(server):
    by_index = {r["index"]: r["relevance_score"] for r in rank(server)["results"]}
    status, _, got = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS})
    assert status == 200 and {r["index"]: r["score"] for r in got} == by_index and "text" not in got[0]
    got = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True, "raw_scores": True})[2]
    assert [r["text"] for r in got] == [DOCUMENTS[r["index"]] for r in got]


def test_score(server):
    by_index = {r["index"]: r["relevance_score"] for r in rank(server)["results"]}
    for body in ({"text_1": QUERY, "text_2": DOCUMENTS}, {"queries": [QUERY], "documents": DOCUMENTS},
                 {"text_1": [QUERY] * len(DOCUMENTS), "text_2": DOCUMENTS}):
        status, _, got = server.post("/v1/score", {"model": "judge", **body})
        assert status == 200, got
        assert [d["index"] for d in got["data"]] == list(range(len(DOCUMENTS)))
        assert {d["index"]: d["score"] for d in got["data"]} == by_index and got["usage"]["prompt_tokens"] > 0


def test_refused(server):
    refused(server, "query", query=None, code="missing_parameter")
    refused(server, "documents", documents=None, code="missing_parameter")
    refused(server, "documents", documents=[])
    refused(server, "documents", documents=[1], code="invalid_type")
    refused(server, "top_n", top_n=0)
    refused(server, "colour", colour=1, code="unknown_parameter")
    refused(server, "max_tokens_per_doc", max_tokens_per_doc=5, code="unsupported_parameter")
    refused(server, "documents", documents=["word " * 5000], code="context_length_exceeded")
    refused(server, "text_1", "/v1/score", text_1=["a", "b"], text_2=["c"])
    assert rank(server)["results"]


def test_command(server, tmp_path):
    """The command gives the same numbers as the server."""
    by_index = {r["index"]: r["relevance_score"] for r in rank(server)["results"]}
    path = tmp_path / "documents"
    path.write_text("".join(d + "\n" for d in DOCUMENTS))
    out = call("rerank", fixture("families2/qwen3_reranker"), "-q", QUERY, "-f", path)
    assert out.returncode == 0, out.stderr
    rows = [line.split("\t") for line in out.stdout.decode().splitlines()]
    wanted = [DOCUMENTS[i] for i in sorted(by_index, key=lambda i: -by_index[i])]
    assert [r[1] for r in rows] == [d for d in wanted if d]
    assert [r[0] for r in rows] == [f"{by_index[DOCUMENTS.index(r[1])]:.4f}" for r in rows]


def test_cross_encoder():
    s = Server(fixture("families2/bert_reranker"))
    try:
        got = rank(s, raw_scores=True, model=s.name)["results"]
        assert 1 <= s.metrics()["llamacpp:n_decode_total"] <= len(DOCUMENTS)
        wanted = call("rerank", fixture("families2/bert_reranker"), "--json",
                      stdin={"query": QUERY, "documents": DOCUMENTS})
        scores = json.loads(wanted.stdout)["scores"]
        assert all(r["relevance_score"] == pytest.approx(scores[r["index"]], abs=1e-5) for r in got)
        status, _, body = s.request("POST", "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "instruction": "x"})
        assert status == 400 and "instruction: only a model that is asked" in body["error"]["message"], body
    finally:
        assert s.stop() == 0
