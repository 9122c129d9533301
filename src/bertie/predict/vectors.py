"""Vectors of texts and of words from a model as it is: states of the layers that are asked for, pooled.

P  tokens that are read
E  width of a vector (`mixing.width`)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie import config as configuration
from bertie.contracts import Batch, Sequence
from bertie.errors import UsageError
from bertie.model import layer_selection
from bertie.model.bert import BertModel
from bertie.model.layer_selection import Fixed
from bertie.model.pooling import Pooling, pool
from bertie.tasks import word_alignment
from bertie.tasks.inference import infer
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import TokenizedText

WordPooling = Literal["first", "mean"]
"""A word's vector: that of its first piece, as BERT's taggers read it, or the mean of its pieces'."""
_POOLED: dict[WordPooling, Pooling] = {"first": "cls", "mean": "mean"}


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Of one text. offsets: int32 [words, 2], where each word begins and ends, in characters; vectors: float32 [words, E]."""

    words: list[str]
    offsets: np.ndarray
    vectors: np.ndarray


def text_vectors(
    model: BertModel,
    tokenizer: Tokenizer,
    texts: list[str],
    max_length: int,
    pooling: Pooling,
    layers: Fixed = "last",
    normalize: bool = False,
) -> np.ndarray:
    """float32 [n, E]. Mean and max are of all tokens, [CLS] and [SEP] too; longer texts are cut at max_length tokens.

    Errors: UsageError for a pooling or layers that are not known, or where the model has too few layers.
    """
    for kind, name, value in ((Pooling, "pooling", pooling), (Fixed, "layers", layers)):
        configuration.build(kind, value, name)
    width = layer_selection.selected_width(layers, model.encoder.config)
    sequences = [
        truncation.to_sequences(tokenizer, [each], max_length)[0] for each in truncation.tokenize(tokenizer, texts)
    ]

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        bounds = batch.ragged.cu_seqlens
        rows = bounds[:-1] if pooling == "cls" else None
        numbers = torch.arange(len(group), device=model.device)
        text_P = numbers if pooling == "cls" else numbers.repeat_interleave(batch.ragged.lengths)
        vectors = pool(pooling, _states(model, batch, rows, layers), text_P, len(group))
        return list((F.normalize(vectors) if normalize else vectors).cpu().numpy())

    return np.stack(infer(model, sequences, compute)) if texts else np.zeros((0, width), np.float32)


def word_vectors(
    model: BertModel,
    tokenizer: Tokenizer,
    texts: Many[str | Many[str]],
    max_length: int,
    layers: Fixed = "last",
    word_pooling: WordPooling = "first",
) -> list[WordVectors]:
    """Per text a vector of every word; those that are too long are read in windows, each word where most of its context is.

    Of a text as it is, the words are those between blanks and punctuation (characters of Chinese, each); of a list of
    words, those, and offsets are into the words with a blank between. Errors: UserError for what is no text, UsageError
    where both are given, and for layers or pieces that are not known.
    """
    for kind, name, value in ((Fixed, "layers", layers), (WordPooling, "word_pooling", word_pooling)):
        configuration.build(kind, value, name)
    width = layer_selection.selected_width(layers, model.encoder.config)
    found = _cut(tokenizer, texts)
    results = [WordVectors(each, places, np.zeros((len(each), width), np.float32)) for each, places, _ in found]
    windows = [
        replace(window, example=number)
        for number, (each, _, parts) in enumerate(found)
        for window in _windows(tokenizer, parts, len(each), max_length, word_pooling)
    ]

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        read: list[_Read] = [window.target for window in group]
        counts = np.array([len(each.words) for each in read])
        starts = zip(batch.ragged.cu_seqlens.tolist(), np.cumsum(counts) - counts, read, strict=False)
        places = [(each.positions + token, each.word + word) for token, word, each in starts]
        rows, word_P = (
            torch.as_tensor(np.concatenate(part), device=model.device) for part in zip(*places, strict=True)
        )
        vectors = pool(_POOLED[word_pooling], _states(model, batch, rows, layers), word_P, int(counts.sum()))
        return np.split(vectors.cpu().numpy(), np.cumsum(counts)[:-1])

    for window, vectors in zip(windows, infer(model, windows, compute), strict=True):
        results[window.example].vectors[window.target.words] = vectors
    return results


def _states(model: BertModel, batch: Batch, rows: Tensor | None, layers: Fixed) -> Tensor:
    """float32 [P, E]. rows: sorted positions in T; None: all. Of the last layer, only they are computed."""
    if layers == "last":
        return model.encoder(batch, rows).last.float()
    states = model.encoder(batch, all_layers=True).layers
    return layer_selection.select_layers(
        layers, states if rows is None else tuple(x_TD[rows] for x_TD in states)
    ).float()


class _Read(NamedTuple):
    """What is read of a window. words: int64 [W], their numbers in the text; positions: int64 [P], of the tokens read;
    word: int64 [P], which of `words` each is of, ascending."""

    words: np.ndarray
    positions: np.ndarray
    word: np.ndarray


def _windows(
    tokenizer: Tokenizer, parts: TokenizedText, count: int, max_length: int, pieces: WordPooling
) -> list[Sequence]:
    """Sequences with what is read of each as target; none of a text without words."""
    windows = truncation.to_sequences(tokenizer, [parts], max_length, "windows", step=0)
    best = word_alignment.best_windows(windows, count)
    found = []
    for number, window in enumerate(windows):
        assert window.offsets is not None
        of_word, piece = window.offsets[1:-1].T  # between [CLS] and [SEP]
        read = np.flatnonzero((best[of_word] == number) & ((piece == 0) | (pieces == "mean")))
        mine, word = np.unique(of_word[read], return_inverse=True)
        if len(mine):
            found.append(replace(window, target=_Read(mine, read + 1, word)))
    return found


def _cut(tokenizer: Tokenizer, texts: Many[str | Many[str]]) -> list[tuple[list[str], np.ndarray, TokenizedText]]:
    """Per text its words, their places (int32 [words, 2]) and their pieces."""
    plain = [text for text in texts if isinstance(text, str)]
    given = [list(text) for text in texts if not isinstance(text, str)]
    if plain and given:
        raise UsageError("give either texts or lists of words, not both")
    if given:
        return [
            (each, _joined(each), parts)
            for each, parts in zip(given, word_alignment.tokenize_words(tokenizer, given), strict=True)
        ]
    return [
        ([text[start:end] for start, end in places.tolist()], places, parts)
        for text, (parts, places) in zip(plain, word_alignment.split_and_tokenize(tokenizer, plain), strict=True)
    ]


def _joined(given: Many[str]) -> np.ndarray:
    """Where words lie when they are written with a blank between: int32 [words, 2]."""
    lengths = np.array([len(word) for word in given], np.int32)
    starts = np.cumsum(lengths + 1, dtype=np.int32) - lengths - 1
    return np.stack([starts, starts + lengths], 1)
