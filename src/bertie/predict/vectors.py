"""Vectors of texts and of words: the hidden states of chosen layers, pooled.

P  tokens whose hidden states are used
E  width of a vector (`layer_selection.selected_width`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.base import config as configuration
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding, Similarity
from bertie.model.head_facts import facts_of
from bertie.model.heads import layer_selection
from bertie.model.heads.layer_selection import Fixed
from bertie.model.model import Model
from bertie.model.pooling import Pooling, pool
from bertie.tasks import word_alignment
from bertie.tasks.inference import infer
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText
from bertie.tokenizers.valid_texts import require_texts

WordPooling = Literal["first", "mean"]
"""Vector of a word: the vector of its first piece, as for tagging in the BERT paper, or the mean of its pieces."""
_POOLING: dict[WordPooling, Pooling] = {"first": "cls", "mean": "mean"}


@dataclass(frozen=True, eq=False)
class WordVectors:
    """The words of one text and their vectors."""

    words: list[str]
    """The words, in order."""
    offsets: np.ndarray
    """int32 [words, 2]: start and end of each word, in characters."""
    vectors: np.ndarray
    """float32 [words, E]. 0 for words without tokens: punctuation in a list of words, if the tokenizer drops it."""


def encode(tokenizer: Tokenizer, texts: list[str], max_length: int, prompt: str = "") -> list[Sequence]:
    """Return the sequence of each text, truncated to `max_length` tokens. Raises UserError for an invalid text.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        max_length: Most tokens of a sequence.
        prompt: Text to put before each. The target of a sequence is the number of its tokens that belong to the prompt.
    """
    before = 0
    if prompt:
        require_texts(texts)
        texts = [prompt + text for text in texts]
        [alone] = encode(tokenizer, [prompt], max_length)
        before = len(alone) - bool(alone.input_ids[-1] in tokenizer.special_ids)
    pieces = truncation.tokenize(tokenizer, texts)
    return [replace(truncation.to_sequences(tokenizer, [text], max_length)[0], target=before) for text in pieces]


def sequence_vectors(
    model: Model, sequences: list[Sequence], how: SentenceEmbedding, layers: Fixed = "last"
) -> list[np.ndarray]:
    """Return one vector per sequence, float32 [E].

    Args:
        model: The model.
        sequences: The sequences. Their targets are the numbers of tokens of a prompt.
        how: How to compute vectors from the tokens, [CLS] and [SEP] included.
        layers: Layers whose hidden states to use.

    Raises:
        UserError: A sequence has no tokens.
    """
    if not all(map(len, sequences)):  # its vector would be another one's, or NaN
        raise UserError("an empty text has no tokens, and the tokenizer of this model adds none: remove it")

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        bounds_S, device = batch.ragged.cu_seqlens, model.device
        skipped = [0 if how.include_prompt else min(item.target or 0, len(item) - 1) for item in group]
        before_S = torch.tensor(skipped, device=device)
        single = {"cls": bounds_S[:-1] + before_S, "lasttoken": bounds_S[1:] - 1}
        text_P = torch.arange(len(group), device=device)
        if len(how.pooling) == 1 and how.pooling[0] in single:  # the last layer runs only there
            states_PE = _states(model, batch, single[how.pooling[0]], layers)
        else:
            text_P = text_P.repeat_interleave(batch.ragged.lengths)
            states_PE = _states(model, batch, None, layers)
            if any(skipped):
                read_P = torch.arange(len(text_P), device=device) >= single["cls"][text_P]
                states_PE, text_P = states_PE[read_P], text_P[read_P]
        vectors_SE = torch.cat([pool(mode, states_PE, text_P, len(group), before_S) for mode in how.pooling], 1)
        for module in how.modules:
            vectors_SE = module(vectors_SE)
        return list(vectors_SE[:, : how.dimensions].cpu().numpy())

    return infer(model, sequences, compute)


def token_vectors(model: Model, sequences: list[Sequence]) -> list[np.ndarray]:
    """Return the last layer's vectors of all tokens of each sequence, special tokens included: float32 [tokens, D]."""

    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        states_TD = _states(model, batch, None, "last").cpu().numpy()
        return np.split(states_TD, batch.ragged.cu_seqlens[1:-1].cpu().numpy())

    return infer(model, sequences, compute)


def head_outputs(model: Model, kind: str, sequences: list[Sequence]) -> list[np.ndarray]:
    """Return the outputs of a head: [C] for each sequence, or [tokens, C]."""
    pooled, last = facts_of(model.heads[kind]).pools, model.encoder.config.pooled_token == "last"
    logits = cast(Callable[[Tensor], Tensor], model.heads[kind].logits)

    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        bounds = batch.ragged.cu_seqlens
        rows = torch.arange(len(batch.input_ids)) if not pooled else bounds[1:] - 1 if last else bounds[:-1]
        if (encoder := model.encoder_of(kind)) is not model.encoder:
            hidden = encoder(batch, rows).last
        else:
            hidden = model.head_inputs(model.encoder_states(batch, rows), batch, rows).last
        outputs = logits(hidden).float().numpy()
        return list(outputs) if pooled else np.split(outputs, bounds[1:-1].numpy())

    return infer(model, sequences, compute)


