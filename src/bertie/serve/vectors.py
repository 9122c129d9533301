"""Vectors of texts and of tokens: their prompts, their widths (Kusupati et al. 2022, "Matryoshka Representation Learning"), and
who may send token ids instead of texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import numpy as np

from bertie.base import storage
from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError, shorten
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import unit
from bertie.serve.ask import Answered, Ask, answered, each_of, run
from bertie.serve.limits import refusing, too_large, unfit
from bertie.serve.operations import Operation, ServedModel
from bertie.serve.queue import QueuedJob
from bertie.tokenizers import truncation

Input = str | list[str | int | list[int]]
"""A text, texts, token ids, or lists of token ids. Narrower in the schema: `openapi.INPUT`."""
VOCABULARY = "X-Vocabulary"
"""The header with the fingerprint of a vocabulary."""
MAX_NUMBERS = 4_000_000  # in an answer with the vectors of tokens
NUMBER_BYTES = 24  # of one of them, in JSON and as a number
TOKEN_BYTES = 96  # of a token in JSON
SEARCH = {
    **dict.fromkeys(("query", "search_query"), ("query", "search_query")),
    **dict.fromkeys(("document", "passage", "search_document"), ("document", "passage", "corpus", "search_document")),
}
"""Names of prompts for queries and for documents, in the order in which sentence-transformers looks for them."""
OTHERS = ("classification", "clustering")


async def embed(ask: Ask) -> Answered[np.ndarray]:
    """Return the vectors of texts, or of texts that the client has tokenized: float32 [texts, width].

    Raises:
        Refused: As `run`, or the texts are too many or too large, the model has no such prompt or width, or the client may
            not send ids.
        UserError: A text is invalid.
    """
    model = ask.model("vectors")
    width, known = model.vector_width, model.shorter_widths
    if ask.dimensions not in (None, width, *known):
        shown = f"1 to {width}" if isinstance(known, range) else f"{', '.join(map(str, sorted(known)))} or {width}"
        remedy = f"can be shortened: give {shown}" if known else "cannot be shortened: omit it"
        raise ask.refused("dimensions", f"the vectors have width {width}, and {remedy}", "dimensions")
    job = await _compute(ask, model, "vectors")
    return await answered(ask, model, job, _shortened, ask, model, job.results)


async def embed_tokens(ask: Ask, normalize: bool) -> Answered[list[np.ndarray]]:
    """Return the vectors of all tokens of each text, special tokens included. Errors as for `embed`."""
    model = ask.model("tokens")

    def check(sequences: list[Sequence]) -> None:
        count = sum(map(len, sequences)) * model.predictor.model.encoder.config.hidden_size
        if count > MAX_NUMBERS:
            [param] = ask.fields
            what = "numbers in the vectors of all tokens"
            raise too_large(what, count, MAX_NUMBERS, "split the request", param=param)
        ask.call.reserve(NUMBER_BYTES * count)

    job = await _compute(ask, model, "tokens", check)
    return await answered(ask, model, job, lambda: [unit(rows) if normalize else rows for rows in job.results])


async def _compute(
    ask: Ask, model: ServedModel, operation: Operation, check: Callable[[list[Sequence]], None] = lambda _: None
) -> QueuedJob:
    if ask.normalize is False and model.normalizes:
        raise ask.refused("normalize", f"the files of {model.name} normalize its vectors: send true, or omit it")
    if has_ids(ask):
        for name in ("prompt_name", "input_type"):
            if getattr(ask, name) is not None:
                raise ask.refused(name, "token ids have no prompt: give texts")
        ask = _with_lists(ask, model)
        values, encode = list(enumerate(ask.values)), each_of(ask, model.encode_ids)
    else:
        values, encode = ask.values, partial(model.predictor.text_sequences, prompt=prompt_of(ask, model))
    sizes = list(map(len, ask.values))
    ask.check_sizes(sizes, "token ids" if has_ids(ask) else "characters")
    return await run(ask, model, operation, encode, values, sizes, check)


def has_ids(ask: Ask) -> bool:
    """Return whether a client sends token ids."""
    return not all(isinstance(value, str) for value in ask.values)


def _with_lists(ask: Ask, model: ServedModel) -> Ask:
    """Return the request with lists of token ids. Raises Refused if the client may not send them."""
    [(param, value)] = ask.fields.items()
    kinds = set(map(type, value))
    if kinds not in ({int}, {list}):
        raise unfit(param, "it mixes texts and token ids: give texts, or token ids")
    # The ids of another vocabulary are other words, and their vector looks like any other.
    if ask.call.request.headers.get(VOCABULARY, "").strip() != fingerprint(model):
        problem = (
            f"token ids need the header {VOCABULARY} with the fingerprint that /v1/tokenize returns for {model.name}: send it, "
            "or send texts, in LangChain with OpenAIEmbeddings(check_embedding_ctx_length=False)"
        )
        raise unfit(param, problem, "vocabulary")
    return replace(ask, fields={param: tuple(value) if kinds == {int} else value})  # a list of ids is a single text


def _shortened(ask: Ask, model: ServedModel, results: list[np.ndarray]) -> np.ndarray:
    rows = np.stack(results)
    shorter = ask.dimensions not in (None, model.vector_width)
    rows = rows[:, : ask.dimensions]
    return unit(rows) if ask.normalize or (shorter and ask.normalize is None) else rows


# Prompts


def prompt_of(ask: Ask, model: ServedModel) -> str:
    """Return the prompt that is put before each text. Raises Refused if the model has no such prompt."""
    name = _prompt_name(ask, model)
    return "" if name is None and not ask.default_prompt else named_prompt(model, name)


def named_prompt(model: ServedModel, name: str | None) -> str:
    """Return the model's prompt of this name; None: its default. Raises Refused if it has none."""
    with refusing("prompt_name"):
        return model.predictor.text_embedding.prompt(name, None)


