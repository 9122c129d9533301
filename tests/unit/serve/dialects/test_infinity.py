"""The dialect of infinity: its paths, fields, defaults and errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest

from bertie.predict.predictor import Predictor
from bertie.serve.service import Service

from ..conftest import Answer, Server, close, serving

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
    close([each["embedding"] for each in data], expected)
    assert [(each["index"], each["object"]) for each in data] == [(i, "embedding") for i in range(3)]
    long = {"model": "mlm", "input": "b " * 99, "encoding_format": "base64", "dimensions": 32}
    found = answered(server.post("/infinity/embeddings", long), "list")
    assert found["usage"]["truncated"] == 1
    vector = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
    close(vector, predictors["mlm"].embed(["b " * 99])[0])


def test_the_client_of_openai_works(server: Server, predictors: Predictors) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/infinity", api_key="none", max_retries=0)
    [found] = client.embeddings.create(input=["kopa"], model="mlm").data
    close(found.embedding, predictors["mlm"].embed(["kopa"])[0])
    assert {each.id for each in client.models.list().data} == set(predictors)
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions: the vectors have width 32, and cannot be"):
        client.embeddings.create(input="kopa", model="mlm", dimensions=16)


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
