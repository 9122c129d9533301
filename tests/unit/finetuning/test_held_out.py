"""One file is enough: a part of the training examples is held out as the dev set, and as the test set."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.finetuning.held_out import SplitExamples, hold_out
from bertie.tasks import AnyTask, Choose, Classify, Embed, MultiLabel, Regress, Relate, Span, Tag
from bertie.tasks.scoring import labeled_examples, training_examples

CONFIG = fine_tuning(2)


def parts_of(
    values: Any, task: AnyTask | None = None, has: tuple[bool, bool] = (False, False), **settings: Any
) -> SplitExamples:
    config = replace(CONFIG, task=task or Classify(), **settings)
    fitted, examples = training_examples(config.task, values)
    return hold_out(config, fitted, [values], [examples], has)


def labels(examples: Sequence[Any]) -> Counter[str]:
    return Counter(example.label for example in examples)


def reviews(counts: dict[str, int]) -> list[dict[str, str]]:
    return [{"text": f"{label} text {i}", "label": label} for label, count in counts.items() for i in range(count)]


def test_each_part_has_its_share_of_each_class_and_all_examples_are_in_one_part() -> None:
    rows = reviews({"good": 60, "bad": 30, "rare": 4, "single": 1})
    parts = parts_of(rows, dev_share=0.2, test_share=0.1)
    assert labels(parts.dev) == {"good": 12, "bad": 6, "rare": 1}
    assert labels(parts.test) == {"good": 6, "bad": 3, "rare": 1}
    assert labels(parts.train) == {"good": 42, "bad": 21, "rare": 2, "single": 1}
    every = sorted(example.text for part in (parts.train, parts.dev, parts.test) for example in part)
    assert every == sorted(row["text"] for row in rows)
    assert parts == parts_of(rows, dev_share=0.2, test_share=0.1, seed=1)


def test_numbers_are_no_classes() -> None:
    rows = [{"text": f"text {i}", "score": i / 10} for i in range(50)]
    assert len(parts_of(rows, Regress()).dev) == 5


def test_equal_texts_and_groups_are_on_one_side() -> None:
    rows = [
        {"text": "A  Fine film" if i % 2 else "a fine film", "label": "ab"[i % 2], "author": f"x{i}"} for i in range(20)
    ]
    rows += [{"text": f"text {i}", "label": "ab"[i % 2], "author": f"author {i // 6}"} for i in range(60)]
    for share in (0.1, 0.3, 0.5):
        parts = parts_of(rows, dev_share=share, group="author")
        sides = [{rows[int(e.source.split()[1]) - 1]["author"] for e in part} for part in (parts.train, parts.dev)]
        assert not sides[0] & sides[1]
        texts = [{" ".join(e.text.lower().split()) for e in part} for part in (parts.train, parts.dev)]
        assert not texts[0] & texts[1]
        assert parts.dev


def test_every_class_keeps_an_example_to_train_on() -> None:
    rng = np.random.default_rng(0)
    for documents, classes, share in ((8, 15, 0.0), (20, 30, 0.1), (12, 8, 0.1)):
        drawn = rng.integers([documents, classes], size=(30 * documents, 2))
        rows = [{"text": f"text {i}", "label": f"c{c}", "document": d} for i, (d, c) in enumerate(drawn.tolist())]
        parts = parts_of(rows, group="document", dev_share=0.1, test_share=share)
        assert labels(parts.train).keys() == {row["label"] for row in rows}
        assert len(parts.dev) <= 0.4 * len(rows)


def test_positives_of_a_query_are_on_one_side() -> None:
    """Although queries share their positives."""
    rows = [{"anchor": f"query {n % 20}", "positive": f"a text that is longer {n % 7}"} for n in range(60)]
    parts = parts_of(rows, Embed())
    sides = [{e.text for e in part} for part in (parts.train, parts.dev)]
    assert len(sides[1]) == 2
    assert not sides[0] & sides[1]


def test_swapped_pairs_are_on_one_side_and_missing_groups_are_none() -> None:
    pairs = [{"text": "ab"[n % 2] + f" {n // 2:02}", "text_pair": "ba"[n % 2] + f" {n // 2:02}"} for n in range(40)]
    rows = [pair | {"by": float("nan") if n < 30 else n // 2} for n, pair in enumerate(pairs)]  # as from pandas
    parts = parts_of(rows, Embed(), group="by")
    sides = [{e.text.split()[1] for e in part} for part in (parts.train, parts.dev)]
    assert not sides[0] & sides[1]
    assert len(parts.dev) == 4


def test_questions_on_one_passage_are_on_one_side() -> None:
    rows = [
        {"question": f"What is {i}?", "context": f"Number {i // 5} is a long passage.", "answers": ["Number"]}
        for i in range(50)
    ]
    parts = parts_of(rows, Span(), dev_share=0.2)
    assert not {e.context for e in parts.train} & {e.context for e in parts.dev}
    assert len(parts.dev) == 10


@pytest.mark.parametrize(
    ("settings", "has", "message"),
    [
        ({"group": "id"}, (False, False), "every value of 'id' occurs once, so it groups nothing.*name another column"),
        ({"group": "autor"}, (False, False), "no column 'autor' to group by; its columns are: text, label, id"),
        ({"group": "id"}, (True, False), "--group says which examples to hold out together, but none are"),
        ({"dev_share": 0.2}, (True, False), "--dev-share is the part .* without --dev: give one of them"),
        ({"test_share": 0.2}, (False, True), "--test-share is the part .* without --test: give one of them"),
        ({"dev_share": 0.5, "test_share": 0.5}, (False, False), "leave nothing to train on"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], has: tuple[bool, bool], message: str) -> None:
    rows = [row | {"id": str(i)} for i, row in enumerate(reviews({"a": 5, "b": 5}))]
    with pytest.raises(UsageError, match=message):
        parts_of(rows, has=has, **settings)


@pytest.mark.parametrize(
    ("rows", "task", "message"),
    [
        (reviews({"a": 1, "b": 1}), Classify(), "no class has two examples with different texts. Give --dev FILE"),
        ([{"text": "one", "label": "ab"[i % 2]} for i in range(9)], Classify(), "no class has two examples"),
        ([{"text": "one", "score": i} for i in range(9)], Regress(), "it has no two examples with different texts"),
    ],
)
def test_examples_that_cannot_be_apart(rows: list[dict[str, Any]], task: AnyTask, message: str) -> None:
    with pytest.raises(UserError, match=f"the examples: no dev examples can be held out: {message}"):
        parts_of(rows, task)


def test_nothing_is_held_out_with_both_files() -> None:
    rows = reviews({"a": 5, "b": 5})
    parts = parts_of(rows, has=(True, True))
    assert (len(parts.train), parts.dev, parts.test, parts.rows) == (10, [], [], {})


SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": f"Town {n} is old. It lies by a river.",
                    "qas": [
                        {
                            "id": f"q{n}",
                            "question": "What is old?",
                            "answers": [{"text": f"Town {n}", "answer_start": 0}],
                        }
                    ],
                }
            ]
        }
        for n in range(8)
    ]
}
CONLL = "".join(f"Ann B-PER\nLee{n} I-PER\nslept O\n\n" for n in range(8))
STUDIO = [
    {
        "data": {"text": f"text {n}"},
        "annotations": [{"result": [{"type": "choices", "from_name": "c", "value": {"choices": ["ab"[n % 2]]}}]}],
    }
    for n in range(8)
]


@pytest.mark.parametrize(
    ("name", "content", "task"),
    [
        ("a.csv", "body;stars\n" + "".join(f'"text {n}; more";{n % 2}\n' for n in range(8)), Classify(text="body")),
        ("a.json", json.dumps(SQUAD), Span()),
        ("a.conll", CONLL, Tag()),
        ("characters.conll", CONLL.replace("Ann", "A").replace("slept", "s"), Tag()),
        ("studio.json", json.dumps(STUDIO), Classify()),
        ("ids.json", json.dumps([{"text": f"t {n}", "label": "ab"[n % 2], "id": n % 3 or None} for n in range(9)]), Classify()),
        ("words.conll", "".join(f"{chr(0x4E00 + n)} S\n中 B\n国 E\n\n" for n in range(8)), Tag(units="characters")),
        ("a.jsonl", "".join(f'{{"text": "t {n}", "label": ["x", "y{n % 2}"], "n": null}}\n' for n in range(8)), MultiLabel()),
        ("b.jsonl", "".join(f'{{"text": "a <e1>b{n}</e1> c <e2>d</e2>", "label": "r{n % 2}"}}\n' for n in range(8)), Relate()),
        ("c.jsonl", "".join(f'{{"text": "a {n}", "text_pair": "b {n}"}}\n' for n in range(8)), Embed()),
        ("a.tsv", "sent1\tsent2\tending0\tending1\tlabel\n" + "".join(f"a {n}\tb\tc\td\t{n % 2}\n" for n in range(8)), Choose()),
    ],
)  # fmt: skip
def test_the_parts_of_a_file_are_read_as_the_file(name: str, content: str, task: Any, tmp_path: Path) -> None:
    if name == "a.csv":
        task = replace(task, label="stars")
    (tmp_path / name).write_text(content)
    config = replace(CONFIG, task=task, dev_share=0.4)
    read, examples = training_examples(task, tmp_path / name)
    parts = hold_out(config, read, [tmp_path / name], [examples], (False, False))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").touch()  # of a start with a test share
    parts.write(tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["dev.jsonl", "train.jsonl"]
    for part in ("train", "dev"):
        found = labeled_examples(read.reader, tmp_path / "data" / f"{part}.jsonl")
        assert [replace(example, source="") for example in found] == [
            replace(example, source="") for example in getattr(parts, part)
        ]


def test_the_parts_of_annotated_texts(tmp_path: Path) -> None:
    (tmp_path / "brat").mkdir()
    for n in range(5):
        (tmp_path / "brat" / f"{n}.txt").write_text(f"In {n}, (Ann Lee) slept.")
        (tmp_path / "brat" / f"{n}.ann").write_text(f"T1\tPER 7 14\tAnn Lee\nT2\tYEAR 3 4\t{n}\n")
    task, examples = training_examples(Tag(units="characters"), tmp_path / "brat")
    parts = hold_out(replace(CONFIG, task=task), task, [tmp_path / "brat"], [examples], (False, False))
    parts.write(tmp_path / "data")
    [found] = labeled_examples(task.reader, tmp_path / "data" / "dev.jsonl")
    assert replace(found, source="") == replace(parts.dev[0], source="")


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label", "who"])
        writer.writeheader()
        writer.writerows(row | {"who": f"w{i // 3}"} for i, row in enumerate(rows))
    return path


def test_one_file_gives_a_run_with_dev_and_test_scores(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, run = write_csv(tmp_path / "reviews.csv", rows), tmp_path / "run"
    command = ["finetune", "classify", "--train", str(train), "--model", str(start), "--out", str(run), "--json"]
    flags = ["--training.epochs", "12", "--training.learning-rate", "3e-3", "--training.batch-size", "8"]
    flags += ["--test-share", "0.2", "--group", "who", "--max-length", "24", "--threads", "1"]
    assert main([*command, *flags]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    held = "held out 6 for dev and 12 for test of 60 examples (by class, by who); 42 to train on"
    assert held in " ".join(err.split())
    for name, scores in (("dev", result["scores"]), ("test", result["test_scores"])):
        found = bertie.load(run).evaluate(run / "data" / f"{name}.jsonl")["scores"]
        assert found == pytest.approx(scores, rel=1e-5)
        assert json.loads((run / name / "scores.json").read_text())["scores"] == scores
    assert "who" in json.loads((run / "data" / "train.jsonl").read_text().splitlines()[0])
    page = (run / "report.html").read_text()
    assert "On 12 test examples" in page
    assert "Evaluation on the test set" in page
    assert main([*command, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["test_scores"] == result["test_scores"]


def test_other_test_examples_are_refused_by_a_finished_run(
    rows: list[dict[str, str]], start: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, training=replace(CONFIG.training, steps=1))
    for test in (rows[:4], rows[:5], None):
        with nullcontext() if test == rows[:4] else pytest.raises(UsageError, match="was made from other data"):
            bertie.finetune(config, rows, start, tmp_path / "run", dev=rows[50:], test=test, threads=1)


def test_a_sweep_scores_its_best_run_on_the_test_examples(rows: list[dict[str, str]], start: Path) -> None:
    config = replace(fine_tuning(12), restarts=2, dev_share=0.3)
    tuned = bertie.finetune(config, rows, start, test=rows[:10], threads=1)
    assert tuned.test_scores == tuned.task.score(
        tuned.predict(rows[:10]), labeled_examples(tuned.task.reader, rows[:10])
    )
    assert tuned.sweep is not None
    assert not tuned.failed
    assert {"dev: accuracy", "test: accuracy"} <= set(re.findall(r"<td[^>]*>([^<]*)", tuned._repr_html_()))


def test_a_failed_run_writes_its_report_and_exits_1(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = ["finetune", "classify", "--train", str(write_csv(tmp_path / "a.csv", rows)), "--model", str(start)]
    command += [
        "--out",
        str(run),
        "--training.learning-rate",
        "1e-30",
        "--training.steps",
        "1",
        "--max-length",
        "24",
        "--json",
    ]
    assert main(command) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["error"] == f"the run failed; its report says more: {run / 'report.html'}"
    assert result["scores"]["accuracy"] == pytest.approx(0.5, abs=0.2)
    assert (run / "report.html").is_file()
    assert main(command) == 1
