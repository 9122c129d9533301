"""The dialect of Ollama's API. The messages are those that ollama 0.6 sends;

`tests/long/service_clients.py` runs the client itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from bertie import __version__
from bertie.predict.predictor import Predictor
from bertie.serve.operations import serve_model
from bertie.serve.service import Service

from ..conftest import Server, serving

TEXTS = ["kopa", "ban the kopa", ""]


@pytest.fixture(scope="module")
def served(make_service: Callable[..., Service], predictors: dict[str, Predictor]) -> Iterator[Server]:
    found = {name: serve_model(name, predictors[name], 10_000, (8,)) for name in ("mlm", "tagger")}
    with serving(replace(make_service("mlm"), models=found)) as server:
        yield server


def test_vectors_have_length_1(served: Server, predictors: dict[str, Predictor]) -> None:
    model = predictors["mlm"]
    for name, given, texts in (
        ("mlm", TEXTS, TEXTS),
        ("mlm:latest", "kopa", ["kopa"]),
    ):
        for width in (None, 0, 8, 32):
            asked = {"model": name, "input": given, "options": {"num_ctx": 9}, "keep_alive": "5m", "dimensions": width}
            answer = served.post("/ollama/api/embed", asked).json
            cut = model.embed(texts)[:, : width or None]
            expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
            np.testing.assert_allclose(answer["embeddings"], expected, atol=1e-5)
            assert answer["model"] == name
            assert answer["prompt_eval_count"] == sum(len(ids) + 2 for ids in model.tokenizer.encode(texts))
            assert answer["total_duration"] > 1000
            assert answer["load_duration"] == 0
    assert served.post("/api/embed", {"model": "mlm", "input": ""}).json["embeddings"] == []
    assert served.post("/api/embed", {"model": "mlm", "input": []}).json["embeddings"] == []


def test_the_older_path_gives_the_vector_itself(served: Server, predictors: dict[str, Predictor]) -> None:
    for base in ("/ollama", ""):
        answer = served.post(f"{base}/api/embeddings", {"model": "mlm", "prompt": "kopa", "keep_alive": 60})
        np.testing.assert_allclose(answer.json["embedding"], predictors["mlm"].embed(["kopa"])[0], atol=1e-5)
    assert served.post("/api/embeddings", {"model": "mlm", "prompt": ""}).json == {"embedding": []}


def test_models_and_version(served: Server, predictors: dict[str, Predictor]) -> None:
    listed = served.get("/ollama/api/tags").json["models"]
    assert [each["name"] for each in listed] == [each["model"] for each in listed] == ["mlm:latest", "tagger:latest"]
    model = predictors["mlm"].model
    assert listed[0]["size"] == 4 * model.size
    assert listed[0]["details"]["parameter_size"] == f"{model.size / 1e6:.1f}M"
    assert datetime.fromisoformat(listed[0]["modified_at"]).tzinfo is not None
    for given in ({"model": "mlm"}, {"name": "mlm:latest", "verbose": True}):
        shown = served.post("/ollama/api/show", given).json
        assert shown["model_info"]["transformer.context_length"] == 64
        assert shown["model_info"]["transformer.embedding_length"] == 32
        assert shown["model_info"]["general.parameter_count"] == model.size
        assert shown["capabilities"] == ["embedding"]
        assert shown["details"] == listed[0]["details"]
    assert served.get("/ollama/api/version").json == {"version": __version__}


@pytest.mark.parametrize(
    ("path", "message", "status", "text"),
    [
        ("embed", {"model": "llama3", "input": "a"}, 404, "no model has this name: the models are mlm, tagger"),
        ("embed", {"model": "mlm", "input": ["b", "a " * 99], "truncate": False}, 422, "input[1] has 101 tokens"),
        ("embed", {"model": "mlm", "input": "a " * 99, "truncate": False}, 422, "input has 101 tokens"),
        ("embed", {"model": "mlm", "input": "a", "dimensions": 9}, 422, "can be shortened: give 8 or 32"),
        ("embeddings", {"model": "mlm", "prompt": "a" * 100_001}, 413, "shorten prompt"),
    ],
)
def test_errors_have_the_form_of_the_api(served: Server, path: str, message: Any, status: int, text: str) -> None:
    answer = served.post(f"/ollama/api/{path}", message)
    assert answer.status == status
    assert list(answer.json) == ["error"]
    assert text in answer.json["error"]
