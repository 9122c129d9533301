"""The dialect of text-embeddings-inference: its paths, fields, defaults and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.heads.vector_modules import Normalize
from bertie.predict.predictor import Predictor
from bertie.serve.keys import ApiKeys, _digest
from bertie.serve.limits import Front
from bertie.serve.operations import serve_model
from bertie.serve.service import Service
from bertie.serve.vectors import VOCABULARY

from ..conftest import Answer, Server, serving

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]
MLM = "/tei/models/mlm"
LONG = "b " * 99


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def rows(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


def test_vectors_are_those_of_the_model_with_length_1(server: Server, predictors: Predictors) -> None:
    expected = predictors["mlm"].embed(TEXTS)
    np.testing.assert_allclose(rows(server.post(f"{MLM}/embed", {"inputs": TEXTS})), unit(expected), atol=1e-5)
    one = rows(server.post(f"{MLM}/embed", {"inputs": "kopa", "normalize": False, "truncate": None}))
    np.testing.assert_allclose(one, expected[:1], atol=1e-5)
    short = rows(server.post(f"{MLM}/embed", {"inputs": TEXTS, "dimensions": 9}))
    np.testing.assert_allclose(short, unit(expected[:, :9]), atol=1e-5)


def test_the_default_prompt_of_a_model_is_not_used(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    """In text-embeddings-inference, a request without a prompt's name has none."""
    how = SentenceEmbedding(modules=(Normalize(),), prompts={"query": "the ban "}, default_prompt="query")
    model = replace(predictors["mlm"], text_embedding=how)
    with serving(replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000)})) as server:
        for asked, prompt in (({}, ""), ({"prompt_name": "query"}, "the ban ")):
            found = rows(server.post("/tei/embed", {"inputs": TEXTS, **asked}))
            np.testing.assert_allclose(found, model.embed(TEXTS, prompt=prompt), atol=1e-5)
            inputs = {"source_sentence": "kopa", "sentences": TEXTS}
            found = rows(server.post("/tei/similarity", {"inputs": inputs, "parameters": asked}))
            expected = model.embed(["kopa"], prompt=prompt) @ model.embed(TEXTS, prompt=prompt).T
            np.testing.assert_allclose(found, expected[0], atol=1e-4)
            ids = [each["id"] for each in rows(server.post("/tei/tokenize", {"inputs": "kopa", **asked}))[0]]
            assert ids == model.text_sequences(["kopa"], prompt)[0].input_ids.tolist()
        refused = server.post("/tei/embed", {"inputs": "a", "normalize": False})
        assert (refused.status, refused.json["error_type"]) == (422, "Validation")
        assert "normalize: the files of it normalize its vectors" in refused.json["error"]


def test_vectors_of_all_tokens(server: Server, predictors: Predictors) -> None:
    found = rows(server.post(f"{MLM}/embed_all", {"inputs": TEXTS}))
    for mine, states in zip(found, predictors["mlm"].hidden_states(TEXTS), strict=True):
        np.testing.assert_allclose(mine, states[-1], atol=1e-5)


def test_vectors_of_too_many_tokens_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.serve.vectors.MAX_NUMBERS", 32 * 7)
    assert server.post(f"{MLM}/embed_all", {"inputs": ["", "", ""]}).status == 200
    refused = server.post(f"{MLM}/embed_all", {"inputs": [""] * 4})
    assert (refused.status, refused.json["error_type"]) == (413, "Validation")
    assert "256 numbers in the vectors of all tokens" in refused.json["error"]
    assert server.service.buffered == 0


def test_token_ids_need_the_vocabulary(server: Server, predictors: Predictors) -> None:
    tokens = server.post(f"{MLM}/tokenize", {"inputs": ["ban thekopa"]})
    ids = [each["id"] for each in rows(tokens)[0]]
    refused = server.post(f"{MLM}/embed", {"inputs": ids})
    assert (refused.status, refused.json["error_type"]) == (422, "Validation")
    assert VOCABULARY in refused.json["error"]
    found = rows(server.post(f"{MLM}/embed", {"inputs": ids}, **{VOCABULARY: tokens.headers["x-vocabulary"]}))
    np.testing.assert_allclose(found, unit(predictors["mlm"].embed(["ban thekopa"])), atol=1e-5)


def test_tokens(server: Server, predictors: Predictors) -> None:
    tokenizer = predictors["mlm"].tokenizer
    [wanted] = tokenizer.encode_with_offsets(["ban thekopa"])
    [found] = rows(server.post(f"{MLM}/tokenize", {"inputs": "ban thekopa"}))
    assert found[0] == {"id": tokenizer.cls_id, "text": "[CLS]", "special": True, "start": None, "stop": None}
    inside = [
        {"id": i, "text": "ban thekopa"[start:stop], "special": False, "start": start, "stop": stop}
        for i, (start, stop) in zip(wanted.ids, wanted.offsets, strict=True)
    ]
    assert found[1:-1] == inside
    assert rows(server.post(f"{MLM}/tokenize", {"inputs": ["ban thekopa"], "add_special_tokens": False})) == [inside]


