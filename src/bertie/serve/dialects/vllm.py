"""The dialect of vLLM's endpoints for pooling models: /vllm. Facts are those of its protocol files of 2026."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
from starlette.responses import Response

from bertie.serve import tokens, work
from bertie.serve.dialects import vllm_messages as m
from bertie.serve.dialects.coded_errors import CodedErrorResponse, coded_form
from bertie.serve.dialects.dialect import Dialect, Endpoint, require_ready
from bertie.serve.dialects.v1_messages import Document, Usage
from bertie.serve.exchange import Call, json_response
from bertie.serve.inputs import Example
from bertie.serve.limits import TRUNCATE, Refused, field_of
from bertie.serve.operations import Operation, ServedModel
from bertie.serve.scales import ScoreScale
from bertie.serve.widths import base64_of, require_width, shorten_vectors, unit
from bertie.text import truncation

FIELDS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


async def rerank(call: Call, request: m.VllmRerankRequest) -> m.VllmRanks:
    """Sort documents by their relevance for a query."""
    model, truncate = _model(call, request, "embed")
    documents = _listed(request.documents)
    where = field_of("documents", request.documents)
    found = await work.rank(call, model, request.query, documents, truncate, scale=_scale(request), where=where)
    best = sorted(enumerate(found.results), key=lambda each: -each[1])[: request.top_n or None]
    shown = request.return_documents
    results = [m.VllmRank(i, score, Document(documents[i]) if shown else None) for i, score in best]
    return m.VllmRanks(results=results, **_answer("rerank", call, model, found))


async def score(call: Call, request: m.VllmScoreRequest) -> m.VllmScores:
    """Score pairs of texts: what a model for pairs says, or else the similarity of their vectors."""
    model, truncate = _model(call, request, "embed")
    names = _fields(request)
    first, second = (_listed(getattr(request, name)) for name in names)
    if len(first) not in (1, len(second)):
        message = (
            f"{names[0]} has {len(first)} texts and {names[1]} {len(second)}: give one, or as many as in {names[1]}"
        )
        raise Refused(422, "validation", message, names[0])
    where = field_of(names[1], getattr(request, names[1]))
    found = await work.score_pairs(call, model, first, second, truncate, "", names, _scale(request), where)
    data = [m.VllmScore(i, value) for i, value in enumerate(found.results)]
    return m.VllmScores(data=data, **_answer("score", call, model, found), created=int(time.time()))


async def classify(call: Call, request: m.VllmClassifyRequest) -> m.VllmClasses:
    """Return the classes of texts."""
    model, truncate = _model(call, request, "predict")
    inputs: list[Example] = [*_listed(request.input)]
    where = field_of("input", request.input)
    found = await work.outputs(call, model, inputs, truncate, "input", _scale(request), where)
    data = []
    for number, each in enumerate(found.results):
        scores = each.probabilities
        data.append(m.VllmClass(number, max(scores, key=scores.__getitem__), list(scores.values()), len(scores)))
    return m.VllmClasses(data=data, **_answer("classify", call, model, found), created=int(time.time()))


async def pooling(call: Call, request: m.VllmPoolingRequest) -> Response:
    """Return vectors of texts, vectors of their tokens, or scores of their classes."""
    model, truncate = _model(call, request, "predict" if request.task == "classify" else "embed")
    shorter = request.dimensions not in (None, model.vector_width)
    require_width(model, request.dimensions)
    unusual = request.task != "embed" or request.use_activation is False
    if (shorter and unusual) or (request.dimensions and request.task == "classify"):
        problem = "only the vectors of texts can be shortened, and then have length 1"
        raise Refused(422, "dimensions", f"dimensions: {problem}: omit it", "dimensions")
    if request.task == "classify":
        texts = _listed(request.input)
        if wrong := [each for each in texts if not isinstance(each, str)]:
            message = f"input: found {type(wrong[0]).__name__}: give texts, as classes are those of texts"
            raise Refused(422, "validation", message, "input")
        examples, where = cast(list[Example], texts), field_of("input", request.input)
        scores = await work.outputs(call, model, examples, truncate, "input", _scale(request), where)
        arrays = [np.array(list(each.probabilities.values()), np.float32) for each in scores.results]
        found = work.Answered(arrays, scores.tokens, scores.truncated)
    else:
        operation = "embed" if request.task == "embed" else "tokens"
        found = await tokens.vectors(call, model, request.input, truncate, "input", operation=operation)
        vectors = _activated(model, request.use_activation, found.results)
        vectors = shorten_vectors(model, vectors, request.dimensions)
        found = work.Answered(vectors, found.tokens, found.truncated)
    message = m.VllmPooling(data=[], **_answer("pool", call, model, found), created=int(time.time()))
    return await call.service.offload(found.tokens, _pooled, message, found.results, request.encoding_format)


async def health(call: Call, _: None) -> Response:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return Response(b"", media_type="text/plain")


_rerank = partial(Endpoint, "POST", handler=rerank, summary="Documents by relevance")
_score = partial(Endpoint, "POST", handler=score, summary="Scores of pairs")
ENDPOINTS = (
    *(
        _rerank(path, response=m.VllmRanks, request=m.VllmRerankRequest)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
    *(_score(path, response=m.VllmScores, request=m.VllmScoreRequest) for path in ("/score", "/v1/score")),
    Endpoint("POST", "/classify", classify, "Classes of texts", m.VllmClasses, m.VllmClassifyRequest),
    Endpoint("POST", "/pooling", pooling, "Vectors of texts and tokens", m.VllmPooling, m.VllmPoolingRequest),
    Endpoint("GET", "/health", health, "Health", None, protected=False, statuses=(503,)),
)


def form(refused: Refused) -> CodedErrorResponse:
    """Return the message of an error."""
    refused.message = refused.message.replace(TRUNCATE, "set truncate_prompt_tokens to -1")
    return coded_form(refused)


VLLM = Dialect("vllm", "/vllm", ENDPOINTS, form, CodedErrorResponse)


def _model(call: Call, request: m.VllmRequest, operation: Operation) -> tuple[ServedModel, bool]:
    """Return the model of a request, reading no more tokens than it says, and whether texts may lose some. Raises Refused."""
    if isinstance(request, m.VllmInput) and not request.add_special_tokens:
        message = "add_special_tokens: the models read special tokens: omit it"
        raise Refused(422, "validation", message, "add_special_tokens")
    model, most = call.service.model(request.model, operation), request.truncate_prompt_tokens
    if most is None or most == -1:
        return model, most is not None
    least = truncation.special_tokens(model.predictor.tokenizer, 2, separate="texts") + 2
    if not least <= most <= model.predictor.max_length:
        message = f"truncate_prompt_tokens: give -1, or a number from {least} to {model.predictor.max_length}"
        raise Refused(422, "validation", message, "truncate_prompt_tokens")
    return model.reading_at_most(most), True


def _scale(request: m.VllmRequest) -> ScoreScale:
    return "raw" if request.use_activation is False else "model"


def _listed(given: str | list[Any] | None) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _fields(request: m.VllmScoreRequest) -> tuple[str, str]:
    """Return the names of the two fields that have the texts. Raises Refused."""
    given = {name for pair in FIELDS for name in pair if getattr(request, name) is not None}
    for pair in FIELDS:
        if given == set(pair):
            return pair
    message = "give text_1 and text_2, or queries and documents, or queries and items, or data_1 and data_2"
    problem = ", ".join(sorted(given)) or "the texts are missing"
    raise Refused(422, "validation", f"{problem}: {message}", min(given, default=None))


def _activated(model: ServedModel, use: bool | None, vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Return vectors with length 1, if the request, or else the files of the model, ask for that. Raises Refused."""
    if use is False and model.normalizes:
        message = f"use_activation: the files of {model.name} normalize its vectors: send true, or omit it"
        raise Refused(422, "validation", message, "use_activation")
    return [unit(each) for each in vectors] if use or model.normalizes else vectors


def _pooled(message: m.VllmPooling, arrays: list[np.ndarray], encoding_format: str) -> Response:
    encode = base64_of if encoding_format == "base64" else np.ndarray.tolist
    # Text by text: as objects of Python, all numbers would take three times their memory.
    rows = (msgspec.json.encode(m.VllmPooled(number, encode(each))) for number, each in enumerate(arrays))
    message.data = cast(Any, [msgspec.Raw(row) for row in rows])
    return json_response(message)


def _answer(kind: str, call: Call, model: ServedModel, found: work.Answered[Any]) -> dict[str, Any]:
    """Return what every answer has."""
    usage = Usage(found.tokens, found.tokens, found.truncated)
    return {"id": f"{kind}-{call.id}", "model": model.name, "usage": usage}
