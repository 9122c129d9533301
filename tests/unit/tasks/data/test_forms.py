"""Choices, sentences of words, questions: each form of file as its publishers wrote it, and what is wrong with rows of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.errors import UsageError, UserError
from bertie.tasks.data.choices import Choice, ChoiceColumns, Choices
from bertie.tasks.data.columns import Sentence, Sentences, TagColumns
from bertie.tasks.data.rows import kept
from bertie.tasks.data.squad import Answer, Question, Questions

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def lines(values: list[Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_codah(shared_data: Path) -> None:
    found = kept(Choices().read(shared_data / "choice" / "codah" / "full_data.tsv"), "codah", strict=True)
    assert len(found) == 2776
    assert found[0].context == "I am always very hungry before I go to bed. I am"
    assert found[0].endings[3] == "tempted to snack when I feel this way."
    assert found[0].label == 3
    assert {choice.label for choice in found} == {0, 1, 2, 3}


def test_swag(tmp_path: Path) -> None:
    row = '0,v1,3416,"Members hold their horns. A drum",Members hold their horns.,A drum,gold,"rolls, loud",b,c,d,0\n'
    [found] = Choices().read(write(tmp_path / "train.csv", SWAG + row))
    assert found == Choice("Members hold their horns.", "A drum", ("rolls, loud", "b", "c", "d"), 0, "train.csv:2")


def test_choices_of_any_number_from_a_list(tmp_path: Path) -> None:
    rows = [{"question": "q", "choices": ["a", "b", "c"], "answer": 2}, {"question": "q", "choices": ["a", "b"]}]
    path = write(tmp_path / "a.jsonl", lines(rows))
    first, second = Choices().stream(path)
    assert isinstance(first, Choice)
    assert isinstance(second, Choice)
    assert (first.endings, first.label) == (("a", "b", "c"), 2)
    assert second.label is None
    assert kept(Choices().read(path), "a") == [first]  # the other one cannot be learned from
    assert next(Choices().values([rows[0]])).endings == first.endings
    [named] = Choices(ChoiceColumns("start", "right")).values(
        [{"start": "s", "ending0": "a", "ending1": "b", "right": "1"}]
    )
    assert (named.context, named.label) == ("s", 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "a", "endings": ["b", "c"], "label": 2}, "'label' is '2', and the 2 endings are 0 to 1"),
        ({"context": "a", "endings": ["b", "c"], "label": "x"}, "'label' is 'x'"),
        ({"context": "a", "endings": ["b", 5], "label": 0}, "'endings' must be a string"),
        ({"context": "a", "endings": "bc", "label": 0}, "must be a list of strings"),
        ({"context": 5, "endings": ["b", "c"], "label": 0}, "'context' must be a string"),
        ({"context": "a", "endings": ["b"], "label": 0}, "1 endings to choose among"),
        ({"body": "a", "endings": ["b", "c"], "label": 0}, "cannot tell which column is the start"),
    ],
)
def test_bad_choices(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"context": "a", "endings": ["b", "c"], "label": 1}
    with pytest.raises(UserError, match=message):
        list(Choices().values([row]))
    path = write(tmp_path / "a.jsonl", lines([good, row, good]))
    found = list(Choices().read(path))
    assert [isinstance(each, UserError) for each in found] == [False, True, False]
    assert "a.jsonl:2: " in str(found[1])
    with pytest.raises(UserError, match=message):
        kept(Choices().read(path), "a", strict=True)


def test_wnut(shared_data: Path) -> None:
    names = {"wnut17train.conll": 3394, "emerging.dev.conll": 1009, "emerging.test.annotated": 1287}
    for name, count in names.items():
        found = kept(Sentences().read(shared_data / "ner" / name), name, strict=True)
        assert len(found) == count
        assert all(sentence.tags and len(sentence.tags) == len(sentence.words) for sentence in found)
        assert {tag[:2] for sentence in found for tag in sentence.tags or ()} == {"O", "B-", "I-"}


def test_conll_of_2003_and_parts_of_speech(tmp_path: Path, shared_data: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n"
    found = list(Sentences().read(write(tmp_path / "train.txt", text)))
    assert found == [
        Sentence(("EU", "rejects"), ("I-ORG", "O"), "train.txt:3"),
        Sentence(("Peter",), ("I-PER",), "train.txt:6"),
    ]
    [first, *_] = Sentences(TagColumns(0, 1)).read(tmp_path / "train.txt")
    assert isinstance(first, Sentence)
    assert first.tags == ("NNP", "VBZ")
    parts = kept(Sentences(TagColumns(1, 3)).read(shared_data / "treebank" / "en_ewt-ud-dev.conllu"), "ud", strict=True)
    assert len(parts) == 2001
    assert parts[0].words[:3] == ("From", "the", "AP")
    assert parts[0].tags is not None
    assert parts[0].tags[:3] == ("ADP", "DET", "PROPN")


def test_sentences_of_python_values_and_json(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"words": ["c"], "ner_tags": [3]}]
    assert kept(Sentences().read(write(tmp_path / "a.jsonl", lines(rows))), "a") == [
        Sentence(("a", "b"), ("O", "B-X"), "a.jsonl:1"),
        Sentence(("c",), ("3",), "a.jsonl:2"),
    ]
    assert [s.words for s in Sentences().values(["a b", ["c", "d"], {"tokens": ["e"]}])] == [
        ("a", "b"),
        ("c", "d"),
        ("e",),
    ]
    untagged = list(Sentences().stream(write(tmp_path / "b.txt", "one\ntwo\n\nthree\n")))
    assert untagged == [Sentence(("one", "two"), None, "b.txt:1"), Sentence(("three",), None, "b.txt:4")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.txt",
            "a O\nb\n\nc O\n",
            r"a\.txt:2: 1 columns, where a word and its tag take 2 \(the sentence from line 1",
        ),
        (
            "a.jsonl",
            lines([{"tokens": ["a"], "tags": ["O", "O"]}, {"tokens": ["c"], "tags": ["O"]}]),
            "1 words and 2 tags",
        ),
        ("a.jsonl", lines([{"tokens": [], "tags": []}, {"tokens": ["c"], "tags": ["O"]}]), "a sentence without words"),
        ("a.jsonl", lines([{"tokens": ["a"]}, {"tokens": ["c"], "tags": ["O"]}]), "no tags"),
        ("a.jsonl", lines([{"text": "a"}, {"tokens": ["c"], "tags": ["O"]}]), 'no list of words under "tokens"'),
    ],
)
def test_bad_sentences(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    assert [sentence.words for sentence in kept(Sentences().read(path), name)] == [("c",)]
    with pytest.raises(UserError, match=message):
        kept(Sentences().read(path), name, strict=True)


@pytest.mark.parametrize(
    ("name", "count", "none"),
    [
        ("dev-v1.1", 10570, 0),
        ("train-v1.1-subset", 12134, 0),
        ("dev-v2.0-subset", 3978, None),
        ("train-v2.0-subset", 7895, None),
    ],
)
def test_squad(shared_data: Path, name: str, count: int, none: int | None) -> None:
    found = kept(Questions().read(shared_data / "squad" / f"{name}.json"), name, strict=True)
    assert len(found) == count
    without = sum(not question.answers for question in found)
    assert without == none if none is not None else 0.3 < without / count < 0.7
    assert all(q.context[a.start : a.start + len(a.text)] == a.text for q in found for a in q.answers or ())


def test_questions_of_python_values() -> None:
    [found] = Questions().values([{"question": "q", "context": "c d", "answers": {"text": ["d"], "answer_start": [2]}}])
    assert found == Question("1", "q", "c d", (Answer("d", 2),), "example 1")
    plain, impossible, pair = Questions().values(
        [
            {"question": "q", "context": "c", "answers": ["c"]},
            {"question": "q", "context": "c", "answers": [], "is_impossible": True},
            ("q", "c"),
        ]
    )
    assert plain.answers == (Answer("c", -1),)
    assert impossible.answers == ()
    assert pair.answers is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answers": ["a"]}, "no 'context'"),
        ({"question": "q", "context": " ", "answers": ["a"]}, "the context is empty"),
        ({"question": "q", "context": "c", "answers": "a"}, "the answers must be a list"),
        ({"question": "q", "context": "c", "answers": [{"start": 0}]}, "an answer without a text"),
        ({"question": "q", "context": "c", "answers": [{"text": "c", "answer_start": "0"}]}, "answer_start is '0'"),
        ({"question": "q", "context": "c"}, "no answers"),
        ({"question": "q", "context": "c", "answers": ["c"], "id": "good"}, "the id 'good' is there already"),
    ],
)
def test_bad_questions(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"question": "q", "context": "c", "answers": ["c"], "id": "good"}
    path = write(tmp_path / "a.jsonl", lines([good, row]))
    assert [question.id for question in kept(Questions().read(path), "a")] == ["good"]
    with pytest.raises(UserError, match=message):
        kept(Questions().read(path), "a", strict=True)


def test_files_of_another_form(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='no list "data"'):
        list(Questions().read(write(tmp_path / "a.json", '{"rows": []}')))
    with pytest.raises(UsageError, match=r"SQuAD's \.json, or from \.jsonl"):
        list(Questions().read(write(tmp_path / "a.tsv", "a\tb\n")))
    with pytest.raises(UsageError, match="no such file"):
        list(Sentences().read(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="is empty"):
        list(Sentences().read(write(tmp_path / "e.txt", "")))


def test_skipped_rows_are_counted_and_some_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"context": "a", "endings": ["b", "c"], "label": i % 7} for i in range(14)]
    assert len(kept(Choices().read(write(tmp_path / "a.jsonl", lines(rows))), "a")) == 4
    told = capsys.readouterr().err
    assert "10 of 14 rows are skipped (--strict refuses them)" in told
    assert told.count("a.jsonl:") == 3
    assert "and 7 more" in told
