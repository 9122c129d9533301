"""Score predictions against gold labels without a model, with the official metrics of each task.

Rows of a file or of Python values are matched with the examples, in order or, for questions, by id. `Task.read_prediction` turns
each into a prediction, and `Task.score` scores these, as after a model has predicted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from bertie.base import config as configuration
from bertie.base import console
from bertie.base.errors import UsageError, UserError, first_few, raise_error
from bertie.examples import labels
from bertie.examples.in_memory import require_list
from bertie.examples.left_out import valid_examples
from bertie.examples.odd_texts import OddTexts
from bertie.examples.reader import Reader
from bertie.examples.rows import Row, name_of, parse_finite
from bertie.tasks import AnyTask
from bertie.tasks.prediction_files import given_predictions, read_predictions, require_once
from bertie.tasks.task import Task


def score(
    task: AnyTask | str,
    data: str | Path | Iterable[Any],
    predictions: str | Path | Any,
    *,
    null_odds: str | Path | dict[str, float] | None = None,
    null_threshold: float = 1.0,
    strict: bool = False,
) -> dict[str, Any]:
    """Score predictions on labeled examples.

    Args:
        task: A task or its kind. If it has no labels, it takes them from the predictions or the examples.
        data: The labeled examples: a file, or Python values, as for `Predictor.evaluate`.
        predictions: A file of `bertie predict` or the list that `Predictor.predict` returned: one per example in the
            same order, or by id for questions. Also GLUE's .tsv; for questions SQuAD's {id: answer}; for tags a CoNLL
            file with the predicted tag in the last column.
        null_odds: For SQuAD 2.0: how likely "no answer" is for each question, as a dict by id, a JSON file, or a file
            of `bertie predict` (its null_score). Adds best_exact, best_f1 and their thresholds to the scores.
        null_threshold: With `null_odds`, questions whose odds are above this count as predicted to have no answer.
        strict: Refuse files with rows that cannot be read, instead of skipping them; questions of SQuAD 1.1 without a
            prediction, instead of counting them as 0; and predictions for questions that the data do not have, instead of
            ignoring them.

    Returns:
        {"scores": {name: value}, "examples": number, "seconds": duration}, like `Predictor.evaluate`.

    Raises:
        UserError: A prediction is missing, superfluous or malformed, or an example has no label.
        UsageError: The arguments do not fit the task, or a file has an unknown format.
    """
    started = time.monotonic()
    scored: Task = configuration.build(AnyTask, {"kind": task}, "task") if isinstance(task, str) else cast(Task, task)
    if null_odds is None and null_threshold != 1.0:
        raise UsageError("--null-threshold needs --null-odds, the scores that it is compared with")
    if null_odds is not None and scored.score_with_odds is None:
        raise UsageError(f"--null-odds needs a span task, but the task is {scored.kind}")
    rows = _prediction_rows(scored, predictions)
    where, rules = name_of(data), scored.reader.kind.label_rules
    every = labels.spelled(rules, list(scored.reader.read(data)), where)
    examples = labels.labeled(rules, valid_examples(every, where, strict), where)
    if not scored.labels:
        scored = scored.with_labels_of([row for row in rows if isinstance(row, Row)], examples)
    scored.validate(examples)
    if scored.score_with_odds is not None:
        # also those without gold answers
        known = scored.reader.stream(Path(data)) if isinstance(data, str | Path) else every
        pairs = _by_id(rows, examples, known, where, strict)
    else:
        pairs = _in_order(rows, every, examples, where)
    read = [scored.read_prediction(row.values, example, row.place) for row, example in pairs]
    if null_odds is not None and scored.score_with_odds is not None:
        odds = _read_odds(null_odds, [prediction.id for prediction in read], where, strict)
        scores = scored.score_with_odds(read, examples, odds, null_threshold)
    else:
        scores = scored.score(read, examples)
    return {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}


def _prediction_rows(task: Task, predictions: str | Path | Any) -> list[Row | UserError]:
    if not isinstance(predictions, str | Path):
        return given_predictions(predictions)
    return task.prediction_rows(Path(predictions))


Pairs = list[tuple[Row, Any]]  # a prediction, and its example


def _in_order(rows: list[Row | UserError], every: list[Any], examples: list[Any], where: str) -> Pairs:
    """Match the predictions with the rows of the data, of which `examples` are scored."""
    if len(rows) != len(every):
        counted = f"{len(rows):,} predictions for the {len(every):,} examples of {where}"
        raise UserError(f"{counted}: give one per example, in order")
    scored = {id(example) for example in examples}
    return [(raise_error(row), each) for row, each in zip(rows, every, strict=True) if id(each) in scored]


def _by_id(rows: list[Row | UserError], examples: list[Any], known: Iterable[Any], where: str, strict: bool) -> Pairs:
    """Match answers with questions by their ids. known: all questions of the data, or errors.

    Warns about questions without an answer, which count as 0 in the script of SQuAD 1.1. Raises UserError for them with
    `strict`, for SQuAD 2.0 (whose script stops), and if no question has an answer, because then the file belongs to other data.
    """
    readable = [row for row in rows if isinstance(row, Row)]
    if nameless := [row for row in readable if row.values.get("id") is None]:
        raise UserError(f"{nameless[0].place}: no id of the question")
    said = {str(row.values.get("id")): row for row in readable}
    require_once((str(row.values.get("id")) for row in readable), "the predictions")
    if missing := [example.id for example in examples if example.id not in said]:
        lacking = f"{len(missing):,} of {len(examples):,} questions have no prediction"
        if strict or len(missing) == len(examples) or any(not example.answers for example in examples):
            raise UserError(f"{where}: {lacking}: {_some(missing)}")
        console.warn(f"{lacking} and score 0 (--strict refuses them): {_some(missing)}")
    ids = {question.id for question in known if not isinstance(question, UserError)}
    _ignore("prediction", [name for name in said if name not in ids], where, strict)
    return [(said[example.id], example) for example in examples if example.id in said]


def _read_odds(source: str | Path | dict[Any, Any], answered: list[str], where: str, strict: bool) -> dict[str, float]:
    """Read how likely "no answer" is for the questions that have a prediction."""
    pairs = list(source.items()) if isinstance(source, dict) else _odds_in(Path(source))
    place = "the odds" if isinstance(source, dict) else str(source)
    odds = {name: parse_finite(str(value)) for name, value in pairs}
    if missing := [name for name in answered if name not in odds]:
        raise UserError(f"{place}: no odds for {_some(missing)}")
    names = set(answered)
    _ignore("null score", [name for name in odds if name not in names], where, strict)
    if wrong := [name for name in answered if odds[name] is None]:
        raise UserError(f"{place}: the odds of {wrong[0]} are not a finite number")
    return {name: value for name, value in odds.items() if name in names and value is not None}


def _odds_in(path: Path) -> list[tuple[str, Any]]:
    rows = [raise_error(row) for row in read_predictions(path)]
    require_once((str(row.values.get("id")) for row in rows), str(path))
    return [(str(row.values.get("id")), row.values.get("null_score", row.values.get("answer"))) for row in rows]


def _ignore(what: str, extra: list[str], where: str, strict: bool) -> None:
    """Warn about values of questions that the data do not have. They count for nothing, as in the scripts of SQuAD.

    Raises UserError with `strict`.
    """
    if extra:
        problem = f"{where} does not have the questions of {console.plural(len(extra), what)}"
        if strict:
            raise UserError(f"{problem}: {_some(extra)}")
        console.warn(f"{problem}, which are ignored (--strict refuses them): {_some(extra)}")


def _some(ids: list[str]) -> str:
    return first_few((name[:60] for name in ids), len(ids), ", ")


def labeled_examples(
    reader: Reader, source: str | Path | Iterable[Any], strict: bool = False, training: bool = False
) -> list[Any]:
    """Read labeled examples. Warns of odd texts.

    Args:
        reader: Of the task.
        source: A file, or examples in memory.
        strict: Fail at the first unreadable row of a file, instead of skipping it with a warning.
        training: Whether these are training examples: see `labels.labeled`.

    Raises:
        UserError: No example can be read.
        UsageError: As `Reader.read`.
    """
    where, rules = name_of(source), reader.kind.label_rules
    valid = valid_examples(reader.read(source), where, strict)
    known = labels.labeled(rules, labels.spelled(rules, valid, where), where, training)
    OddTexts(known).warn(where)
    return known


def training_examples(
    task: AnyTask, source: str | Path | Iterable[Any], strict: bool = False
) -> tuple[AnyTask, list[Any]]:
    """Read training examples. Arguments and errors as of `labeled_examples`.

    Returns:
        The task with the `data_format` of the source, and the examples.
    """
    source = Path(source) if isinstance(source, str | Path) else list(require_list(source))
    reader = task.reader.resolve(source)
    changes = {"data_format": reader.kind.data_format} if hasattr(task, "data_format") else {}
    return replace(task, **changes), labeled_examples(reader, source, strict, training=True)
