"""Predict what stands at [MASK]: tokens, words of several pieces, several masks together, or given candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Annotated, cast

import numpy as np

from bertie.base import config as configuration
from bertie.base.config import Range, check_ranges
from bertie.base.errors import UsageError, UserError, shorten
from bertie.predict.token_model import Placed, Query, TokenModel, TopTokens
from bertie.predict.word_search import Order, Pieces, Slot, search
from bertie.tasks.encoding import softmax
from bertie.tokenizers.tokenizer import Tokenizer

MAX_BEAM = 200  # the last step of a search makes the square of it
MAX_COMBINATIONS = 1000  # of lengths or candidates for several masks


@dataclass(frozen=True)
class MaskPrediction:
    """A token predicted at a [MASK]."""

    token: str
    """The word piece."""
    probability: float
    """Its probability, 0 to 1."""


MaskPredictions = list[list[MaskPrediction]]
"""For every mask of a text the predicted tokens, most probable first."""


@dataclass(frozen=True)
class Filling:
    """The words that may stand at one [MASK], or at all of them.

    `log_probability` is a sum over pieces, in the order in which they were filled in: each piece is predicted from the
    text with the pieces before it, while the pieces after it are masks. The number of masks tells the model how many pieces
    a word has. So this is the probability of a word among the words with the same number of pieces.
    """

    words: tuple[str, ...]
    """The word at each [MASK] that is filled."""
    pieces: tuple[tuple[str, ...], ...]
    """The entries of the vocabulary that each word consists of."""
    log_probability: float
    """Natural logarithm of the product of the probabilities of all pieces."""
    share: float | None = None
    """Probability among the given candidates: their probabilities, scaled to the sum 1. None without candidates."""

    @property
    def probability(self) -> float:
        """The product of the probabilities of all pieces, 0 to 1."""
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class WordSearch:
    """How to search for fillings: beam search over the pieces."""

    top_k: Annotated[int, Range(1, MAX_BEAM)] = 5
    """Number of fillings to return."""
    max_pieces: Annotated[int, Range(1, 10)] = 1
    """Most pieces of a word. 1: every [MASK] is one entry of the vocabulary. From 2, fillings are whole words: spellings that
    the tokenizer itself would split into these pieces."""
    whole_words: bool = False
    """Only whole words, also with `max_pieces` 1."""
    order: Order = "left-to-right"
    """Order in which pieces are filled in. confidence: first the one whose best entry is most probable."""
    beam: Annotated[int, Range(1, MAX_BEAM)] = 20
    """Fillings that the search keeps after each piece; at least `top_k`."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        configuration.build(Order, self.order, "order")


def fill_tokens(model: TokenModel, text: str, top_k: int) -> MaskPredictions:
    """Return the most probable tokens at every [MASK], each predicted while the other masks remain."""
    if type(top_k) is not int or top_k < 1:
        raise UsageError(f"--top-k {top_k}: give at least 1")
    [best] = model.top_tokens(model.masked_sequences([encode_masked(model, text)]), top_k)
    return mask_predictions(model, best, top_k)


def mask_predictions(model: TokenModel, best: TopTokens, top_k: int) -> MaskPredictions:
    """Return the first `top_k` of the tokens that `TokenModel.top_tokens` found at every [MASK] of a text."""
    return [
        [
            MaskPrediction(token, math.exp(log_p))
            for token, log_p in zip(model.tokenizer.tokens(ids_K[:top_k]), log_p_K[:top_k].tolist(), strict=True)
        ]
        for ids_K, log_p_K in zip(*best, strict=True)
    ]


def fill_words(model: TokenModel, text: str, how: WordSearch, joint: bool) -> list[list[Filling]]:
    """Return the best fillings of every [MASK], while the others remain masks, or with `joint` once of all together."""
    masked = encode_masked(model, text)
    return [_best(model, masked, group, how) for group in _groups(len(masked[1]), joint)]


def _groups(masks: int, joint: bool) -> list[list[int]]:
    """Return the numbers of the masks that are filled together."""
    return [list(range(masks))] if joint else [[number] for number in range(masks)]


