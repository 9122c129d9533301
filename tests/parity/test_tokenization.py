"""Ids and offsets compared with BERT's published tokenization, with its own vocabularies, and the known differences.

`tokenize` implements the authors' description (README of google-research/bert; Devlin et al. 2018, section 3) in plain
Python.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from bertie.tokenizers.truncation import encode

CHINESE = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def tokenize(text: str, vocabulary: frozenset[str], lowercase: bool, longest_word: int = 100) -> list[str]:
    """Split a text into subwords."""
    return [subword for word in words(text, lowercase) for subword in subwords(word, vocabulary, longest_word)]


@cache  # the offsets test calls it for the same single characters many times
def words(text: str, lowercase: bool) -> list[str]:
    """Split a text into words. Chinese and punctuation characters are words. Lowercased words lose their accents."""
    cleaned = "".join(_clean(character) for character in text)
    found: list[str] = []
    for word in cleaned.split():
        if lowercase:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        for is_punctuation, run in groupby(word, _is_punctuation):
            characters = list(run)
            found += characters if is_punctuation else ["".join(characters)]
    return [word for word in found if word.split()]


def subwords(word: str, vocabulary: frozenset[str], longest_word: int) -> list[str]:
    """Split a word by greedy longest match from the left. A word that cannot be split into known subwords is [UNK]."""
    if len(word) > longest_word:
        return ["[UNK]"]
    found: list[str] = []
    while word:
        prefix = "##" if found else ""
        stop = next((stop for stop in range(len(word), 0, -1) if prefix + word[:stop] in vocabulary), None)
        if stop is None:
            return ["[UNK]"]
        found.append(prefix + word[:stop])
        word = word[stop:]
    return found


@cache
def _clean(character: str) -> str:
    category = unicodedata.category(character)
    if character in " \t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    return f" {character} " if any(first <= ord(character) <= last for first, last in CHINESE) else character


@cache
def _is_punctuation(character: str) -> bool:
    """Unicode punctuation, and all ASCII characters except letters, digits and blanks, such as "$" and "`"."""
    code = ord(character)
    symbol = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return symbol or unicodedata.category(character).startswith("P")


VOCABULARIES = {
    "bert-base-uncased": True,
    "bert-base-cased": False,
    "bert-base-multilingual-cased": False,
    "bert-base-chinese": True,
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    vocabulary = (shared_data / "vocab" / f"{request.param}.txt").read_text(encoding="utf-8")
    return Tokenizer.build(
        vocabulary.removesuffix("\n").split("\n"), NormalizerOptions(lowercase=VOCABULARIES[request.param])
    )


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[str]:
    """Sentences in nine languages, and strings that often break programs (the Big List of Naughty Strings)."""
    files = {file: file.read_text(encoding="utf-8") for file in sorted((shared_data / "multilingual").glob("*.txt"))}
    return [line for file, text in files.items() for line in text.split("\n")[:: 1 if file.name == "blns.txt" else 8]]


def test_ids_agree_with_the_published_algorithm(tokenizer: Tokenizer, lines: list[str]) -> None:
    assert len(lines) > 1500
    vocabulary = frozenset(tokenizer.vocabulary)
    for line, ids in zip(lines, tokenizer.encode(lines), strict=True):
        assert tokenizer.tokens(ids) == tokenize(line, vocabulary, tokenizer.lowercase), line


def test_offsets_point_at_the_text_of_each_token(tokenizer: Tokenizer, lines: list[str]) -> None:
    """The text at a token's offsets, tokenized alone, gives the token. A Korean syllable may give several tokens."""
    vocabulary = frozenset(tokenizer.vocabulary)
    tokens = 0
    for line, sequence in zip(lines, encode(tokenizer, lines, max_length=100_000), strict=True):
        inside = slice(1, -1)
        before = (0, 0)
        for token, offset in zip(tokenizer.tokens(sequence.input_ids)[inside], sequence.offsets[inside], strict=True):
            start, stop = map(int, offset)
            assert start < stop <= len(line)
            [word] = words(line[start:stop], tokenizer.lowercase)
            if token == "[UNK]":
                assert tokenize(word, vocabulary, tokenizer.lowercase) == ["[UNK]"]
            elif any("\uac00" <= character <= "\ud7a3" for character in line[start:stop]):
                assert token.removeprefix("##") in word
            else:
                assert word == token.removeprefix("##")
            assert start >= before[1] or (start >= before[0] and "\uac00" <= line[start] <= "\ud7a3")
            before = (start, stop)
            tokens += 1
    assert tokens > 25_000


def test_punctuation_that_is_dropped_is_that_of_the_published_algorithm(tokenizer: Tokenizer, lines: list[str]) -> None:
    vocabulary = frozenset(tokenizer.vocabulary)
    dropping = Tokenizer.build(tokenizer.vocabulary, replace(tokenizer.normalization, drop_punctuation=True))
    for line, ids in zip(lines, dropping.encode(lines), strict=True):
        kept = [word for word in words(line, tokenizer.lowercase) if not _is_punctuation(word[0])]
        assert dropping.tokens(ids) == [piece for word in kept for piece in subwords(word, vocabulary, 100)], line


def test_special_tokens_in_a_text_are_ordinary_text(tokenizer: Tokenizer) -> None:
    text = "[CLS] a [MASK] [SEP] [PAD] [UNK]"
    [ids] = tokenizer.encode([text])
    assert not set(tokenizer.special_ids) - {tokenizer.unk_id} & set(ids.tolist())
    assert tokenizer.tokens(ids) == tokenize(text, frozenset(tokenizer.vocabulary), tokenizer.lowercase)


@pytest.mark.parametrize(
    ("text", "published", "expected"),
    [
        ("a\ue000b", ["a\ue000b"], ["ab"]),  # private use
        ("\u039f\u0394\u039f\u03a3", ["\u03bf\u03b4\u03bf\u03c2"], ["\u03bf\u03b4\u03bf\u03c3"]),  # final sigma
        ("a\u2e55b", ["a", "\u2e55", "b"], ["a\u2e55b"]),  # punctuation of Unicode 14
        ("a\U0002b820b", ["a", "\U0002b820", "b"], ["a\U0002b820b"]),  # Chinese extension E, first 256 characters
        ("a\u166db", ["a\u166db"], ["a", "\u166d", "b"]),  # punctuation until Unicode 12
        ("a\u1734b", ["a\u1734b"], ["ab"]),  # an accent until Unicode 14
    ],
)
def test_known_differences_from_the_published_algorithm(text: str, published: list[str], expected: list[str]) -> None:
    tokenizer = Tokenizer.build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    assert words(text, lowercase=True) == published
    found = tokenizer.backend.engine.pre_tokenizer.pre_tokenize_str(
        tokenizer.backend.engine.normalizer.normalize_str(text)
    )
    assert [word for word, _ in found] == expected


def test_words_of_more_than_a_hundred_characters_are_unknown() -> None:
    tokenizer = Tokenizer.build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"])
    hundred, more = tokenizer.encode(["a" * 100, "a" * 101])
    assert (len(hundred), len(more)) == (100, 1)
    assert tokenizer.tokens(more) == ["[UNK]"] == tokenize("a" * 101, frozenset(tokenizer.vocabulary), lowercase=True)
    assert len(tokenize("a" * 101, frozenset(tokenizer.vocabulary), lowercase=True, longest_word=200)) == 101
