from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.examples.words import split_words

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"  # one picture of three, joined by characters without width


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Anna lives in Paris.", ["Anna", "lives", "in", "Paris", "."]),
        ("U.S.-led, $5", ["U", ".", "S", ".", "-", "led", ",", "$", "5"]),
        ("a\r\nb\t c\u00a0d\u2028e", ["a", "b", "c", "d", "e"]),
        ("nai\u0308ve cafe\u0301!", ["nai\u0308ve", "cafe\u0301", "!"]),
        ("!\u0301a", ["!\u0301", "a"]),
        ("\ufb01nance \ufb03", ["\ufb01nance", "\ufb03"]),
        ("\u200bzero\u200bwidth\u200b \u200d \ufeffend", ["zero\u200bwidth", "end"]),
        (f"Paris\U0001f389 {FAMILY} ok", ["Paris\U0001f389", FAMILY, "ok"]),
        ("北京 is 大", ["北", "京", "is", "大"]),
        ("«Où?»", ["«", "Où", "?", "»"]),
        (" \x00\n", []),
        ("", []),
    ],
)  # fmt: skip
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words


CHARACTERS = st.one_of(
    st.sampled_from("aB.,-\r\n\t \u200b\u200d\ufeff\u0301\u0308é\ufb01京\U0001f389\x00"), st.characters()
)


@settings(max_examples=150, deadline=None)
@given(st.text(CHARACTERS, max_size=30))
def test_words_are_in_order_and_hold_all_that_is_seen(text: str) -> None:
    places = split_words(text)
    assert [end for _, end in places][:-1] <= [start for start, _ in places][1:]
    covered = {i for start, end in places for i in range(start, end)}
    for i, character in enumerate(text):
        seen = unicodedata.category(character)[0] not in "CZ" and not character.isspace() and character != "\ufffd"
        assert not seen or i in covered
        assert not character.isspace() or i not in covered
