"""The columns of CoNLL files: found by a header, and asked about where they do not look like words and tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.errors import UsageError
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.sentences import TaggedSentences


def read(path: Path, lines: str, word: int = -1, tag: int = -1) -> list[tuple[tuple[str, ...], tuple[str, ...] | None]]:
    path.write_text(lines.replace("/ ", "\n") + "\n", encoding="utf-8")
    return [
        (each.words, each.tags)
        for each in valid_examples(Reader(TaggedSentences(word, tag)).read(path), path.name, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "lines", "word", "tag", "message"),
    [
        ("mit.bio", "B-Rating\t5/ O\tstars/ / O\tany", 1, 0, "column 0 looks like tags, but the last one does not"),
        ("germ.tsv", "#\tx/ 1\tBayern\tB-LOC\tO/ 2\tist\tO\tO", 1, 2, "the first column has numbers, not words"),
        ("a.conll", "7 EU N B-ORG/ 7 is V O/ / 8 Ada N B-PER", 1, 3, "the first column has numbers, not words"),
        ("a.conll", "EU B-ORG 0.9/ is O 1.0", 0, 1, "column 1 looks like tags, but the last one does not"),
        ("a.conll", "EU/B-ORG is/O/ Ada/B-PER was/O", None, None, "every cell has a word and its tag"),
        ("a.conll", "EU|N is|V/ Ada|N was|V here|A", None, None, "every cell has a word and its tag"),
        ("a.tsv", '"EU"\t"B-ORG"/ "is"\t"O"', None, None, "every cell is in quotes"),
        ("a.tsv", "Sentence #\tWord\tPOS\tTag/ Sentence: 1\tEU\tN\tO/ \tis\tV\tO", None, None, "where sentences begin"),
        (
            "pos.conll",
            "/ ".join(f"{'NV'[i % 2]} w{i}" for i in range(40)),
            1,
            0,
            "has 40 tags in 40 lines, for 2 words",
        ),
    ],
)
def test_columns_that_do_not_look_like_words_and_tags_are_asked_about(
    tmp_path: Path, name: str, lines: str, word: int | None, tag: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=rf"{name}:\d: .*{message}"):
        read(tmp_path / name, lines)
    if word is not None and tag is not None:
        [(words, tags), *_] = read(tmp_path / name, lines, word, tag)
        assert not any(each.isdecimal() and each != "5" for each in words)
        assert tags is not None
        assert {each[:2] for each in tags} <= {"O", "B-", "N", "V"}


def test_the_words_of_numbered_files_do_not_name_their_tags(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than one column could be the tag, beside the words in 1"):
        read(tmp_path / "a.tsv", "1\tBayern\tB-LOC\tO/ 2\tist\tO\tO", word=1)
    assert read(tmp_path / "a.tsv", "1\tBayern\tB-LOC/ 2\tist\tO", word=1) == [(("Bayern", "ist"), ("B-LOC", "O"))]


@pytest.mark.parametrize("header", ["word tag conf", "conf form ner", "text x UPOS"])
def test_a_header_names_the_columns(tmp_path: Path, header: str) -> None:
    names = header.lower().split()
    rows = {"word": "EU", "form": "EU", "text": "EU", "tag": "B-X", "ner": "B-X", "upos": "B-X"}
    line = " ".join(rows.get(name, "7") for name in names)
    assert read(tmp_path / "a.conll", f"{header}/ {line}") == [(("EU",), ("B-X",))]


@pytest.mark.parametrize(
    "lines",
    [
        "EU NNP B-NP O/ is VBZ B-VP O/ here RB B-ADVP O",  # no entity in the first lines
        "3 CD/ EU NNP/ 5 CD/ 1990 CD",
        "I-95 O/ e-mail O/ U-turn B-X/ new O",
        "1990 O/ EU B-ORG",
    ],
)
def test_plain_files_are_not_asked_about(tmp_path: Path, lines: str) -> None:
    assert read(tmp_path / "a.conll", lines)[0][0] == tuple(line.split()[0] for line in lines.split("/ "))
