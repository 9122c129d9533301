"""Likelihoods of texts: pseudo-log-likelihoods of masked language models, and the exact ones of causal models.

The pseudo-log-likelihood of a text is the sum of the log probabilities of its tokens, each predicted from all other tokens
(Salazar et al. 2020, section 2). It is no probability of the text: the probabilities of all texts do not sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from bertie.base import console
from bertie.base.errors import UserError, first_few
from bertie.examples.unlabeled import Text, text_blocks
from bertie.predict.token_model import Query, TokenModel
from bertie.tasks.inference import SEQUENCES_AT_ONCE
from bertie.tasks.word_alignment import word_numbers
from bertie.tokenizers.batching import batches
from bertie.tokenizers.tokenizer import Encoding
from bertie.tokenizers.valid_texts import require_texts

MAX_MASKED_TOKENS = 1 << 22  # of the masked copies that are in memory together; one text may exceed it


@dataclass(frozen=True, eq=False)
class TextScore:
    """The likelihood of a text, token by token. [CLS] and [SEP] are not predicted."""

    token_ids: np.ndarray
    """int32 [n]: the tokens of the text that are predicted."""
    log_probabilities: np.ndarray
    """float64 [n]: natural logarithm of the probability of each token."""
    given: tuple[int, ...] = ()
    """The first token of the text, if a causal model has no token that starts a text: nothing predicts it."""

    @property
    def log_likelihood(self) -> float:
        """Sum of the log probabilities, in nats."""
        return float(self.log_probabilities.sum())

    @property
    def perplexity(self) -> float:
        """exp(−log-likelihood / n): the (pseudo-)perplexity per token."""
        return perplexity(self.log_likelihood, len(self.token_ids))


def perplexity(log_likelihood: float, tokens: int) -> float:
    """Return exp(−log-likelihood / tokens); infinity if that is too large for a float."""
    try:
        return math.exp(-log_likelihood / tokens)
    except OverflowError:
        return math.inf


def score_stream(
    model: TokenModel, texts: Iterable[Text | UserError], within_word: bool
) -> Iterator[TextScore | UserError]:
    """Score texts lazily, in order and in constant memory.

    Args:
        model: The model.
        texts: Texts, or lists of words, which are joined with spaces. A `UserError` among them is yielded in its place.
        within_word: As in `score_texts`.

    Yields:
        One score per text. A `UserError` takes the place of a text that cannot be scored.

    Raises:
        UserError: An item is not a valid text.
    """
    first = 1
    for rows in text_blocks(_valid(texts), SEQUENCES_AT_ONCE):
        joined = [" ".join(row) if isinstance(row, list | tuple) else row for row in rows]
        names = [f"text {number:,}" for number in range(first, first + len(rows))]
        yield from score_texts(model, joined, names, within_word)
        first += len(rows)


def _valid(texts: Iterable[Text | UserError]) -> Iterator[Text | UserError]:
    """Yield the texts. Raises UserError at the first that is not a valid text."""
    for text in texts:
        if not isinstance(text, UserError):
            require_texts(text if isinstance(text, list | tuple) else [text])
        yield text


def score_texts(
    model: TokenModel, texts: Many[str | UserError], names: Many[str], within_word: bool
) -> list[TextScore | UserError]:
    """Score texts. The masked copies of all texts are computed in common batches.

    Args:
        model: The model.
        texts: The texts. A `UserError` among them is returned in its place.
        names: Name of each text, for messages.
        within_word: Also mask the later tokens of the same word, so that the last pieces of a rare word do not reveal the
            first ones (PLL-word-l2r, Kauf and Ivanova 2023). For a causal model it makes no difference.

    Returns:
        One score per text. A `UserError` takes the place of a text without tokens, or with more than the model reads.
    """
    readable = [text for text in texts if not isinstance(text, UserError)]
    encodings = iter(model.tokenizer.encode_with_offsets(readable))
    encoded: list[_Encoded | UserError] = [
        text if isinstance(text, UserError) else _encoded(model, next(encodings), name, within_word)
        for text, name in zip(texts, names, strict=True)
    ]
    accepted = (text for text in encoded if not isinstance(text, UserError))
    blocks = batches(accepted, MAX_MASKED_TOKENS, lambda text: (len(text.ids) + 2) ** 2)
    scores = chain.from_iterable(_score(model, block) for block in blocks)
    return [text if isinstance(text, UserError) else next(scores) for text in encoded]


class _Encoded(NamedTuple):
    """A text without special tokens."""

    ids: np.ndarray
    """int32 [n]: its tokens."""
    words: np.ndarray
    """int32 [n]: the word of each token; without `within_word`, every token is one."""


def _encoded(model: TokenModel, encoding: Encoding, name: str, within_word: bool) -> _Encoded | UserError:
    tokens = len(encoding.ids)
    if not tokens:
        return UserError(f"{name} has no tokens: remove it")
    if tokens == 1 and model.causal and not model.start:
        return UserError(
            f"{name} has one token, which nothing predicts, because the model has no token that starts a text"
        )
    if tokens > (limit := model.max_text):
        return UserError(f"{name} has {tokens:,} tokens, but the model reads at most {limit:,}: split it")
    words = word_numbers(model.tokenizer, encoding) if within_word else np.arange(tokens)
    return _Encoded(np.array(encoding.ids, np.int32), words)


def _score(model: TokenModel, texts: list[_Encoded]) -> Iterator[TextScore]:
    if model.causal:
        read = [np.array([*model.start, *ids], np.int32) for ids, _ in texts]
        first = 0 if model.start else 1
        for (ids, _), log_p in zip(texts, model.next_log_probabilities(read), strict=True):
            yield TextScore(ids[first:], log_p.astype(np.float64), tuple(ids[:first].tolist()))
    else:
        queries = [query for text in texts for query in _masked_copies(model, *text)]
        parts = np.split(model.log_probabilities(queries), np.cumsum([len(ids) for ids, _ in texts])[:-1])
        for (ids, _), log_p in zip(texts, parts, strict=True):
            yield TextScore(ids, log_p.astype(np.float64))


def _masked_copies(model: TokenModel, ids: np.ndarray, words: np.ndarray) -> Iterator[Query]:
    """Yield one query per token: the text with this token and the later ones of its word masked."""
    tokenizer = model.tokenizer
    before, after = tokenizer.templates.around
    sequence, start = np.concatenate([before, ids, after]).astype(np.int32), len(before)
    ends = np.searchsorted(words, words, side="right")
    for position, (token, end) in enumerate(zip(ids.tolist(), ends.tolist(), strict=True)):
        masked = sequence.copy()
        masked[start + position : start + end] = tokenizer.mask_id
        yield Query(masked, start + position, token)


def with_nan(results: Iterable[float | UserError]) -> np.ndarray:
    """Return numbers as float64, with NaN in place of errors, and warn about these.

    Raises:
        UserError: Every result is an error. It is the first one.
    """
    values = list(results)
    errors = [value for value in values if isinstance(value, UserError)]
    if errors and len(errors) == len(values):
        raise errors[0]
    if errors:
        console.warn(f"{len(errors):,} of {len(values):,} are NaN: {first_few(map(str, errors), len(errors))}")
    return np.array([math.nan if isinstance(value, UserError) else value for value in values], np.float64)