def score_candidates(model: TokenModel, text: str, candidates: Many[str], joint: bool = False) -> list[list[Filling]]:
    """Score given words.

    Args:
        model: The model.
        text: The text with its masks.
        candidates: The words; each may have several pieces, or be several words.
        joint: Score every combination of candidates for all masks. Otherwise the candidates of one [MASK] are scored while
            the others remain masks.

    Returns:
        For every [MASK], or once for all of them, the candidates with their shares, most probable first.

    Raises:
        UsageError: A candidate is empty, unknown to the vocabulary, or repeated.
        UserError: The text is too long with a candidate.
    """
    _, masks = masked = encode_masked(model, text)
    spelled = [spell_candidates(model, candidates, _at_start(model, place)) for place in masks.tolist()]
    groups = _groups(len(masks), joint)
    _require_few("--candidates", len(candidates), len(groups[0]))
    return [_score_group(model, masked, group, candidates, spelled) for group in groups]


def encode_masked(model: TokenModel, text: str) -> Placed:
    """Encode a text with its literal [MASK] as mask tokens. Elsewhere [MASK] in a text is plain text.

    Returns:
        int32 [n], the sequence with special tokens, and the positions of the masks.

    Raises:
        UsageError: There is no [MASK].
        UserError: The text is too long.
    """
    tokenizer = model.tokenizer
    mask = tokenizer.vocabulary[tokenizer.mask_id]
    texts = text.split(mask)
    if len(texts) == 1:
        raise UsageError(f"there is no {mask} in the text: write {mask} for each token to predict")
    if takes_space(tokenizer):
        texts = [*(part.rstrip() for part in texts[:-1]), texts[-1]]
    parts = tokenizer.encode(texts)
    middle = [parts[0], *chain.from_iterable(([tokenizer.mask_id], part) for part in parts[1:])]
    before, after = tokenizer.templates.around
    ids = np.concatenate([before, *middle, after]).astype(np.int32)
    _require_length(model, len(ids))
    return ids, np.flatnonzero(ids == tokenizer.mask_id)


def takes_space(tokenizer: Tokenizer) -> bool:
    """Whether the mask token stands for a word with the space before it, as RoBERTa's does."""
    token = tokenizer.backend.engine.get_added_tokens_decoder().get(tokenizer.mask_id)
    return token is not None and token.lstrip


def _require_few(flag: str, choices: int, masks: int) -> None:
    if choices**masks > MAX_COMBINATIONS:
        problem = f"{choices} for {masks} masks together make more than {MAX_COMBINATIONS:,} combinations"
        raise UsageError(f"{flag}: {problem}: give fewer, or omit --joint")


def _at_start(model: TokenModel, place: int) -> bool:
    """Whether a word at a mask begins the text, or the space before it is a token of its own."""
    return not takes_space(model.tokenizer) or place == len(model.tokenizer.templates.around[0])


def _require_length(model: TokenModel, length: int, what: str = "the text") -> None:
    if length > model.max_length:
        special = model.max_length - model.max_text
        raise UserError(
            f"{what} has {length - special} tokens, but the model reads at most {model.max_text}: shorten it"
        )


def spell_candidates(model: TokenModel, candidates: Many[str], at_start: bool) -> list[list[int]]:
    """Return the ids of every candidate.

    Args:
        model: The model.
        candidates: Words. An entry of WordPiece that continues a word, such as "##s", is itself.
        at_start: Whether they follow no space that is theirs: at the start of a text, or if the mask leaves the space.

    Raises:
        UsageError: A candidate is empty, unknown to the vocabulary, or repeated.
    """
    if not candidates or isinstance(candidates, str):
        raise UsageError("--candidates: give at least one word")
    pieces, unknown = Pieces.of(model.tokenizer), model.tokenizer.special.unk
    spelled: list[list[int]] = []
    for candidate in candidates:
        ids = pieces.spell(candidate, at_start)
        problem = "it has no tokens" if not ids else "another one has the same tokens" if ids in spelled else ""
        if unknown is not None and model.tokenizer.unk_id in ids:
            problem = f"the vocabulary cannot spell it ({unknown})"
        if problem:
            raise UsageError(f"--candidates {shorten(candidate)!r}: {problem}: remove it")
        spelled.append(ids)
    return spelled


