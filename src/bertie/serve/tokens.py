"""Tokens of texts: their ids, who may send ids, and the vectors of all tokens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import msgspec
import numpy as np
from starlette.responses import Response

from bertie.contracts import Sequence
from bertie.serve import work
from bertie.serve.exchange import Call, json_response
from bertie.serve.limits import Refused, Where, check_sizes, field_of, too_large
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import ServedModel
from bertie.serve.work import Answered
from bertie.text import truncation

Input = str | list[str | int | list[int]]
"""A text, texts, token ids, or lists of token ids. Narrower in the schema: `openapi.INPUT`."""
VOCABULARY = "X-Vocabulary"
"""The header with the fingerprint of a vocabulary."""
MAX_NUMBERS = 4_000_000  # in an answer with the vectors of tokens
NUMBER_BYTES = 24  # of one of them, in JSON and as a number
TOKEN_BYTES = 96  # of a token in JSON


def has_ids(given: Input) -> bool:
    """Return whether there are token ids in the input of a request."""
    return not isinstance(given, str) and not all(isinstance(each, str) for each in given)


async def vectors(
    call: Call,
    model: ServedModel,
    given: Input,
    truncate: bool,
    param: str,
    prompt_name: str | None = None,
    default_prompt: bool = True,
    operation: Literal["embed", "tokens"] = "embed",
) -> Answered[list[np.ndarray]]:
    """Return the vectors of texts, or of texts that the client has tokenized.

    Args:
        call: The call.
        model: The model.
        given: Texts or token ids.
        truncate: Whether a text may lose tokens.
        param: The field that has them.
        prompt_name: The model's prompt that is put before each text.
        default_prompt: Whether the model's default prompt is put before texts, if no other is named.
        operation: embed: one vector for each text. tokens: those of all tokens of a text, special tokens included.

    Raises:
        Refused: As `work.run`, or the client may not send ids.
        UserError: A text is invalid.
    """
    texts, lists = _texts_or_ids(call, model, given, param)
    values: list[Any] = texts or list(enumerate(lists))
    sizes = list(map(len, texts or lists))
    where = field_of(param, given if texts or lists == given else None)  # a list of ids is a single text
    encode: Callable[[list[Any]], list[Sequence]] = work.each_of(model.encode_ids, where)
    if texts:
        prompt = work.prompt_of(model, prompt_name) if default_prompt or prompt_name is not None else ""
        encode = partial(model.encode_texts, prompt=prompt)
    elif prompt_name is not None:
        raise Refused(422, "validation", "prompt_name: token ids have no prompt: give texts", "prompt_name")
    check_sizes(sizes, call.service.limits, param, "characters" if texts else "token ids", where)

    def check(sequences: list[Sequence]) -> None:
        if operation != "tokens":
            return
        count = sum(map(len, sequences)) * model.predictor.model.encoder.config.hidden_size
        if count > MAX_NUMBERS:
            raise too_large(
                "numbers in the vectors of all tokens", count, MAX_NUMBERS, "split the request", param=param
            )
        call.reserve(NUMBER_BYTES * count)

    job = await work.run(call, model, operation, encode, values, sizes, truncate, param, where, check)
    return Answered(job.results, *work.cost(call, model, job))


def _texts_or_ids(call: Call, model: ServedModel, given: Input, param: str) -> tuple[list[str], list[list[int]]]:
    """Return the texts, or the lists of token ids. Raises Refused."""
    values = [given] if isinstance(given, str) else given
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return cast(list[str], values), []
    if kinds == {int}:
        values, kinds = [cast(list[int], values)], {list}
    if kinds != {list}:
        problem = "is empty" if not kinds else "mixes texts and token ids"
        raise Refused(422, "validation", f"{param} {problem}: give texts, or token ids", param)
    vocabulary = call.request.headers.get(VOCABULARY)
    if vocabulary is None:
        # The ids of another vocabulary are other words, and their vector looks like any other.
        message = (
            f"{param}: token ids need the header {VOCABULARY} with the fingerprint that /v1/tokenize returns: send texts, in "
            "LangChain with OpenAIEmbeddings(check_embedding_ctx_length=False)"
        )
        raise Refused(422, "vocabulary", message, param)
    if vocabulary.strip() != fingerprint(model):
        message = (
            f"{VOCABULARY} names another vocabulary than that of {model.name}: /v1/tokenize returns its fingerprint"
        )
        raise Refused(422, "vocabulary", message, param)
    return [], cast(list[list[int]], values)


def vectors_response(vectors: list[np.ndarray]) -> Response:
    """Return the vectors of tokens as a response: lists of texts, of tokens and of numbers."""
    # Text by text: as objects of Python, all numbers would take three times their memory.
    return json_response([msgspec.Raw(msgspec.json.encode(json_numbers(each))) for each in vectors])


def fingerprint(model: ServedModel) -> str:
    """Return what tells apart vocabularies: models with the same one give the same ids for every text."""
    return model.predictor.text_tokenizer.fingerprint


async def tokenize(
    call: Call, model: ServedModel, texts: list[str], param: str, prompt: str = "", where: Where | None = None
) -> list[Sequence]:
    """Return the sequences of whole texts, with offsets, as the model reads them for a vector.

    Args:
        call: The call.
        model: The model.
        texts: The texts.
        param: The field that has the texts.
        prompt: Text to put before each.
        where: Names a text, if not all texts are the items of `param`.

    Raises:
        Refused: The texts are too many or too large, or the time is over.
        UserError: A text is invalid.
    """
    sizes = list(map(len, texts))
    check_sizes(sizes, call.service.limits, param, where=where)
    found = await call.service.tokenize(partial(_encode_whole, model, prompt), texts, sizes, call.remaining)
    count = sum(map(len, found))
    call.reserve(TOKEN_BYTES * count)
    call.facts |= {"model": model.name, "texts": len(texts), "tokens": count}
    return found


def _encode_whole(model: ServedModel, prompt: str, texts: list[str]) -> list[Sequence]:
    return truncation.encode(model.predictor.text_tokenizer, [prompt + text for text in texts], max_length=sys.maxsize)


def text_slice(model: ServedModel, sequence: Sequence) -> slice:
    """Return where the text stands among the special tokens of its sequence."""
    tokenizer = model.predictor.text_tokenizer
    [found] = truncation.text_slices(tokenizer, [len(sequence) - truncation.special_tokens(tokenizer, 1)])
    return found
