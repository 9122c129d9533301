"""Score predictions against gold labels without a model, with the official metrics of each task."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from bertie import config as configuration
from bertie.errors import UsageError
from bertie.tasks import AnyTask
from bertie.tasks.data import labels
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.left_out import valid_examples
from bertie.tasks.data.prediction_files import given_predictions
from bertie.tasks.data.reader import Reader
from bertie.tasks.task import Scoring


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
    if isinstance(task, str):
        task = cast(AnyTask, configuration.build(AnyTask, {"kind": task}, "task"))
    if math.isnan(null_threshold):
        raise UsageError("--null-threshold is nan: give a number")
    if null_odds is None and null_threshold != 1.0:
        raise UsageError("--null-threshold needs --null-odds, the scores that it is compared with")
    is_file = isinstance(predictions, str | Path)
    rows = task.prediction_rows(Path(predictions)) if is_file else given_predictions(predictions)
    path = Path(data) if isinstance(data, str | Path) else None
    where = "the examples" if path is None else str(path)
    every = list(
        task.reader.values(cast(Iterable[Any], data), labeled=True) if path is None else task.reader.read(path)
    )
    rules = task.reader.kind.label_rules
    every = labels.spelled(rules, every, where)
    examples = labels.labeled(rules, valid_examples(every, where, strict), where)
    scores = task.score_rows(Scoring(rows, examples, every, path, where, strict, null_odds, null_threshold))
    return {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}


def labeled_examples(
    reader: Reader, source: str | Path | Iterable[Any], strict: bool = False, training: bool = False
) -> list[Any]:
    """Read labeled examples.

    Args:
        reader: Of the task.
        source: A file, or examples in memory.
        strict: Fail at the first unreadable row of a file, instead of skipping it with a warning.
        training: Whether these are training examples: see `labels.labeled`.

    Raises:
        UserError: No example can be read.
        UsageError: As `Reader.read` or `Reader.values`.
    """
    path, rules = Path(source) if isinstance(source, str | Path) else None, reader.kind.label_rules
    where = "the examples" if path is None else str(path)
    examples = reader.read(path) if path else reader.values(cast(Iterable[Any], source), labeled=True)
    known = labels.spelled(rules, valid_examples(examples, where, strict), where)
    return labels.labeled(rules, known, where, training)


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
