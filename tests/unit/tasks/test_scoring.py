"""`score`: agreement with `Predictor.evaluate`, every format of prediction files, and the errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.examples.squad import Answer, Question
from bertie.tasks import AnyTask, Choose, Classify, Embed, Regress, Span, Tag
from bertie.tasks.predictions import prediction_to_json
from bertie.tasks.task import build_head

TEXTS = ["a fine film", "a bad film", "fine", "bad bad", "it is fine", "no film"]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "the cat sat on the mat",
                    "qas": [
                        {"id": "a", "question": "who", "answers": [{"text": "the cat", "answer_start": 0}]},
                        {"id": "b", "question": "where", "answers": [{"text": "mat", "answer_start": 19}]},
                        {"id": "c", "question": "why", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ]
}


def write(path: Path, value: Any) -> Path:
    lines = value if isinstance(value, str) else "".join(json.dumps(each) + "\n" for each in value)
    path.write_text(lines if path.suffix != ".json" else json.dumps(value), encoding="utf-8")
    return path


def classes() -> list[dict[str, Any]]:
    return [{"text": text, "label": "yes" if "fine" in text else "no"} for text in TEXTS]


CASES: list[tuple[AnyTask, list[dict[str, Any]]]] = [
    (Classify(labels=("no", "so", "yes")), classes()),
    (Regress(), [{"text": text, "score": 0.5 * i} for i, text in enumerate(TEXTS)]),
    (Choose(), [{"context": text, "endings": ["a", "b c", "film"], "label": i % 3} for i, text in enumerate(TEXTS)]),
    (
        Tag(labels=("B-X", "O")),
        [{"tokens": text.split(), "tags": ["O", "B-X", "O"][: len(text.split())]} for text in TEXTS],
    ),
    (Embed(scored=True), [{"text": text, "text_pair": "film", "score": float(i)} for i, text in enumerate(TEXTS)]),
    (
        Span(threshold=0.0),
        [{"question": "who", "context": text, "answers": ["film"] if "film" in text else []} for text in TEXTS],
    ),
]


@pytest.mark.parametrize(("task", "rows"), CASES, ids=[task.kind for task, _ in CASES])
def test_score_of_predicted_files_equals_evaluate(
    task: AnyTask, rows: list[dict[str, Any]], minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    plain = bertie.load(minilm)
    plain.model.heads[task.kind] = build_head(
        task, size := plain.model.encoder.config, size.hidden_size
    )  # new weights: any predictions will do
    model = replace(plain, task=task, max_length=32)
    data = write(tmp_path / "dev.jsonl", rows)
    predictions = model.predict(rows)
    written = write(tmp_path / "predictions.jsonl", [prediction_to_json(each) for each in predictions])
    wanted = model.evaluate(data)
    settings = [] if task.kind == "classify" else [*(("--task.labels", *task.labels) if task.labels else ())]
    argv = ["score", "--task", task.kind, "--data", str(data), "--predictions", str(written), *settings, "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["scores"], found["examples"]) == (wanted["scores"], wanted["examples"])
    assert found["seconds"] >= 0
    assert bertie.score(task, rows, predictions)["scores"] == wanted["scores"]


def test_score_skips_unreadable_rows_and_their_predictions(tmp_path: Path) -> None:
    data = write(tmp_path / "dev.tsv", "text\tlabel\nfine\tyes\nbroken\nbad\tno\nso\t\nfine\tno\n")
    said = [{"label": "yes"}, {"error": "2 columns"}, {"label": "no"}, {"label": "no"}, {"label": "yes"}]
    written = write(tmp_path / "said.jsonl", said)
    found = bertie.score("classify", data, written)
    assert found["examples"] == 3
    assert found["scores"]["accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(UserError, match=r"dev.tsv:3: 1 column,"):
        bertie.score("classify", data, written, strict=True)
    said[2] = {"error": "?"}
    with pytest.raises(UserError, match=r"said.jsonl:3: an error in place of a prediction"):
        bertie.score("classify", data, write(tmp_path / "said.jsonl", said))


def test_score_needs_examples() -> None:
    for task, _ in CASES:
        with pytest.raises(UserError, match="the examples: no examples in it"):
            bertie.score(task, [], [])


def test_gold_label_without_a_predicted_probability_is_refused() -> None:
    said = [{"label": "no", "probabilities": {"no": 0.9, "so": 0.1}}] * len(TEXTS)
    with pytest.raises(UserError, match="example 1: the label 'yes' is none of the classes; the classes are no, so"):
        bertie.score("classify", classes(), said)


def test_answers_without_ids_are_refused() -> None:
    asked = [Question("x", "who", "the cat", (Answer("cat", 4),), "here:1")]
    with pytest.raises(UserError, match="prediction 1: no id of the question"):
        bertie.score("span", asked, [{"answer": "cat"}, {"answer": "dog"}])


def test_score_reads_the_tables_of_glue(tmp_path: Path) -> None:
    data = write(tmp_path / "dev.tsv", "sentence\tlabel\n" + "".join(f"{t}\t{i % 2}\n" for i, t in enumerate(TEXTS)))
    table = "index\tprediction\n" + "".join(f"{i}\t{i % 2 if i else 1}\n" for i in reversed(range(6)))
    scores = bertie.score("classify", data, write(tmp_path / "SST-2.tsv", table))["scores"]
    assert scores["accuracy"] == pytest.approx(5 / 6)
    for wrong, message in (
        (table.replace("3\t1", "2\t1"), "index 2 occurs twice"),
        (table.replace("5\t1\n", "6\t1\n"), "index 5 is missing"),
        (table.replace("5\t1\n", "x\t1\n"), "the index is 'x'"),
        (table.replace("5\t1\n", ""), "5 predictions for the 6 examples"),
        (table.replace("5\t1", "5\t2"), "'2' is none of the classes"),
        (table.replace("index", "id"), "expected the columns index and prediction"),
    ):
        with pytest.raises(UserError, match=message):
            bertie.score("classify", data, write(tmp_path / "SST-2.tsv", wrong))
    numbers = write(tmp_path / "dev.jsonl", [{"text": text, "score": i} for i, text in enumerate(TEXTS)])
    table = "index\tprediction\n" + "".join(f"{i}\t{i}\n" for i in range(6))
    assert bertie.score("regress", numbers, write(tmp_path / "STS-B.tsv", table))["scores"]["pearson"] == pytest.approx(
        1
    )
    path = write(tmp_path / "STS-B.tsv", table.replace("5\t5", "5\tnan"))
    with pytest.raises(UserError, match=r"STS-B\.tsv:7: the prediction is 'nan'"):
        bertie.score("regress", numbers, path)


def test_a_prediction_without_value_is_named(tmp_path: Path) -> None:
    said = write(tmp_path / "said.jsonl", [{"label": None, "other": 1}])
    with pytest.raises(UserError, match=r"said\.jsonl:1: 'label' is missing or null; there are label, other"):
        bertie.score("classify", classes()[:1], said)


def test_score_reads_conll_files_of_tags(tmp_path: Path) -> None:
    gold = "-DOCSTART- O\n\nAnna B-PER\nSmith I-PER\nsat O\n\nRome B-LOC\n"
    data = write(tmp_path / "dev.conll", gold)
    said = "Anna B-PER B-PER\nSmith I-PER O\nsat O O\n\nRome B-LOC B-LOC\n"
    scores = bertie.score("tag", data, write(tmp_path / "said.conll", said))["scores"]
    assert scores == {"accuracy": 3 / 4, "f1": 1 / 2, "precision": 1 / 2, "recall": 1 / 2}
    for wrong, message in (
        (said.replace("sat O O\n", ""), "2 tags for the 3 words of dev.conll:3"),
        (said.replace("Rome", "Roma"), "the word is 'Roma', but dev.conll:7 has 'Rome'"),
        (said.split("\n\n")[0], "1 predictions for the 2 examples"),
    ):
        with pytest.raises(UserError, match=message):
            bertie.score("tag", data, write(tmp_path / "said.conll", wrong))


def test_score_reads_answers_by_id_and_odds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "dev.json", SQUAD)
    said, odds = {"c": "x", "b": "the mat!", "a": "dog cat"}, {"a": -1.0, "b": -3.0, "c": 0.5}
    argv = ["score", "--task", "span", "--data", str(data), "--predictions", str(write(tmp_path / "said.json", said))]
    assert main([*argv, "--json", "--null-odds", str(write(tmp_path / "odds.json", odds))]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["exact_match"] == 1 / 3
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (2 / 3, -3.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == ((1 + 1 + 2 / 3) / 3, -1.0)
    predicted = tmp_path / "predicted.jsonl"
    rows = [{"id": name, "answer": said[name], "null_score": odd} for name, odd in odds.items()]
    predicted.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert bertie.score("span", data, predicted, null_odds=predicted)["scores"] == scores
    silent = bertie.score("span", data, said, null_odds=odds, null_threshold=0.0)["scores"]
    assert silent["exact_match"] == 2 / 3
    assert "best_f1" not in bertie.score("span", data, said)["scores"]
    with pytest.raises(UsageError, match="--null-threshold needs --null-odds"):
        bertie.score("span", data, said, null_threshold=0.0)
    with pytest.raises(UserError, match=r"dev.json: 1 of 3 questions have no prediction: a$"):
        bertie.score("span", data, {"b": "x", "c": ""})  # as SQuAD 2.0's script, which stops
    with pytest.raises(UserError, match="the answer to c: the answer must be a string, found '3'"):
        bertie.score("span", data, said | {"c": 3})
    (tmp_path / "said.json").write_text('{"a": "x", "a": "y"}')
    with pytest.raises(UserError, match=r"said.json: the key 'a' occurs twice"):
        bertie.score("span", data, tmp_path / "said.json")
    for wrong, message in (
        ({"a": 1.0, "b": 2.0}, "no odds for c"),
        (odds | {"b": float("nan")}, "the odds of b are not a finite number"),
    ):
        with pytest.raises(UserError, match=message):
            bertie.score("span", data, said, null_odds=wrong)
    with pytest.raises(UsageError, match="--null-odds needs a span task, but the task is classify"):
        bertie.score("classify", classes(), [], null_odds=odds)


def test_classes_that_the_data_lack_are_left_out_of_f1(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"x {label}", "label": label} for label in "abab"]
    found = [{"label": label, "probabilities": {each: float(each == label) for each in "abc"}} for label in "abab"]
    perfect = {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}
    assert bertie.score("classify", rows, found)["scores"] == perfect
    assert "f1 scores" not in capsys.readouterr().err
    found[0] = {"label": "c", "probabilities": {"a": 0.0, "b": 0.0, "c": 1.0}}
    assert bertie.score("classify", rows, found)["scores"]["f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    names = [{"label": label} for label in "abaa"]
    assert bertie.score("classify", rows, names)["scores"]["f1"] == pytest.approx(2 / 3)
    assert "f1 scores 'b'; --task.labels names the classes" in capsys.readouterr().err  # the data show two only
    three = bertie.score(Classify(labels=("a", "b", "c")), rows, names)["scores"]["f1"]
    assert three == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_predictions_for_other_questions_count_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scripts of SQuAD go through the questions of the data."""
    data = write(tmp_path / "dev.json", SQUAD)
    said, odds = {"a": "dog cat", "b": "the mat!", "c": "x"}, {"a": -1.0, "b": -3.0, "c": 0.5}
    expected = bertie.score("span", data, said, null_odds=odds)["scores"]
    assert "warning" not in capsys.readouterr().err
    more = said | {"d": "dog"}, odds | {"d": -9.0, "e": math.nan}
    assert bertie.score("span", data, more[0], null_odds=more[1])["scores"] == expected
    printed = capsys.readouterr().err
    assert f"{data} does not have the questions of 1 prediction, which are ignored (--strict" in printed
    assert f"{data} does not have the questions of 2 null scores, which are ignored (--strict" in printed
    for given, wrong, message in ((more[0], None, "1 prediction: d"), (said, more[1], "2 null scores: d, e")):
        with pytest.raises(UserError, match=f"does not have the questions of {message}$"):
            bertie.score("span", data, given, null_odds=wrong, strict=True)
    with pytest.raises(UserError, match="3 of 3 questions have no prediction"):
        bertie.score("span", data, {"d": "dog"})


