"""Write the folder of an evaluation: predictions.jsonl, scores.json, report.html."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage
from bertie.base.errors import UsageError
from bertie.base.report import Page
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.predictions import prediction_to_json
from bertie.tasks.task import Task

PREDICTIONS, SCORES, PAGE = FILES = ("predictions.jsonl", "scores.json", "report.html")
WORST = 20  # examples with the largest losses on the page
_MARKS = {"gold": "gold", "wrong": "predicted", "right": "predicted and gold"}


@contextmanager
def evaluation_folder(path: Path, of: str | None = None, files: Collection[str] = FILES) -> Iterator[Path]:
    """Yield a hidden folder to `write` into. On success it is renamed to `path`, replacing an earlier evaluation.

    Args:
        path: The folder to make.
        of: The evaluated model and data, as in "of" of scores.json. An evaluation of something else is not replaced.
        files: The names of its files.

    Raises:
        UsageError: `path` exists and is something else. Raised before anything is written.
        UserError: scores.json of the earlier evaluation is damaged.
    """
    existing = [file.name for file in path.iterdir()] if path.is_dir() else []
    if (path.exists() and not path.is_dir()) or (existing and set(existing) != set(files)):
        raise UsageError(f"{path} already exists and is not an evaluation: choose another --out")
    if existing and (earlier := storage.read_json(path / SCORES).get("of")) != of:
        raise UsageError(f"{path} holds another evaluation ({earlier}): choose another --out")
    with storage.atomic_folder(path, replace=True) as folder:
        yield folder


def write(
    folder: Path, title: str, task: Task, predictions: list[Any], examples: list[Any], result: dict[str, Any]
) -> None:
    """Write predictions.jsonl, scores.json and report.html.

    Args:
        folder: An existing folder.
        title: The title of the page.
        task: The fitted task.
        predictions: One per example.
        examples: The labeled examples.
        result: {"scores": {name: value}, "examples": n, …}; scores.json begins with it.

    Raises:
        UserError: As `Task.evaluate`.
    """
    evaluation = task.evaluate(predictions, examples)
    parts = zip(examples, predictions, evaluation.lines, strict=True)
    rows = ({"source": example.source, **prediction_to_json(prediction), **line} for example, prediction, line in parts)
    storage.write_json_lines(folder / PREDICTIONS, rows)
    values = {finding.name: finding.as_json() for finding in evaluation.findings}
    details = {name: value for name, value in values.items() if value is not None}
    storage.write_json(folder / SCORES, {"task": task.kind, **result, **details})
    storage.write_atomic(folder / PAGE, page(title, evaluation, [e.source for e in examples], result))


def page(title: str, evaluation: Evaluation, sources: list[str], result: dict[str, Any]) -> str:
    """Return report.html: the scores, the findings, and the examples with the largest losses.

    sources: of the examples.
    """
    seconds = f", in {result['seconds']:,.1f} s" if "seconds" in result else ""
    report = Page(title, f"{result['examples']:,} examples{seconds}.")
    report.table(("score", "value"), [(name.replace("_", " "), value) for name, value in result["scores"].items()])
    for finding in evaluation.findings:
        finding.draw(report)
    order = np.argsort(-evaluation.losses, kind="stable")[:WORST].tolist()
    wrong = [i for i in order if evaluation.losses[i] > 0]
    report.heading("Largest errors")
    if not wrong:
        report.paragraph("All predictions are correct.")
        return report.html()
    report.paragraph(f"Loss: {evaluation.loss_description}. All examples are in {PREDICTIONS}.")
    passages = [evaluation.passage(i) for i in wrong]
    used = {part.mark for passage in passages for parts in passage.texts for part in parts}
    report.legend({mark: meaning for mark, meaning in _MARKS.items() if mark in used})
    for i, passage in zip(wrong, passages, strict=True):
        report.passage({**passage.facts, "loss": f"{evaluation.losses[i]:.3g}", "source": sources[i]}, passage.texts)
    return report.html()
