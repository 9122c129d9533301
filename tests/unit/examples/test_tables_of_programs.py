"""Tables as programs write them: pandas, json.dump, Label Studio, evaluate, Excel in other languages, Git without LFS."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReaderOptions
from bertie.examples.annotations import parse_span
from bertie.files.formats import is_quoted
from bertie.tasks import Classify, MultiLabel, Regress, Relate, Span, Tag
from bertie.tasks.scoring import training_examples
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> Path:
    return shared_data.parent / "cases" / "data"


def read(task: Any, path: Path) -> list[Any]:
    return training_examples(task, path)[1]


def test_quoted_cells_between_tabs(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    path = cases / "pandas_quotes.tsv"
    frame = pandas.read_csv(path, sep="\t")
    assert [(each.text, each.label) for each in read(Classify(), path)] == [*zip(frame.text, frame.label, strict=True)]
    assert "cells are in quotes" in capsys.readouterr().err
    glue = 'sentence\tlabel\n"a quote at the start\t1\nquotes "inside" it\t0\n"all of it"\t1\n'
    (tmp_path / "glue.tsv").write_text(glue)
    assert [each.text for each in read(Classify(), tmp_path / "glue.tsv")][2] == '"all of it"'


@pytest.mark.parametrize(
    ("start", "whole", "quoted"),
    [
        ('a\tb\n"x ""y"""\t1\n', True, True),
        ('a\tb\n"x\ny"\t1\n', True, True),
        ('a\tb\n"x\ty"\t1\n', True, True),
        ('a\tb\n"I saw\t1\nhim."\t0\nHe left.\t1\n', True, False),  # two lone quotes
        ('"a"\t"b"\n"x"\t"1"\n', True, True),  # R's write.table
        ('a\tb\n"x"\t1\n', True, False),  # nothing proves it
        ('a\tb\n"x ""y"""\t1\nz "w"\t2\n', True, False),
        ('a\tb\n"x ""y"""\t1\n"z\nw', False, True),  # the last cell goes on
        ('a\tb\n"x ""y"""\t1\n"z\nw', True, False),
        ("a\tb\n", True, False),
    ],
)
def test_what_proves_that_cells_are_quoted(start: str, whole: bool, quoted: bool) -> None:
    assert is_quoted(start, whole) == quoted


def test_lists_of_objects(cases: Path, tmp_path: Path) -> None:
    """As json.dump and `to_json(orient="records")` write them, whatever the file is called."""
    values = json.loads((cases / "json_array.jsonl").read_text())
    (tmp_path / "records.json").write_text(json.dumps(values))
    for path in (cases / "json_array.jsonl", tmp_path / "records.json"):
        assert [(each.text, each.label) for each in read(Classify(), path)] == [(v["text"], v["label"]) for v in values]