def test_a_question_without_a_prediction_counts_0_in_squad_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"id": f"q{i}", "question": "who", "answers": [{"text": "the cat", "answer_start": 0}]} for i in range(8)]
    paragraphs = [{"context": "the cat sat on the mat", "qas": asked}]
    data = write(tmp_path / "dev.json", {"data": [{"paragraphs": paragraphs}]})
    said = write(tmp_path / "said.json", {"q0": "cat", "q1": "the cat sat", "q6": ""})
    argv = ["score", "--task", "span", "--data", str(data), "--predictions", str(said)]
    assert main([*argv, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["scores"] == {"exact_match": 1 / 8, "f1": (1 + 2 / 3) / 8}
    assert json.loads(printed.out)["examples"] == 8
    lacking = "5 of 8 questions have no prediction"
    warning = f"warning: {lacking} and score 0 (--strict refuses them): q2, q3, q4 … and 2 more"
    assert [line for line in printed.err.splitlines() if "warning" in line] == [warning]
    assert main([*argv, "--strict"]) == 1
    assert f"{data}: {lacking}: q2, q3, q4 … and 2 more" in capsys.readouterr().err
    assert main([*argv[:-1], str(write(tmp_path / "none.json", {}))]) == 1
    assert "8 of 8 questions have no prediction" in capsys.readouterr().err


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--data", "x"]) == 2
    assert "bertie score needs KIND as its first argument" in capsys.readouterr().err
    assert main(["score", "--task", "classify", "--data", "gone.tsv", "--predictions", "gone.jsonl"]) == 2
    assert "no such file: gone.jsonl" in capsys.readouterr().err
