"""Words of unusual texts: their boundaries, and the subwords that belong to each."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from bertie.tasks import word_alignment
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from bertie.tokenizers.truncation import to_sequences


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Café cafe\u0301 noir's", ["Café", "cafe\u0301", "noir", "'", "s"]),
        ("東京タワーは高い。", ["東", "京", "タワーは", "高", "い", "。"]),
        ("I 😂 love\u00a0it!!", ["I", "😂", "love", "it", "!", "!"]),
        ("", []),
        (" \t \u00a0\n", []),
        ("a [MASK] b", ["a", "[", "MASK", "]", "b"]),
        ("\x00 x\u200d", ["x"]),
        ("  unbelievably-long " + "x" * 150, ["unbelievably", "-", "long", "x" * 150]),
    ],
)
def test_words_of_a_text_and_their_characters(tokenizer: Tokenizer, text: str, expected: list[str]) -> None:
    [(pieces, places)] = word_alignment.split_and_tokenize(tokenizer, [text])
    assert [text[start:end] for start, end in places.tolist()] == expected
    assert pieces.offsets is not None
    assert sorted(set(pieces.offsets[:, 0].tolist())) == list(range(len(expected)))
    for number, word in enumerate(expected):
        tokens = tokenizer.tokens(pieces.ids[pieces.offsets[:, 0] == number].tolist())
        plain = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        assert tokens == ["[UNK]"] or unicodedata.normalize("NFD", "".join(tokens).replace("##", "")) == plain
        assert pieces.offsets[pieces.offsets[:, 0] == number, 1].tolist() == list(range(1, len(tokens) + 1))


def test_words_of_naughty_strings_cover_all_letters(tokenizer: Tokenizer, shared_data: Path) -> None:
    """Words are in order and do not overlap, and there is no ASCII letter or digit between them."""
    texts = (shared_data / "multilingual" / "blns.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    found = word_alignment.split_and_tokenize(tokenizer, texts)
    assert sum(len(places) for _, places in found) > 2000
    for text, (pieces, places) in zip(texts, found, strict=True):
        assert pieces.ids.tolist() == tokenizer.encode([text])[0].tolist()
        ends = [0, *places[:, 1].tolist()]
        for end, (start, stop) in zip(ends, [*places.tolist(), (len(text), len(text) + 1)], strict=True):
            assert end <= start < stop
            assert not any(c.isascii() and c.isalnum() for c in text[end:start])


def test_word_that_the_tokenizer_removes_becomes_unk(tokenizer: Tokenizer) -> None:
    [pieces] = word_alignment.tokenize_words(tokenizer, [["a", "\u200d", "playing", ""]])
    assert pieces.offsets is not None
    assert [tokenizer.tokens([i])[0] for i in pieces.ids] == ["a", "[UNK]", "playing", "[UNK]"]
    assert pieces.offsets.tolist() == [[0, 1], [1, 1], [2, 1], [3, 1]]


@pytest.fixture(scope="module")
def richer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer without punctuation and with line breaks."""
    normalization = NormalizerOptions(drop_punctuation=True)
    return Tokenizer.build([*tokenizer.vocabulary, LINE_BREAK], normalization, [LINE_BREAK])


def test_dropped_punctuation_has_no_token(richer: Tokenizer) -> None:
    texts = [["``", "a", ",", "play-ing", "…", "b"], ["!", "?"]]
    first, second = word_alignment.tokenize_words(richer, texts)
    assert first.offsets is not None
    assert richer.tokens(first.ids) == ["a", "play", "ing", "b"]
    assert first.offsets.tolist() == [[1, 1], [3, 1], [3, 2], [5, 1]]
    assert second.ids.shape == (0,)
    assert second.offsets is not None
    assert second.offsets.shape == (0, 2)
    [window] = to_sequences(richer, [first], 16, "windows")
    assert word_alignment.best_windows([window], len(texts[0])).tolist() == [-1, 0, -1, 0, -1, 0]


def test_line_breaks_and_dropped_punctuation_are_no_words(tokenizer: Tokenizer, richer: Tokenizer) -> None:
    text = "\nHello, (Café-cafe\u0301)!\n\n[PAR] x\n"
    [(pieces, places)] = word_alignment.split_and_tokenize(richer, [text])
    assert [text[start:end] for start, end in places.tolist()] == ["Hello", "Café", "cafe\u0301", "PAR", "x"]
    assert richer.tokens(pieces.ids) == ["hello", "cafe", "cafe", "par", "x"]
    breaking = Tokenizer.build([*tokenizer.vocabulary, LINE_BREAK], user_tokens=[LINE_BREAK])
    [(pieces, places)] = word_alignment.split_and_tokenize(breaking, ["a.\n\nb"])
    assert breaking.tokens(pieces.ids) == ["a", ".", "b"]
    assert places.tolist() == [[0, 1], [1, 2], [4, 5]]
