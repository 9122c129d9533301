"""The dialect of Cohere's API. The messages are those that cohere 7.3 sends;

`tests/long/service_clients.py` runs the client itself.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.predict.predictor import Predictor
from bertie.serve.service import Service

from ..conftest import Server, close, serving, unit

TEXTS = ["kopa", "ban the kopa", "the"]


@pytest.fixture(scope="module")
def models(predictors: dict[str, Predictor]) -> dict[str, Predictor]:
    prompts = {"search_query": "the ", "document": "ban "}
    found = replace(predictors["mlm"], text_embedding=SentenceEmbedding(prompts=prompts))
    return {"mlm": predictors["mlm"], "prompts": found, "cross-encoder": predictors["cross-encoder"]}


@pytest.fixture(scope="module")
def served(make_service: Callable[..., Service], models: dict[str, Predictor]) -> Iterator[Server]:
    with serving(make_service(others=models, widths=(8, 12))) as server:
        yield server


def test_vectors_of_version_1_are_a_list(served: Server, models: dict[str, Predictor]) -> None:
    for base, more in (("/cohere", {}), ("", {"embedding_types": []})):
        asked = {"texts": TEXTS, "model": "mlm", "input_type": "classification", **more}
        answer = served.post(f"{base}/v1/embed", asked).json
        close(answer["embeddings"], models["mlm"].embed(TEXTS))
        assert (answer["response_type"], answer["texts"]) == ("embeddings_floats", TEXTS)
        tokens = sum(len(ids) + 2 for ids in models["mlm"].tokenizer.encode(TEXTS))
        assert answer["meta"]["billed_units"] == answer["meta"]["tokens"] == {"input_tokens": tokens}
        assert answer["meta"]["api_version"] == {"version": "1"}
        assert answer["id"]


def test_every_type_of_vectors(served: Server, models: dict[str, Predictor]) -> None:
    expected = models["mlm"].embed(TEXTS)
    types = ["float", "base64", "binary", "ubinary"]
    for path in ("/cohere/v1/embed", "/v2/embed"):
        answer = served.post(path, {"texts": TEXTS, "model": "mlm", "embedding_types": types}).json
        assert answer["response_type"] == "embeddings_by_type"
        found = answer["embeddings"]
        assert found.keys() == set(types)
        close(found["float"], expected)
        decoded = [np.frombuffer(base64.b64decode(each), "<f4") for each in found["base64"]]
        close(decoded, expected)
        signs = np.unpackbits(np.array(found["ubinary"], np.uint8), axis=1)
        np.testing.assert_array_equal(signs, expected > 0)
        np.testing.assert_array_equal(np.array(found["binary"]) + 128, found["ubinary"])


def test_version_2_reads_texts_or_inputs(served: Server, models: dict[str, Predictor]) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    whole = models["prompts"].embed(TEXTS, prompt_name="search_query")
    for given in ({"texts": TEXTS}, {"inputs": inputs, "texts": None}):
        asked = {"model": "prompts", "input_type": "search_query", "max_tokens": 64, "priority": 3, **given}
        answer = served.post("/cohere/v2/embed", asked).json
        close(answer["embeddings"]["float"], whole)
        assert answer["texts"] == TEXTS
        answer = served.post("/cohere/v2/embed", {**asked, "output_dimension": 8}).json
        close(answer["embeddings"]["float"], unit(whole[:, :8]))
    answer = served.post("/cohere/v2/embed", {"texts": TEXTS, "model": "prompts", "input_type": "search_document"}).json
    documents = models["prompts"].embed(TEXTS, prompt_name="document")
    close(answer["embeddings"]["float"], documents)
    answer = served.post("/cohere/v2/embed", {"texts": ["a " * 99], "model": "mlm"}).json
    assert answer["meta"]["warnings"] == ["1 of the texts were truncated"]


def test_version_1_ranks_objects(served: Server, models: dict[str, Predictor]) -> None:
    documents: list[Any] = [{"title": "the", "text": "kopa", "id": "5"}, {"text": "ban", "title": "kopa"}]
    for fields, texts in ((None, ["kopa", "ban"]), (["title", "text"], ["the\nkopa", "kopa\nban"])):
        asked = {"model": "mlm", "query": "kopa", "documents": documents, "rank_fields": fields}
        answer = served.post("/cohere/v1/rerank", {**asked, "return_documents": True, "max_chunks_per_doc": 1}).json
        found = {each["index"]: each for each in answer["results"]}
        close([found[i]["relevance_score"] for i in range(2)], models["mlm"].rerank("kopa", texts), 1e-4)
        assert [found[i]["document"] for i in range(2)] == documents
        assert answer["meta"]["api_version"] == {"version": "1"}


def test_the_path_of_the_own_api_stays(served: Server) -> None:
    asked = {"model": "mlm", "query": "a", "documents": ["b"]}
    assert served.post("/v1/rerank", asked).json["method"] == "cosine"
