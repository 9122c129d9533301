"""The tokens of tagged sentences: the word of each token, and which tokens a sequence predicts tags for.

A list of words is read word by word, with a blank before each. A raw text is read as it stands, and its words find their tokens
by their characters: in "(Anna)", no blank is before "Anna". For tokenizers whose entries say that they continue a word (##),
both are the same.

    N  tokens of a sentence
    W  tokens that the head reads in a sequence
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from itertools import repeat
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers import Encoding

from bertie.base.contracts import Sequence
from bertie.examples.tag_form import TagForm
from bertie.examples.tagged import TaggedSentence
from bertie.tasks import word_alignment
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText, to_sequences

Strategy = Literal["words", "first", "none", "simple", "average", "max"]


class WordTokens(NamedTuple):
    """Tokens of a sentence."""

    ids: np.ndarray
    """int32 [N]."""
    words: np.ndarray
    """int64 [N]: the word of each token, ascending."""
    first: np.ndarray
    """bool [N]: whether it is the first of its word."""
    places: np.ndarray
    """int32 [N, 2]: its first and last character (exclusive) in the text."""
    groups: np.ndarray
    """int64 [N]: what transformers' pipeline takes for its word, ascending."""
    shared: tuple[tuple[int, int], ...] = ()
    """The words of each token that reaches into words after its own: its own, and the last."""
    covered: tuple[int, ...] = ()
    """The words in which no token begins, because a token of the word before covers them."""

    def take(self, index: np.ndarray) -> WordTokens:
        """Return some of the tokens."""
        return self._replace(**{name: getattr(self, name)[index] for name in self._fields[:5]})


class WordTargets(NamedTuple):
    """The tokens that one sequence predicts tags for. A token in two windows is predicted in one of them."""

    positions: np.ndarray
    """int64 [W]: their positions in the sequence."""
    tags: np.ndarray
    """int64 [W]: indices of the gold tags; −1 where unknown, and for all tokens but the first of a word."""
    numbers: np.ndarray
    """int64 [W]: their numbers among the tokens of the sentence."""
    tokens: WordTokens
    """These tokens."""


def tokenize(
    tokenizer: Tokenizer, examples: Many[TaggedSentence], strategy: Strategy, in_place: bool
) -> list[WordTokens]:
    """Tokenize sentences.

    Args:
        tokenizer: The tokenizer.
        examples: The sentences.
        strategy: How predictions for tokens become entities. none and simple need the places of the tokens of listed words.
        in_place: Whether to read raw texts as they stand. Otherwise their words are a list.

    Raises:
        UserError: The tokenizer has no words, or a word is not a text.
    """
    tokenizer.require_words("a tag of a word")
    in_place = in_place and (tokenizer.splits_characters or not _continuation(tokenizer))
    is_raw = [in_place and example.text is not None for example in examples]
    raw = [example for example, one in zip(examples, is_raw, strict=True) if one]
    listed = [example for example, one in zip(examples, is_raw, strict=True) if not one]
    words = [example.words for example in listed]
    needed = strategy in ("none", "simple")
    within = word_alignment.piece_places(tokenizer, words) if needed else repeat(None)
    of_words = map(_of_words, listed, word_alignment.tokenize_words(tokenizer, words), within)
    of_texts = map(
        _of_text, repeat(tokenizer), raw, tokenizer.encode_with_offsets([example.text or "" for example in raw])
    )
    return [next(of_texts if one else of_words) for one in is_raw]


def _of_words(example: TaggedSentence, pieces: TokenizedText, within: list[list[tuple[int, int]]] | None) -> WordTokens:
    """Return the tokens of a list of words. within: the characters of each token in its word, by word, if they are needed."""
    assert pieces.offsets is not None
    words, order = pieces.offsets.astype(np.int64).T
    places = np.zeros((len(words), 2), np.int32)
    if within is not None:
        _, ranges = example.characters()
        inside = [within[word][number - 1] for word, number in zip(words.tolist(), order.tolist(), strict=True)]
        places = np.array(ranges)[words, :1] + np.array(inside).reshape(-1, 2)
    return WordTokens(pieces.ids, words, order == 1, places, words)


