"""The folder of an evaluation: predictions.jsonl, scores.json, report.html."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bertie import storage
from bertie.errors import UsageError
from bertie.report import Page
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.predictions import prediction_to_json
from bertie.tasks.task import Task

PREDICTIONS, SCORES, PAGE = FILES = ("predictions.jsonl", "scores.json", "report.html")
WORST = 20
_MARKS = {"gold": "right", "wrong": "predicted", "right": "predicted and right"}


@contextmanager
def evaluation_folder(path: Path, of: str | None = None) -> Iterator[Path]:
    """Yield a hidden folder to `write` into, which takes the name at the end, also that of an earlier one of the same.

    of: what that is of, as in its scores.json, where it may be of different things.

    Errors: UsageError, before anything is done, where something else has that name.
    """
    there = [found.name for found in path.iterdir()] if path.is_dir() else []
    if (path.exists() and not path.is_dir()) or (there and set(there) != set(FILES)):
        raise UsageError(f"{path} already exists and is no evaluation: give another --out")
    if there and (before := _of(path)) != of:
        raise UsageError(f"{path} holds another evaluation ({before}): give another --out")
    with storage.atomic_folder(path, replace=True) as folder:
        yield folder


def _of(path: Path) -> str | None:
    """Errors: UserError where scores.json is damaged."""
    return storage.read_json(path / SCORES).get("of")


def write(
    folder: Path, title: str, task: Task, predictions: list[Any], examples: list[Any], result: dict[str, Any]
) -> None:
    """result: {"scores": {…}, "examples": n, …}, which scores.json begins with. Errors: as `Task.assess`."""
    assessment = task.evaluate(predictions, examples)
    with open(folder / PREDICTIONS, "w", encoding="utf-8") as file:
        for example, prediction, line in zip(examples, predictions, assessment.lines, strict=True):
            file.write(
                json.dumps({"source": example.source, **prediction_to_json(prediction), **line}, ensure_ascii=False)
                + "\n"
            )
    values = {finding.name: finding.as_json() for finding in assessment.findings}
    kept = {name: value for name, value in values.items() if value is not None}
    storage.write_json(folder / SCORES, {"task": task.kind, **result, **kept})
    storage.write_atomic(folder / PAGE, page(title, assessment, [e.source for e in examples], result))


def page(title: str, assessment: Evaluation, sources: list[str], result: dict[str, Any]) -> str:
    """HTML."""
    seconds = f", in {result['seconds']:,.1f} s" if "seconds" in result else ""
    shown = Page(title, f"{result['examples']:,} examples{seconds}.")
    shown.table(("score", "value"), [(name.replace("_", " "), value) for name, value in result["scores"].items()])
    for finding in assessment.findings:
        finding.draw(shown)
    order = np.argsort(-assessment.losses, kind="stable")[:WORST].tolist()
    wrong = [i for i in order if assessment.losses[i] > 0]
    shown.heading("Most wrong")
    if not wrong:
        shown.paragraph("Nothing is wrong.")
        return shown.html()
    shown.paragraph(f"By {assessment.loss}. All examples are in {PREDICTIONS}.")
    passages = [assessment.passage(i) for i in wrong]
    used = {part.mark for passage in passages for parts in passage.texts for part in parts}
    shown.marks({mark: meaning for mark, meaning in _MARKS.items() if mark in used})
    for i, passage in zip(wrong, passages, strict=True):
        shown.passage({**passage.facts, "loss": f"{assessment.losses[i]:.3g}", "from": sources[i]}, passage.texts)
    return shown.html()
