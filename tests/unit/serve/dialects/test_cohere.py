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
from bertie.serve.operations import serve_model
from bertie.serve.service import Service

from ..conftest import Server, serving

TEXTS = ["kopa", "ban the kopa", "the"]


@pytest.fixture(scope="module")
def models(predictors: dict[str, Predictor]) -> dict[str, Predictor]:
    prompts = {"search_query": "the ", "document": "ban "}
    found = replace(predictors["mlm"], text_embedding=SentenceEmbedding(prompts=prompts))
    return {"mlm": predictors["mlm"], "prompts": found, "cross-encoder": predictors["cross-encoder"]}


@pytest.fixture(scope="module")
def served(make_service: Callable[..., Service], models: dict[str, Predictor]) -> Iterator[Server]:
    found = {name: serve_model(name, model, 10_000, (8, 12)) for name, model in models.items()}
    with serving(replace(make_service("mlm"), models=found)) as server:
        yield server


def test_vectors_of_version_1_are_a_list(served: Server, models: dict[str, Predictor]) -> None:
    for base, more in (("/cohere", {}), ("", {"embedding_types": []})):
        asked = {"texts": TEXTS, "model": "mlm", "input_type": "classification", **more}
        answer = served.post(f"{base}/v1/embed", asked).json
        np.testing.assert_allclose(answer["embeddings"], models["mlm"].embed(TEXTS), atol=1e-5)
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
        np.testing.assert_allclose(found["float"], expected, atol=1e-5)
        decoded = [np.frombuffer(base64.b64decode(each), "<f4") for each in found["base64"]]
        np.testing.assert_allclose(decoded, expected, atol=1e-5)
        signs = np.unpackbits(np.array(found["ubinary"], np.uint8), axis=1)
        np.testing.assert_array_equal(signs, expected > 0)
        np.testing.assert_array_equal(np.array(found["binary"]) + 128, found["ubinary"])


def test_version_2_reads_texts_or_inputs(served: Server, models: dict[str, Predictor]) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    whole = models["prompts"].embed(TEXTS, prompt_name="search_query")
    for given in ({"texts": TEXTS}, {"inputs": inputs, "texts": None}):
        asked = {"model": "prompts", "input_type": "search_query", "max_tokens": 64, "priority": 3, **given}
        answer = served.post("/cohere/v2/embed", asked).json
        np.testing.assert_allclose(answer["embeddings"]["float"], whole, atol=1e-5)
        assert answer["texts"] == TEXTS
        answer = served.post("/cohere/v2/embed", {**asked, "output_dimension": 8}).json
        cut = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose(answer["embeddings"]["float"], cut, atol=1e-5)
    answer = served.post("/cohere/v2/embed", {"texts": TEXTS, "model": "prompts", "input_type": "search_document"}).json
    documents = models["prompts"].embed(TEXTS, prompt_name="document")
    np.testing.assert_allclose(answer["embeddings"]["float"], documents, atol=1e-5)
    answer = served.post("/cohere/v2/embed", {"texts": ["a " * 99], "model": "mlm"}).json
    assert answer["meta"]["warnings"] == ["1 of the texts were truncated"]


@pytest.mark.parametrize("name", ["mlm", "prompts", "cross-encoder"])
def test_ranking(served: Server, models: dict[str, Predictor], name: str) -> None:
    scores = models[name].rerank("kopa", TEXTS)
    for path in ("/cohere/v1/rerank", "/cohere/v2/rerank"):
        answer = served.post(path, {"model": name, "query": "kopa", "documents": TEXTS, "top_n": 2}).json
        results = answer["results"]
        assert [each["index"] for each in results] == np.argsort(-scores, kind="stable")[:2].tolist()
        np.testing.assert_allclose([each["relevance_score"] for each in results], np.sort(scores)[::-1][:2], atol=1e-4)
        assert all(each.keys() == {"index", "relevance_score"} for each in results)
        assert answer["meta"]["api_version"] == {"version": path[9]}
        asked = {
            "model": name,
            "query": "kopa",
            "documents": TEXTS,
            "return_documents": True,
        }  # of version 2, from litellm
        found = served.post(path, asked).json["results"]
        assert [each["document"] for each in found] == [{"text": TEXTS[each["index"]]} for each in found]


