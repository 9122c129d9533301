"""The dialect of infinity: its paths, fields, defaults and errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from bertie.predict.predictor import Predictor
from bertie.serve.keys import ApiKeys, _digest
from bertie.serve.limits import Front
from bertie.serve.operations import serve_model
from bertie.serve.service import Service

from ..conftest import Answer, Server, serving

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]


def answered(answer: Answer, kind: str) -> Any:
    assert (answer.status, answer.json["object"]) == (200, kind), answer.body
    assert answer.json["id"] == f"infinity-{answer.headers['x-request-id']}"
    assert answer.json["usage"]["total_tokens"] > 0
    return answer.json


def test_vectors(server: Server, predictors: Predictors) -> None:
    expected = predictors["mlm"].embed(TEXTS)
    message = {"model": "mlm", "input": TEXTS, "dimensions": 0, "modality": "text", "user": "me"}
    data = answered(server.post("/infinity/embeddings", message), "list")["data"]
    np.testing.assert_allclose([each["embedding"] for each in data], expected, atol=1e-5)
    assert [(each["index"], each["object"]) for each in data] == [(i, "embedding") for i in range(3)]
    long = {"model": "mlm", "input": "b " * 99, "encoding_format": "base64", "dimensions": 32}
    found = answered(server.post("/infinity/embeddings", long), "list")
    assert found["usage"]["truncated"] == 1
    vector = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, predictors["mlm"].embed(["b " * 99])[0], atol=1e-5)


def test_vectors_may_be_shorter(make_service: Callable[..., Service], predictors: Predictors) -> None:
    model = serve_model("mlm", predictors["mlm"], 10_000, (8,))
    with serving(replace(make_service("mlm"), models={"mlm": model})) as server:
        found = answered(server.post("/infinity/embeddings", {"input": TEXTS, "dimensions": 8}), "list")["data"]
        whole = predictors["mlm"].embed(TEXTS)[:, :8]
        expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
        np.testing.assert_allclose([each["embedding"] for each in found], expected, atol=1e-5)
        refused = server.post("/infinity/embeddings", {"input": TEXTS, "dimensions": 9})
        assert (refused.status, "give 8 or 32" in refused.error["message"]) == (422, True)


def test_the_client_of_openai_works(server: Server, predictors: Predictors) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/infinity", api_key="none", max_retries=0)
    [found] = client.embeddings.create(input=["kopa"], model="mlm").data
    np.testing.assert_allclose(found.embedding, predictors["mlm"].embed(["kopa"])[0], atol=1e-5)
    assert {each.id for each in client.models.list().data} == set(predictors)
    with pytest.raises(
        openai.UnprocessableEntityError, match="dimensions: the vectors have width 32, and cannot be shortened: omit it"
    ):
        client.embeddings.create(input="kopa", model="mlm", dimensions=16)
    with pytest.raises(openai.NotFoundError, match="no model has this name"):
        client.embeddings.create(input="kopa", model="other")


def test_ranks(server: Server, predictors: Predictors) -> None:
    for name in ("mlm", "cross-encoder"):
        expected = predictors[name].rerank("ban", TEXTS)
        order = np.argsort(-expected, kind="stable").tolist()
        asked = {"model": name, "query": "ban", "documents": TEXTS}
        raw = answered(server.post("/infinity/rerank", {**asked, "raw_scores": True, "top_n": None}), "rerank")
        assert [each["index"] for each in raw["results"]] == order
        np.testing.assert_allclose([each["relevance_score"] for each in raw["results"]], expected[order], atol=1e-4)
        assert raw["results"][0]["document"] is None
        best = answered(server.post("/infinity/rerank", {**asked, "return_documents": True, "top_n": 2}), "rerank")
        wanted = 1 / (1 + np.exp(-expected[order])) if name == "cross-encoder" else expected[order]
        np.testing.assert_allclose([each["relevance_score"] for each in best["results"]], wanted[:2], atol=1e-4)
        assert [each["document"] for each in best["results"]] == [TEXTS[i] for i in order[:2]]


def test_classes(server: Server, predictors: Predictors) -> None:
    for name in ("classifier", "labels"):
        expected = [each.probabilities for each in predictors[name].predict(TEXTS)]
        found = answered(server.post("/infinity/classify", {"model": name, "input": TEXTS}), "classify")["data"]
        raw = answered(
            server.post("/infinity/classify", {"model": name, "input": TEXTS, "raw_scores": True}), "classify"
        )
        for mine, before, wanted in zip(found, raw["data"], expected, strict=True):
            assert {each["label"]: each["score"] for each in mine} == pytest.approx(wanted, abs=1e-5)
            outputs = np.array([each["score"] for each in before])
            assert list(outputs) == sorted(outputs, reverse=True)
            scores = 1 / (1 + np.exp(-outputs)) if name == "labels" else np.exp(outputs) / np.exp(outputs).sum()
            np.testing.assert_allclose([each["score"] for each in mine], scores, atol=1e-5)


def test_models_and_health(make_service: Callable[..., Service], server: Server, predictors: Predictors) -> None:
    cards = {each["id"]: each for each in server.get("/infinity/models").json["data"]}
    assert cards.keys() == predictors.keys()
    assert cards["mlm"]["capabilities"] == ["embed", "rerank"]
    assert cards["labels"]["capabilities"] == ["embed", "rerank", "classify"]
    assert cards["mlm"]["stats"]["queue_absolute"] == 0
    assert {each["owned_by"] for each in cards.values()} == {"infinity"}  # infinity_client refuses any other
    with serving(make_service("mlm")) as one:
        assert one.get("/infinity/health").json["unix"] > one.service.started - 1
        assert one.post("/infinity/embeddings", {"input": "a", "model": "default/not-specified"}).json["model"] == "mlm"
        assert one.post("/embeddings", {"input": "a"}).json["model"] == "mlm"
        one.service.draining = True
        assert one.get("/infinity/health").status == 503


@pytest.mark.parametrize(
    ("path", "message", "status", "param", "text"),
    [
        ("embeddings", {"input": "a"}, 422, "model", "name one of the models"),
        ("embeddings", {"input": [1], "model": "mlm"}, 422, "input[0]", "Expected `str`, got `int`"),
        ("embeddings", {"input": "a" * 100_001, "model": "mlm"}, 413, "input", "shorten input"),
        ("embeddings", {"input": "a", "modality": "image"}, 422, "modality", "Invalid enum value 'image'"),
        ("embeddings", {"input": "a", "dimensions": 9, "model": "mlm"}, 422, "dimensions", "width 32"),
        ("embeddings", {"input": "a", "truncate": True}, 422, "truncate", "unknown field"),
        ("rerank", {"query": "a", "documents": [], "model": "mlm"}, 422, "documents", "length >= 1"),
        ("rerank", {"query": "a", "documents": ["a"], "top_n": 0, "model": "mlm"}, 422, "top_n", ">= 1"),
        ("classify", {"input": ["a"], "model": "mlm"}, 422, "model", "lacks a task"),
        ("classify", {"input": ["a"], "model": "tagger"}, 422, "model", "use /v1/predict"),
        ("classify", {"input": ["a"], "model": "cross-encoder"}, 422, "input[0]", "one text"),
        ("classify", b"{", 400, None, "not valid JSON"),
        ("nothing", {}, 404, None, "no such path"),
    ],
)
def test_wrong_requests_are_refused_in_its_form(
    path: str, message: object, status: int, param: str | None, text: str, server: Server
) -> None:
    answer = server.post(f"/infinity/{path}", message)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, status, param), answer.body
    assert text in answer.error["message"]
    # infinity_client reads this instead.
    loc = ["body", param] if param else ["body"]
    assert answer.json["detail"] == [{"loc": loc, "msg": answer.error["message"], "type": answer.error["type"]}]


def test_contested_paths_are_those_of_the_chosen_dialect(make_service: Callable[..., Service]) -> None:
    message = {"query": "ban", "documents": TEXTS}
    with serving(make_service("mlm")) as server:
        refused = server.post("/rerank", message)
        assert refused.status == 404
        assert "/tei/rerank (--dialect tei) or /infinity/rerank (--dialect infinity)" in refused.error["message"]
        assert "/tei/health" in server.get("/health").error["message"]
        assert server.get("/rerank").error["message"] == "no such path: /openapi.json lists them"
        assert "/rerank" not in server.get("/openapi.json").json["paths"]
    with serving(make_service("mlm", keys=ApiKeys((_digest(b"secret"),))), Front(dialect="infinity")) as server:
        assert server.post("/rerank", message).status == 401
        answered(server.post("/rerank", message, Authorization="Bearer secret"), "rerank")
        assert "unix" in server.get("/health").json
        assert "/rerank" in server.get("/openapi.json").json["paths"]
