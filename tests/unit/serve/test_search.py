"""/v1/search: the same passages as the index itself, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertie
from bertie.predict.predictor import Predictor
from bertie.retrieval.index import open_index
from bertie.serve.keys import ApiKeys
from bertie.serve.limits import Limits
from bertie.serve.logs import JsonLog
from bertie.serve.operations import serve_model
from bertie.serve.service import Service

from .conftest import serving


def test_the_server_finds_what_the_index_finds(
    predictors: dict[str, Predictor], small_texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(small_texts[:20]), encoding="utf-8")
    bertie.index(tmp_path / "text.txt", predictors["mlm"], tmp_path / "index")
    opened, limits = open_index(tmp_path / "index", predictors["mlm"]), Limits()
    models = {
        "docs": serve_model("docs", opened.dense.model, limits.queue_tokens, (), opened),
        "plain": serve_model("plain", predictors["mlm"], limits.queue_tokens, ()),
    }
    with serving(Service(models, limits, JsonLog(requests=False), ApiKeys())) as server:
        query = small_texts[3].split(".")[0]
        answer = server.post("/v1/search", {"model": "docs", "query": query, "top_k": 3}).json
        expected = bertie.search(opened, query, 3)
        assert [each["text"] for each in answer["results"]] == [hit.text for hit in expected]
        assert [each["score"] for each in answer["results"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
        assert answer["results"][0]["marks"] == [list(mark) for mark in expected[0].marks]
        assert (answer["model"], answer["usage"]["prompt_tokens"] > 2) == ("docs", True)
        operations = {card["id"]: card["operations"] for card in server.get("/v1/models").json["data"]}
        assert ("search" in operations["docs"], "search" in operations["plain"]) == (True, False)
        for message, status, param in (
            ({"model": "plain", "query": "kopa"}, 422, "model"),
            ({"model": "docs", "query": "kopa", "top_k": 0}, 422, "top_k"),
            ({"model": "docs"}, 422, "query"),
        ):
            refused = server.post("/v1/search", message)
            assert (refused.status, refused.error["param"]) == (status, param)
        assert "no index" in server.post("/v1/search", {"model": "plain", "query": "kopa"}).error["message"]