def _of_text(tokenizer: Tokenizer, example: TaggedSentence, encoding: Encoding) -> WordTokens:
    """Return the tokens of a raw text.

    A token of white space alone belongs to the word before it, unless it is the mark at the start of the next, such as "▁".
    """
    text, ranges = example.characters()
    offsets = encoding.offsets if ranges else []
    ids = np.array(encoding.ids[: len(offsets)], np.int32)
    places = np.array(offsets, np.int32).reshape(-1, 2)
    inner = np.array([_without_blanks(text, *bounds) for bounds in offsets], np.int32).reshape(-1, 2)
    starts, ends = np.array(ranges, np.int32).reshape(-1, 2).T
    parts = np.array([part for part, _ in zip(encoding.word_ids, offsets, strict=False)], np.int64)
    blank = (inner[:, 0] == inner[:, 1]) & (np.diff(parts, append=-1) != 0)
    nearest = np.searchsorted(ends, inner[:, 0], side="right")  # the first word that ends after the token begins
    words = np.clip(nearest - blank, 0, max(len(ranges) - 1, 0))
    first = np.zeros(len(ids), bool)
    own = np.flatnonzero(~blank)
    first[own[np.unique(words[own], return_index=True)[1]]] = True
    last = np.maximum(words, np.searchsorted(starts, inner[:, 1]) - 1)
    shared = tuple((a, b) for a, b in zip(words.tolist(), last.tolist(), strict=True) if b > a)
    covered = {word for a, b in shared for word in range(a + 1, b + 1)} - set(words.tolist())
    unknown = tokenizer.unk_id if tokenizer.special.unk else -1
    # As in transformers: the second is the "fallback heuristic" for entries that do not say that they continue a word.
    begins = [
        number == unknown
        or (len(token) == end - start if _continuation(tokenizer) else start == 0 or " " in text[start - 1 : start + 1])
        for (start, end), number, token in zip(offsets, ids.tolist(), encoding.tokens, strict=False)
    ]
    return WordTokens(ids, words, first, places, np.cumsum(begins, dtype=np.int64), shared, tuple(sorted(covered)))


def _continuation(tokenizer: Tokenizer) -> str:
    """Return what begins the entries that continue a word, such as "##"; "" if they do not say it."""
    return getattr(tokenizer.backend.engine.model, "continuing_subword_prefix", None) or ""


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the place of a token without white space around it. That of white space alone is empty, at its end."""
    start = end - len(text[start:end].lstrip())
    return start, start + len(text[start:end].rstrip())


def windows_of(
    tokenizer: Tokenizer, tokens: WordTokens, strategy: Strategy, *lengths: Any
) -> Iterator[tuple[Sequence, np.ndarray, np.ndarray]]:
    """Yield the sequences of a sentence, each with the tokens that it predicts tags for: positions and numbers, [W].

    A token in several windows is predicted in the one with the most context on both sides of it. lengths: as for
    `to_sequences`.
    """
    numbered = np.stack([np.arange(len(tokens.ids)), np.ones(len(tokens.ids), int)], 1).astype(np.int32)
    windows = to_sequences(tokenizer, [TokenizedText(tokens.ids, numbered)], *lengths)
    inside = [(at := np.flatnonzero(_offsets(window)[:, 1]), _offsets(window)[at, 0]) for window in windows]
    one = len(windows) == 1
    best = np.zeros(len(tokens.ids), int) if one else word_alignment.most_context(windows, inside, len(tokens.ids))
    if strategy == "words" or (strategy == "first" and tokens.groups is tokens.words):
        best[~tokens.first] = -1
    for part, (window, (positions, index)) in enumerate(zip(windows, inside, strict=True)):
        chosen = best[index] == part
        yield window, positions[chosen], index[chosen]


def _offsets(window: Sequence) -> np.ndarray:
    assert window.offsets is not None
    return window.offsets


def continued(form: TagForm | None, tag: str, labels: Many[str]) -> str:
    """Return the tag of a word whose token begins in the word before, which has a tag."""
    place, kind = (form and form.mark(tag)) or ("O", "")
    inside = form.tag("I", kind) if form and place == "B" else tag
    return inside if inside in labels else tag
