from __future__ import annotations

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


def test_nothing() -> None:
    assert sentences("") == sentences(" \n\t\n") == []


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from(".!? \n\r\tAab'\"()…。"), st.characters(exclude_categories=["Cs"]))))
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