def test_an_object_per_line_is_read_from_json_too(tmp_path: Path) -> None:
    """As `datasets` writes it; and lists in compressed files."""
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    (tmp_path / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "list.jsonl.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    for name in ("lines.json", "list.jsonl.gz"):
        assert [each.label for each in read(Classify(), tmp_path / name)] == ["x", "y"]
    spans = [{"text": "Anna left", "entities": [[0, 4, "PER"]]}]
    (tmp_path / "spans.json").write_text(json.dumps(spans[0]) + "\n")
    assert read(Tag(), tmp_path / "spans.json")[0].tags == ("B-PER", "O")


def test_a_quote_after_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "late.tsv"
    path.write_text("text\tlabel\n" + "a\tx\n" * 1500 + '"say ""b"""\ty\n')
    assert read(Classify(), path)[-1].text == 'say "b"'


def test_names_of_classes_in_parquet(cases: Path) -> None:
    for task in (Classify(), MultiLabel(label="label")):
        labels = {label for each in read(task, cases / "class_label.parquet") for label in each.gold}
        assert not any(label.isdecimal() for label in labels)


def test_choices_of_label_studio(tmp_path: Path) -> None:
    def task(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"data": {"review": "fine"}, "annotations": [{"result": [*results], **more}]}

    choice = {"type": "choices", "from_name": "mood", "value": {"choices": ["good"]}}
    two = {"type": "choices", "from_name": "mood", "value": {"choices": ["good", "loud"]}}
    path = tmp_path / "export.json"
    path.write_text(
        json.dumps([task(choice), task(choice, was_cancelled=True), task(choice | {"value": {"choices": ["bad"]}})])
    )
    assert [(each.text, each.label) for each in read(Classify(), path)] == [("fine", "good"), ("fine", "bad")]
    path.write_text(json.dumps([task(two), task(choice), task()]))
    assert [each.labels for each in read(MultiLabel(text="review"), path)] == [("good", "loud"), ("good",), ()]
    path.write_text(json.dumps([{"data": {"review": "new"}}, task(choice), task(choice)]))
    assert len(read(Classify(), path)) == 2
    path.write_text(json.dumps([task({"type": "rating", "from_name": "r", "value": {"rating": n}}) for n in (1, 4)]))
    assert [each.label for each in read(Regress(label="label"), path)] == ["1", "4"]
    for results, message in (
        ((choice, choice | {"from_name": "topic"}), "it answers mood, topic: keep one"),
        (({"type": "labels", "value": {}},), "reads choices, rating, number of a text, not labels"),
    ):
        path.write_text(json.dumps([task(*results)]))
        with pytest.raises(UserError, match=message):
            read(Classify(), path)


def test_a_word_per_row(tmp_path: Path) -> None:
    """As on Kaggle. The message has the call that converts it."""
    import pandas

    path = tmp_path / "ner.csv"
    path.write_text("Sentence #,Word,POS,Tag\nSentence: 1,Anna,NNP,B-per\n,left,VBD,O\nSentence: 2,Oslo,NNP,B-geo\n")
    with pytest.raises(UsageError, match="a word per row") as error:
        read(Tag(), path)
    call = (
        error.value.remedy.split(": ", 1)[1]
        .replace("…", repr(str(path)))
        .replace("OUT.jsonl", str(tmp_path / "out.jsonl"))
    )
    eval(call, {"pandas": pandas})
    assert [(each.words, each.tags) for each in read(Tag(), tmp_path / "out.jsonl")] == [
        (("Anna", "left"), ("B-per", "O")),
        (("Oslo",), ("B-geo",)),
    ]


def test_questions_in_a_list(tmp_path: Path) -> None:
    row = {"question": "Who?", "context": "Anna left.", "answers": {"text": ["Anna"], "answer_start": [0]}}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    [question] = read(Span(), tmp_path / "rows.json")
    assert question.answers[0].text == "Anna"


def test_answers_in_the_form_of_evaluate(cases: Path, tmp_path: Path) -> None:
    scores = bertie.score("span", cases / "squad_evaluate_gold.json", cases / "squad_evaluate_list.json")["scores"]
    assert scores["f1"] > 0.5
    known = {"question": "Who?", "context": "Anna left."}
    gold = [known | {"id": "1", "answers": {"text": ["Anna"], "answer_start": [0]}}]
    gold += [known | {"id": "2", "answers": {"text": [], "answer_start": []}}]
    answers = tmp_path / "answers.json"
    odds = [("1", "Anna", 0.1), ("2", "left", 0.9)]
    answers.write_text(
        json.dumps([{"id": i, "prediction_text": text, "no_answer_probability": p} for i, text, p in odds])
    )
    found = bertie.score("span", gold, answers, null_odds=answers, null_threshold=0.5)["scores"]
    assert (found["exact_match"], found["best_exact"]) == (1, 1)


def test_ends_of_spans_that_are_their_last_character(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, examples = training_examples(Tag(units="characters"), cases / "inclusive_ends_train.jsonl")
    rows = [json.loads(line) for line in (cases / "inclusive_ends_train.jsonl").read_text().splitlines()]
    assert "the end of a span is its last character" in capsys.readouterr().err
    for row, example in zip(rows, examples, strict=True):
        for span in (parse_span(value, "here") for value in row["entities"]):
            tags = [f"{'B' if i == span.start else 'I'}-{span.label}" for i in range(span.start, span.end + 1)]
            assert list(example.tags[span.start : span.end + 1]) == tags
    assert task.data_format.end == "last"
    dev = read(task, cases / "inclusive_ends_dev.jsonl")  # as the training file shows
    assert {tag[0] for each in dev for tag in each.tags} == {"B", "I", "O"}


@pytest.mark.parametrize(
    "name", ["pointer.conll", "pointer.jsonl", "pointer.jsonl.gz", "pointer.parquet", "pointer.csv"]
)
def test_pointers_of_git_lfs(cases: Path, tmp_path: Path, small_tokenizer: Tokenizer, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((cases / "lfs_pointer.conll").read_bytes())
    with pytest.raises(UserError, match="is a pointer of Git LFS"):
        read(Tag() if name.endswith("conll") else Classify(), path)
    if not name.endswith("conll"):
        with pytest.raises(UserError, match="is a pointer of Git LFS"):
            prepare([path], small_tokenizer, tmp_path / "shards")


def test_decimal_commas(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [float(each.label) for each in read(Regress(), cases / "decimal_comma.csv")]
    assert len(numbers) == 60
    assert "decimal commas" in capsys.readouterr().err
    cases_of_cells = (
        (("1.5", "2,5"), None),
        (("1,500", "2"), UsageError),
        (("1,500", "2,25"), [1.5, 2.25]),
        (("1,5", "", "2"), [1.5, 2]),
        (("0,125", "0,500"), [0.125, 0.5]),
        (("1,5", "2,5", "1.234,50"), UsageError),
    )
    for cells, expected in cases_of_cells:
        path = tmp_path / "table.csv"
        path.write_text("text;score\n" + "".join(f"a;{cell}\n" for cell in cells))
        if expected is UsageError:
            with pytest.raises(UsageError, match=r"could be decimal, or separate thousands|has another form"):
                read(Regress(), path)
        elif expected is None:
            assert [each.label for each in read(Regress(), path)] == ["1.5"]
        else:
            assert [float(each.label) for each in read(Regress(), path)] == expected


def test_labels_that_look_the_same(cases: Path) -> None:
    path = cases / "label_forms.jsonl"
    with pytest.raises(UsageError, match="look the same") as error:
        read(Classify(), path)
    assert "--task.join-labels" in error.value.remedy
    joined = read(Classify(join_labels=True), path)
    assert {each.label for each in joined} == {"Qualit\u00e9", "Prix"}
    pairs = [{"text": "a", "label": "one two"}, {"text": "b", "label": "one\u00a0two"}, {"text": "c", "label": "x"}]
    for task in (Classify(), MultiLabel(separator="none")):
        with pytest.raises(UsageError, match="look the same"):
            training_examples(task, pairs)
    tags = [{"tokens": ["a", "b"], "tags": ["B-Soci\u00e9t\u00e9", "B-Socie\u0301te\u0301"]}]
    with pytest.raises(UserError, match="look the same"):
        Tag().fit(list(Tag().reader.values(tags, labeled=True)))
    spans = {"e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 3}
    with pytest.raises(UsageError, match="look the same"):
        training_examples(Relate(), [{"text": "a b", "relation": row["label"], **spans} for row in pairs])


def test_a_sentence_a_line(cases: Path, tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    path = cases / "one_sentence_a_line.txt"
    with pytest.raises(UserError, match="0 of 1 documents") as error:
        prepare([path], small_tokenizer, tmp_path / "shards")
    assert "a blank line ends a document; with --documents line, every line is one" in error.value.remedy
    made = prepare([path], small_tokenizer, tmp_path / "lines", eval_share=0.2, reader_options=ReaderOptions("line"))
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert sum(split["documents"] for split in made["splits"].values()) == len(lines)