def _best(model: TokenModel, masked: Placed, group: list[int], how: WordSearch) -> list[Filling]:
    """Return the best fillings of a group of masks, given by their numbers."""
    _require_few("--max-pieces", how.max_pieces, len(group))
    whole = how.whole_words or how.max_pieces > 1
    if whole:
        model.tokenizer.require_words("filling with whole words (--whole-words, or --max-pieces above 1)")
    pieces = Pieces.of(model.tokenizer)
    best: list[Filling] = []
    width = max(how.beam, how.top_k)
    for sizes in product(range(1, how.max_pieces + 1), repeat=len(group)):
        expanded, slots = _expand(model, masked, dict(zip(group, sizes, strict=True)))
        states = search(model, expanded, slots, pieces, whole, how.order, width)
        fillings = (_to_filling(model, state.ids, slots, state.score, pieces, whole) for state in states)
        best += islice((filling for filling in fillings if filling is not None), width)
    return sorted(best, key=lambda filling: -filling.log_probability)[: how.top_k]


def _expand(model: TokenModel, masked: Placed, sizes: dict[int, int]) -> tuple[np.ndarray, list[Slot]]:
    """Replace some masks, given by their numbers, by several masks each. Return the sequence and their new places."""
    ids, masks = masked
    counts = np.ones(len(ids), np.int64)
    counts[masks[list(sizes)]] = list(sizes.values())
    ends = np.cumsum(counts)
    expanded = np.repeat(ids, counts)
    _require_length(model, len(expanded), f"the text with {len(expanded) - len(ids)} more pieces")
    slots = [
        Slot(int(ends[place] - counts[place]), int(ends[place]), _at_start(model, place))
        for place in masks[list(sizes)].tolist()
    ]
    return expanded, slots


def _to_filling(
    model: TokenModel, ids: np.ndarray, slots: list[Slot], score: float, pieces: Pieces, whole: bool
) -> Filling | None:
    """Return a result of the search; None if it should be whole words and a part is none."""
    filled = [ids[slot.start : slot.stop].tolist() for slot in slots]
    tokens = [tuple(model.tokenizer.tokens(entries)) for entries in filled]
    words = [pieces.word(entries) if whole else names[0] for entries, names in zip(filled, tokens, strict=True)]
    return None if None in words else Filling(cast(tuple[str, ...], tuple(words)), tuple(tokens), score)


def _score_group(
    model: TokenModel, masked: Placed, group: list[int], candidates: Many[str], spelled: list[list[list[int]]]
) -> list[Filling]:
    """Score all combinations of candidates for a group of masks, with their shares."""
    choices = list(product(range(len(candidates)), repeat=len(group)))
    words = [{k: spelled[k][i] for k, i in zip(group, choice, strict=True)} for choice in choices]
    queries = [list(_queries(model, masked, spelling)) for spelling in words]
    log_p = model.log_probabilities(list(chain.from_iterable(queries)))
    scores = np.array([part.sum() for part in np.split(log_p, np.cumsum(list(map(len, queries)))[:-1])])
    fillings = [
        Filling(
            tuple(candidates[i] for i in choice),
            tuple(tuple(model.tokenizer.tokens(ids)) for ids in spelling.values()),
            float(score),
            float(share),
        )
        for choice, spelling, score, share in zip(choices, words, scores, softmax(scores), strict=True)
    ]
    return sorted(fillings, key=lambda filling: -filling.log_probability)


def _queries(model: TokenModel, masked: Placed, words: dict[int, list[int]]) -> Iterator[Query]:
    """Yield one query per piece of some words, from left to right. The pieces after it are masks."""
    current, slots = _expand(model, masked, {number: len(pieces) for number, pieces in words.items()})
    for slot, pieces in zip(slots, words.values(), strict=True):
        for position, piece in enumerate(pieces, slot.start):
            yield Query(current, position, piece)
            current = current.copy()
            current[position] = piece
