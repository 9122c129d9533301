from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.base import storage
from bertie.base.errors import UsageError, UserError
from bertie.corpus.coverage import (
    MOST_UNKNOWN,
    UnknownShare,
    compare_tokenizers,
    longest_entries,
    measure_coverage,
    words_of_tokens,
)
from bertie.corpus.executors import LocalExecutor
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.vocabulary import REPORT, Algorithm, count_words, extend_tokenizer, train_tokenizer
from bertie.files import sources
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, NormalizerOptions, Tokenizer

TEXT = "The cat sat on the mat. The cats sat on mats, and the mat was flat.\n\n" * 30
DOMAIN = "Myocarditis and endocarditis: the <url> cat has carditis. Ωmega Ωmega Ωmega Ωmega Ωmega.\n\n" * 10


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.fixture
def domain_text(tmp_path: Path) -> Path:
    (tmp_path / "domain.txt").write_text(DOMAIN)
    return tmp_path / "domain.txt"


def test_written_tokenizer_equals_the_returned_one(tmp_path: Path, text: Path) -> None:
    trained = train_tokenizer([text], tmp_path / "out", vocab_size=70, user_tokens=["<url>", "C++"], unused=3)
    loaded = Tokenizer.load(tmp_path / "out")
    assert loaded.fingerprint == trained.fingerprint
    assert loaded.vocabulary[:10] == [*SPECIAL_TOKENS, "<url>", "C++", "[unused0]", "[unused1]", "[unused2]"]
    assert loaded.user_tokens == ["<url>", "C++"]
    [ids] = loaded.encode(["the<url>cat [unused0] C++ c++ <URL>"])
    tokens = loaded.tokens(ids)
    assert tokens[:3] == ["the", "<url>", "cat"]
    assert tokens.count("C++") == 1
    assert "[unused0]" not in tokens
    report = storage.read_json(tmp_path / "out" / REPORT)
    assert report["entries"] == trained.size
    assert report["fit"]["words"] == 30 * 19


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_a_vocabulary_that_the_text_does_not_fill_is_smaller_and_a_warning(
    tmp_path: Path, text: Path, algorithm: Algorithm, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = train_tokenizer([text], tmp_path / "out", algorithm=algorithm, vocab_size=5000)
    assert 20 < trained.size < 5000
    shown = capsys.readouterr().err
    assert (
        f"the text fills only {trained.size:,} of 5,000 entries (--vocab-size): give more text, or a lower --min-f"
        in shown
    )
    train_tokenizer([text], tmp_path / "filled", algorithm=algorithm, vocab_size=trained.size)
    assert "fills only" not in capsys.readouterr().err


def test_transformers_agrees_on_user_tokens(tmp_path: Path, text: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    trained = train_tokenizer([text], tmp_path / "out", vocab_size=70, user_tokens=["<url>"], unused=2)
    huggingface = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for example in ("the<url>cat", "a flat <url> mat", "[unused1] <URL>"):
        assert huggingface(example, add_special_tokens=False)["input_ids"] == trained.encode([example])[0].tolist()


def test_text_and_output_may_be_single_strings(tmp_path: Path, text: Path, domain_text: Path) -> None:
    trained = train_tokenizer(str(text), str(tmp_path / "out"), vocab_size=50)
    extend_tokenizer(trained, str(domain_text), str(tmp_path / "extended"), add=2)
    assert Tokenizer.load(tmp_path / "extended").size == trained.size + 2


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        *(
            ({"user_tokens": [token], "unused": 1}, "--user-tokens")
            for token in ("a b", "", "[MASK]", "x", "##x", r"\n")
        ),
        *(
            ({"user_tokens": tokens, "unused": 1}, "--user-tokens")
            for tokens in (["xy"] * 2, ["[unused0]"], ["##"], [" "])
        ),
        ({"algorithm": "bpe", "user_tokens": ["<mask>"]}, "--user-tokens"),
        ({"algorithm": "bpe", "user_tokens": ["né"]}, "--user-tokens"),
        ({"unused": -1}, "--unused"),
        ({"unused": 40_000}, "--unused"),
        ({"min_frequency": 0}, "--min-frequency"),
        ({"max_word_length": 0}, "--max-word-length 0"),
        ({"max_word_length": 1001}, "--max-word-length 1001"),
        ({"max_unique_words": 10}, "--max-unique-words 10"),
        *(
            ({"algorithm": algorithm, name: value}, f"--{name.replace('_', '-')}")
            for algorithm in ("bpe", "unigram")
            for name, value in {
                "vocab_size": 10,
                "alphabet_limit": 5,
                "criterion": "likelihood",
                "max_word_length": 200,
                "min_frequency": 0,
            }.items()
        ),
        ({"algorithm": "bpe", "normalization": NormalizerOptions(drop_punctuation=True)}, "--drop-punctuation"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, text: Path, options: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError, match=re.escape(flag)):
        train_tokenizer([text], tmp_path / "out", **options)


def test_extension_adds_the_words_that_save_most_pieces(tmp_path: Path, text: Path, domain_text: Path) -> None:
    old = train_tokenizer([text], tmp_path / "old", vocab_size=60, user_tokens=["<url>"])
    new = extend_tokenizer(old, [domain_text], tmp_path / "new", add=3)
    assert new.vocabulary[: old.size] == old.vocabulary
    assert new.vocabulary[old.size :] == ["ωmega", "endocarditis", "myocarditis"]
    assert Tokenizer.load(tmp_path / "new").fingerprint == new.fingerprint
    assert new.user_tokens == ["<url>"]
    before, after = (len(tokenizer.encode(["endocarditis"])[0]) for tokenizer in (old, new))
    assert before == 1  # [UNK]: the old alphabet has no r
    assert after == 1
    assert new.unk_id not in new.encode(["endocarditis"])[0]
    with pytest.raises(UserError, match=r"occurs 1000 times .--min-frequency. or more: give more text"):
        extend_tokenizer(new, [text], tmp_path / "newer", min_frequency=1000)
    with pytest.raises(UsageError, match="--add 0"):
        extend_tokenizer(new, [text], tmp_path / "newer", add=0)


def test_extension_adds_unknown_single_characters(tmp_path: Path, text: Path) -> None:
    old = train_tokenizer([text], tmp_path / "old", vocab_size=60)
    (tmp_path / "domain.txt").write_text("中国 € 中国 € 中国 € 中国 € 中国 €")
    new = extend_tokenizer(old, [tmp_path / "domain.txt"], tmp_path / "new")
    assert set(new.vocabulary[old.size :]) == {"中", "国", "€"}


def test_dropped_words_are_counted_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"word{number}x" for number in range(3000)))
    table = count_words([tmp_path / "text.txt"], NormalizerOptions(), limit=1000)
    assert len(table.counts) == 1000
    assert table.forgotten == 2000
    assert (
        "the text has more than 1,000 different words: the rarest were dropped, 2,000 occurrences"
        in capsys.readouterr().err
    )


