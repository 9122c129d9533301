"""Texts with mentions as sequences of tokens. A text that is too long is read in windows around its mentions."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np

from bertie.base.contracts import Sequence
from bertie.inspect.mentions import PRONOUNS, Agreement, AntecedentQuestion, MentionText
from bertie.tasks.word_alignment import tokenize_words
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText

ALL = "all"


@dataclass(frozen=True)
class PlacedQuestion:
    """A question in a window. Words count from the first word of the window.

    Mentions with the same head word cannot be told apart by attention, so the candidates are head words.
    """

    window: int
    """Number of the window."""
    text: int
    """Number of the text."""
    word: int
    """Head word of the mention."""
    candidates: tuple[int, ...]
    """Head words of the candidates in the window."""
    right: tuple[bool, ...]
    """Whether each is the head word of an antecedent."""
    baselines: tuple[bool, ...]
    """Whether each baseline of `RULES` is right."""
    groups: tuple[str, ...]
    """Types of mentions that the question counts in."""


@dataclass(frozen=True, eq=False)
class MentionWindows:
    """Texts with mentions as sequences."""

    sequences: list[Sequence]
    """[CLS] window [SEP]. Column 0 of `offsets` is the word of each token, counted from the first word of the window, and
    -1 for special tokens."""
    questions: list[PlacedQuestion]
    """The questions, by window."""
    outside: int
    """Number of questions left out: no antecedent fits into the window, or a word has no token."""
    without_antecedent: int
    """Number of texts that have no question, because no mention has an antecedent."""


def encode_mentions(tokenizer: Tokenizer, texts: Many[MentionText], max_length: int) -> MentionWindows:
    """Encode texts with mentions.

    Args:
        tokenizer: The tokenizer of the model.
        texts: The texts.
        max_length: Maximum length of a sequence in tokens. A longer text is read in windows: one that holds all candidates
            of a closed question in its middle, or one that has at least about half of its tokens before the mention of an
            open one. Neighboring questions share a window where they can.
    """
    windows = MentionWindows([], [], 0, sum(not text.questions for text in texts))
    max_tokens = max_length - truncation.special_tokens(tokenizer, 1)
    outside = 0
    for number, text in enumerate(texts):
        if text.questions:
            tokens = _tokenize(tokenizer, text)
            for span, questions in _place(_Places.of(tokens, len(text.words)), text, max_tokens):
                placed = [
                    _in_window(text, number, question, tokens, span, len(windows.sequences)) for question in questions
                ]
                found = [question for question in placed if question is not None]
                outside += len(placed) - len(found)
                if span is not None and found:
                    windows.sequences.append(_sequence(tokenizer, tokens.take(span), number))
                    windows.questions.extend(found)
    return replace(windows, outside=outside)


def _tokenize(tokenizer: Tokenizer, text: MentionText) -> TokenizedText:
    """Return the tokens of a text. Column 0 of the offsets is the word of each token, -1 for none."""
    if text.text is None or text.spans is None:
        return tokenize_words(tokenizer, [text.words])[0]
    encoding = tokenizer.encode_with_offsets([text.text])[0]
    last = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 1] - 1
    # A token belongs to the word of its last character: the first may be the space before the word.
    word = np.searchsorted(text.spans[:, 1], last, side="right")
    outside = word == len(text.spans)
    word[outside] = 0
    word[outside | (text.spans[word, 0] > last)] = -1
    return TokenizedText(np.array(encoding.ids, np.int32), np.stack([word, np.zeros_like(word)], 1).astype(np.int32))


@dataclass(frozen=True, eq=False)
class _Places:
    """Where the words of a text are among its tokens."""

    first: np.ndarray
    """int [words]: first token of each word; -1 for a word without a token."""
    end: np.ndarray
    """int [words]: the token after the last one of each word."""
    boundaries: np.ndarray
    """int, sorted: the tokens at which a window may start or end."""

    @classmethod
    def of(cls, tokens: TokenizedText, words: int) -> _Places:
        assert tokens.offsets is not None
        word = tokens.offsets[:, 0]
        first, end = np.full(words, -1), np.full(words, -1)
        at = np.flatnonzero(word >= 0)
        first[word[at[::-1]]], end[word[at]] = at[::-1], at + 1
        changes = np.flatnonzero(word[1:] != word[:-1]) + 1
        return cls(first, end, np.concatenate([[0], changes, [len(word)]]))


_Placed = tuple[slice | None, list[AntecedentQuestion]]


def _place(places: _Places, text: MentionText, max_tokens: int) -> list[_Placed]:
    """Return windows with the questions that are asked in them. None in place of a window: the questions do not fit."""
    length = int(places.boundaries[-1])
    placed: list[_Placed] = [(None, [])]
    for question in text.questions:
        needed = [question.mention, *(question.candidates if question.closed else ())]
        words = [text.mentions[number].last for number in needed]
        start, end = int(places.first[words].min()), int(places.end[words].max())
        window = placed[-1][0]
        if start < 0 or end - start > max_tokens:
            placed[0][1].append(question)
        elif window is not None and _suits(window, start, end, length):
            placed[-1][1].append(question)
        else:
            at = max(0, min(start - (max_tokens - (end - start)) // 2, length - max_tokens))
            at = int(places.boundaries[np.searchsorted(places.boundaries, at)])
            last = int(places.boundaries[np.searchsorted(places.boundaries, at + max_tokens, side="right") - 1])
            placed.append((slice(at, last), [question]))
    return placed


def _suits(window: slice, start: int, end: int, length: int) -> bool:
    """Return whether a question can use the window of an earlier one: an eighth of the window has to follow."""
    margin = (window.stop - window.start) // 8
    return window.start <= start and (end + margin <= window.stop or (window.stop == length and end <= length))


def _in_window(
    text: MentionText, number: int, question: AntecedentQuestion, tokens: TokenizedText, span: slice | None, window: int
) -> PlacedQuestion | None:
    """Return a question with the candidates in a window. None: it cannot be asked there."""
    if span is None:
        return None
    assert tokens.offsets is not None
    present = sorted(set(tokens.offsets[span, 0].tolist()) - {-1})
    own = text.mentions[question.mention].last
    inside = [i for i, c in enumerate(question.candidates) if text.mentions[c].last in present]
    right_words = {text.mentions[question.candidates[i]].last for i in inside if question.right[i]}
    candidates = tuple(question.candidates[i] for i in inside)
    words = sorted({text.mentions[candidate].last for candidate in candidates})
    if own not in present or not right_words or (question.closed and len(words) < len(question.candidates)):
        return None
    choices = choose(text, question.mention, candidates)
    return PlacedQuestion(
        window=window,
        text=number,
        word=own - present[0],
        candidates=tuple(word - present[0] for word in words),
        right=tuple(word in right_words for word in words),
        baselines=tuple(each is not None and text.mentions[each].last in right_words for each in choices),
        groups=_groups(text, question),
    )


def _groups(text: MentionText, question: AntecedentQuestion) -> tuple[str, ...]:
    mention = text.mentions[question.mention]
    known = PRONOUNS.get(text.words[mention.last].lower()) if mention.kind == "pronoun" else None
    if known is not None and known.gender is not None:
        return ALL, mention.kind, f"{known.gender} pronoun"
    return ALL, mention.kind


def _sequence(tokenizer: Tokenizer, tokens: TokenizedText, number: int) -> Sequence:
    assert tokens.offsets is not None
    offsets = tokens.offsets.copy()
    words = offsets[:, 0] >= 0
    offsets[words, 0] -= offsets[words, 0].min()
    sequence, around = truncation.add_special_tokens(tokenizer, [tokens]), tokenizer.templates.lengths_around
    return replace(sequence, example=number, offsets=np.pad(offsets, (around, (0, 0)), constant_values=-1))


RULES = ("nearest mention", "head match", "rules")
"""The baselines, in the order of `choose`:

- nearest mention: the candidate whose head word is nearest;
- head match: the nearest candidate with the same head word; none if there is no such candidate;
- rules: the nearest candidate with the same words; else with the same head word; else one that agrees in person, number and
  gender; else any. A short form of the sieves of Lee et al. (2011).

Distances are between head words. Of two candidates at the same distance, the one before the mention counts. Comparisons ignore
case."""


def choose(text: MentionText, mention: int, candidates: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the choice of each baseline in `RULES`; None if it makes none.

    Args:
        text: The text.
        mention: Number of the mention.
        candidates: Numbers of the mentions to choose from; at least one.
    """
    own = text.mentions[mention].last
    nearest_first = sorted(candidates, key=lambda number: _distance(own, text.mentions[number].last))
    same_words = [other for other in nearest_first if _words(text, other) == _words(text, mention)]
    same_head = [other for other in nearest_first if _words(text, other)[-1] == _words(text, mention)[-1]]
    agreement = _agreement(text, mention)
    agreeing = [other for other in nearest_first if _agreement(text, other).agrees(agreement)]
    by_rules = next(sieve[0] for sieve in (same_words, same_head, agreeing, nearest_first) if sieve)
    return nearest_first[0], same_head[0] if same_head else None, by_rules


def _distance(own: int, other: int) -> tuple[int, bool]:
    return abs(own - other), other > own


def _words(text: MentionText, number: int) -> list[str]:
    mention = text.mentions[number]
    return [word.lower() for word in text.words[mention.first : mention.last + 1]]


def _agreement(text: MentionText, number: int) -> Agreement:
    mention = text.mentions[number]
    if mention.first == mention.last and (known := PRONOUNS.get(text.words[mention.last].lower())):
        return known
    return Agreement(3, mention.plural)
