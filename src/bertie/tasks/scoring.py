"""Score predictions against gold labels without a model, with the official metrics of each task."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from bertie import config as configuration
from bertie import console
from bertie.errors import UsageError, UserError
from bertie.tasks import AnyTask, Classify, Span, Tag, Task
from bertie.tasks.data.conll import ConllReader, TagColumns
from bertie.tasks.data.prediction_files import by_id, given_predictions, read_predictions, require_once
from bertie.tasks.data.rows import Row, first_few, parse_finite, valid_examples
from bertie.tasks.squad_metrics import best_scores, squad_scores


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
        task: A task or its kind. If it has no labels, those of the predictions or of the examples are used.
        data: The labeled examples: a file, or Python values, as for `Predictor.evaluate`.
        predictions: A file of `bertie predict` or the list that `Predictor.predict` returned: one per example in the
            same order, or by id for questions. Also GLUE's .tsv; for questions SQuAD's {id: answer}; for tags a CoNLL
            file with the predicted tag in the last column.
        null_odds: For SQuAD 2.0: how likely "no answer" is for each question, as a dict by id, a JSON file, or a file
            of `bertie predict` (its null_score). Adds best_exact, best_f1 and their thresholds to the scores.
        null_threshold: With `null_odds`, questions whose odds are above this count as predicted to have no answer.
        strict: Refuse files with rows that cannot be read, instead of skipping them, and questions of SQuAD 1.1 without a
            prediction, instead of counting them as 0.

    Returns:
        {"scores": {name: value}, "examples": number, "seconds": duration}, like `Predictor.evaluate`.

    Raises:
        UserError: A prediction is missing, superfluous or malformed, or an example has no label.
        UsageError: The arguments do not fit the task, or a file has an unknown format.
    """
    started = time.monotonic()
    if isinstance(task, str):
        task = cast(AnyTask, configuration.build(AnyTask, {"kind": task}, "task"))
    if null_odds is not None and not isinstance(task, Span):
        raise UsageError(f"--null-odds needs a span task, but the task is {task.kind}")
    if math.isnan(null_threshold):
        raise UsageError("--null-threshold is nan: give a number")
    if null_odds is None and null_threshold != 1.0:
        raise UsageError("--null-threshold needs --null-odds, the scores that it is compared with")
    rows = _rows(task, predictions)
    if isinstance(data, str | Path):
        where, every = str(data), list(task.reader.stream(Path(data)))
        examples: list[Any] = valid_examples(task.reader.read(Path(data)), where, strict)
    else:
        where = "the examples"
        examples = every = valid_examples(task.reader.values(data), where)
    if isinstance(task, Span):
        task.validate(examples)
        answers = _answers(task, rows, every, examples, where, strict)
        scores = _with_odds(answers, examples, null_odds, null_threshold)
    else:
        chosen = _in_order(rows, every, examples, where)
        labeled = _with_labels(task, examples, chosen)
        labeled.validate(examples)
        pairs = zip(chosen, examples, strict=True)
        read = [labeled.read_prediction(row.values, example, row.place) for row, example in pairs]
        scores = labeled.score(read, examples)
    return {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}


def _rows(task: Task, predictions: Any) -> list[Row | UserError]:
    """Read the predictions as rows of named values."""
    if not isinstance(predictions, str | Path):
        return given_predictions(predictions)
    path = Path(predictions)
    if not isinstance(task, Tag) or path.suffix == ".jsonl":
        return read_predictions(path)
    columns = TagColumns(task.word, task.tag if path.suffix == ".conllu" else -1)
    return [
        sentence
        if isinstance(sentence, UserError)
        else Row({"tokens": sentence.words, "tags": sentence.tags}, sentence.source, sentence.source)
        for sentence in ConllReader(columns).read(path)
    ]


def _in_order(rows: list[Row | UserError], every: list[Any], examples: list[Any], where: str) -> list[Row]:
    """Return the prediction of each example. `every`: all rows of the data, also those that have no gold label."""
    if len(rows) != len(every):
        raise UserError(
            f"{len(rows):,} predictions for the {len(every):,} examples of {where}: give one per example, in order"
        )
    if examples is every:  # Python values: their sources may be equal
        return [_raise_error(row) for row in rows]
    by_source = {each.source: row for each, row in zip(every, rows, strict=True) if not isinstance(each, UserError)}
    return [_raise_error(by_source[example.source]) for example in examples]