def test_word_counts_do_not_depend_on_the_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 1000)
    for number in range(5):
        records = [{"body": f"word{i % (number + 2)} again {i % 50}"} for i in range(100)]
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ReaderOptions(text_field="body")
    one, four = (
        count_words([tmp_path], NormalizerOptions(), (), 20, options, LocalExecutor(workers)) for workers in (1, 4)
    )
    assert one.counts == four.counts
    assert one.forgotten == four.forgotten > 0
    assert one.counts["again"] == 500


def test_coverage_of_a_vocabulary() -> None:
    tokenizer = Tokenizer.build([*SPECIAL_TOKENS, "cat", "##s", "d", "##o", "##g", "longest", "[unused0]"])
    coverage = measure_coverage(tokenizer, {"cat": 6, "cats": 3, "dog": 1, "xyz": 2})
    assert (coverage.words, coverage.used) == (12, 6)
    assert coverage.pieces_per_word == pytest.approx((6 + 6 + 3 + 2) / 12)
    assert coverage.whole == pytest.approx(6 / 12)
    assert coverage.unknown == pytest.approx(2 / 12)
    assert coverage.unknown_characters == pytest.approx(6 / 39)
    assert longest_entries(tokenizer, 2) == ["longest", "cat"]
    other = Tokenizer.build([*SPECIAL_TOKENS, "cats", "dog", "c", "##at"])
    assert compare_tokenizers(tokenizer, other, {"cat": 6, "cats": 3, "dog": 1}) == [
        ("cat", 1, 2),
        ("cats", 2, 1),
        ("dog", 3, 1),
    ]


def test_words_that_are_too_long_are_unknown_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ("cat" * 34, "dog" * 40)  # 102 and 120 characters
    (tmp_path / "text.txt").write_text(f"cat dog {long[0]} cat, dog, {long[1]} " * 5)
    made = train_tokenizer(tmp_path / "text.txt", tmp_path / "out", vocab_size=30)
    fit = storage.read_json(tmp_path / "out" / REPORT)["fit"]
    assert fit["unknown"] == pytest.approx(2 / 8)
    assert fit["unknown_characters"] == pytest.approx(222 / 236)
    said = capsys.readouterr().err
    assert "25.0 % are [UNK]" in said
    assert "warning: " in said
    assert "25.0 % of the words (94.1 % of the characters) are [UNK]" in said
    (tmp_path / "more.txt").write_text(f"{long[0]} {long[1]} goat goat " * 5)
    assert extend_tokenizer(made, tmp_path / "more.txt", tmp_path / "new").vocabulary[made.size :] == ["goat"]


