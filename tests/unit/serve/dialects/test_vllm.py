"""The dialect of vLLM: its paths, fields, defaults and errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.heads.vector_modules import Normalize
from bertie.predict.predictor import Predictor
from bertie.serve.keys import ApiKeys, _digest
from bertie.serve.limits import Front
from bertie.serve.operations import serve_model
from bertie.serve.service import Service

from ..conftest import Answer, Server, serving

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]
LONG = "b " * 99
MLM = {"model": "mlm"}


def answered(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    assert answer.json["id"].endswith(f"-{answer.headers['x-request-id']}")
    assert answer.json["usage"]["total_tokens"] > 0
    return answer.json


def test_ranks(server: Server, predictors: Predictors) -> None:
    for name in ("mlm", "cross-encoder"):
        expected = predictors[name].rerank("ban", TEXTS)
        order = np.argsort(-expected, kind="stable").tolist()
        asked = {"model": name, "query": "ban", "documents": TEXTS, "user": "me", "request_id": "1", "cache_salt": "x"}
        for path in ("/vllm/rerank", "/vllm/v1/rerank", "/vllm/v2/rerank"):
            for most in (0, 1):
                results = answered(server.post(path, {**asked, "top_n": most}))["results"]
                shown = order[: most or None]
                assert [each["index"] for each in results] == shown
                assert [each["document"] for each in results] == [{"text": TEXTS[i]} for i in shown]
                np.testing.assert_allclose([each["relevance_score"] for each in results], expected[shown], atol=1e-4)
        bare = answered(server.post("/vllm/rerank", {**asked, "return_documents": False}))["results"]
        assert [each.keys() for each in bare] == [{"index", "relevance_score"}] * 3


def test_scores_of_pairs(server: Server, predictors: Predictors) -> None:
    first, second = ["ban", "the", "kopa"], TEXTS
    for name in ("mlm", "cross-encoder"):
        matrix = np.stack([predictors[name].rerank(text, second) for text in first])
        for one, other in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            for path in ("/vllm/score", "/vllm/v1/score"):
                found = answered(server.post(path, {"model": name, one: first, other: second}))
                assert [(each["index"], each["object"]) for each in found["data"]] == [(i, "score") for i in range(3)]
                np.testing.assert_allclose([each["score"] for each in found["data"]], np.diag(matrix), atol=1e-4)
        single = answered(server.post("/vllm/score", {"model": name, "text_1": "ban", "text_2": second}))
        np.testing.assert_allclose([each["score"] for each in single["data"]], matrix[0], atol=1e-4)
        pair = answered(server.post("/vllm/score", {"model": name, "text_1": ["ban"], "text_2": "kopa"}))
        np.testing.assert_allclose([each["score"] for each in pair["data"]], matrix[0, :1], atol=1e-4)


def test_the_activation_of_a_reranker_may_be_left_out(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    plain = predictors["cross-encoder"]
    model = replace(plain, task=replace(plain.task, activation="sigmoid"))  # type: ignore[type-var]
    with serving(replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000)})) as server:
        for use, expected in ((None, model), (True, model), (False, plain)):
            message = {"text_1": "ban", "text_2": TEXTS, "use_activation": use}
            found = answered(server.post("/vllm/score", message))["data"]
            np.testing.assert_allclose([each["score"] for each in found], expected.rerank("ban", TEXTS), atol=1e-5)


def test_classes(server: Server, predictors: Predictors) -> None:
    for name in ("classifier", "labels"):
        expected = [each.probabilities for each in predictors[name].predict(TEXTS)]
        found = answered(server.post("/vllm/classify", {"model": name, "input": TEXTS}))["data"]
        raw = answered(server.post("/vllm/classify", {"model": name, "input": TEXTS, "use_activation": False}))["data"]
        pooled = answered(server.post("/vllm/pooling", {"model": name, "input": TEXTS, "task": "classify"}))["data"]
        for number, (mine, before, wanted) in enumerate(zip(found, raw, expected, strict=True)):
            assert mine["probs"] == pytest.approx(list(wanted.values()), abs=1e-5)
            assert pooled[number]["data"] == pytest.approx(mine["probs"], abs=1e-5)
            best = max(wanted, key=wanted.__getitem__)
            assert (mine["index"], mine["label"], mine["num_classes"]) == (number, best, len(wanted))
            outputs = np.array(before["probs"])
            scores = 1 / (1 + np.exp(-outputs)) if name == "labels" else np.exp(outputs) / np.exp(outputs).sum()
            np.testing.assert_allclose(mine["probs"], scores, atol=1e-5)


def test_vectors_of_texts_and_of_tokens(server: Server, predictors: Predictors) -> None:
    model = predictors["mlm"]
    texts = answered(server.post("/vllm/pooling", {**MLM, "input": TEXTS, "task": "embed", "dimensions": 32}))
    np.testing.assert_allclose([each["data"] for each in texts["data"]], model.embed(TEXTS), atol=1e-5)
    for use in (None, True):
        message = {**MLM, "input": TEXTS, "task": "token_embed", "use_activation": use, "encoding_format": "base64"}
        found = answered(server.post("/vllm/pooling", {**message, "endianness": "little"}))["data"]
        for mine, states in zip(found, model.hidden_states(TEXTS), strict=True):
            wanted = states[-1] / np.linalg.norm(states[-1], axis=1, keepdims=True) if use else states[-1]
            vectors = np.frombuffer(base64.b64decode(mine["data"]), "<f4").reshape(-1, 32)
            np.testing.assert_allclose(vectors, wanted, atol=1e-5)


def test_vectors_may_be_shorter(make_service: Callable[..., Service], predictors: Predictors) -> None:
    model, asked = predictors["mlm"], {"input": TEXTS, "dimensions": 8}
    with serving(replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000, (8,))})) as server:
        found = answered(server.post("/vllm/pooling", {**asked, "task": "embed"}))["data"]
        cut = model.embed(TEXTS)[:, :8]
        expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose([each["data"] for each in found], expected, atol=1e-5)
        wrong = ({"task": "token_embed"}, {"dimensions": 9})
        for other in wrong:
            refused = server.post("/vllm/pooling", {"task": "embed", **asked, **other})
            assert (refused.status, refused.error["param"]) == (422, "dimensions"), other


def test_the_files_of_a_model_decide_whether_vectors_are_normalized(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    model = replace(predictors["mlm"], text_embedding=SentenceEmbedding(modules=(Normalize(),)))
    with serving(replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000)})) as server:
        [found] = answered(server.post("/vllm/pooling", {"input": "kopa", "task": "token_embed"}))["data"]
        states = model.hidden_states(["kopa"])[0][-1]
        np.testing.assert_allclose(found["data"], states / np.linalg.norm(states, axis=1, keepdims=True), atol=1e-5)
        refused = server.post("/vllm/pooling", {"input": "kopa", "task": "embed", "use_activation": False})
        assert (refused.status, refused.error["param"]) == (422, "use_activation")


def test_texts_lose_what_the_request_says(server: Server, predictors: Predictors) -> None:
    for most, tokens in ((-1, 64), (64, 64), (9, 9)):
        message = {**MLM, "input": LONG, "task": "embed", "truncate_prompt_tokens": most, "truncation_side": "right"}
        found = answered(server.post("/vllm/pooling", message))
        assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "truncated": 1}
        expected = replace(predictors["mlm"], max_length=tokens).embed([LONG])
        np.testing.assert_allclose(found["data"][0]["data"], expected[0], atol=1e-5)
    message = {"model": "cross-encoder", "text_1": "ban", "text_2": [LONG], "truncate_prompt_tokens": 9}
    [found] = answered(server.post("/vllm/score", message))["data"]
    [expected] = replace(predictors["cross-encoder"], max_length=9).rerank("ban", [LONG])
    assert found["score"] == pytest.approx(expected, abs=1e-5)


RANK = {"query": "a", "documents": "b"}
EMBED = {"input": "a", "task": "embed"}


@pytest.mark.parametrize(
    ("path", "message", "param", "text"),
    [
        ("score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1", "text_1 has 2 texts and text_2 1"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a"] * 3}, "text_1", "as many as in text_2"),
        ("score", {"text_1": "a"}, "text_1", "text_1: give text_1 and text_2, or queries and documents"),
        ("score", {"text_1": "a", "documents": "b"}, "documents", "documents, text_1: give text_1 and text_2"),
        ("score", {}, None, "the texts are missing: give text_1"),
        ("score", {"text_1": [], "text_2": "a"}, "text_1", "length >= 1"),
        ("score", {"text_1": "a", "text_2": LONG}, "text_2", "shorten it, or set truncate_prompt_tokens to -1"),
        ("score", {"text_1": ["a", LONG], "text_2": ["a", "a"]}, "text_1[1]", "text_1[1] has 101 tokens"),
        ("rerank", {**RANK, "priority": 1}, "priority", "Invalid enum value 1"),
        (
            "rerank",
            {**RANK, "truncation_side": "left"},
            "truncation_side",
            "Invalid enum value 'left'",
        ),
        ("rerank", {**RANK, "truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "to 64"),
        ("rerank", {**RANK, "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "from 6"),
        (
            "classify",
            {"input": "a", "add_special_tokens": False},
            "add_special_tokens",
            "the models read special tokens: omit it",
        ),
        ("pooling", {"input": [5], "task": "classify"}, "input", "input: give texts"),
        ("pooling", {"input": LONG, "task": "classify"}, "input", "input has 101 tokens"),
        ("classify", {"input": LONG}, "input", "input has 101 tokens"),
        ("rerank", {"query": "a", "documents": LONG}, "documents", "documents has 101 tokens"),
        ("rerank", {"query": "a", "documents": [LONG]}, "documents[0]", "documents[0] has 101 tokens"),
        ("pooling", {"input": LONG, "task": "token_embed"}, "input", "input has 101 tokens"),
        ("pooling", {"input": [LONG], "task": "token_embed"}, "input[0]", "input[0] has 101 tokens"),
    ],
)
def test_wrong_requests_are_refused_in_its_form(
    path: str, message: dict[str, Any], param: str | None, text: str, server: Server
) -> None:
    name = "classifier" if path == "classify" or message.get("task") == "classify" else "mlm"
    answer = server.post(f"/vllm/{path}", {"model": name} | message)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (422, 422, param), answer.body
    assert text in answer.error["message"]


def test_contested_paths_and_keys(make_service: Callable[..., Service]) -> None:
    with serving(make_service("classifier")) as server:
        refused = server.post("/classify", {"input": "a"})
        assert refused.status == 404
        assert "/infinity/classify (--dialect infinity) or /vllm/classify" in refused.error["message"]
        assert server.post("/v1/score", {"text_1": "a", "text_2": "b"}).status == 200
        assert server.post("/score", {"text_1": "a", "text_2": "b"}).status == 200
        assert server.get("/vllm/health").body == b""
        server.service.draining = True
        assert server.get("/vllm/health").status == 503
    with serving(make_service("classifier", keys=ApiKeys((_digest(b"secret"),))), Front(dialect="vllm")) as server:
        assert server.post("/classify", {"input": "a"}).status == 401
        found = server.post("/classify", {"input": "a"}, Authorization="Bearer secret")
        assert found.json["data"][0]["num_classes"] == 2
