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
from bertie.serve.service import Service

from ..conftest import Answer, Server, close, serving, unit

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]
LONG = "b " * 99
MLM = {"model": "mlm"}


def answered(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    assert answer.json["id"].endswith(f"-{answer.headers['x-request-id']}")
    assert answer.json["usage"]["total_tokens"] > 0
    return answer.json


def test_scores_of_pairs(server: Server, predictors: Predictors) -> None:
    first, second = ["ban", "the", "kopa"], TEXTS
    for name in ("mlm", "cross-encoder"):
        matrix = np.stack([predictors[name].rerank(text, second) for text in first])
        for one, other in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            for path in ("/vllm/score", "/vllm/v1/score"):
                found = answered(server.post(path, {"model": name, one: first, other: second}))
                assert [(each["index"], each["object"]) for each in found["data"]] == [(i, "score") for i in range(3)]
                close([each["score"] for each in found["data"]], np.diag(matrix), 1e-4)
        single = answered(server.post("/vllm/score", {"model": name, "text_1": "ban", "text_2": second}))
        close([each["score"] for each in single["data"]], matrix[0], 1e-4)
        pair = answered(server.post("/vllm/score", {"model": name, "text_1": ["ban"], "text_2": "kopa"}))
        close([each["score"] for each in pair["data"]], matrix[0, :1], 1e-4)


def test_vectors_of_texts_and_of_tokens(server: Server, predictors: Predictors) -> None:
    model = predictors["mlm"]
    texts = answered(server.post("/vllm/pooling", {**MLM, "input": TEXTS, "task": "embed", "dimensions": 32}))
    close([each["data"] for each in texts["data"]], model.embed(TEXTS))
    for use in (None, True):
        message = {**MLM, "input": TEXTS, "task": "token_embed", "use_activation": use, "encoding_format": "base64"}
        found = answered(server.post("/vllm/pooling", {**message, "endianness": "little"}))["data"]
        for mine, states in zip(found, model.hidden_states(TEXTS), strict=True):
            vectors = np.frombuffer(base64.b64decode(mine["data"]), "<f4").reshape(-1, 32)
            close(vectors, unit(states[-1]) if use else states[-1])
    wrong = server.post("/vllm/pooling", {**MLM, "input": TEXTS, "task": "token_embed", "dimensions": 8})
    assert (wrong.status, wrong.error["param"]) == (422, "dimensions")


def test_the_files_of_a_model_decide_whether_vectors_are_normalized(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    model = replace(predictors["mlm"], text_embedding=SentenceEmbedding(modules=(Normalize(),)))
    with serving(make_service(others={"it": model})) as server:
        [found] = answered(server.post("/vllm/pooling", {"input": "kopa", "task": "token_embed"}))["data"]
        close(found["data"], unit(model.hidden_states(["kopa"])[0][-1]))
        refused = server.post("/vllm/pooling", {"input": "kopa", "task": "embed", "use_activation": False})
        assert (refused.status, refused.error["param"]) == (422, "use_activation")


def test_texts_lose_what_the_request_says(server: Server, predictors: Predictors) -> None:
    for most, tokens in ((-1, 64), (64, 64), (9, 9)):
        message = {**MLM, "input": LONG, "task": "embed", "truncate_prompt_tokens": most, "truncation_side": "right"}
        found = answered(server.post("/vllm/pooling", message))
        assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "truncated": 1}
        expected = replace(predictors["mlm"], max_length=tokens).embed([LONG])
        close(found["data"][0]["data"], expected[0])
    message = {"model": "cross-encoder", "text_1": "ban", "text_2": [LONG], "truncate_prompt_tokens": 9}
    [found] = answered(server.post("/vllm/score", message))["data"]
    [expected] = replace(predictors["cross-encoder"], max_length=9).rerank("ban", [LONG])
    assert found["score"] == pytest.approx(expected, abs=1e-5)
