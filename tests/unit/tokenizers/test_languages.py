"""Corpora with translations: records with one field per language, from the files to the shards."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertie.base import storage
from bertie.base.contracts import Document
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.corpus import readers, shard_format, word_counts, wordpiece
from bertie.corpus.document_blocks import Filters
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReadCounts, ReaderOptions
from bertie.corpus.sentences import split_sentences
from bertie.corpus.shard_format import unlisted_files
from bertie.corpus.shards import open_shards
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer

OPTIONS = ReaderOptions(languages=("en", "de"))
Record = dict[str, str | None]
RECORDS: list[Record] = [
    {"en": f"Cat {i} sat. It was old!", "de": f"Katze {i} sass. Sie war alt!", "id": f"{i}"} for i in range(200)
]
RECORDS += [{"en": f"Only in English, {i}."} for i in range(30)]
RECORDS += [{"en": None, "de": f"Nur auf Deutsch, {i}."} for i in range(20)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [text for record in RECORDS for text in (record.get("en"), record.get("de")) if text]
    return Tokenizer.build(wordpiece.train(word_counts.count_words(texts).counts, vocab_size=100))


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path, **options: Any) -> tuple[list[tuple[str, ...]], ReadCounts]:
    counts = ReadCounts()
    found = readers.read([path], ReaderOptions(**{"languages": ("en", "de")} | options), counts)
    return [document.translations for document in found], counts


def documents(split: Corpus) -> list[list[tuple[int, list[int]]]]:
    """Read a split back: documents of sentences with their languages."""
    read: list[list[tuple[int, list[int]]]] = [[] for _ in split.document_starts[:-1]]
    for start, stop in pairwise(split.sentence_starts.tolist()):
        document = int(np.searchsorted(split.document_starts, start, side="right")) - 1
        assert len({split.language(token) for token in range(start, stop)}) == 1
        read[document].append((split.language(start), split.slice(start, stop)[0].tolist()))
    return read


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Reading


def test_a_record_has_one_text_per_language(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"de": " Zwei. ", "en": "One.\n"}, {"en": "Only."}, {"en": None, "de": "Nur."}])
    assert list(readers.read([path], OPTIONS)) == [
        Document("One.\nZwei.", f"{path}:1", ("One.", "Zwei.")),
        Document("Only.", f"{path}:2", ("Only.", "")),
        Document("Nur.", f"{path}:3", ("", "Nur.")),
    ]


@pytest.mark.parametrize("format", ["csv", "tsv", "parquet"])
def test_tables_need_the_column_of_one_language(format: str, tmp_path: Path) -> None:
    both, one, none = (tmp_path / f"{name}.{format}" for name in ("both", "one", "none"))
    if format == "parquet":
        parquet.write_table(pyarrow.table({"de": ["Zwei.", None], "id": [1, 2], "en": ["One.", "Only."]}), both)
        parquet.write_table(pyarrow.table({"de": ["Nur."]}), one)
        parquet.write_table(pyarrow.table({"text": ["a"]}), none)
    else:
        tab = {"csv": ",", "tsv": "\t"}[format]
        both.write_text(f"de{tab}id{tab}en\nZwei.{tab}1{tab}One.\n{tab}2{tab}Only.\n")
        one.write_text("de\nNur.\n")
        none.write_text("text\na\n")
    assert read(both)[0] == [("One.", "Zwei."), ("Only.", "")]
    assert read(one)[0] == [("", "Nur.")]
    with pytest.raises(UserError, match=r"no column 'en' or 'de' \(it has 'text'\): .* --languages"):
        read(none)


def test_a_hub_data_set_has_languages(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.jsonl", [{"en": "One.", "de": "Zwei."}])
    [document] = readers.read([f"hf:{tmp_path / 'data'}"], OPTIONS)
    assert document.translations == ("One.", "Zwei.")
    with pytest.raises(UserError, match="no column 'fr' or 'it'"):
        list(readers.read([f"hf:{tmp_path / 'data'}"], ReaderOptions(languages=("fr", "it"))))


def test_bad_records_are_skipped_and_blank_ones_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"text": "a"}', '{"en": 3, "de": "Drei."}', '{"en": "", "de": null}', '{"en": "a\\u0000"}', '{"en": "a"}']
    path.write_text("\n".join(lines))
    found, counts = read(path)
    assert found == [("a", "")]
    assert {reason: count for reason, (count, _) in counts.skipped.items()} == {
        "no field 'en' or 'de'": 1,
        "not a string": 1,
        "a NUL byte": 1,
    }
    assert counts.blank == 1
    with pytest.raises(UserError, match=r"a\.jsonl:1: no field 'en' or 'de' \(it has 'text'\): .*--languages"):
        read(path, strict=True)


def test_options_that_contradict_each_other_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for options, message in (
        ({"languages": ("en",), "text_field": "body"}, "--text-field and --languages"),
        ({"languages": ("en", "en")}, "name each language once"),
        ({"languages": ("en,de",)}, "--languages 'en,de': separate the languages by spaces"),
    ):
        with pytest.raises(UsageError, match=message):
            ReaderOptions(**options)
    path = write(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(UsageError, match=r"remove --language$"):
        prepare([path], tokenizer, tmp_path / "out", language="de", reader_options=OPTIONS)
    with pytest.raises(UsageError, match="--duplicates paragraphs does not work with --languages"):
        prepare([path], tokenizer, tmp_path / "out", filters=Filters(duplicates="paragraphs"), reader_options=OPTIONS)
    (tmp_path / "a.txt").write_text("Text.")
    with pytest.raises(UserError, match=r"a\.txt has no fields for --languages"):
        prepare([path, tmp_path / "a.txt"], tokenizer, tmp_path / "out", reader_options=OPTIONS)


# Shards


@pytest.mark.parametrize("shard_bytes", [1_000, 64_000_000])
def test_shards_know_the_language_of_every_sentence(tmp_path: Path, tokenizer: Tokenizer, shard_bytes: int) -> None:
    path = write(tmp_path / "a.jsonl", RECORDS)
    manifest = prepare(
        [path], tokenizer, tmp_path / "out", eval_share=0.2, shard_bytes=shard_bytes, reader_options=OPTIONS
    )
    opened = open_shards(tmp_path / "out")
    assert opened.manifest == manifest
    assert opened.languages == ("en", "de")
    expected = [
        [
            (number, tokenizer.encode([sentence])[0].tolist())
            for number, language in enumerate(("en", "de"))
            for sentence in split_sentences(record.get(language) or "", language)
        ]
        for record in RECORDS
    ]
    found = [documents(split) for split in (opened.train, opened.eval)]
    assert sorted([*found[0], *found[1]]) == sorted(expected)
    for name, split in zip(shard_format.SPLITS, found, strict=True):
        present = [{language for language, _ in document} for document in split]
        counts = manifest["splits"][name]
        assert counts["languages"] == {
            "en": sum(0 in each for each in present),
            "de": sum(1 in each for each in present),
        }
        assert counts["translated"] == present.count({0, 1})
    assert min(map(len, found)) > 20
    assert len(opened.train.tokens) > 10 if shard_bytes == 1_000 else len(opened.train.tokens) == 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "documents in de" in page
    assert "documents in several languages" in page


def test_documents_are_equal_if_all_translations_are(tmp_path: Path, tokenizer: Tokenizer) -> None:
    records: list[Record] = [*RECORDS, RECORDS[3], {"en": RECORDS[3]["en"]}, {"de": RECORDS[3]["en"]}]
    path = write(tmp_path / "a.jsonl", records)
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2, reader_options=OPTIONS)
    assert manifest["duplicates"]["documents"]["count"] == 1
    assert sum(split["documents"] for split in manifest["splits"].values()) == len(RECORDS) + 2


def test_a_language_without_text_is_an_error_and_a_corpus_without_translations_is_not(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(UserError, match="no record has text in 'fr': correct --languages"):
        prepare([path], tokenizer, tmp_path / "out", reader_options=ReaderOptions(languages=("en", "fr")))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    write(path, RECORDS[200:])
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2, reader_options=OPTIONS)
    assert manifest["splits"]["train"]["translated"] == 0
    assert "no record has text in several languages: train with layout.translation_prob = 0" in capsys.readouterr().err
    one = ReaderOptions(languages=("de",))
    prepare([write(path, RECORDS[220:])], tokenizer, tmp_path / "one", eval_share=0.2, reader_options=one)
    opened = open_shards(tmp_path / "one")
    assert opened.languages == ("de",)
    assert opened.train.languages is not None


def test_shards_without_languages_have_no_array_of_them(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path / "a.jsonl", [{"text": record["en"]} for record in RECORDS[:200]])
    prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", eval_share=0.2)
    opened = open_shards(tmp_path / "out")
    assert (opened.languages, opened.train.languages) == ((), None)
    assert not [name for name in contents(tmp_path / "out") if "languages" in name]
    assert opened.with_languages(("en", "de")) is opened


@pytest.fixture(scope="module")
def prepared(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    path = write(folder / "a.jsonl", RECORDS)
    prepare([path], tokenizer, folder / "out", eval_share=0.2, reader_options=OPTIONS)
    return folder / "out"


def test_language_ids_follow_another_list_of_names(prepared: Path) -> None:
    opened = open_shards(prepared)
    other = opened.with_languages(("de", "fr", "en"))
    assert other.languages == ("de", "fr", "en")
    for before, after in ((opened.train, other.train), (opened.eval, other.eval)):
        assert before.languages is not None
        assert after.languages is not None
        assert after.languages.tolist() == [(2, 0)[language] for language in before.languages.tolist()]


@pytest.mark.parametrize("damage", ["byte", "dtype", "length", "language", "unlisted", "names"])
def test_damaged_languages_are_found(damage: str, tmp_path: Path, prepared: Path) -> None:
    folder = shutil.copytree(prepared, tmp_path / "out")
    path, manifest = folder / "train" / "00000.languages.npy", storage.read_json(folder / "manifest.json")
    array = np.load(path)
    if damage == "byte":
        path.write_bytes(path.read_bytes()[:-1] + b"\x09")
        with pytest.raises(UserError, match=r"00000\.languages\.npy was altered"):
            open_shards(folder)
        return
    changed = {"dtype": array.astype(np.int64), "length": array[:-1], "language": array + 1}
    np.save(path, changed.get(damage, array))
    manifest["files"] |= storage.checksums(folder, [path])
    if damage == "unlisted":
        del manifest["files"]["train/00000.languages.npy"]
        assert unlisted_files(folder, manifest) == ["train/00000.languages.npy"]
    if damage == "names":
        manifest["languages"] = ["en", "en"]
    del manifest["sha256"]
    storage.write_json(folder / "manifest.json", manifest)
    with pytest.raises(
        UserError, match="does not list train/00000.languages" if damage == "unlisted" else "is damaged"
    ):
        open_shards(folder)


def test_the_command_line_prepares_and_checks_translations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", RECORDS)
    languages = ["--languages", "en", "de"]
    train = ["tokenizer", "train", str(path), *languages, "--vocab-size", "100", "--out", str(tmp_path / "tokenizer")]
    assert main(train) == 0
    flags = ["--tokenizer", str(tmp_path / "tokenizer"), "--out", str(tmp_path / "shards"), "--eval-share", "0.2"]
    assert main(["prepare", str(path), *languages, *flags, "--json"]) == 0
    out, said = capsys.readouterr()
    prepared = json.loads(out.splitlines()[-1])
    assert sum(split["translated"] for split in prepared["splits"].values()) == 200
    assert "documents in several languages" in said
    assert main(["prepare", "--check", str(tmp_path / "shards"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["splits"] == prepared["splits"]
