from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText, add_special_tokens, to_sequences, tokenize, window_spans


def numbered(first: int, count: int) -> TokenizedText:
    ids = np.arange(first, first + count, dtype=np.int32)
    return TokenizedText(ids, np.stack([ids, ids + 1], 1).astype(np.int32))


@given(st.integers(0, 300), st.integers(1, 60), st.integers(0, 70))
def test_windows_cover_the_text_and_none_is_redundant(length: int, max_tokens: int, stride: int) -> None:
    spans = window_spans(length, max_tokens, stride)
    stride = min(stride, max_tokens)
    assert sorted({i for span in spans for i in range(span.start, span.stop)}) == list(range(length))
    assert all(span.stop - span.start == max_tokens for span in spans[:-1])
    assert [span.start for span in spans] == [
        number * (stride or max(max_tokens // 2, 1)) for number in range(len(spans))
    ]
    assert all(span.stop < length for span in spans[:-1])  # no window but the last reaches the end


def test_special_tokens_of_a_pair(small_tokenizer: Tokenizer) -> None:
    sequence = add_special_tokens(small_tokenizer, [numbered(10, 2), numbered(20, 1)])
    cls, sep = small_tokenizer.cls_id, small_tokenizer.sep_id
    assert sequence.input_ids.tolist() == [cls, 10, 11, sep, 20, sep]
    assert sequence.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert sequence.offsets is not None
    assert sequence.offsets.tolist() == [[0, 0], [10, 11], [11, 12], [0, 0], [20, 21], [0, 0]]
    assert sequence.input_ids.dtype == sequence.token_type_ids.dtype == sequence.offsets.dtype == np.int32


def test_texts_to_encode_separately_have_special_tokens_of_their_own(small_tokenizer: Tokenizer) -> None:
    parts, (cls, sep) = [numbered(10, 3), numbered(20, 4)], (small_tokenizer.cls_id, small_tokenizer.sep_id)
    [sequence] = to_sequences(small_tokenizer, parts, 8, separate="texts")
    assert sequence.input_ids.tolist() == [cls, 10, 11, sep, cls, 20, 21, sep]
    assert sequence.token_type_ids.tolist() == [0] * 4 + [1] * 4
    assert sequence.truncated == 3
    assert sequence.offsets is not None
    assert sequence.offsets[[0, 3, 4, 7]].tolist() == [[0, 0]] * 4
    windows = to_sequences(small_tokenizer, parts, 8, "windows", separate="texts")
    assert [window.input_ids.tolist() for window in windows] == [
        [cls, 10, 11, sep, cls, *second, sep] for second in ([20, 21], [22, 23])
    ]
    [alone] = to_sequences(small_tokenizer, parts[:1], 8, separate="texts")
    assert alone.input_ids.tolist() == [cls, 10, 11, 12, sep]


@pytest.mark.parametrize(
    ("mode", "kept"),
    [("head", [10, 11, 12, 13]), ("tail", [16, 17, 18, 19]), ("head_tail", [10, 17, 18, 19])],
)
def test_tokens_that_truncation_keeps(small_tokenizer: Tokenizer, mode: truncation.Truncation, kept: list[int]) -> None:
    [sequence] = to_sequences(small_tokenizer, [numbered(10, 10)], 6, mode)
    assert sequence.input_ids[1:-1].tolist() == kept
    assert (sequence.truncated, sequence.weight) == (6, 1.0)
    [short] = to_sequences(small_tokenizer, [numbered(10, 4)], 6, mode)
    assert short.truncated == 0


def test_head_tail_keeps_128_of_510_tokens_of_the_head(small_tokenizer: Tokenizer) -> None:
    """As in Sun et al. (2019)."""
    text = numbered(0, 600)
    [sequence] = to_sequences(small_tokenizer, [text._replace(ids=text.ids % 100)], 512, "head_tail")
    assert sequence.offsets is not None
    assert sequence.offsets[1:-1, 0].tolist() == [*range(128), *range(600 - 382, 600)]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_the_longer_text_of_a_pair_is_truncated(
    small_tokenizer: Tokenizer, first: int, second: int, max_tokens: int
) -> None:
    """As the library `tokenizers` truncates: the longer text, or the second of two equal ones, gets an odd token."""
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, "x"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    engine.enable_truncation(max_tokens)
    types = engine.encode("x " * first, "x " * second).type_ids
    a, b = types.count(0), types.count(1)
    [sequence] = to_sequences(small_tokenizer, [numbered(100, first), numbered(200, second)], max_tokens + 3)
    assert sequence.input_ids[1 : a + 1].tolist() == list(range(100, 100 + a))
    assert sequence.input_ids[a + 2 : -1].tolist() == list(range(200, 200 + b))
    assert sequence.truncated == first + second - a - b


def test_windows_over_one_text_and_over_a_pair(small_tokenizer: Tokenizer) -> None:
    windows = to_sequences(small_tokenizer, [numbered(10, 10)], 6, "windows", 3)
    assert [window.input_ids[1:-1].tolist() for window in windows] == [
        [10, 11, 12, 13],
        [13, 14, 15, 16],
        [16, 17, 18, 19],
    ]
    assert [(window.part, window.weight, window.truncated) for window in windows] == [(i, 1 / 3, 0) for i in range(3)]
    pairs = to_sequences(small_tokenizer, [numbered(10, 30), numbered(100, 9)], 11, "windows", 2)
    assert all(window.input_ids[1:5].tolist() == [10, 11, 12, 13] for window in pairs)  # half of the tokens
    assert next(window.input_ids[6:-1].tolist() for window in pairs) == [100, 101, 102, 103]
    assert {i for window in pairs for i in window.input_ids[6:-1].tolist()} == set(range(100, 109))
    assert {window.truncated for window in pairs} == {26}


def test_offsets_do_not_change_the_tokens(small_tokenizer: Tokenizer, small_texts: list[str]) -> None:
    for plain, with_offsets in zip(
        tokenize(small_tokenizer, small_texts), tokenize(small_tokenizer, small_texts, offsets=True), strict=True
    ):
        assert plain.ids.tolist() == with_offsets.ids.tolist()
        assert with_offsets.offsets is not None
        assert with_offsets.offsets.shape == (len(with_offsets.ids), 2)
    [empty] = tokenize(small_tokenizer, [""], offsets=True)
    assert add_special_tokens(small_tokenizer, [empty]).input_ids.tolist() == [
        small_tokenizer.cls_id,
        small_tokenizer.sep_id,
    ]
