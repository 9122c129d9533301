"""The dialect of text-embeddings-inference: /tei, and /tei/models/NAME where the server has several models.

Facts are those of its OpenAPI description, version 1.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
from starlette.responses import Response

from bertie import __version__
from bertie.contracts import Sequence
from bertie.predict.vectors import cosines
from bertie.serve import tokens, work
from bertie.serve.dialects import tei_messages as m
from bertie.serve.dialects import v1
from bertie.serve.dialects.dialect import Dialect, Endpoint, require_ready
from bertie.serve.exchange import Call, invalid, json_response
from bertie.serve.inputs import Example
from bertie.serve.limits import Refused, field_of
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import Operation, ServedModel
from bertie.serve.scales import ONLY, Scores
from bertie.serve.widths import unit


async def embed(call: Call, request: m.TeiEmbedRequest) -> list[list[float]]:
    """Return the vectors of texts or of token ids."""
    model = _model(call, "embed")
    _require_right(request)
    if not request.normalize and model.normalizes:
        message = f"normalize: the files of {model.name} normalize its vectors: send true, or omit it"
        raise Refused(422, "validation", message, "normalize")
    width = request.dimensions or model.vector_width
    if width > model.vector_width:
        message = f"dimensions: the vectors have {model.vector_width} numbers: ask for fewer"
        raise Refused(422, "validation", message, "dimensions")
    found = await tokens.vectors(call, model, request.inputs, request.truncate, "inputs", request.prompt_name, False)
    return await call.service.offload(len(found.results), _shortened, found.results, width, request.normalize)


async def embed_all(call: Call, request: m.TeiEmbedAllRequest) -> Response:
    """Return the vectors of all tokens of texts, special tokens included, without pooling."""
    model = _model(call, "tokens")
    _require_right(request)
    given = (call, model, request.inputs, request.truncate, "inputs", request.prompt_name, False)
    found = await tokens.vectors(*given, operation="tokens")
    return await call.service.offload(found.tokens, tokens.vectors_response, found.results)


async def predict(call: Call, request: m.TeiPredictRequest) -> list[Any]:
    """Return the classes of texts or pairs of texts, most probable first."""
    model = _model(call, "predict")
    _require_right(request)
    inputs, single = _examples(request.inputs)
    scale = "raw" if request.raw_scores else "sigmoid"
    where = field_of("inputs", None if single else inputs)
    found = await work.outputs(call, model, inputs, request.truncate, "inputs", scale, where)
    results = [_predictions(each) for each in found.results]
    return results[0] if single else results


async def rerank(call: Call, request: m.TeiRerankRequest) -> list[m.TeiRank]:
    """Sort texts by their relevance for a query."""
    model = _model(call, "embed")
    _require_right(request)
    scale = "raw" if request.raw_scores else "sigmoid"
    params = ("query", "texts")
    found = await work.rank(call, model, request.query, request.texts, request.truncate, "", params, scale)
    best = sorted(enumerate(found.results), key=lambda each: -each[1])
    return [m.TeiRank(i, score, request.texts[i] if request.return_text else None) for i, score in best]


async def similarity(call: Call, request: m.TeiSimilarityRequest) -> list[float]:
    """Return the cosine of a text with each of other texts."""
    model = _model(call, "embed")
    how = request.parameters or m.TeiSimilarityParameters()
    _require_right(how)
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    found = await tokens.vectors(
        call, model, cast(tokens.Input, texts), bool(how.truncate), "inputs", how.prompt_name, False
    )
    vectors = np.stack(found.results)
    return json_numbers(cosines(vectors[:1], vectors[1:])[0])


async def tokenize(call: Call, request: m.TeiTokenizeRequest) -> Response:
    """Return the tokens of texts. The header X-Vocabulary has the fingerprint that requests with token ids need."""
    model = _model(call, "embed")
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    prompt = "" if request.prompt_name is None else work.prompt_of(model, request.prompt_name)
    found = await tokens.tokenize(call, model, texts, "inputs", prompt, field_of("inputs", request.inputs))
    read = [prompt + text for text in texts]
    response = await call.service.offload(len(texts), _tokens, model, read, found, request.add_special_tokens)
    response.headers[tokens.VOCABULARY] = tokens.fingerprint(model)
    return response


async def root(call: Call, request: m.TeiRootRequest) -> Any:
    """Embed, predict or rerank, as the kind of the model asks for: what `model_type` of /info says."""
    handlers: dict[str, tuple[Callable[..., Any], Any]] = {
        "embedding": (embed, m.TeiEmbedRequest),
        "classifier": (predict, m.TeiPredictRequest),
        "reranker": (rerank, m.TeiRerankRequest),
    }
    handler, message_type = handlers[_kind(_model(call, "embed"))]
    given = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not msgspec.UNSET}
    try:
        message = msgspec.convert(given, message_type)
    except msgspec.ValidationError as error:
        raise invalid(error, message_type) from None
    return await handler(call, message)


async def info(call: Call, _: None) -> m.TeiInfo:
    """Describe the model and the limits of the server."""
    model = _model(call, "embed")
    labels = dict(enumerate(model.predicting.labels or (ONLY,))) if _kind(model) != "embedding" else {}
    classes = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    pooling = {"pooling": "+".join(model.predictor.text_embedding.pooling)}
    limits = call.service.limits
    return m.TeiInfo(
        model_id=model.name,
        model_sha=None,
        model_dtype=str(next(model.predictor.model.parameters()).dtype).removeprefix("torch."),
        model_type={_kind(model): classes if labels else pooling},
        max_concurrent_requests=limits.max_connections,
        max_input_length=model.predictor.max_length,
        max_batch_tokens=call.service.queue.batch_tokens,
        max_batch_requests=None,
        max_client_batch_size=limits.max_items,
        auto_truncate=False,
        tokenization_workers=1,
        version=__version__,
        sha=None,
        docker_label=None,
    )


async def health(call: Call, _: None) -> Response:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return Response(b"", media_type="text/plain")


def form(refused: Refused) -> m.TeiError:
    """Return the message of an error. A text that is too long has status 413, as in text-embeddings-inference."""
    if refused.reason == "too_long":
        refused.status = 413
    kind = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}.get(refused.status, "Validation")
    return m.TeiError(refused.message, cast(Any, "Tokenizer" if refused.reason == "input" else kind))


_OF_MODELS = (
    Endpoint("POST", "/embed", embed, "Vectors of texts", list[list[float]], m.TeiEmbedRequest),
    Endpoint("POST", "/embed_all", embed_all, "Vectors of tokens", list[list[list[float]]], m.TeiEmbedAllRequest),
    Endpoint(
        "POST", "/predict", predict, "Classes", list[m.TeiPrediction | list[m.TeiPrediction]], m.TeiPredictRequest
    ),
    Endpoint("POST", "/rerank", rerank, "Texts by relevance", list[m.TeiRank], m.TeiRerankRequest),
    Endpoint("POST", "/similarity", similarity, "Cosines of texts", list[float], m.TeiSimilarityRequest),
    Endpoint("POST", "/tokenize", tokenize, "Tokens of texts", list[list[m.TeiToken]], m.TeiTokenizeRequest),
    Endpoint("POST", "/", root, "What the kind of the model asks for", list[Any], m.TeiRootRequest),
    Endpoint("GET", "/info", info, "Model and limits", m.TeiInfo, statuses=(404, 422, 503)),
)
ENDPOINTS = (
    *_OF_MODELS,
    *(replace(each, path=f"/models/{{model}}{each.path}".rstrip("/"), bare=False) for each in _OF_MODELS),
    Endpoint("GET", "/health", health, "Health", None, protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", v1.metrics, "Metrics for Prometheus", None),
)

TEI = Dialect("tei", "/tei", ENDPOINTS, form, m.TeiError)


def _model(call: Call, operation: Operation) -> ServedModel:
    """Return the model of a request: that of its path, or the only one. Raises Refused."""
    name, models = call.request.path_params.get("model", ""), call.service.models
    if not name and len(models) > 1:
        first = next(iter(models))
        message = (
            f"a request of text-embeddings-inference names no model, and this server has {len(models)}: use a base URL with "
            f"the model, such as /tei/models/{first} instead of /tei; the models are {', '.join(models)}"
        )
        raise Refused(422, "model", message, "model")
    return call.service.model(name, operation)


def _require_right(request: m.TeiRequest | m.TeiSimilarityParameters) -> None:
    if request.truncation_direction in ("Left", "left"):
        message = (
            "truncation_direction: this server keeps the beginning of a text that is too long: use Right, or shorten it"
        )
        raise Refused(422, "validation", message, "truncation_direction")


def _kind(model: ServedModel) -> str:
    """Return the kind of a model in the words of text-embeddings-inference."""
    task = model.task
    if task is None or task.facts.shape != "text":
        return "embedding"
    return "classifier" if task.labels or task.paired is False else "reranker"


def _shortened(vectors: list[np.ndarray], width: int, normalize: bool) -> list[list[float]]:
    kept = np.stack(vectors)[:, :width]
    return json_numbers(unit(kept) if normalize else kept)


def _examples(inputs: m.PredictInput) -> tuple[list[Example], bool]:
    """Return the inputs of a task, and whether the request has a single one."""
    if isinstance(inputs, str):
        return [inputs], True
    kinds = {type(each) for each in inputs}
    if kinds == {str} and len(inputs) <= 2:
        return [cast(list[str], inputs) if len(inputs) == 2 else inputs[0]], True
    if kinds != {list}:
        message = "inputs: give a text, a pair of two texts, or a batch of lists with one text or two each"
        raise Refused(422, "validation", message, "inputs")
    batch = cast(list[list[str]], inputs)
    for number, each in enumerate(batch):
        if not 1 <= len(each) <= 2:
            message = f"inputs[{number}] has {len(each)} texts: give one, or a pair"
            raise Refused(422, "validation", message, f"inputs[{number}]")
    return [each[0] if len(each) == 1 else each for each in batch], False


def _predictions(scores: Scores) -> list[m.TeiPrediction]:
    ordered = sorted(scores.probabilities.items(), key=lambda each: -each[1])
    return [m.TeiPrediction(score, label) for label, score in ordered]


def _tokens(model: ServedModel, texts: list[str], sequences: list[Sequence], special: bool) -> Response:
    rows: list[msgspec.Raw] = []
    for text, sequence in zip(texts, sequences, strict=True):
        inside = tokens.text_slice(model, sequence)
        ids, offsets = sequence.input_ids.tolist(), sequence.offsets
        assert offsets is not None
        row: list[m.TeiToken] = []
        for i, (start, stop) in enumerate(offsets.tolist()):
            if inside.start <= i < inside.stop:
                row.append(m.TeiToken(ids[i], text[start:stop], False, start, stop))
            elif special:
                row.append(m.TeiToken(ids[i], model.predictor.text_tokenizer.vocabulary[ids[i]], True, None, None))
        # Text by text: as objects of Python, all tokens would take several times their memory.
        rows.append(msgspec.Raw(msgspec.json.encode(row)))
    return json_response(rows)
