"""The word cache gives the same ids and offsets as the tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from bertie.base.errors import UserError
from bertie.corpus import word_counts, wordpiece
from bertie.tokenizers import word_cache as module
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from bertie.tokenizers.word_cache import WordCache

TEXTS = [f"Cat {i} sat on the mat. It was {i * i} years old!\nThen it went home." for i in range(300)]
ODD = st.text(
    st.one_of(
        st.sampled_from("aB é\u0301\u00a0\u2028\u200b\x00\x1c\x85\t\r\n,.[]#中ß한İ"),
        st.characters(exclude_categories=["Cs"]),
    )
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    every_letter = "The quick brown fox jumps over the lazy dog, same paragraph, number, twice."
    return Tokenizer.build(
        wordpiece.train(word_counts.count_words([*TEXTS, *[every_letter] * 30]).counts, vocab_size=160)
    )


def assert_same_as_tokenizer(cache: WordCache, texts: list[str]) -> None:
    ids, lengths = cache.encode(texts)
    ids_with_offsets, offsets, counts = cache.encode_offsets(texts)
    assert ids.dtype == ids_with_offsets.dtype == offsets.dtype == np.int32
    assert lengths.tolist() == counts.tolist()
    encodings = cache.tokenizer.encode_with_offsets(texts)
    assert [len(encoding) for encoding in encodings] == counts.tolist()
    assert [i for encoding in encodings for i in encoding.ids] == ids.tolist() == ids_with_offsets.tolist()
    assert [list(pair) for encoding in encodings for pair in encoding.offsets] == offsets.tolist()


@settings(deadline=None, max_examples=100)
@given(st.lists(ODD, max_size=6), st.booleans(), st.booleans(), st.booleans())
def test_cache_gives_the_same_ids_and_offsets(
    texts: list[str], lowercase: bool, drop_punctuation: bool, line_breaks: bool
) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abé,.[]#中ßB", "##a", "##b", "##é", "##\u0301", "##B"]
    user_tokens = ["##B", LINE_BREAK] if line_breaks else ["##B"]
    normalization = NormalizerOptions(lowercase, drop_punctuation=drop_punctuation)
    cache = WordCache(Tokenizer.build([*vocabulary, *user_tokens[1:]], normalization, user_tokens))
    for _ in range(2):
        assert_same_as_tokenizer(cache, texts)


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-multilingual-cased"])
def test_cache_on_nine_languages_and_naughty_strings(shared_data: Path, name: str) -> None:
    path = shared_data / "vocab" / f"{name}.txt"
    vocabulary = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    cache = WordCache(Tokenizer.build(vocabulary, NormalizerOptions("uncased" in name)))
    for file in sorted((shared_data / "multilingual").glob("*.txt")):
        lines = file.read_text(encoding="utf-8").split("\n")
        assert_same_as_tokenizer(cache, lines if file.stem == "blns" else lines[::8])


def test_cache_size_is_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 10)
    cache = WordCache(tokenizer)
    for text in TEXTS:
        assert_same_as_tokenizer(cache, [text])
    assert len(cache.rows) < 30


@pytest.mark.parametrize("added", [AddedToken("sat on", normalized=False), AddedToken("cat", lstrip=True)])
def test_added_tokens_that_match_across_spaces(tokenizer: Tokenizer, added: AddedToken) -> None:
    loaded = Tokenizer.build(tokenizer.vocabulary, user_tokens=[added])
    text = "The  cat sat on the mat."
    assert added.content in loaded.tokens(WordCache(loaded).encode([text])[0].tolist())
    assert_same_as_tokenizer(WordCache(loaded), [text, "", text])


def test_invalid_texts_are_named(tokenizer: Tokenizer) -> None:
    cache = WordCache(tokenizer)
    with pytest.raises(UserError, match="7 is not a text but of type int"):
        cache.encode_offsets(["a", 7])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"the text 'a cat \\ud800' contains half of a surrogate pair"):
        cache.encode_offsets(["a dog", "a cat \ud800"])
    assert_same_as_tokenizer(cache, ["a dog", "a cat"])