def _prompt_name(ask: Ask, model: ServedModel) -> str | None:
    kind = ask.input_type
    if kind is None:
        return ask.prompt_name
    if ask.prompt_name is not None:
        raise ask.refused("input_type", "prompt_name chooses the prompt, too: give one of them", "input")
    prompts = model.predictor.text_embedding.prompts
    used = [name for name, text in prompts.items() if text]
    named = [name for name in (kind, *SEARCH.get(kind, ())) if name in used]
    if named or kind in prompts:
        return named[0] if named else kind
    if kind in SEARCH:
        return SEARCH[kind][0]
    if kind in OTHERS and not used:
        return None
    known = ", ".join(used or (*SEARCH, *OTHERS))
    raise ask.refused("input_type", f"there is no prompt for {shorten(kind)!r}: give one of {known}", "input")


# Widths


def shorter_widths(predictor: Predictor, named: tuple[int, ...] = ()) -> Collection[int]:
    """Return the widths below its own that the vectors of a model may have.

    Args:
        predictor: The model.
        named: Widths that its operator names. Without them, config.json has `matryoshka_dimensions`, or `is_matryoshka` for
            all widths, as vLLM reads them.

    Raises:
        UsageError: A named width is not below the width of the vectors.
        UserError: config.json has no valid widths.
    """
    width = predictor.vector_width()
    if wrong := [other for other in named if not 0 < other < width]:
        problem = f"the vectors of {predictor.folder} have width {width}"
        raise UsageError(f"--dimensions {wrong[0]}: {problem}: give 1 to {width - 1}")
    if named:
        return named
    path = predictor.folder / "config.json"
    values = storage.read_json(path) if path.is_file() else {}
    widths = values.get("matryoshka_dimensions")
    if widths is None:
        return range(1, width) if values.get("is_matryoshka") is True else ()
    if not isinstance(widths, list) or not all(type(other) is int and other > 0 for other in widths):
        raise UserError(f"{path}: matryoshka_dimensions is {str(widths)[:60]}: expected a list of widths")
    return tuple(other for other in widths if other < width)


# Tokens


async def tokenize(ask: Ask) -> Answered[list[Sequence]]:
    """Return the sequences of whole texts, with offsets, as the model reads them for a vector, after the prompt.

    Raises:
        Refused: The texts are too many or too large, or the time is over.
        UserError: A text is invalid.
    """
    model, sizes, call = ask.model("vectors"), list(map(len, ask.values)), ask.call
    ask.check_sizes(sizes)
    encode = partial(_encode_whole, model, prompt_of(ask, model))
    sequences = await call.service.tokenize(encode, ask.values, sizes, call.remaining)
    count = sum(map(len, sequences))
    call.reserve(TOKEN_BYTES * count)
    call.facts |= {"model": model.name, "texts": len(sizes), "tokens": count}
    return Answered(model, sequences, count, 0)


def _encode_whole(model: ServedModel, prompt: str, texts: list[str]) -> list[Sequence]:
    return truncation.encode(model.predictor.text_tokenizer, [prompt + text for text in texts], max_length=sys.maxsize)


def fingerprint(model: ServedModel) -> str:
    """Return the fingerprint of a vocabulary: models with the same one give the same ids for every text."""
    return model.predictor.text_tokenizer.fingerprint


def text_slice(model: ServedModel, sequence: Sequence) -> slice:
    """Return where the text stands among the special tokens of its sequence."""
    tokenizer = model.predictor.text_tokenizer
    [place] = truncation.text_slices(tokenizer, [len(sequence) - truncation.special_tokens(tokenizer, 1)])
    return place
