"""Texts → sequences that fit: cut at an end, in the middle, or into windows that overlap.

room   tokens of text that a sequence has place for
step   tokens from the start of a window to that of the next (SQuAD's doc_stride, as Google means it)
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from bertie.contracts import Sequence
from bertie.text.tokenizer import Tokenizer, require_texts
from bertie.text.word_cache import WordCache, batches

Truncation = Literal["head", "tail", "head_tail", "windows"]
HEAD_SHARE = 0.25  # of the room for "head_tail": 128 of 510, which Sun et al. (2019) found best


class TokenizedText(NamedTuple):
    """A text's tokens. ids: int32 [n]; offsets: int32 [n, 2], characters of the text, or None where nobody asked."""

    ids: np.ndarray
    offsets: np.ndarray | None

    def take(self, index: np.ndarray | slice) -> TokenizedText:
        return TokenizedText(self.ids[index], None if self.offsets is None else self.offsets[index])


def tokenize(tokenizer: Tokenizer, texts: list[str], offsets: bool = False) -> list[TokenizedText]:
    """Errors: UserError for what is no text."""
    if not offsets:
        return [TokenizedText(ids, None) for ids in tokenizer.encode(texts)]
    require_texts(texts)
    memory = WordCache(tokenizer)
    found = []
    for batch in batches(texts):
        ids, places, counts = memory.encode_offsets(batch)
        ends = np.cumsum(counts).tolist()
        found += [TokenizedText(ids[a:b], places[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    return found


def add_special_tokens(tokenizer: Tokenizer, parts: Many[TokenizedText]) -> Sequence:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
    size = 1 + sum(len(part.ids) + 1 for part in parts)
    ids, token_type_ids = np.empty(size, np.int32), np.zeros(size, np.int32)
    offsets = None if any(part.offsets is None for part in parts) else np.zeros((size, 2), np.int32)
    ids[0], start = tokenizer.cls_id, 1
    for number, part in enumerate(parts):
        end = start + len(part.ids)
        ids[start:end], ids[end] = part.ids, tokenizer.sep_id
        token_type_ids[start : end + 1] = number
        if offsets is not None and part.offsets is not None:
            offsets[start:end] = part.offsets
        start = end + 1
    return Sequence(ids, token_type_ids, tokenizer.word_starts_table[ids], offsets)


def to_sequences(
    tokenizer: Tokenizer, parts: Many[TokenizedText], max_length: int, long: Truncation = "head", step: int = 128
) -> list[Sequence]:
    """One sequence of one text or two, or several windows of it, with `part` their number and `lost` what found no room.

    Where two texts are too long, the longer one loses tokens, the second one on ties, until they fit (Devlin et al. 2018,
    A.2, as their code does it); windows move over the second text, of which at least half of the room is left.
    """
    room = max_length - len(parts) - 1
    sizes = [len(part.ids) for part in parts]
    if sum(sizes) <= room:
        return [add_special_tokens(tokenizer, parts)]
    if long == "windows":
        return _windows(tokenizer, parts, room, step)
    counts = [room] if len(parts) == 1 else _cut(sizes[0], sizes[1], room)
    kept = [_kept(part, count, long) for part, count in zip(parts, counts, strict=True)]
    return [replace(add_special_tokens(tokenizer, kept), truncated=sum(sizes) - room)]


def encode(
    tokenizer: Tokenizer, texts: list[str], pairs: list[str] | None = None, *, max_length: int = 512
) -> list[Sequence]:
    """One a text, or a pair of texts, with offsets; what is too long is cut at the end. Errors: UserError for what is no text."""
    parts = [tokenize(tokenizer, some, offsets=True) for some in (texts, *([] if pairs is None else [pairs]))]
    return [to_sequences(tokenizer, each, max_length)[0] for each in zip(*parts, strict=True)]


def window_spans(size: int, room: int, step: int) -> list[slice]:
    """Windows of at most `room` tokens over `size` of them, the last one shorter. step: from one to the next, a window at most;
    0: half of one."""
    step = min(step or max(room // 2, 1), room)
    starts = range(0, max(size - room, 0) + step, step) if size > room else range(1)
    return [slice(start, min(start + room, size)) for start in starts]


def _windows(tokenizer: Tokenizer, parts: Many[TokenizedText], room: int, step: int) -> list[Sequence]:
    most = max(room // 2, room - len(parts[-1].ids))
    first = [_kept(part, most, "head") for part in parts[:-1]]
    truncated = sum(len(part.ids) for part in parts[:-1]) - sum(len(part.ids) for part in first)
    moving, room = parts[-1], room - sum(len(part.ids) for part in first)
    found = window_spans(len(moving.ids), room, step)
    return [
        replace(
            add_special_tokens(tokenizer, [*first, moving.take(span)]),
            part=number,
            weight=1 / len(found),
            truncated=truncated,
        )
        for number, span in enumerate(found)
    ]


def _kept(part: TokenizedText, count: int, long: Truncation) -> TokenizedText:
    size = len(part.ids)
    if size <= count:
        return part
    if long == "tail":
        return part.take(slice(size - count, size))
    if long == "head_tail":
        head = round(HEAD_SHARE * count)
        return part.take(np.r_[0:head, size - count + head : size])
    return part.take(slice(count))


def _cut(first: int, second: int, budget: int) -> list[int]:
    """How many tokens stay of each of two texts when the longer one is shortened, B on ties, until `budget` is met."""
    keep_second = min(second, max(budget // 2, budget - first))
    return [min(first, budget - keep_second), keep_second]
