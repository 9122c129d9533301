"""All dialects: keys, the size of a body, refused requests and errors in the form of the dialect, and contested paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from bertie.predict.predictor import Predictor
from bertie.serve.dialects import DIALECTS
from bertie.serve.exchange import Dialect, Endpoint
from bertie.serve.limits import Front
from bertie.serve.service import Service

from ..conftest import Server, serving

KEY = "k" * 32
POSTS = [(dialect, each) for dialect in DIALECTS for each in dialect.endpoints if each.request is not None]
every = pytest.mark.parametrize(("dialect", "endpoint"), POSTS, ids=lambda each: getattr(each, "path", None))


@pytest.fixture(scope="module")
def locked(make_service: Callable[..., Service]) -> Iterator[Server]:
    with serving(make_service("mlm", key=KEY, max_bytes=2000)) as server:
        yield server


@pytest.fixture(scope="module")
def shortening(make_service: Callable[..., Service], predictors: dict[str, Predictor]) -> Iterator[Server]:
    """A server with all models, whose vectors may be shortened."""
    with serving(make_service(*predictors, widths=(8, 12))) as server:
        yield server


def path_of(dialect: Dialect, endpoint: Endpoint) -> str:
    return dialect.base + endpoint.path.replace("{model:path}", "mlm").replace("{task:path}", "fill-mask")


def refused(answer: Any, status: int, dialect: Dialect) -> str:
    assert answer.status == status, answer.body
    error = msgspec.json.decode(answer.body, type=dialect.error)
    assert answer.json.keys() == set(error.__struct_fields__)
    return str(error)


@every
def test_keys_and_bounds_hold(locked: Server, dialect: Dialect, endpoint: Endpoint) -> None:
    path, key = path_of(dialect, endpoint), {"Authorization": f"Bearer {KEY}"}
    assert "give a valid key" in refused(locked.post(path, {}), 401, dialect)
    assert "give a valid key" in refused(locked.post(path, {}, Authorization="Bearer no"), 401, dialect)
    assert "2,000" in refused(locked.post(path, {"a": "b" * 2000}, **key), 413, dialect)
    assert "application/json" in refused(locked.post(path, {}, **key, **{"Content-Type": "text/plain"}), 415, dialect)
    assert "nothing" in refused(locked.post(path, {"nothing": 1}, **key), 422, dialect)
    assert locked.service.buffered == 0


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_unknown_paths_have_the_form_of_the_dialect(locked: Server, dialect: Dialect) -> None:
    assert "no such path" in refused(locked.get(f"{dialect.base}/no/such/path"), 404, dialect)


LONG = "b " * 99
TEI, TEI_CLASSES = "/tei/models/mlm/", "/tei/models/classifier/"
HF, HF_SPAN, HF_TAGGER, COHERE = (
    "/hf/models/mlm",
    "/hf/models/span",
    "/hf/models/tagger",
    {"model": "mlm", "texts": ["a"]},
)
RANK: dict[str, Any] = {"model": "mlm", "query": "a", "documents": ["b"]}
QUESTION = {"question": "a", "context": "b"}
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/cohere/v1/embed", {**COHERE, "images": ["data:"]}, 422, "images:"),
    ("/cohere/v2/embed", {"inputs": [{"content": []}]}, 422, "inputs[0].content:"),
    ("/cohere/v2/embed", {**COHERE, "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, 422, "inputs:"),
    ("/cohere/v1/embed", {**COHERE, "embedding_types": ["int8"]}, 422, "embedding_types[0]:"),
    ("/cohere/v2/embed", {**COHERE, "output_dimension": 12, "embedding_types": ["binary"]}, 422, "embedding_types:"),
    ("/cohere/v2/embed", {**COHERE, "output_dimension": 9}, 422, "output_dimension:"),
    ("/cohere/v2/embed", {**COHERE, "max_tokens": 63}, 422, "max_tokens:"),
    ("/cohere/v1/embed", {**COHERE, "texts": ["b", LONG], "truncate": "NONE"}, 422, "or set truncate to END"),
    ("/cohere/v1/rerank", {**RANK, "max_chunks_per_doc": 10}, 422, "max_chunks_per_doc:"),
    ("/cohere/v1/rerank", {**RANK, "documents": [{"title": "b"}]}, 422, "documents[0]:"),
    ("/cohere/v1/rerank", {**RANK, "documents": [{"a": "b"}], "rank_fields": ["a", "c"]}, 422, "documents[0]:"),
    ("/cohere/v1/rerank", {**RANK, "rank_fields": ["text", "text"]}, 422, "rank_fields:"),
    ("/cohere/v2/rerank", {**RANK, "max_tokens_per_doc": 9}, 422, "max_tokens_per_doc:"),
    (HF, {"inputs": "a", "parameters": {"stride": 1}}, 422, "stride:"),
    (HF, {"inputs": "a", "parameters": {"top_k": 3}}, 422, "there is no [MASK]"),
    (HF, {"inputs": "[MASK]", "parameters": {"top_k": 101}}, 422, "top_k:"),
    (HF, {"inputs": "[MASK]", "parameters": {"targets": []}}, 422, "parameters.targets:"),
    (HF, {"inputs": "[MASK]", "parameters": {"targets": [" "]}}, 422, "parameters.targets[0]:"),
    (HF, {"inputs": "[MASK]", "parameters": {"targets": ["a"] * 2049}}, 413, "2,049 texts"),
    (HF, {"inputs": "a", "truncate": True, "parameters": {"truncate": True}}, 422, "truncate:"),
    (HF, {"inputs": LONG, "truncate": False}, 422, "inputs has 101 tokens"),
    (HF, {"inputs": {"words": "a"}}, 422, "source_sentence"),
    (HF, {"inputs": {"source_sentence": "a", "sentences": ["a"], "x": "b"}}, 422, "inputs.x:"),
    (HF, {"inputs": QUESTION}, 422, "has no predict"),
    ("/hf/models/classifier", {"inputs": {"text": "a", "text_pair": "b"}}, 422, "inputs:"),
    ("/hf/models/classifier", {"inputs": QUESTION}, 422, "was not fine-tuned for question-answering"),
    ("/hf/models/choice", {"inputs": "a"}, 404, "there is no task 'multiple-choice'"),
    (HF_SPAN, {"inputs": QUESTION, "parameters": {"max_seq_len": 9}}, 422, "max_seq_len:"),
    (HF_SPAN, {"inputs": QUESTION, "parameters": {"doc_stride": 61}}, 422, "doc_stride:"),
    (HF_SPAN, {"inputs": {"context": "a", "question": "b" * 100_001}}, 413, "shorten inputs.question"),
    (HF_TAGGER, {"inputs": " "}, 422, "inputs:"),
    (HF_TAGGER, {"inputs": "a", "parameters": {"ignore_labels": []}}, 422, "ignore_labels:"),
    (HF_TAGGER, {"inputs": "a", "parameters": {"stride": 47}}, 422, "stride:"),
    (HF_TAGGER, {"inputs": "a", "parameters": {"stride": 1, "aggregation_strategy": "none"}}, 422, "stride:"),
    ("/infinity/embeddings", {"input": "a" * 100_001, "model": "mlm"}, 413, "shorten input"),
    ("/infinity/classify", {"input": ["a"], "model": "cross-encoder"}, 422, "input[0]"),
    ("/ollama/api/embed", {"model": "llama3", "input": "a"}, 404, "the models are mlm, "),
    ("/ollama/api/embed", {"model": "mlm", "input": ["b", LONG], "truncate": False}, 422, "input[1] has 101 tokens"),
    ("/ollama/api/embed", {"model": "mlm", "input": "a", "dimensions": 9}, 422, "give 8, 12 or 32"),
    ("/tei/embed", {"inputs": "a"}, 422, "/tei/models/mlm"),
    (TEI + "embed", {"inputs": ["a", LONG]}, 413, "inputs[1] has 101 tokens"),
    (TEI + "embed_all", {"inputs": LONG}, 413, "inputs has 101 tokens"),
    (TEI_CLASSES + "predict", {"inputs": [[LONG]]}, 413, "inputs[0] has 101 tokens"),
    (TEI_CLASSES + "predict", {"inputs": ["a", "b", "c"]}, 422, "inputs:"),
    (TEI_CLASSES + "predict", {"inputs": [["a"], []]}, 422, "inputs[1]:"),
    (TEI_CLASSES + "predict", {"inputs": ["a", "b"]}, 422, "found two texts"),
    (TEI + "embed", {"inputs": "a", "dimensions": 33}, 422, "dimensions:"),
    (TEI + "embed", {"inputs": "a", "prompt_name": "x"}, 422, "there is no prompt 'x'"),
    (TEI, {"inputs": "a", "query": "b"}, 422, "query:"),
    (TEI, {}, 422, "inputs:"),
    ("/vllm/score", {"model": "mlm", "text_1": ["a", "b"], "text_2": ["a"] * 3}, 422, "text_1:"),
    (
        "/vllm/score",
        {"model": "mlm", "text_1": "a", "documents": "b"},
        422,
        "documents, text_1: give text_1 and text_2",
    ),
    ("/vllm/score", {"model": "mlm"}, 422, "the texts are missing: give text_1"),
    ("/vllm/score", {"model": "mlm", "text_1": "a", "text_2": LONG}, 422, "or set truncate_prompt_tokens to -1"),
    ("/vllm/rerank", {**RANK, "priority": 1}, 422, "priority:"),
    ("/vllm/rerank", {**RANK, "truncate_prompt_tokens": 65}, 422, "a number from 6 to 64"),
    ("/vllm/rerank", {**RANK, "truncate_prompt_tokens": 2}, 422, "a number from 6 to 64"),
    ("/vllm/classify", {"input": "a", "model": "classifier", "add_special_tokens": False}, 422, "add_special_tokens:"),
    ("/vllm/pooling", {"input": [5], "model": "classifier", "task": "classify"}, 422, "input: give texts"),
]


@pytest.mark.parametrize(("path", "message", "status", "text"), REFUSED)
def test_refused_requests_name_the_field_in_the_form_of_the_dialect(
    shortening: Server, path: str, message: dict[str, Any], status: int, text: str
) -> None:
    [dialect] = [each for each in DIALECTS if each.base and path.startswith(each.base)]
    assert text in refused(shortening.post(path, message), status, dialect)


def test_errors_have_the_codes_that_clients_read(shortening: Server) -> None:
    for base in ("/infinity/embeddings", "/vllm/classify"):
        answer = shortening.post(base, {"input": ["a", 1], "model": "mlm"})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (422, 422, "input[1]")
    detail = shortening.post("/infinity/embeddings", {"input": "a"}).json["detail"]  # infinity_client reads it
    assert [(each["loc"], each["type"]) for each in detail] == [(["body", "model"], "invalid_request_error")]
    for message, kind in (({"inputs": LONG}, "Validation"), ({"inputs": "a", "prompt_name": "x"}, "Tokenizer")):
        assert shortening.post(f"{TEI}embed", message).json["error_type"] == kind


def test_contested_paths_belong_to_the_chosen_dialect(make_service: Callable[..., Service]) -> None:
    asked = {"query": "ban", "documents": ["kopa"]}
    with serving(make_service("classifier")) as server:
        message = server.post("/rerank", asked).error["message"]
        assert "/tei/rerank (--dialect tei) or /infinity/rerank (--dialect infinity)" in message
        assert "/tei/health" in server.get("/health").error["message"]
        assert server.get("/rerank").status == server.post("/classify", {"input": "a"}).status == 404
        assert "/rerank" not in server.get("/openapi.json").json["paths"]
        assert server.post("/score", {"text_1": "a", "text_2": "b"}).status == 200
    for name, field in (("infinity", "documents"), ("tei", "texts"), ("vllm", "documents")):
        with serving(make_service("classifier", key=KEY), Front(dialect=name)) as server:  # type: ignore[arg-type]
            message = {"query": "ban", field: ["kopa"]}
            assert server.post("/rerank", message).status == 401
            assert server.post("/rerank", message, Authorization=f"Bearer {KEY}").status == 200
            assert "/rerank" in server.get("/openapi.json").json["paths"]


@pytest.mark.parametrize("base", ["/infinity", "/tei", "/vllm", "/hf"])
def test_health(make_service: Callable[..., Service], base: str) -> None:
    with serving(make_service("mlm")) as server:
        assert server.get(f"{base}/health").status == 200
        server.service.draining = True
        assert server.get(f"{base}/health").status == 503
