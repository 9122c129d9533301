"""Tokens that are added to a tokenizer: matched as a whole, with the ids of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.errors import UsageError
from bertie.corpus import bpe, unigram, word_counts
from bertie.tokenizers.added_tokens import with_tokens
from bertie.tokenizers.library_backend import UNIGRAM_RULES
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer

MARKERS = ("[E1]", "[/E1]", "[E2: A B]")


@pytest.fixture(scope="module")
def tokenizers(small_tokenizer: Tokenizer, small_texts: list[str]) -> dict[str, Tokenizer]:
    texts = small_texts[:200]
    counts = [word_counts.count_words(texts, rules).counts for rules in (ByteLevel(), UNIGRAM_RULES)]
    return {
        "wordpiece": small_tokenizer,
        "bpe": Tokenizer.build_bpe(*bpe.train(counts[0], vocab_size=400)),
        "unigram": Tokenizer.build_unigram(unigram.train(counts[1], vocab_size=200)),
    }


def test_a_role_is_no_token_of_a_text(small_tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"'\[SEP\]' is a special token of the vocabulary"):
        with_tokens(small_tokenizer, ["[E1]", "[SEP]"])


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "unigram"])
def test_added_tokens_are_whole_and_known_to_transformers(
    name: str, tokenizers: dict[str, Tokenizer], small_texts: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    old = tokenizers[name]
    new = with_tokens(old, MARKERS)
    assert new.vocabulary == [*old.vocabulary, *MARKERS]
    assert with_tokens(new, MARKERS[:2]) is new
    words = small_texts[0].split()
    text = f"{words[0]} [E1] {words[1]} [/E1] {words[2]}"
    parts = [old.encode([part])[0].tolist() for part in (words[0], f" {words[1]}", f" {words[2]}")]
    ids = [old.size, old.size + 1]
    assert new.encode([text])[0].tolist() == [*parts[0], ids[0], *parts[1], ids[1], *parts[2]]
    texts = [text, "[E2: A B]", f"{text} [e1] x", *small_texts[:3]]
    expected = [each.tolist() for each in new.encode(texts)]
    new.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (again.extra, again.fingerprint) == (MARKERS, new.fingerprint)
    assert [each.tolist() for each in again.encode(texts)] == expected
    assert theirs(texts, add_special_tokens=False)["input_ids"] == expected
