"""The dialect of Cohere's API: /v1/embed and /v1/rerank, /v2/embed and /v2/rerank.

Source: the client cohere 7.3 with its descriptions of fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bertie.serve import work
from bertie.serve.dialects import cohere_messages as m
from bertie.serve.dialects.dialect import Dialect, Endpoint
from bertie.serve.exchange import Call
from bertie.serve.limits import TRUNCATE, Refused, items_of
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import ServedModel
from bertie.serve.prompts import prompt_name
from bertie.serve.widths import base64_of, require_width, shorten_vectors


async def embed_v1(call: Call, request: m.CohereEmbedV1) -> m.CohereFloats | m.CohereByType:
    """Return the vectors of texts: numbers, or an object with each of `embedding_types`."""
    texts = _texts(request.texts, request.images)
    if request.embedding_types:
        return await _by_type(call, request, texts, request.embedding_types, None, "1")
    vectors, found, _ = await _embed(call, request, texts, None)
    rows = await call.service.offload(len(vectors), json_numbers, np.stack(vectors))
    return m.CohereFloats(call.id, rows, texts, _meta(found, "1"))


async def embed_v2(call: Call, request: m.CohereEmbedV2) -> m.CohereByType:
    """Return the vectors of texts, in each of `embedding_types`."""
    texts = _texts(request.texts, request.images, request.inputs)
    model = call.service.model(request.model, "embed")
    _require_whole(model, request.max_tokens, "max_tokens")
    types = request.embedding_types or ["float"]
    return await _by_type(call, request, texts, types, request.output_dimension, "2")


async def rerank_v1(call: Call, request: m.CohereRerankV1) -> m.CohereRanking:
    """Sort documents by their relevance for a query."""
    if (request.max_chunks_per_doc or 1) > 1:
        problem = "of a long document, only the beginning is read: send 1, or omit it"
        raise Refused(422, "validation", f"max_chunks_per_doc: {problem}", "max_chunks_per_doc")
    if len(set(request.rank_fields or ())) < len(request.rank_fields or ()):
        raise Refused(422, "validation", "rank_fields: a field is named twice: name it once", "rank_fields")
    texts = [_text(document, request.rank_fields, i) for i, document in enumerate(request.documents)]
    shown = [{"text": each} if isinstance(each, str) else each for each in request.documents]
    return await _rank(call, request, texts, shown if request.return_documents else None, "1")


async def rerank_v2(call: Call, request: m.CohereRerankV2) -> m.CohereRanking:
    """Sort documents by their relevance for a query."""
    _require_whole(call.service.model(request.model, "embed"), request.max_tokens_per_doc, "max_tokens_per_doc")
    shown = [{"text": each} for each in request.documents] if request.return_documents else None
    return await _rank(call, request, request.documents, shown, "2")


def form(refused: Refused) -> m.CohereError:
    """Return the message of an error."""
    return m.CohereError(refused.message.replace(TRUNCATE, "set truncate to END"))


ENDPOINTS = (
    Endpoint("POST", "/v1/embed", embed_v1, "Vectors of texts", m.CohereFloats | m.CohereByType, m.CohereEmbedV1),
    Endpoint("POST", "/v2/embed", embed_v2, "Vectors of texts", m.CohereByType, m.CohereEmbedV2),
    Endpoint("POST", "/v1/rerank", rerank_v1, "Documents by relevance", m.CohereRanking, m.CohereRerankV1),
    Endpoint("POST", "/v2/rerank", rerank_v2, "Documents by relevance", m.CohereRanking, m.CohereRerankV2),
)

COHERE = Dialect("cohere", "/cohere", ENDPOINTS, form, m.CohereError)


async def _embed(
    call: Call, request: m.CohereEmbedV1, texts: list[str], dimensions: int | None
) -> tuple[list[np.ndarray], work.Answered[Any], ServedModel]:
    model = call.service.model(request.model, "embed")
    require_width(model, dimensions, "output_dimension")
    if request.truncate == "START":
        raise Refused(
            422, "validation", "truncate: texts lose their end, not their beginning: send END or NONE", "truncate"
        )
    if request.input_type == "image":
        raise _no_images("input_type")
    prompt = prompt_name(model, None, request.input_type)
    where = items_of("texts") if request.texts else lambda number: f"inputs[{number}].content"
    found = await work.embed(call, model, texts, request.truncate != "NONE", "texts", prompt, where)
    return shorten_vectors(model, found.results, dimensions), found, model


async def _by_type(
    call: Call,
    request: m.CohereEmbedV1,
    texts: list[str],
    types: list[m.EmbeddingType],
    dimensions: int | None,
    version: str,
) -> m.CohereByType:
    if unknown := [kind for kind in types if kind not in ENCODINGS]:
        problem = f"Cohere does not publish the range of {unknown[0]}: ask for {', '.join(ENCODINGS)}"
        raise Refused(422, "validation", f"embedding_types: {problem}", "embedding_types")
    vectors, found, model = await _embed(call, request, texts, dimensions)
    width = dimensions or model.vector_width
    if width % 8 and {"binary", "ubinary"} & set(types):
        problem = f"bytes have eight signs, and the vectors {width} numbers: ask for float or base64"
        raise Refused(422, "validation", f"embedding_types: {problem}", "embedding_types")
    encoded = await call.service.offload(len(vectors), _encode, vectors, types)
    return m.CohereByType(call.id, encoded, texts, _meta(found, version))


async def _rank(
    call: Call,
    request: m.CohereRerankV1 | m.CohereRerankV2,
    texts: list[str],
    shown: list[dict[str, str]] | None,
    version: str,
) -> m.CohereRanking:
    model = call.service.model(request.model, "embed")
    found = await work.rank(call, model, request.query, texts, True)
    scores = found.results
    best = sorted(range(len(texts)), key=lambda i: -scores[i])[: request.top_n]
    results = [m.CohereResult(i, scores[i], shown[i] if shown else None) for i in best]
    return m.CohereRanking(call.id, results, _meta(found, version))


def _texts(texts: list[str] | None, images: list[str] | None, inputs: list[m.CohereInput] | None = None) -> list[str]:
    """Return the texts of a request. Raises Refused for images, or if there are no texts."""
    if images:
        raise _no_images("images")
    if texts and inputs:
        raise Refused(422, "validation", "texts and inputs: give one of them", "inputs")
    found = list(texts or ())
    for number, each in enumerate(inputs or ()):
        where = f"inputs[{number}].content"
        if any(part.type != "text" or part.image_url is not None for part in each.content):
            raise _no_images(where)
        if len(each.content) != 1 or each.content[0].text is None:
            raise Refused(422, "validation", f"{where}: give one part with a text", where)
        found.append(each.content[0].text)
    if not found:
        raise Refused(422, "validation", "texts: there is no text: give at least one", "texts")
    return found


def _no_images(param: str) -> Refused:
    return Refused(422, "validation", f"{param}: the models of this server read no images: give texts", param)


def _require_whole(model: ServedModel, tokens: int | None, param: str) -> None:
    """Check that a request does not ask for less of a text than the model reads. Raises Refused."""
    most = model.predictor.max_length
    if tokens is not None and tokens < most:
        problem = f"the model reads {most} tokens, special tokens included, and no fewer: omit it, or shorten the texts"
        raise Refused(422, "validation", f"{param}: {problem}", param)


def _text(document: str | dict[str, str], fields: list[str] | None, number: int) -> str:
    """Return the text of a document to rank. Raises Refused if it lacks a field."""
    if isinstance(document, str):
        return document
    names = fields or ["text"]
    if missing := [name for name in names if name not in document]:
        where = f"documents[{number}]"
        remedy = "name its fields in rank_fields" if fields is None else "add it, or omit it from rank_fields"
        raise Refused(422, "validation", f"{where} has no field {missing[0][:60]!r}: {remedy}", where)
    return "\n".join(document[name] for name in names)


def _ubinary(vector: np.ndarray) -> list[int]:
    return np.packbits(vector > 0).tolist()


def _binary(vector: np.ndarray) -> list[int]:
    return [byte - 128 for byte in _ubinary(vector)]


def _encode(vectors: list[np.ndarray], types: list[m.EmbeddingType]) -> m.CohereVectors:
    rows: dict[str, Any] = {kind: [ENCODINGS[kind](vector) for vector in vectors] for kind in types}
    return m.CohereVectors(**{FIELDS.get(kind, kind): row for kind, row in rows.items()})


FIELDS = {"float": "floats"}
ENCODINGS: dict[str, Any] = {"float": json_numbers, "base64": base64_of, "binary": _binary, "ubinary": _ubinary}


def _meta(found: work.Answered[Any], version: str) -> m.CohereMeta:
    tokens = m.CohereTokens(found.tokens)
    truncated = [f"{found.truncated} of the texts were truncated"] if found.truncated else []
    return m.CohereMeta(m.CohereVersion(version), tokens, tokens, truncated)