def _answers(
    task: Span, rows: list[Row | UserError], every: list[Any], examples: list[Any], where: str, strict: bool
) -> dict[str, str]:
    """Return the predicted answers by id, but not for questions that cannot be read or have no gold answers."""
    if nameless := [row for row in rows if isinstance(row, Row) and row.values.get("id") is None]:
        raise UserError(f"{nameless[0].place}: no id of the question")
    said = {str(row.values.get("id")): row for row in rows if isinstance(row, Row)}
    require_once((str(row.values.get("id")) for row in rows if isinstance(row, Row)), "the predictions")
    known = {each.id for each in every if not isinstance(each, UserError)}
    if missing := [example.id for example in examples if example.id not in said]:
        _without_prediction(missing, examples, where, strict)
    if extra := [name for name in said if name not in known]:
        raise UserError(f"predictions for {_some(extra)}, which {where} does not have")
    read = (task.read_prediction(said[e.id].values, e, said[e.id].place) for e in examples if e.id in said)
    return {found.id: found.answer for found in read}


def _without_prediction(missing: list[str], examples: list[Any], where: str, strict: bool) -> None:
    """Warn about questions that count as 0, as in the script of SQuAD 1.1.

    Raises UserError with `strict`, for SQuAD 2.0 (whose script stops), and if no question has a prediction, because then
    the file belongs to other data.
    """
    lacking = f"{len(missing):,} of {len(examples):,} questions have no prediction"
    if strict or len(missing) == len(examples) or any(not example.answers for example in examples):
        raise UserError(f"{where}: {lacking}: {_some(missing)}")
    console.warn(f"{lacking} and count 0 (--strict refuses them): {_some(missing)}")


def _with_odds(answers: dict[str, str], examples: list[Any], null_odds: Any, threshold: float) -> dict[str, float]:
    if null_odds is None:
        return squad_scores(answers, examples)
    if all(example.answers for example in examples):
        raise UserError("--null-odds needs data with questions that have no answer, as SQuAD 2.0")
    pairs = list(null_odds.items()) if isinstance(null_odds, dict) else _odds(Path(null_odds))
    place = "the odds" if isinstance(null_odds, dict) else str(null_odds)
    odds = {name: parse_finite(str(value)) for name, value in pairs}
    if missing := [name for name in answers if name not in odds]:
        raise UserError(f"{place}: no odds for {_some(missing)}")
    if extra := [name for name in odds if name not in answers]:
        raise UserError(f"{place}: odds for unknown questions: {_some(extra)}")
    known = {name: value for name, value in odds.items() if value is not None}
    if wrong := [name for name in odds if name not in known]:
        raise UserError(f"{place}: the odds of {wrong[0]} are not a finite number")
    silent = frozenset(name for name, value in known.items() if value > threshold)
    return squad_scores(answers, examples, silent) | best_scores(answers, known, examples)


def _odds(path: Path) -> list[tuple[str, Any]]:
    if path.suffix != ".jsonl":
        return by_id(path)
    rows = [_raise_error(row) for row in read_predictions(path)]
    require_once((str(row.values.get("id")) for row in rows), str(path))
    return [(str(row.values.get("id")), row.values.get("null_score")) for row in rows]


def _with_labels(task: Task, examples: list[Any], rows: list[Row]) -> Task:
    """Return the task with labels, if it has none: those with a probability in the predictions, or the gold labels."""
    if isinstance(task, Classify) and not task.labels:
        known = rows[0].values.get("probabilities")
        labels = list(known) if isinstance(known, dict) else sorted({e.label for e in examples if e.label is not None})
        return replace(task, labels=tuple(labels))
    if isinstance(task, Tag) and not task.labels:
        return replace(task, labels=tuple(sorted({tag for example in examples for tag in example.tags or ()})))
    return task


def _raise_error(row: Row | UserError) -> Row:
    if isinstance(row, UserError):
        raise row
    return row


def _some(ids: list[str]) -> str:
    return first_few((each[:60] for each in ids), len(ids), ", ")