def test_classes_sorted_and_raw(server: Server, predictors: Predictors) -> None:
    for name in ("classifier", "labels"):
        expected = [each.probabilities for each in predictors[name].predict(["kopa", "ban the"])]
        found = rows(server.post(f"/tei/models/{name}/predict", {"inputs": [["kopa"], ["ban the"]]}))
        raw = rows(server.post(f"/tei/models/{name}/predict", {"inputs": [["kopa"], ["ban the"]], "raw_scores": True}))
        for mine, before, wanted in zip(found, raw, expected, strict=True):
            assert [each["score"] for each in mine] == sorted((each["score"] for each in mine), reverse=True)
            assert {each["label"]: each["score"] for each in mine} == pytest.approx(wanted, abs=1e-5)
            assert [each["label"] for each in before] == [each["label"] for each in mine]
            outputs = np.array([each["score"] for each in before])
            scores = 1 / (1 + np.exp(-outputs)) if name == "labels" else np.exp(outputs) / np.exp(outputs).sum()
            np.testing.assert_allclose([each["score"] for each in mine], scores, atol=1e-5)
        for single in ("kopa", ["kopa"]):
            mine = rows(server.post(f"/tei/models/{name}/predict", {"inputs": single}))
            assert {each["label"]: each["score"] for each in mine} == pytest.approx(expected[0], abs=1e-5)


def test_a_pair_has_one_score(server: Server, predictors: Predictors) -> None:
    [number] = predictors["cross-encoder"].predict([("ban", "kopa")])
    path = "/tei/models/cross-encoder/predict"
    raw = rows(server.post(path, {"inputs": ["ban", "kopa"], "raw_scores": True}))
    assert raw == [{"label": "LABEL_0", "score": pytest.approx(number.score, abs=1e-5)}]
    [scaled] = rows(server.post(path, {"inputs": ["ban", "kopa"]}))
    assert scaled["score"] == pytest.approx(1 / (1 + np.exp(-number.score)), abs=1e-5)


def test_ranks(server: Server, predictors: Predictors) -> None:
    for name in ("mlm", "cross-encoder"):
        expected = predictors[name].rerank("ban", TEXTS)
        path, asked = f"/tei/models/{name}/rerank", {"query": "ban", "texts": TEXTS, "return_text": True}
        raw = rows(server.post(path, {**asked, "raw_scores": True}))
        assert [each["index"] for each in raw] == np.argsort(-expected, kind="stable").tolist()
        assert [each["text"] for each in raw] == [TEXTS[each["index"]] for each in raw]
        np.testing.assert_allclose([each["score"] for each in raw], np.sort(expected)[::-1], atol=1e-4)
        found = rows(server.post(path, {**asked, "return_text": False}))
        wanted = 1 / (1 + np.exp(-expected)) if name == "cross-encoder" else expected
        np.testing.assert_allclose([each["score"] for each in found], np.sort(wanted)[::-1], atol=1e-4)
        assert "text" not in found[0]


def test_the_score_of_a_reranker_with_a_sigmoid_is_that_of_the_model(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    plain = predictors["cross-encoder"]
    model = replace(plain, task=replace(plain.task, activation="sigmoid"))  # type: ignore[type-var]
    with serving(replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000)})) as server:
        for raw, expected in ((False, model.rerank("ban", TEXTS)), (True, plain.rerank("ban", TEXTS))):
            found = rows(server.post("/tei/rerank", {"query": "ban", "texts": TEXTS, "raw_scores": raw}))
            scores = {each["index"]: each["score"] for each in found}
            np.testing.assert_allclose([scores[i] for i in range(3)], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "path", "message", "kind"),
    [
        ("mlm", "embed", {"inputs": TEXTS, "normalize": False}, "embedding"),
        ("classifier", "predict", {"inputs": [["kopa"], ["ban"]], "raw_scores": True}, "classifier"),
        ("cross-encoder", "rerank", {"query": "ban", "texts": TEXTS}, "reranker"),
        ("tagger", "embed", {"inputs": "kopa"}, "embedding"),
    ],
)
def test_the_base_does_what_the_kind_of_the_model_asks_for(
    name: str, path: str, message: dict[str, Any], kind: str, server: Server
) -> None:
    expected = rows(server.post(f"/tei/models/{name}/{path}", message))
    assert rows(server.post(f"/tei/models/{name}", message)) == expected
    assert rows(server.post(f"/tei/models/{name}/", message)) == expected
    info = rows(server.get(f"/tei/models/{name}/info"))
    assert list(info["model_type"]) == [kind]
    assert (info["model_id"], info["max_input_length"], info["model_dtype"]) == (name, 64, "float32")
    if name == "classifier":
        assert info["model_type"][kind]["id2label"] == {"0": "bad", "1": "good"}
        refused = server.post("/tei/models/classifier", {"inputs": "a", "normalize": True})
        assert refused.status == 422
        assert "unknown field; the fields are" in refused.json["error"]


