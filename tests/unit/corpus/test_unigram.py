"""Unigram vocabularies: training, words, special tokens in a text, files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertie import prepare, train_tokenizer
from bertie.corpus import unigram, word_counts
from bertie.corpus.shards import open_shards
from bertie.tokenizers.library_backend import UNIGRAM_RULES
from bertie.tokenizers.tokenizer import Tokenizer

TEXTS = [
    f"die Katze {i} saß auf der Matte, und der Hund {i * i} schlief. 猫が座布団の上に座っていた。" for i in range(40)
]


@pytest.fixture(scope="module")
def pieces() -> list[tuple[str, float]]:
    return unigram.train(word_counts.count_words(TEXTS, UNIGRAM_RULES).counts, vocab_size=120)


@pytest.fixture(scope="module")
def tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    return Tokenizer.build_unigram(pieces)


def test_frequent_words_become_pieces_and_every_character_is_one(pieces: list[tuple[str, float]]) -> None:
    entries = [entry for entry, _ in pieces]
    assert len(entries) == len(set(entries)) == 120
    assert entries[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert entries[-1] == "<mask>"
    assert set("".join(TEXTS).replace(" ", "")) - {"。"} <= {*entries, "。"}
    assert {"▁der", "▁und"} <= set(entries)
    scores = [score for _, score in pieces[4:-1]]
    assert scores == sorted(scores, reverse=True)
    assert sum(np.exp(scores)) == pytest.approx(1, abs=0.1)


def test_words_that_training_leaves_out_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unigram, "MOST_CHARACTERS", 9)
    counts = {"▁abc": 60, "▁abd": 30, "▁xyz": 9, "▁zyx": 1}
    entries = [entry for entry, _ in unigram.train(counts, vocab_size=14)]
    assert "▁abc" in entries
    assert "▁xyz" not in entries
    [line] = capsys.readouterr().err.splitlines()
    assert "the 2 most frequent of 4 different words (at most 9 characters); the others are 10.0 %" in line
    monkeypatch.setattr(unigram, "MOST_CHARACTERS", 16)
    assert "▁xyz" in [entry for entry, _ in unigram.train(counts, vocab_size=20)]
    assert not capsys.readouterr().err


def test_expected_counts_are_those_of_all_segmentations() -> None:
    """The word "aba" in the pieces a, b, ab: a + b + a has 0.5 · 0.3 · 0.5, ab + a has 0.2 · 0.5."""
    words = unigram._Words.from_rows([[0, 1, 0]], np.array([7.0]), 2)
    expected = words.lattice([(0,), (1,), (0, 1)]).expected(np.log([0.5, 0.3, 0.2]))
    split, joined = 0.5 * 0.3 * 0.5, 0.2 * 0.5
    share = split / (split + joined)
    assert expected == pytest.approx([7 * (1 + share), 7 * share, 7 * (1 - share)], abs=1e-3)


def test_the_same_text_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    code = "import sys, bertie; bertie.train_tokenizer(sys.argv[1], sys.argv[2], algorithm='unigram', vocab_size=120)"
    found = []
    for seed in ("0", "1"):
        out = tmp_path / seed
        environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": str(1 + int(seed))}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "text.txt"), str(out)], env=environment, check=True)
        found.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    assert found[0] == found[1]
    assert Tokenizer.load(tmp_path / "0").fingerprint == Tokenizer.load(tmp_path / "1").fingerprint


def test_roles_in_a_text_are_text_also_if_normalization_makes_them(tokenizer: Tokenizer) -> None:
    roles = set(tokenizer.special_ids.tolist()) - {tokenizer.unk_id}
    for text in ("<s> der </s>", "＜s＞", "<mask>der<pad>", "der"):
        [ids] = tokenizer.encode([text])
        assert len(ids)
        assert not roles & set(ids.tolist())
        [encoding] = tokenizer.encode_words([text.split()])
        assert not roles & set(encoding.ids)


def test_words_start_at_blanks_and_at_every_piece_without_blanks(tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode(["der Hund schlief 猫が座"])
    starts = tokenizer.word_starts(ids, np.array([0]))
    tokens = tokenizer.tokens(ids)
    assert all(start for token, start in zip(tokens, starts, strict=True) if token[0] in "▁猫が座")
    assert not all(starts)
    assert tokenizer.spelling("▁der") == b" der"
    assert tokenizer.decode(tokenizer.encode(["der Hund"])[0]) == "der Hund"


def test_it_is_saved_and_prepares_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    trained = train_tokenizer(
        tmp_path / "text.txt",
        tmp_path / "tokenizer",
        algorithm="unigram",
        vocab_size=120,
        user_tokens=["<url>"],
        unused=2,
    )
    assert Tokenizer.load(tmp_path / "tokenizer").fingerprint == trained.fingerprint
    assert trained.vocabulary[4:7] == ["<url>", "[unused0]", "[unused1]"]
    assert trained.tokens(trained.encode(["der<url>[unused0]"])[0])[:2] == ["▁der", "<url>"]
    prepare(tmp_path / "text.txt", trained, tmp_path / "corpus", eval_share=0.5)
    shards = open_shards(tmp_path / "corpus")
    assert shards.tokenizer.fingerprint == trained.fingerprint