def test_version_1_ranks_objects(served: Server, models: dict[str, Predictor]) -> None:
    documents: list[Any] = [{"title": "the", "text": "kopa", "id": "5"}, {"text": "ban", "title": "kopa"}]
    for fields, texts in ((None, ["kopa", "ban"]), (["title", "text"], ["the\nkopa", "kopa\nban"])):
        asked = {"model": "mlm", "query": "kopa", "documents": documents, "rank_fields": fields}
        answer = served.post("/cohere/v1/rerank", {**asked, "return_documents": True, "max_chunks_per_doc": 1}).json
        found = {each["index"]: each for each in answer["results"]}
        np.testing.assert_allclose(
            [found[i]["relevance_score"] for i in range(2)], models["mlm"].rerank("kopa", texts), atol=1e-4
        )
        assert [found[i]["document"] for i in range(2)] == documents
    asked = {"model": "mlm", "query": "a", "documents": ["b"], "return_documents": True}
    assert served.post("/cohere/v1/rerank", asked).json["results"][0]["document"] == {"text": "b"}


EMBED: dict[str, Any] = {"model": "mlm", "texts": ["a"]}
RANK: dict[str, Any] = {"model": "mlm", "query": "a", "documents": ["b"]}


@pytest.mark.parametrize(
    ("path", "message", "status", "text"),
    [
        ("v1/embed", {**EMBED, "images": ["data:"]}, 422, "images: the models of this server read no images"),
        (
            "v2/embed",
            {**EMBED, "input_type": "image"},
            422,
            "input_type: Invalid enum value",
        ),
        (
            "v2/embed",
            {"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            422,
            "content[0].type: Invalid",
        ),
        ("v2/embed", {"inputs": [{"content": [{"type": "text", "text": "a", "b": 1}]}]}, 422, "unknown field `b`"),
        ("v2/embed", {"inputs": [{"content": []}]}, 422, "inputs[0].content: Expected `array` of length >= 1"),
        ("v2/embed", {**EMBED, "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, 422, "give one of them"),
        ("v1/embed", {**EMBED, "texts": []}, 422, "there is no text"),
        (
            "v2/embed",
            {"model": "mlm", "inputs": [{"content": [{"type": "text", "text": "a " * 99}]}], "truncate": "NONE"},
            422,
            "inputs[0] has 101 tokens",
        ),
        (
            "v1/embed",
            {**EMBED, "embedding_types": ["int8"]},
            422,
            "embedding_types[0]: Invalid enum value 'int8': give float or",
        ),
        ("v2/embed", {**EMBED, "output_dimension": 12, "embedding_types": ["binary"]}, 422, "bytes have eight signs"),
        ("v2/embed", {**EMBED, "output_dimension": 9}, 422, "output_dimension: the vectors have width 32, and can be"),
        ("v2/embed", {**EMBED, "max_tokens": 63}, 422, "max_tokens: the model reads 64 tokens"),
        ("v1/embed", {**EMBED, "truncate": "START"}, 422, "truncate: Invalid enum value 'START': give NONE or END"),
        (
            "v1/embed",
            {**EMBED, "texts": ["b", "a " * 99], "truncate": "NONE"},
            422,
            "shorten it, or set truncate to END",
        ),
        ("v1/embed", {**EMBED, "input_type": "songs"}, 422, "input_type: Invalid enum value"),
        ("v2/embed", {**EMBED, "model": "prompts", "input_type": "clustering"}, 422, "the prompts of the model are"),
        ("v1/embed", {**EMBED, "model": "embed-v4.0"}, 404, "no model has this name"),
        ("v1/rerank", {**RANK, "max_chunks_per_doc": 10}, 422, "max_chunks_per_doc: Invalid enum value 10: give 1"),
        ("v1/rerank", {**RANK, "documents": [{"title": "b"}]}, 422, "documents[0] has no field 'text'"),
        ("v1/rerank", {**RANK, "documents": [{"a": "b"}], "rank_fields": ["a", "c"]}, 422, "has no field 'c'"),
        ("v1/rerank", {**RANK, "rank_fields": ["text", "text"]}, 422, "a field is named twice"),
        ("v2/rerank", {**RANK, "max_tokens_per_doc": 9}, 422, "max_tokens_per_doc: the model reads 64"),
        ("v2/rerank", {**RANK, "documents": [{"text": "b"}]}, 422, "documents[0]"),
        ("v2/rerank", {**RANK, "documents": []}, 422, "documents"),
        ("v2/rerank", {**RANK, "relevant_spans": {}}, 422, "relevant_spans: unknown field"),
        ("v2/rerank", b"{", 400, "not valid JSON"),
    ],
)
def test_errors_have_the_form_of_the_api(served: Server, path: str, message: Any, status: int, text: str) -> None:
    answer = served.post(f"/cohere/{path}", message)
    assert answer.status == status
    assert list(answer.json) == ["message"]
    assert text in answer.json["message"]


def test_the_path_of_the_own_api_stays(served: Server) -> None:
    assert served.post("/v1/rerank", RANK).json["method"] == "cosine"
