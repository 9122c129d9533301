from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.text.sentences import cut, sentences


def test_abbreviations_and_line_ends() -> None:
    text = "Dr. Smith met Mr. Jones. They talked!\nA heading\n\nWas it 3.5 km? Yes.\n"
    assert sentences(text) == [
        "Dr. Smith met Mr. Jones.",
        "They talked!",
        "A heading",
        "Was it 3.5 km?",
        "Yes.",
    ]


def test_other_languages() -> None:
    assert sentences("Das ist z.B. gut. Ja.", "de") == ["Das ist z.B. gut.", "Ja."]
    assert sentences("我爱北京。你呢？", "zh") == ["我爱北京。", "你呢？"]
    assert sentences("One. Two.", "tlh") == ["One.", "Two."]


ODD = ".!? \n\r\tAab'\"()…。\u00a0\u2003\u2009\u3000"


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\u2009", "\u202f", "\u3000"])
@pytest.mark.parametrize("language", ["en", "de", "ru", "zh", "none"])
def test_blanks_beyond_ascii_are_blanks(blank: str, language: str) -> None:
    """sentencex panics where one stands between a single capital and a full stop."""
    found = sentences(f"We chose plan B{blank}. It worked{blank}well.", language)
    assert " ".join(found) == "We chose plan B . It worked well."


def test_nothing() -> None:
    assert sentences("") == sentences(" \n\t\n") == []


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))))
def test_no_character_is_lost_but_blanks(text: str) -> None:
    found = sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in found)


@settings(deadline=None)
@given(st.text("ab \n", max_size=60), st.integers(1, 20))
def test_cut_parts_are_the_text(text: str, longest: int) -> None:
    parts = list(cut(text, longest))
    assert "".join(parts) == text
    assert all(len(part) <= longest for part in parts)
    assert all(part.endswith(" ") or " " not in part for part in parts[:-1])


def test_text_without_sentences_is_cut_between_words() -> None:
    found = sentences("word " * 10_000)
    assert len(found) == 5
    assert set(" ".join(found).split()) == {"word"}
