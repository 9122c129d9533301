from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertie.corpus import bpe, word_counts
from bertie.tokenizers.bpe_backend import BYTE_CHARACTERS
from bertie.tokenizers.spelling import END, PADDING, ROLES, SYMBOLS, WORD_CONTINUES, WORD_START, spelling_table
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, ByteLevel, Tokenizer

WIDTH = 9
WORDS = ["ab", "##ab", "é", "##", "abcdefg", "abcdefgh", "[unused1]"]


def row(*symbols: int) -> list[int]:
    return [*symbols, *[PADDING] * (WIDTH - len(symbols))]


def test_wordpiece_entries_are_bytes_between_markers() -> None:
    tokenizer = Tokenizer.build([*SPECIAL_TOKENS, *WORDS])
    table = spelling_table(tokenizer, WIDTH).tolist()
    # pad, unk, cls, sep, mask: each has the symbol of its role
    assert [each[1] - ROLES for each in table[:5]] == [2, 3, 0, 1, 4]
    assert all(each == row(WORD_START, each[1], END) for each in table[:5])
    assert table[5] == row(WORD_START, 97, 98, END)
    assert table[6] == row(WORD_CONTINUES, 97, 98, END)
    assert table[7] == row(WORD_START, 0xC3, 0xA9, END)
    assert table[8] == row(WORD_CONTINUES, 35, 35, END)
    assert table[9] == table[10] == [WORD_START, *b"abcdefg", END]  # the last byte of "abcdefgh" is left out
    assert table[11] == [WORD_START, *b"[unuse", b"d"[0], END]


def test_entries_of_byte_level_bpe_are_spelled_by_the_bytes_that_they_stand_for() -> None:
    counts = word_counts.count_words(["The café is  open\n東京"] * 9, ByteLevel()).counts
    vocabulary, merges = bpe.train(counts, vocab_size=280, reserved=("<url>",))
    tokenizer = Tokenizer.build_bpe(vocabulary, merges, ["<url>"])
    assert {tokenizer.spelling(character) for character in BYTE_CHARACTERS} == {bytes([b]) for b in range(256)}
    ids = tokenizer.encode([" café 東京\t"])[0]
    assert b"".join(tokenizer.spelling(tokenizer.vocabulary[i]) for i in ids).decode() == " café 東京\t"
    assert tokenizer.spelling("<url>") == b"<url>"
    table = spelling_table(tokenizer, WIDTH)
    assert table[vocabulary.index("Ġ")].tolist() == row(WORD_START, 32, END)
    assert table[vocabulary.index("e")].tolist() == row(WORD_CONTINUES, 101, END)
    assert table[0].tolist() == row(WORD_START, ROLES, END)


def test_a_token_with_all_roles_of_gpt2_has_one_spelling(tmp_path: Path) -> None:
    entries = [*BYTE_CHARACTERS, "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    table = spelling_table(Tokenizer.load(tmp_path), WIDTH)
    assert table[256].tolist() == row(WORD_START, ROLES, END)


@pytest.mark.parametrize("width", [3, 50])
def test_tables_are_in_range(small_tokenizer: Tokenizer, width: int) -> None:
    table = spelling_table(small_tokenizer, width)
    assert table.shape == (500, width)
    assert table.dtype == np.int16
    assert 0 <= table.min() <= table.max() < SYMBOLS
    if width == 50:
        assert len(np.unique(table, axis=0)) == 500
