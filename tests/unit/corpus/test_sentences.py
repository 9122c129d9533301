from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.corpus.sentences import split_long_text, split_sentences


def test_abbreviations_do_not_end_a_sentence_and_line_ends_do() -> None:
    text = "Dr. Smith met Mr. Jones. They talked!\nA heading\n\nWas it 3.5 km? Yes.\n"
    assert split_sentences(text) == [
        "Dr. Smith met Mr. Jones.",
        "They talked!",
        "A heading",
        "Was it 3.5 km?",
        "Yes.",
    ]


def test_rules_depend_on_the_language() -> None:
    assert split_sentences("Das ist z.B. gut. Ja.", "de") == ["Das ist z.B. gut.", "Ja."]
    assert split_sentences("我爱北京。你呢？", "zh") == ["我爱北京。", "你呢？"]
    assert split_sentences("One. Two.", "tlh") == ["One.", "Two."]


ODD = ".!? \n\r\tAab'\"()…。\u00a0\u2003\u2009\u3000"


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u2009", "\u202f", "\u3000"])
@pytest.mark.parametrize("language", ["en", "de", "ru", "zh", "none"])
def test_non_ascii_spaces_are_spaces(space: str, language: str) -> None:
    """sentencex panics on such a space between a single capital and a full stop."""
    sentences = split_sentences(f"We chose plan B{space}. It worked{space}well.", language)
    assert " ".join(sentences) == "We chose plan B . It worked well."


def test_empty_text_has_no_sentences() -> None:
    assert split_sentences("") == split_sentences(" \n\t\n") == []


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))))
def test_no_character_but_spaces_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in sentences)


@settings(deadline=None)
@given(st.text("ab \n", max_size=60), st.integers(1, 20))
def test_parts_of_a_long_text_concatenate_to_it(text: str, max_characters: int) -> None:
    parts = list(split_long_text(text, max_characters))
    assert "".join(parts) == text
    assert all(len(part) <= max_characters for part in parts)
    assert all(part.endswith(" ") or " " not in part for part in parts[:-1])


def test_text_without_sentence_ends_is_split_between_words() -> None:
    sentences = split_sentences("word " * 10_000)
    assert len(sentences) == 5
    assert set(" ".join(sentences).split()) == {"word"}
