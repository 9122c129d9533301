from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import pytest

from bertie import train_tokenizer
from bertie.base import storage
from bertie.corpus import word_counts
from bertie.corpus.accents import KEEP_FROM, measure_accents
from bertie.corpus.vocabulary import REPORT, extend_tokenizer
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer

SPANISH = "El año pasado mi niño comió en su jardín; ¿quién lavó el ano de su perro, Ángel o él?\n\n" * 20
ENGLISH = "The naïve guest of the café reads a résumé.\n\n" + "No accents in these six words.\n\n" * 60


def train(folder: Path, text: str, **choices: bool | None) -> Tokenizer:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return train_tokenizer(
        folder / "text.txt", folder / "out", vocab_size=300, normalization=NormalizerOptions(**choices)
    )


def test_a_text_with_accents_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train(tmp_path, SPANISH)
    assert tokenizer.normalization == NormalizerOptions(strip_accents=False)
    assert {"año", "ano", "niño", "él", "el"} <= set(tokenizer.vocabulary)
    assert tokenizer.tokens(tokenizer.encode(["AÑO ano"])[0]) == ["año", "ano"]
    printed = capsys.readouterr().err
    assert "34.8 % of the words have accents, so the vocabulary keeps them" in printed  # 8 of 23
    assert "8.7 % of the words would become equal to another word" in printed  # ano or año, el or él
    assert "--keep-accents strip" in printed
    report = storage.read_json(tmp_path / "out" / REPORT)
    assert report["accents"] == {"share": pytest.approx(8 / 23), "merged": pytest.approx(2 / 23)}


def test_a_text_with_few_accents_loses_them_and_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train(tmp_path, ENGLISH)
    assert tokenizer.normalization == NormalizerOptions()
    assert not {"é", "ï"} & set("".join(tokenizer.vocabulary))
    assert "stripped accents, as BERT does: 0.7 % of the words have some (keep them:" in capsys.readouterr().err
    explicit = train_tokenizer(
        tmp_path / "text.txt",
        tmp_path / "explicit",
        vocab_size=300,
        normalization=NormalizerOptions(strip_accents=True),
    )
    assert explicit.fingerprint == tokenizer.fingerprint
    assert "accents" not in capsys.readouterr().err


@pytest.mark.parametrize(("text", "strip"), [(SPANISH, True), (ENGLISH, False)])
def test_an_explicit_choice_wins_over_the_text(tmp_path: Path, text: str, strip: bool) -> None:
    tokenizer = train(tmp_path, text, strip_accents=strip)
    assert tokenizer.normalization == NormalizerOptions(strip_accents=strip)
    assert ("é" in "".join(tokenizer.vocabulary)) is not strip
    assert "accents" not in storage.read_json(tmp_path / "out" / REPORT)
    (tmp_path / "more.txt").write_text("cigüeña nueva", encoding="utf-8")
    extended = extend_tokenizer(tokenizer, tmp_path / "more.txt", tmp_path / "more", min_frequency=1)
    assert extended.normalization == tokenizer.normalization


def test_marks_of_other_scripts_count_as_accents() -> None:
    assert measure_accents({"всё": 1, "все": 3, "が": 1, "か": 1, "한국": 2, "中": 1, "a": 1}).share == 2 / 10
    assert measure_accents({"всё": 1, "все": 3, "が": 1, "か": 1, "한국": 2, "中": 1, "a": 1}).merged == 2 / 10
    assert measure_accents({"él": 5, "el": 2, "ël": 1}).merged == 3 / 8
    assert measure_accents({"café": 5}).merged == 0
    assert measure_accents({}).share == 0


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_words_that_lose_their_accents_later_are_those_that_lose_them_at_once(step: int) -> None:
    """For every character but those for private use: between letters, alone, and as a capital. Of Chinese, one in `step`."""
    kept, stripped = NormalizerOptions(strip_accents=False), NormalizerOptions()
    codes = [*range(0x3400), *range(0x3400, sys.maxunicode + 1, step)]
    characters = [chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF]
    texts = [
        f"a{character}b {character}" for character in characters if unicodedata.category(character) not in ("Cn", "Co")
    ]
    at_once = word_counts.count_words(texts, stripped).counts
    later = word_counts.normalize_words(word_counts.count_words(texts, kept).counts, stripped)
    assert later == at_once
    assert len(at_once) > (100_000 if step == 1 else 10_000)


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("Arabic-PUD", True),
        ("Chinese-GSD", False),
        ("French-GSD", True),
        ("German-GSD", True),
        ("Hindi-PUD", True),
        ("Japanese-GSD", True),
        ("Korean-GSD", False),
        ("Russian-GSD", True),
        ("Turkish-IMST", True),
    ],
)
def test_languages_with_accents_are_told_from_others(name: str, keeps: bool, shared_data: Path) -> None:
    text = (shared_data / "multilingual" / f"{name}.txt").read_text(encoding="utf-8")
    counts = word_counts.count_words(text.split("\n"), NormalizerOptions(strip_accents=False)).counts
    share = measure_accents(counts).share
    assert share > 5 * KEEP_FROM if keeps else share < KEEP_FROM / 5


@pytest.mark.parametrize("text", [SPANISH, ENGLISH])
@pytest.mark.parametrize("strip", [None, True, False])
def test_transformers_reads_the_accents_in_the_same_way(tmp_path: Path, text: str, strip: bool | None) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    tokenizer = train(tmp_path, text, strip_accents=strip)
    (tmp_path / "slow").mkdir()
    for name in ("vocab.txt", "tokenizer_config.json"):  # without tokenizer.json
        (tmp_path / "slow" / name).write_bytes((tmp_path / "out" / name).read_bytes())
    lines = [*text.split("\n"), "ÁRBOL, Café; Ñandú n\u0303 İyi"]
    expected = [ids.tolist() for ids in tokenizer.encode(lines)]
    for read in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        for folder in ("out", "slow"):
            huggingface = read.from_pretrained(tmp_path / folder)
            assert huggingface(lines, add_special_tokens=False)["input_ids"] == expected
    assert Tokenizer.load(tmp_path / "slow").fingerprint == tokenizer.fingerprint
