"""Remembered words against the tokenizer itself: the same ids, in the same places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from bertie.errors import UserError
from bertie.text import word_cache as module
from bertie.text import word_counts, wordpiece
from bertie.text.tokenizer import NormalizerOptions, Tokenizer
from bertie.text.word_cache import WordCache

TEXTS = [f"Cat {i} sat on the mat. It was {i * i} years old!\nThen it went home." for i in range(300)]
ODD = st.text(
    st.one_of(
        st.sampled_from("aB é\u0301\u00a0\u2028\u200b\x00\x1c\x85\t\r,.[]#中ß한İ"),
        st.characters(exclude_categories=["Cs"]),
    )
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    every_letter = "The quick brown fox jumps over the lazy dog, same paragraph, number, twice."
    return Tokenizer.build(
        wordpiece.train(word_counts.count_words([*TEXTS, *[every_letter] * 30]).counts, vocab_size=160)
    )


def require_the_same(memory: WordCache, texts: list[str]) -> None:
    ids, lengths = memory.encode(texts)
    placed, offsets, counts = memory.encode_offsets(texts)
    assert ids.dtype == placed.dtype == offsets.dtype == np.int32
    assert lengths.tolist() == counts.tolist()
    found = memory.tokenizer.encodings(texts)
    assert [len(each) for each in found] == counts.tolist()
    assert [i for each in found for i in each.ids] == ids.tolist() == placed.tolist()
    assert [list(pair) for each in found for pair in each.offsets] == offsets.tolist()


@settings(deadline=None, max_examples=300)
@given(st.lists(ODD, max_size=6), st.booleans())
def test_remembered_words_give_the_same_ids_and_places(texts: list[str], lowercase: bool) -> None:
    words_ = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abé,.[]#中ßB", "##a", "##b", "##é", "##\u0301", "##B"]
    memory = WordCache(Tokenizer.build(words_, NormalizerOptions(lowercase), user_tokens=["##B"]))
    for _ in range(2):
        require_the_same(memory, texts)


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-multilingual-cased"])
def test_nine_languages_and_strings_that_break_programs(shared_data: Path, name: str) -> None:
    path = shared_data / "vocab" / f"{name}.txt"
    vocabulary = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    memory = WordCache(Tokenizer.build(vocabulary, NormalizerOptions("uncased" in name)))
    for file in sorted((shared_data / "multilingual").glob("*.txt")):
        require_the_same(memory, file.read_text(encoding="utf-8").split("\n"))


def test_memory_is_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 10)
    memory = WordCache(tokenizer)
    for text in TEXTS:
        require_the_same(memory, [text])
    assert len(memory.number) < 30


@pytest.mark.parametrize("added", [AddedToken("sat on", normalized=False), AddedToken("cat", lstrip=True)])
def test_entries_that_reach_beyond_a_blank(tokenizer: Tokenizer, added: AddedToken) -> None:
    loaded = Tokenizer.build(tokenizer.words, user_tokens=[added])
    text = "The  cat sat on the mat."
    assert added.content in loaded.tokens(WordCache(loaded).encode([text])[0].tolist())
    require_the_same(WordCache(loaded), [text, "", text])


def test_what_is_no_text_is_named(tokenizer: Tokenizer) -> None:
    memory = WordCache(tokenizer)
    with pytest.raises(UserError, match="7 is no text but of type int"):
        memory.encode_offsets(["a", 7])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"the text 'a cat \\ud800' holds half of a surrogate pair"):
        memory.encode_offsets(["a dog", "a cat \ud800"])
    require_the_same(memory, ["a dog", "a cat"])
