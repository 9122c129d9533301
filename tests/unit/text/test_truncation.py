from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import TokenizedText, add_special_tokens, to_sequences, tokenize, window_spans


def numbered(first: int, count: int) -> TokenizedText:
    ids = np.arange(first, first + count, dtype=np.int32)
    return TokenizedText(ids, np.stack([ids, ids + 1], 1).astype(np.int32))


@given(st.integers(0, 300), st.integers(1, 60), st.integers(0, 70))
def test_windows_cover_everything_and_none_is_needless(size: int, room: int, step: int) -> None:
    found = window_spans(size, room, step)
    step = min(step, room)
    assert sorted({i for span in found for i in range(span.start, span.stop)}) == list(range(size))
    assert all(span.stop - span.start == room for span in found[:-1])
    assert [span.start for span in found] == [number * (step or max(room // 2, 1)) for number in range(len(found))]
    assert all(span.stop < size for span in found[:-1])  # the one before did not reach the end


def test_a_frame(small_tokenizer: Tokenizer) -> None:
    made = add_special_tokens(small_tokenizer, [numbered(10, 2), numbered(20, 1)])
    cls, sep = small_tokenizer.cls_id, small_tokenizer.sep_id
    assert made.input_ids.tolist() == [cls, 10, 11, sep, 20, sep]
    assert made.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert made.offsets is not None
    assert made.offsets.tolist() == [[0, 0], [10, 11], [11, 12], [0, 0], [20, 21], [0, 0]]
    assert made.input_ids.dtype == made.token_type_ids.dtype == made.offsets.dtype == np.int32


@pytest.mark.parametrize(
    ("long", "kept"),
    [("head", [10, 11, 12, 13]), ("tail", [16, 17, 18, 19]), ("head_tail", [10, 17, 18, 19])],
)
def test_what_is_kept_of_a_long_text(small_tokenizer: Tokenizer, long: truncation.Truncation, kept: list[int]) -> None:
    [made] = to_sequences(small_tokenizer, [numbered(10, 10)], 6, long)
    assert made.input_ids[1:-1].tolist() == kept
    assert (made.truncated, made.weight) == (6, 1.0)
    [whole] = to_sequences(small_tokenizer, [numbered(10, 4)], 6, long)
    assert whole.truncated == 0


def test_of_510_tokens_128_are_the_head(small_tokenizer: Tokenizer) -> None:
    """As Sun et al. (2019) have it."""
    text = numbered(0, 600)
    [made] = to_sequences(small_tokenizer, [text._replace(ids=text.ids % 100)], 512, "head_tail")
    assert made.offsets is not None
    assert made.offsets[1:-1, 0].tolist() == [*range(128), *range(600 - 382, 600)]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_the_longer_of_two_texts_is_cut(small_tokenizer: Tokenizer, first: int, second: int, room: int) -> None:
    """One token at a time from the longer one, from the second on ties, as the published code does it."""
    a, b = first, second
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    [made] = to_sequences(small_tokenizer, [numbered(100, first), numbered(200, second)], room + 3)
    assert made.input_ids[1 : a + 1].tolist() == list(range(100, 100 + a))
    assert made.input_ids[a + 2 : -1].tolist() == list(range(200, 200 + b))
    assert made.truncated == first + second - a - b


def test_windows_of_one_text_and_of_a_pair(small_tokenizer: Tokenizer) -> None:
    found = to_sequences(small_tokenizer, [numbered(10, 10)], 6, "windows", 3)
    assert [window.input_ids[1:-1].tolist() for window in found] == [
        [10, 11, 12, 13],
        [13, 14, 15, 16],
        [16, 17, 18, 19],
    ]
    assert [(window.part, window.weight, window.truncated) for window in found] == [(i, 1 / 3, 0) for i in range(3)]
    pairs = to_sequences(small_tokenizer, [numbered(10, 30), numbered(100, 9)], 11, "windows", 2)
    assert all(window.input_ids[1:5].tolist() == [10, 11, 12, 13] for window in pairs)  # half of the room
    assert next(window.input_ids[6:-1].tolist() for window in pairs) == [100, 101, 102, 103]
    assert {i for window in pairs for i in window.input_ids[6:-1].tolist()} == set(range(100, 109))
    assert {window.truncated for window in pairs} == {26}


def test_with_and_without_offsets_they_are_the_same(small_tokenizer: Tokenizer, small_texts: list[str]) -> None:
    for plain, placed in zip(
        tokenize(small_tokenizer, small_texts), tokenize(small_tokenizer, small_texts, offsets=True), strict=True
    ):
        assert plain.ids.tolist() == placed.ids.tolist()
        assert placed.offsets is not None
        assert placed.offsets.shape == (len(placed.ids), 2)
    [nothing] = tokenize(small_tokenizer, [""], offsets=True)
    assert add_special_tokens(small_tokenizer, [nothing]).input_ids.tolist() == [
        small_tokenizer.cls_id,
        small_tokenizer.sep_id,
    ]