def similarities(similarity: Similarity, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compare every vector of `first` with every vector of `second`, float32 [first, second]: higher is more similar."""
    if similarity == "cosine":
        return cosines(first, second)
    if similarity == "dot":
        return first @ second.T
    a, b = (torch.from_numpy(np.ascontiguousarray(vectors)) for vectors in (first, second))
    return -torch.cdist(a, b, p=2.0 if similarity == "euclidean" else 1.0).numpy()


def paired_similarities(similarity: Similarity, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compare every vector of `first` with its own of `second`, float32 [first]: see `similarities`."""
    pairs = zip(first, second, strict=True)
    return np.array([similarities(similarity, a[None], b[None])[0, 0] for a, b in pairs], np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return a vector, or the rows of a matrix, scaled to length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of every vector of `first` with every vector of `second`, float32 [first, second].

    A vector of zeros has the cosine 0 with all others.
    """
    normalized = [F.normalize(torch.from_numpy(vectors), dim=1) for vectors in (first, second)]
    return (normalized[0] @ normalized[1].T).clamp(-1, 1).numpy()


def word_vectors(
    model: Model,
    tokenizer: Tokenizer,
    texts: Many[str | Many[str]],
    max_length: int,
    layers: Fixed,
    word_pooling: WordPooling,
) -> list[WordVectors]:
    """Return the words of every text with one vector per word.

    Longer texts are read in overlapping windows. The vector of a word comes from the window with the most context
    around the word.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        texts: Texts, whose words are separated by spaces and punctuation (every Chinese character is a word), or lists
            of words. Offsets of a list refer to the words joined with spaces.
        max_length: Tokens in a window, special tokens included.
        layers: Layers whose hidden states to use.
        word_pooling: How to pool the pieces of a word.

    Raises:
        UsageError: `texts` mixes texts and lists of words, or an argument is unknown.
        UserError: A text is not a valid text, or the tokenizer has no words.
    """
    for kind, name, value in ((Fixed, "layers", layers), (WordPooling, "word_pooling", word_pooling)):
        configuration.build(kind, value, name)
    width = layer_selection.selected_width(layers, model.encoder.config)
    tokenized = _tokenize_words(tokenizer, texts)
    results = [WordVectors(words, at, np.zeros((len(words), width), np.float32)) for words, at, _ in tokenized]
    windows = [
        replace(window, example=number)
        for number, (words, _, pieces) in enumerate(tokenized)
        for window in _windows(tokenizer, pieces, len(words), max_length, word_pooling)
    ]

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        targets: list[_WindowWords] = [window.target for window in group]
        counts = np.array([len(target.words) for target in targets])
        starts = zip(batch.ragged.cu_seqlens.tolist(), np.cumsum(counts) - counts, targets, strict=False)
        shifted = [(target.positions + token, target.word + word) for token, word, target in starts]
        columns = zip(*shifted, strict=True)
        rows, word_P = (torch.as_tensor(np.concatenate(column), device=model.device) for column in columns)
        vectors = pool(_POOLING[word_pooling], _states(model, batch, rows, layers), word_P, int(counts.sum()))
        return np.split(vectors.cpu().numpy(), np.cumsum(counts)[:-1])

    for window, vectors in zip(windows, infer(model, windows, compute), strict=True):
        results[window.example].vectors[window.target.words] = vectors
    return results


def _states(model: Model, batch: Batch, rows: Tensor | None, layers: Fixed) -> Tensor:
    """Return hidden states at sorted positions `rows` (None: all), float32 [P, E]. The last layer runs only there."""
    if layers == "last":
        return model.encoder(batch, rows).last.float()
    states = model.encoder(batch, all_layers=True).layers
    selected = states if rows is None else tuple(x_TD[rows] for x_TD in states)
    return layer_selection.select_layers(layers, selected).float()


class _WindowWords(NamedTuple):
    """The words whose vectors come from a window."""

    words: np.ndarray
    """int64 [W]: indices of the words in the text."""
    positions: np.ndarray
    """int64 [P]: positions of their pieces in the window."""
    word: np.ndarray
    """int64 [P]: index into `words` of each piece, ascending."""


def _windows(
    tokenizer: Tokenizer, text: TokenizedText, count: int, max_length: int, word_pooling: WordPooling
) -> list[Sequence]:
    """Return the windows of a text of `count` words. The target of each is a `_WindowWords`."""
    windows = truncation.to_sequences(tokenizer, [text], max_length, "windows", doc_stride=0)
    best = word_alignment.best_windows(windows, count)
    selected = []
    for number, window in enumerate(windows):
        assert window.offsets is not None
        of_word, piece = window.offsets.T
        used = np.flatnonzero((piece == 1) | ((piece > 1) & (word_pooling == "mean")))
        used = used[best[of_word[used]] == number]
        words, word = np.unique(of_word[used], return_inverse=True)
        if len(words):
            selected.append(replace(window, target=_WindowWords(words, used, word)))
    return selected


def _tokenize_words(
    tokenizer: Tokenizer, texts: Many[str | Many[str]]
) -> list[tuple[list[str], np.ndarray, TokenizedText]]:
    """Return the words of each text, their offsets (int32 [words, 2]) and their pieces."""
    plain = [text for text in texts if isinstance(text, str)]
    require_texts(text for text in texts if not isinstance(text, Iterable))
    lists = [list(text) for text in texts if not isinstance(text, str)]
    if plain and lists:
        raise UsageError("expected texts or lists of words, not both in one call")
    if lists:
        return [
            (words, _joined_offsets(words), pieces)
            for words, pieces in zip(lists, word_alignment.tokenize_words(tokenizer, lists), strict=True)
        ]
    return [
        ([text[start:end] for start, end in offsets.tolist()], offsets, pieces)
        for text, (pieces, offsets) in zip(plain, word_alignment.split_and_tokenize(tokenizer, plain), strict=True)
    ]


def _joined_offsets(words: Many[str]) -> np.ndarray:
    """Return the offsets of words that are joined with spaces, int32 [words, 2]."""
    lengths = np.array([len(word) for word in words], np.int32)
    starts = np.cumsum(lengths + 1, dtype=np.int32) - lengths - 1
    return np.stack([starts, starts + lengths], 1)
