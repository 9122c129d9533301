"""Outputs that are NaN or infinity: an error that names the text, never an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from bertie.base.errors import UserError
from bertie.predict.predictor import Predictor
from bertie.serve.service import Service

from .conftest import Server, serving, wait_until

GOOD, BAD = "ban", "kopa"


def embedding(predictor: Predictor) -> nn.Embedding:
    """The embeddings of the tokens."""
    [found] = [
        each
        for each in predictor.model.encoder.modules()
        if isinstance(each, nn.Embedding) and each.num_embeddings >= predictor.tokenizer.size
    ]
    return found


@pytest.fixture(scope="module")
def damaged(make_service: Callable[..., Service], predictors: dict[str, Predictor]) -> Iterator[Server]:
    """A server with all models, each of which has a token with a damaged embedding."""
    changed = []
    for number, predictor in enumerate(predictors.values()):
        good, bad = (set(predictor.text_sequences([text], "")[0].input_ids.tolist()) for text in (GOOD, BAD))
        token = min(bad - good)
        row = embedding(predictor).weight.data[token]
        changed.append((row, row.clone()))
        row[0] = (torch.nan, torch.inf)[number % 2]
    with serving(make_service(*predictors)) as running:
        yield running
    for row, before in changed:
        row.copy_(before)


CASES = [
    ("mlm", "/v1/embeddings", {"input": [GOOD, BAD]}, "input[1]"),
    ("mlm", "/v1/embeddings", {"input": BAD, "encoding_format": "base64"}, "input"),
    ("classifier", "/v1/embeddings", {"input": [GOOD, BAD]}, "input[1]"),
    ("mlm", "/v1/similarity", {"texts": [GOOD], "others": [GOOD, BAD]}, "others[1]"),
    ("mlm", "/v1/rerank", {"query": GOOD, "documents": [GOOD, BAD]}, "documents[1]"),
    ("mlm", "/v1/rerank", {"query": BAD, "documents": [GOOD]}, "query"),
    ("cross-encoder", "/v1/rerank", {"query": GOOD, "documents": [GOOD, BAD]}, "documents[1]"),
    ("classifier", "/v1/predict", {"inputs": [GOOD, BAD]}, "inputs[1]"),
    ("labels", "/v1/predict", {"inputs": [GOOD, BAD]}, "inputs[1]"),
    ("cross-encoder", "/v1/predict", {"inputs": [[GOOD, GOOD], [GOOD, BAD]]}, "inputs[1]"),
    ("span", "/v1/predict", {"inputs": [[GOOD, GOOD], [GOOD, BAD]]}, "inputs[1]"),
    ("tagger", "/v1/predict", {"inputs": [[GOOD], [GOOD, BAD]]}, "inputs[1]"),
    ("choice", "/v1/predict", {"inputs": [[GOOD, GOOD, GOOD], [GOOD, GOOD, BAD]]}, "inputs[1]"),
    ("mlm", "/v1/fill-mask", {"inputs": [f"{BAD} [MASK]"]}, "inputs[0]"),
    ("mlm", "/v1/attention", {"text": GOOD, "text_pair": BAD}, "text"),
    ("mlm", "/vllm/pooling", {"input": [GOOD, BAD], "task": "token_embed"}, "input[1]"),
]


@pytest.mark.parametrize(("model", "path", "message", "param"), CASES)
def test_the_text_is_named(model: str, path: str, message: dict[str, Any], param: str, damaged: Server) -> None:
    answer = damaged.post(path, {"model": model} | message)
    assert answer.status == 500, answer.body
    assert param in answer.error["message"]
    assert "NaN or infinity" in answer.error["message"]
    if path.startswith("/v1"):
        assert (answer.error["code"], answer.error["param"]) == ("engine", param)


def test_it_is_counted_and_breaks_no_model(damaged: Server, capfd: pytest.CaptureFixture[str]) -> None:
    def count() -> float:
        lines = damaged.get("/metrics").body.decode().splitlines()
        name = 'bertie_nonfinite_sequences_total{model="mlm"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    # The one worker counts a batch after its answers, and before the next batch.
    assert damaged.post("/v1/embeddings", {"input": GOOD, "model": "mlm"}).status == 200
    before = count()
    for _ in range(5):
        assert damaged.post("/v1/embeddings", {"input": [BAD, GOOD, BAD], "model": "mlm"}).status == 500
    wait_until(lambda: count() == before + 10)
    assert damaged.post("/v1/embeddings", {"input": GOOD, "model": "mlm"}).status == 200
    assert damaged.get("/readyz").status == 200
    damaged.service.log.event("end")
    wait_until(lambda: damaged.service.log._lines.empty())
    failed = [line for line in map(json.loads, capfd.readouterr().err.splitlines()) if line["event"] == "batch_failed"]
    assert [(line["error"], line["sequences"]) for line in failed[-5:]] == [
        ("bertie.base.errors.NonFiniteError", 2)
    ] * 5


def test_a_model_whose_vectors_are_never_finite_is_not_served(
    make_service: Callable[..., Service], predictors: dict[str, Predictor]
) -> None:
    service = make_service("mlm")
    weight = embedding(predictors["mlm"]).weight.data
    before = weight.clone()
    weight.fill_(torch.nan)
    try:

        async def start() -> None:
            service.start()

        with pytest.raises(UserError, match="its vectors are NaN or infinity: the model is damaged"):
            asyncio.run(start())
    finally:
        weight.copy_(before)
        service.log.close()
