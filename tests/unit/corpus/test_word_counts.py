from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from bertie.corpus import word_counts
from bertie.corpus.word_counts import WordCounts, count_words
from bertie.tokenizers.tokenizer import NormalizerOptions

ODD = st.text(
    st.one_of(
        st.sampled_from("aB é\u0301\u00a0\u2028\u200b\x1c\x85\t\r\n,.[]#中ß한"),
        st.characters(exclude_categories=["Cs"]),
    )
)


@settings(deadline=None)
@given(st.lists(ODD, max_size=6), st.booleans(), st.booleans())
def test_words_are_those_of_the_normalizer_and_splitter(texts: list[str], lowercase: bool, drop: bool) -> None:
    normalization = NormalizerOptions(lowercase, drop_punctuation=drop)
    splitter, punctuation = pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Punctuation("removed")
    expected: Counter[str] = Counter()
    for text in texts:
        split = splitter.pre_tokenize_str(normalization.normalizer().normalize_str(text))
        expected.update(word for word, _ in split if not drop or punctuation.pre_tokenize_str(word))
    assert count_words(texts, normalization).counts == expected


def test_user_tokens_are_not_words() -> None:
    assert count_words(["see<url>now <url>s <urls>"], user_tokens=["<url>", "<urls>"]).counts == {
        "see": 1,
        "now": 1,
        "s": 1,
    }


def test_batch_sizes_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{number % 7} and more, of {number}" for number in range(100)]
    expected = count_words(texts).counts
    monkeypatch.setattr(word_counts, "COUNT_BATCH", 50)
    monkeypatch.setattr(word_counts, "NORMALIZE_BATCH", 64)
    assert count_words(texts).counts == expected


def test_rarest_words_beyond_the_limit_are_dropped_and_counted() -> None:
    table = WordCounts(limit=3)
    table.add({"d": 1, "a": 5, "c": 2, "b": 2, "e": 2})
    assert table.counts == {"a": 5, "b": 2, "c": 2}
    assert table.forgotten == 3
    table.add({"z": 9}, forgotten=4)
    assert table.counts == {"a": 5, "b": 2, "z": 9}
    assert table.forgotten == 3 + 4 + 2
