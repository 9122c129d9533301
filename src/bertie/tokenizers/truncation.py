"""Model inputs of limited length from texts of any length: truncation, or overlapping windows.

max_tokens    tokens of text that fit into a sequence: its maximum length without special tokens
doc_stride    tokens from the start of a window to the start of the next, as in Google's code for SQuAD
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from bertie.base.contracts import Sequence
from bertie.tokenizers.batching import batches
from bertie.tokenizers.special_tokens import Place
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.valid_texts import require_texts
from bertie.tokenizers.word_cache import WordCache

Truncation = Literal["head", "tail", "head_tail", "windows"]
Separate = Literal["", "texts", "orders"]
"""Texts that a model reads as sequences of their own. Empty: none. texts: both texts of a pair. orders: a pair in both orders."""
HEAD_SHARE = 0.25  # share of the tokens that "head_tail" takes from the start: 128 of 510, best in Sun et al. (2019)


class TokenizedText(NamedTuple):
    """The tokens of a text, without special tokens.

    Attributes:
        ids: int32 [n].
        offsets: int32 [n, 2], start and end of each token in characters of the text; None if not requested.
    """

    ids: np.ndarray
    offsets: np.ndarray | None

    def take(self, index: np.ndarray | slice) -> TokenizedText:
        """Return some of the tokens."""
        return TokenizedText(self.ids[index], None if self.offsets is None else self.offsets[index])


def tokenize(tokenizer: Tokenizer, texts: list[str], offsets: bool = False) -> list[TokenizedText]:
    """Tokenize texts, with offsets on request.

    Raises:
        UserError: A text is not a valid string.
    """
    if not offsets:
        return [TokenizedText(ids, None) for ids in tokenizer.encode(texts)]
    require_texts(texts)
    cache = WordCache(tokenizer)
    tokenized = []
    for batch in batches(texts):
        ids, spans, counts = cache.encode_offsets(batch)
        ends = np.cumsum(counts).tolist()
        tokenized += [TokenizedText(ids[a:b], spans[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    return tokenized


def special_tokens(tokenizer: Tokenizer, texts: int, separate: Separate = "") -> int:
    """Return the number of special tokens in a sequence of one text or two. separate: as in `to_sequences`."""
    return len(_places(tokenizer, texts, "" if separate == "orders" else separate)) - texts


def text_slices(tokenizer: Tokenizer, lengths: Many[int]) -> list[slice]:
    """Return where texts with these numbers of tokens stand in their sequence."""
    start, slices, rest = 0, [], iter(lengths)
    for place in tokenizer.templates.of(len(lengths)):
        end = start + (next(rest) if place.id is None else 1)
        if place.id is None:
            slices.append(slice(start, end))
        start = end
    return slices


def _places(tokenizer: Tokenizer, texts: int, separate: Separate) -> tuple[Place, ...]:
    if not separate:
        return tokenizer.templates.of(texts)
    places = tokenizer.templates.of(texts) if separate == "orders" else tokenizer.templates.single
    return tuple(Place(place.id, number) for number in range(texts) for place in places)


def add_special_tokens(tokenizer: Tokenizer, parts: Many[TokenizedText], separate: Separate = "") -> Sequence:
    """Build the sequence [CLS] A [SEP], or [CLS] A [SEP] B [SEP], of one text or two.

    RoBERTa's tokenizers have <s> A </s></s> B </s>, without token types, and XLNet's A <sep> B <sep> <cls>. separate: as
    in `to_sequences`.
    """
    places = _places(tokenizer, len(parts), separate)
    if separate == "orders" and len(parts) == 2:
        parts = [*parts, *reversed(parts)]
    size = len(places) - len(parts) + sum(len(part.ids) for part in parts)
    ids, token_type_ids = np.empty(size, np.int32), np.empty(size, np.int32)
    offsets = None if any(part.offsets is None for part in parts) else np.zeros((size, 2), np.int32)
    start, starts, rest = 0, [], iter(parts)
    for place in places:
        if place.id is not None:
            end = start + 1
            ids[start] = place.id
        else:
            part = next(rest)
            end = start + len(part.ids)
            ids[start:end] = part.ids
            starts.append(start)
            if offsets is not None and part.offsets is not None:
                offsets[start:end] = part.offsets
        token_type_ids[start:end] = place.type_id
        start = end
    return Sequence(ids, token_type_ids, tokenizer.word_starts(ids, np.array(starts)), offsets)


def to_sequences(
    tokenizer: Tokenizer,
    parts: Many[TokenizedText],
    max_length: int,
    truncation: Truncation | None = None,
    doc_stride: int = 128,
    separate: Separate = "",
) -> list[Sequence]:
    """Build the sequence of one text or a pair of texts, or several windows over it.

    If a pair is too long, the longer text loses tokens until the pair fits or both are equally long, then both do (Devlin
    et al. 2018, A.2). As in the library `tokenizers`, an odd token remains to the longer text, or to the second of two
    equal ones. Windows of a pair move over the second text and repeat the first; the first text
    is truncated if it would leave less than half of the tokens to the second.

    Args:
        tokenizer: The tokenizer of the texts.
        parts: One text or two.
        max_length: Maximum length of a sequence in tokens, special tokens included.
        truncation: What to keep of a text that is too long: its head, its tail, both, or all of it in windows. None: what the
            tokenizer keeps, which is usually the head.
        doc_stride: Tokens from the start of a window to the start of the next. 0: half a window.
        separate: What an encoder reads separately. texts: build [CLS] A [SEP] [CLS] B [SEP] of a pair. orders: build the
            sequences of A and B, and of B and A, each of at most `max_length` tokens. Token types tell apart the two.

    Returns:
        One sequence, or the windows in order: `part` is the number of the window, `weight` 1 / windows, and `truncated`
        the number of tokens that were left out.
    """
    truncation = truncation or ("tail" if tokenizer.truncates_left else "head")
    max_tokens = max_length - special_tokens(tokenizer, len(parts), separate)
    lengths = [len(part.ids) for part in parts]
    if sum(lengths) <= max_tokens:
        return [add_special_tokens(tokenizer, parts, separate)]
    if truncation == "windows":
        return _windows(tokenizer, parts, max_tokens, doc_stride, separate)
    counts = [max_tokens] if len(parts) == 1 else _truncate_pair(lengths[0], lengths[1], max_tokens)
    truncated = [_truncate(part, count, truncation) for part, count in zip(parts, counts, strict=True)]
    return [replace(add_special_tokens(tokenizer, truncated, separate), truncated=sum(lengths) - max_tokens)]


def encode(
    tokenizer: Tokenizer, texts: list[str], pairs: list[str] | None = None, *, max_length: int = 512
) -> list[Sequence]:
    """Build one sequence per text or pair of texts, with offsets. Long texts are truncated at the end.

    Args:
        tokenizer: The tokenizer.
        texts: The texts, or the first text of each pair.
        pairs: The second text of each pair.
        max_length: Maximum length of a sequence in tokens, special tokens included.

    Raises:
        UserError: A text is not a valid string.
    """
    columns = [tokenize(tokenizer, column, offsets=True) for column in (texts, *([] if pairs is None else [pairs]))]
    return [to_sequences(tokenizer, parts, max_length)[0] for parts in zip(*columns, strict=True)]


def window_spans(length: int, max_tokens: int, stride: int) -> list[slice]:
    """Place overlapping windows over a text.

    Args:
        length: Tokens of the text.
        max_tokens: Tokens of a window. The last window may be shorter.
        stride: Tokens from the start of a window to the start of the next, at most `max_tokens`. 0: half a window.
    """
    stride = min(stride or max(max_tokens // 2, 1), max_tokens)
    starts = range(0, max(length - max_tokens, 0) + stride, stride) if length > max_tokens else range(1)
    return [slice(start, min(start + max_tokens, length)) for start in starts]


def _windows(
    tokenizer: Tokenizer, parts: Many[TokenizedText], max_tokens: int, doc_stride: int, separate: Separate
) -> list[Sequence]:
    """Build windows over the last text. A pair's first text is repeated in every window."""
    max_first = max(max_tokens // 2, max_tokens - len(parts[-1].ids))
    first = [_truncate(part, max_first, "head") for part in parts[:-1]]
    first_tokens = sum(len(part.ids) for part in first)
    truncated = sum(len(part.ids) for part in parts[:-1]) - first_tokens
    spans = window_spans(len(parts[-1].ids), max_tokens - first_tokens, doc_stride)
    return [
        replace(
            add_special_tokens(tokenizer, [*first, parts[-1].take(span)], separate),
            part=number,
            weight=1 / len(spans),
            truncated=truncated,
        )
        for number, span in enumerate(spans)
    ]


def _truncate(part: TokenizedText, count: int, truncation: Truncation) -> TokenizedText:
    """Keep at most `count` tokens of a text."""
    length = len(part.ids)
    if length <= count:
        return part
    if truncation == "tail":
        return part.take(slice(length - count, length))
    if truncation == "head_tail":
        head = round(HEAD_SHARE * count)
        return part.take(np.r_[0:head, length - count + head : length])
    return part.take(slice(count))


def _truncate_pair(first: int, second: int, max_tokens: int) -> list[int]:
    """Return how many tokens of each text remain. The longer one, or the second of two equal ones, gets an odd token."""
    shorter = min(first, second, max_tokens // 2)
    return [max_tokens - shorter, shorter] if first > second else [shorter, max_tokens - shorter]
