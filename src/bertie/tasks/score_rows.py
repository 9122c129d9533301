"""`Task.score_rows` of several tasks: predictions in the order of the examples, and answers by the ids of questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertie import console
from bertie.errors import UsageError, UserError, first_few, raise_error
from bertie.tasks.data.prediction_files import by_id, read_predictions, require_once
from bertie.tasks.data.rows import Row, parse_finite
from bertie.tasks.squad_metrics import best_scores, squad_scores
from bertie.tasks.task import Scoring, Task


def read_rows(task: object, path: Path) -> list[Row | UserError]:  # noqa: ARG001
    """Read a file of `bertie predict`, a table, or a JSON object of answers: `Task.prediction_rows` of most tasks."""
    return read_predictions(path)


def score_in_order(task: Task, given: Scoring) -> dict[str, float]:
    """Score predictions in the order of the examples: `Task.score_rows` of most tasks."""
    if given.null_odds is not None:
        raise UsageError(f"--null-odds needs a span task, but the task is {task.kind}")
    task.validate(given.examples)
    pairs = zip(_rows_in_order(given), given.examples, strict=True)
    read = [task.read_prediction(row.values, example, row.place) for row, example in pairs]
    return task.score(read, given.examples)


def labels_in(given: Scoring) -> tuple[str, ...]:
    """Return the classes that have a probability in the first prediction, or else the gold labels."""
    first = next((row.values.get("probabilities") for row in given.rows if isinstance(row, Row)), None)
    gold = {example.label for example in given.examples if example.label is not None}
    return tuple(first) if isinstance(first, dict) else tuple(sorted(gold))


def _rows_in_order(given: Scoring) -> list[Row]:
    """Return the prediction of each example. Raises UserError if there is not one per row of the data."""
    rows, every, examples = given.rows, given.every, given.examples
    if len(rows) != len(every):
        found = f"{len(rows):,} predictions for the {len(every):,} examples of {given.where}"
        raise UserError(f"{found}: give one per example, in order")
    scored = {id(example) for example in examples}
    return [raise_error(row) for row, each in zip(rows, every, strict=True) if id(each) in scored]


def score_answers(task: Task, given: Scoring) -> dict[str, float]:
    """Score answers by the ids of their questions: `Task.score_rows` of question answering."""
    task.validate(given.examples)
    answers, examples, null_odds = _answers(task, given), given.examples, given.null_odds
    if null_odds is None:
        return squad_scores(answers, examples)
    if all(example.answers for example in examples):
        raise UserError("--null-odds needs data with questions that have no answer, as SQuAD 2.0")
    pairs = list(null_odds.items()) if isinstance(null_odds, dict) else _odds(Path(null_odds))
    place = "the odds" if isinstance(null_odds, dict) else str(null_odds)
    odds = {name: parse_finite(str(value)) for name, value in pairs}
    if missing := [name for name in answers if name not in odds]:
        raise UserError(f"{place}: no odds for {_some(missing)}")
    _ignore("null score", [name for name in odds if name not in answers], given)
    known = {name: value for name in odds if name in answers and (value := odds[name]) is not None}
    if wrong := [name for name in answers if name not in known]:
        raise UserError(f"{place}: the odds of {wrong[0]} are not a finite number")
    silent = frozenset(name for name, value in known.items() if value > given.null_threshold)
    return squad_scores(answers, examples, silent) | best_scores(answers, known, examples)


def _answers(task: Task, given: Scoring) -> dict[str, str]:
    """Return the predicted answers by id, but not for questions that cannot be read or have no gold answers."""
    rows, examples, where = given.rows, given.examples, given.where
    if nameless := [row for row in rows if isinstance(row, Row) and row.values.get("id") is None]:
        raise UserError(f"{nameless[0].place}: no id of the question")
    said = {str(row.values.get("id")): row for row in rows if isinstance(row, Row)}
    require_once((str(row.values.get("id")) for row in rows if isinstance(row, Row)), "the predictions")
    every = given.every if given.path is None else task.reader.stream(given.path)  # also those without gold answers
    known = {each.id for each in every if not isinstance(each, UserError)}
    if missing := [example.id for example in examples if example.id not in said]:
        _without_prediction(missing, examples, where, given.strict)
    _ignore("prediction", [name for name in said if name not in known], given)
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


def _ignore(what: str, extra: list[str], given: Scoring) -> None:
    """Warn about values of questions that the data do not have. They count for nothing, as in the scripts of SQuAD.

    Raises UserError with `strict`.
    """
    if not extra:
        return
    found = f"{given.where} does not have the questions of {console.plural(len(extra), what)}"
    if given.strict:
        raise UserError(f"{found}: {_some(extra)}")
    console.warn(f"{found}, which count for nothing (--strict refuses them): {_some(extra)}")


def _odds(path: Path) -> list[tuple[str, Any]]:
    if path.suffix != ".jsonl":
        return by_id(path)
    rows = [raise_error(row) for row in read_predictions(path)]
    require_once((str(row.values.get("id")) for row in rows), str(path))
    return [(str(row.values.get("id")), row.values.get("null_score")) for row in rows]


def _some(ids: list[str]) -> str:
    return first_few((each[:60] for each in ids), len(ids), ", ")
