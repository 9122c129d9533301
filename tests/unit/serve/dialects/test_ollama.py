"""The dialect of Ollama's API. The messages are those that ollama 0.6 sends;

`tests/long/service_clients.py` runs the client itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from bertie import __version__
from bertie.predict.predictor import Predictor
from bertie.serve.service import Service

from ..conftest import Server, close, serving, unit

TEXTS = ["kopa", "ban the kopa", ""]


@pytest.fixture(scope="module")
def served(make_service: Callable[..., Service]) -> Iterator[Server]:
    with serving(make_service("mlm", "tagger", widths=(8,))) as server:
        yield server


def test_vectors_have_length_1(served: Server, predictors: dict[str, Predictor]) -> None:
    model = predictors["mlm"]
    for name, given, texts in (("mlm", TEXTS, TEXTS), ("mlm:latest", "kopa", ["kopa"])):
        for width in (None, 0, 8, 32):
            asked = {"model": name, "input": given, "options": {"num_ctx": 9}, "keep_alive": "5m", "dimensions": width}
            answer = served.post("/ollama/api/embed", asked).json
            close(answer["embeddings"], unit(model.embed(texts)[:, : width or None]))
            assert answer["model"] == name
            assert answer["prompt_eval_count"] == sum(len(ids) + 2 for ids in model.tokenizer.encode(texts))
            assert answer["total_duration"] > 1000
            assert answer["load_duration"] == 0
    assert served.post("/api/embed", {"model": "mlm", "input": ""}).json["embeddings"] == []
    assert served.post("/api/embed", {"model": "mlm", "input": []}).json["embeddings"] == []


def test_the_older_path_gives_the_vector_itself(served: Server, predictors: dict[str, Predictor]) -> None:
    for base in ("/ollama", ""):
        answer = served.post(f"{base}/api/embeddings", {"model": "mlm", "prompt": "kopa", "keep_alive": 60})
        close(answer.json["embedding"], predictors["mlm"].embed(["kopa"])[0])
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
