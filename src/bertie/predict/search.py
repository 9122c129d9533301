"""Find the texts that are nearest to a query, by an exact search over all vectors, and compare pairs; in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.sentence_transformers_format import Similarity
from bertie.examples.texts import Example
from bertie.examples.unlabeled import TextRows, UnlabeledReader, text_blocks
from bertie.predict.embed import TextUnit, count_rows, inputs_of, rows_of
from bertie.predict.engines.files import EngineName
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import cosines, similarities
from bertie.tasks.inference import SEQUENCES_AT_ONCE, require_finite
from bertie.tasks.predictions import rounded
from bertie.tokenizers.valid_texts import require_texts

SAME = 0.999  # cosine of a text's vector in a file with the one that is computed now; float16 changes it by less
SAME_LENGTH = 0.005  # relative difference of their lengths, for similarities that depend on these


@dataclass(frozen=True)
class Found:
    """A text that a search found."""

    score: float
    """Similarity of its vector and the query's: the cosine, −1 to 1, unless the model names another function."""
    index: int
    """Number of the text, from 0."""
    text: str
    """The text."""


def search(
    model: str | Path | Predictor,
    texts: str | Path | Iterable[Any],
    query: str,
    top_k: int = 5,
    unit: TextUnit = TextUnit(),
    *,
    source: UnlabeledReader = UnlabeledReader(),
    vectors: str | Path | None = None,
    language: str = "",
    engine: EngineName | None = None,
) -> list[Found]:
    """Find the texts that are nearest to a query, by the similarity of their vectors (`Predictor.similarity`).

    Args:
        model: A loaded model, or a source as in `load`.
        texts: A file, or texts or lists of words in memory, as in `embed`.
        query: The text to search for.
        top_k: Number of texts to find.
        unit: How to pool the vectors, and the prompt of the texts (default "document"). The query has the prompt "query".
        source: Which columns of the file to read.
        vectors: X.npy that `embed` wrote for the same texts, with the same model and unit; None: compute them.
        language: As in `load`. A loaded model has a language already.
        engine: As in `load`. A loaded model has an engine already.

    Returns:
        The nearest texts, the nearest first; of equally near ones, the first in the file.

    Raises:
        UsageError: `top_k` is less than 1, or `vectors` is not such a file.
        UserError: The texts cannot be read, or `vectors` belongs to other texts, another model or another unit.
    """
    if top_k < 1:
        raise UsageError(f"--top-k {top_k}: give at least 1")
    require_texts([query])
    inputs = inputs_of(texts, source)
    total, _ = count_rows(inputs, source, strict=False)
    predictor = model if isinstance(model, Predictor) else load(model, language=language, engine=engine)
    target = predictor.embed([query], unit.pooling, unit.layers, "query")
    require_finite(torch.from_numpy(target))
    stored = None if vectors is None else _open(Path(vectors), total, target.shape[1])
    unit = replace(unit, prompt_name=unit.prompt_name or "document")
    best, first = list[tuple[float, int, str]](), 0  # a heap of (score, −index, text)
    with console.progress("search", total, "texts") as bar:
        for rows in text_blocks(rows_of(inputs, source), SEQUENCES_AT_ONCE):
            if stored is None:
                _, block = unit.block(predictor, rows)
            else:
                block = _read(predictor, unit, rows, stored, first, str(vectors))
            scores = rounded(similarities(predictor.text_embedding.similarity, target, block)[0].tolist())
            for number, (row, score) in enumerate(zip(rows, scores, strict=True), first):
                if not isinstance(row, UserError) and not isnan(score):  # a text without tokens has no vector
                    add = heapq.heappush if len(best) < top_k else heapq.heappushpop
                    add(best, (score, -number, row if isinstance(row, str) else " ".join(row)))
            first += len(rows)
            bar.advance(len(rows))
    nearest = [Found(score, -index, text) for score, index, text in sorted(best, reverse=True)]
    if stored is not None:
        _require_same(predictor, unit, nearest, stored, str(vectors))
    return nearest


def pair_similarities(
    model: Predictor,
    pairs: Iterable[Example | UserError],
    unit: TextUnit = TextUnit(),
) -> Iterator[float | UserError]:
    """Yield the similarity (`Predictor.similarity`) of the vectors of each pair of texts, lazily and in order.

    Args:
        model: The model.
        pairs: Pairs, as a `Reader` yields them. A `UserError` among them is yielded in its place.
        unit: How to pool the vectors, and the prompt of the texts.
    """
    remaining = iter(pairs)
    while part := list(islice(remaining, SEQUENCES_AT_ONCE)):
        readable = [pair for pair in part if not isinstance(pair, UserError)]
        texts = [pair.text for pair in readable] + [pair.text_pair or "" for pair in readable]
        vectors = zip(*np.split(model.embed(texts, unit.pooling, unit.layers, unit.prompt_name), 2), strict=True)
        compare = partial(similarities, model.text_embedding.similarity)
        scores = iter(rounded([float(compare(first[None], second[None])[0, 0]) for first, second in vectors]))
        yield from (pair if isinstance(pair, UserError) else next(scores) for pair in part)


def _open(path: Path, texts: int, width: int) -> np.ndarray:
    """Open a file of vectors, and check its shape."""
    if path.suffix != ".npy":
        raise UsageError(f"--vectors {path}: give the X.npy of bertie embed --out X.npy")
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UsageError(f"--vectors {path}: no such file") from error
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is damaged or is not a NumPy array: {error}") from error
    if stored.shape != (texts, width) or stored.dtype not in (np.float32, np.float16):
        raise UserError(
            f"{path} has an array {stored.dtype} {list(stored.shape)}, but the vectors of these texts are float32 or float16 "
            f"{[texts, width]}: give the file that bertie embed wrote for them, with the same --pooling and --layers"
        )
    return stored


def _read(
    predictor: Predictor, unit: TextUnit, rows: TextRows, stored: np.ndarray, first: int, path: str
) -> np.ndarray:
    """Return the stored vectors of a block. Raises UserError if a text was not readable when the file was written."""
    block = stored[first : first + len(rows)].astype(np.float32)
    for number, (row, vector) in enumerate(zip(rows, block, strict=True), first + 1):
        missing = not isinstance(row, UserError) and not np.isfinite(vector).all()
        if missing and np.isfinite(unit.block(predictor, [row])[1]).all():
            raise UserError(f"{path} has no vector of text {number}: run bertie embed again")
    return block


def _require_same(predictor: Predictor, unit: TextUnit, nearest: list[Found], stored: np.ndarray, path: str) -> None:
    """Compute the vectors of the nearest texts. Raises UserError if the file has others."""
    for text in nearest:
        _, computed = unit.block(predictor, [text.text])
        if not _same(predictor.text_embedding.similarity, computed, stored[text.index][None].astype(np.float32)):
            raise UserError(
                f"{path}: the vector of text {text.index + 1} is of another text, model, --pooling, --layers or prompt: run "
                f"bertie embed again, with --prompt-name {unit.prompt_name}"
            )


def _same(similarity: Similarity, computed: np.ndarray, stored: np.ndarray) -> bool:
    """Return whether two vectors, [1, width], are the same for a similarity: the cosine ignores their lengths."""
    length, stored_length = np.linalg.norm(computed), np.linalg.norm(stored)
    same_length = similarity == "cosine" or abs(length - stored_length) <= SAME_LENGTH * length
    return bool(same_length and cosines(computed, stored)[0, 0] >= SAME)