def test_a_vocabulary_that_fits_gives_no_warning(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tokenizer(text, tmp_path / "out", vocab_size=50)
    UnknownShare(MOST_UNKNOWN - 0.001, characters=MOST_UNKNOWN - 0.001).warn("x")
    assert "warning" not in capsys.readouterr().err
    UnknownShare(MOST_UNKNOWN).warn("x")
    assert "warning: x: 3.0 % of the words are [UNK]" in capsys.readouterr().err
    UnknownShare(0.001, "tokens", MOST_UNKNOWN).warn("x")
    assert "warning: x: 0.1 % of the tokens (3.0 % of the characters) are [UNK]" in capsys.readouterr().err


def test_words_may_be_longer_than_in_bert(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    long = "catdog" * 30
    (tmp_path / "text.txt").write_text(f"cat dog {long} {long}cat " * 5)
    made = train_tokenizer(tmp_path / "text.txt", tmp_path / "out", vocab_size=30, max_word_length=180)
    assert storage.read_json(tmp_path / "out" / REPORT)["fit"]["unknown"] == pytest.approx(1 / 4)  # the word of 183
    for tokenizer in (made, Tokenizer.load(tmp_path / "out"), made.with_vocabulary([*made.vocabulary, "goat"])):
        [ids, unknown] = tokenizer.encode([long, f"{long}c"])
        assert tokenizer.unk_id not in ids
        assert unknown.tolist() == [tokenizer.unk_id]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(long, add_special_tokens=False).input_ids == made.encode([long])[0].tolist()
    assert made.fingerprint != train_tokenizer(tmp_path / "text.txt", tmp_path / "bert", vocab_size=30).fingerprint
    (tmp_path / "out" / "tokenizer.json").unlink()  # tokenizer_config.json says it, too
    assert Tokenizer.load(tmp_path / "out").fingerprint == made.fingerprint


def test_coverage_of_a_unigram_vocabulary_counts_the_characters_that_are_unknown() -> None:
    pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    letters = [(piece, -1.0) for piece in ("▁", "ก", "ข", "▁a")]
    tokenizer = Tokenizer.build_unigram([*pieces, *letters, ("<mask>", 0.0)])
    coverage = measure_coverage(tokenizer, {"▁กขกข★กข": 1, "▁a": 3})
    assert coverage.unknown == 1 / 4
    assert coverage.unknown_characters == pytest.approx(1 / (7 + 3))
    ids = np.concatenate(tokenizer.encode(["กขกข กข", "a"]))
    assert tokenizer.word_starts(ids, np.array([0, len(ids) - 1])).sum() > 3  # for masking, each entry is a word
    assert words_of_tokens(tokenizer, ids, np.array([0, len(ids) - 1])) == 3  # parts between blanks


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_line_breaks_get_an_entry(tmp_path: Path, text: Path, domain_text: Path, algorithm: Algorithm) -> None:
    size = 70 if algorithm == "wordpiece" else 300
    options: Any = {"vocab_size": size, "algorithm": algorithm, "unused": 1}
    plain = train_tokenizer([text], tmp_path / "plain", user_tokens=["<url>"], **options)
    trained = train_tokenizer([text], tmp_path / "out", user_tokens=[LINE_BREAK, "<url>"], **options)
    assert Tokenizer.load(tmp_path / "out").fingerprint == trained.fingerprint
    assert trained.vocabulary[5:8] == [LINE_BREAK, "<url>", "[unused0]"]
    assert plain.line_break_id is None
    tokens = trained.tokens(trained.encode(["the cat\n\nsat"])[0])
    assert tokens.count(LINE_BREAK) == 2
    if algorithm == "wordpiece":
        assert (tmp_path / "out" / "vocab.txt").read_text().split("\n")[5] == r"\n"
        extended = extend_tokenizer(trained, [domain_text], tmp_path / "extended", add=2)
        assert extended.line_break_id == trained.line_break_id == 5


def test_vocabulary_without_punctuation(tmp_path: Path, text: Path, domain_text: Path) -> None:
    normalization = NormalizerOptions(drop_punctuation=True)
    trained = train_tokenizer([text], tmp_path / "out", vocab_size=60, normalization=normalization)
    assert not {",", ".", "##,", "##."} & set(trained.vocabulary)
    assert storage.read_json(tmp_path / "out" / REPORT)["fit"]["words"] == 30 * 16  # 19 with punctuation
    assert extend_tokenizer(trained, [domain_text], tmp_path / "new", add=2).normalization == normalization