def test_one_model_needs_no_name(make_service: Callable[..., Service], predictors: Predictors) -> None:
    """The client of huggingface_hub, with /tei as its base URL."""
    with serving(make_service("mlm"), Front(dialect="tei")) as server:
        for base in (f"{server.url}/tei", f"{server.url}/tei/", server.url):
            client = huggingface_hub.InferenceClient(base)
            expected = unit(predictors["mlm"].embed(["kopa"]))
            np.testing.assert_allclose(client.feature_extraction("kopa"), expected, atol=1e-5)
        for path in ("/tei/embed", "/embed"):
            np.testing.assert_allclose(rows(server.post(path, {"inputs": "kopa"})), expected, atol=1e-5)
        assert server.get("/tei/info").json == server.get("/tei/models/mlm/info").json
        health = server.get("/tei/health")
        assert (health.status, health.body) == (200, b"")
        assert b"bertie_ready 1.0" in server.get("/tei/metrics").body
        server.service.draining = True
        health = server.get("/tei/health")
        assert (health.status, health.json["error_type"]) == (503, "Unhealthy")


@pytest.mark.parametrize(
    ("path", "message", "status", "kind", "text"),
    [
        ("/tei/embed", {"inputs": "a"}, 422, "Validation", "use a base URL with the model, such as /tei/models/mlm"),
        (f"{MLM}/embed", {"inputs": ["a", LONG]}, 413, "Validation", "inputs[1] has 101 tokens"),
        (f"{MLM}/embed_all", {"inputs": LONG}, 413, "Validation", "inputs has 101 tokens"),
        (f"{MLM}/embed_all", {"inputs": [LONG]}, 413, "Validation", "inputs[0] has 101 tokens"),
        ("/tei/models/classifier/predict", {"inputs": LONG}, 413, "Validation", "inputs has 101 tokens"),
        ("/tei/models/classifier/predict", {"inputs": [[LONG]]}, 413, "Validation", "inputs[0] has 101 tokens"),
        (f"{MLM}/rerank", {"query": "a", "texts": [LONG]}, 413, "Validation", "texts[0] has 101 tokens"),
        (f"{MLM}/embed", {"inputs": "a", "truncation_direction": "Left"}, 422, "Validation", "truncation_direction:"),
        (f"{MLM}/embed", {"inputs": "a", "dimensions": 33}, 422, "Validation", "dimensions: the vectors have 32"),
        (f"{MLM}/embed", {"inputs": "a", "prompt_name": "x"}, 422, "Tokenizer", "there is no prompt 'x'"),
        (
            "/tei/models/classifier/predict",
            {"inputs": ["a", "b", "c"]},
            422,
            "Validation",
            "inputs: give a text, a pair",
        ),
        (
            "/tei/models/classifier/predict",
            {"inputs": [["a"], []]},
            422,
            "Validation",
            "inputs[1]: Expected `array` of length >= 1",
        ),
        ("/tei/models/classifier/predict", {"inputs": ["a", "b"]}, 422, "Tokenizer", "found two texts"),
        (MLM, {"inputs": "a", "query": "b"}, 422, "Validation", "unknown field"),
        (MLM, {}, 422, "Validation", "inputs: Object missing required field `inputs`"),
    ],
)
def test_wrong_requests_are_refused_in_its_form(
    path: str, message: object, status: int, kind: str, text: str, server: Server
) -> None:
    answer = server.post(path, message)
    assert (answer.status, list(answer.json)) == (status, ["error", "error_type"]), answer.body
    assert answer.json["error_type"] == kind
    assert text in answer.json["error"]


def test_too_long_texts_may_be_truncated(server: Server, predictors: Predictors) -> None:
    found = rows(server.post(f"{MLM}/embed", {"inputs": LONG, "truncate": True, "truncation_direction": "Right"}))
    np.testing.assert_allclose(found, unit(predictors["mlm"].embed([LONG])), atol=1e-5)


def test_its_paths_need_a_key(make_service: Callable[..., Service]) -> None:
    with serving(make_service("mlm", keys=ApiKeys((_digest(b"secret"),))), Front(dialect="tei")) as server:
        for path in ("/tei/embed", "/embed", "/tei", "/tei/models/mlm/rerank"):
            answer = server.post(path, {"inputs": "a"})
            assert (answer.status, answer.json["error_type"]) == (401, "Validation")
        assert server.get("/tei/info").status == 401
        assert server.get("/tei/health").status == 200
        assert server.post("/tei", {"inputs": "a"}, Authorization="Bearer secret").status == 200
