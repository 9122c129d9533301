"""Score a fine-tuned model on labeled examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bertie import console
from bertie.tasks import Task
from bertie.tasks.data.rows import valid_examples
from bertie.tasks.evaluation.folder import evaluation_folder, write


def evaluate(
    model: str,
    task: Task,
    predict: Callable[[list[Any]], Iterator[Any]],
    data: str | Path | Iterable[Any],
    strict: bool,
    out: str | Path | None,
) -> dict[str, Any]:
    """Score predictions, as `Predictor.evaluate` describes.

    Args:
        model: Name of the model, for the title.
        task: Its task.
        predict: Returns one prediction per example.
        data: A file, or examples in memory.
        strict: Fail at the first unreadable row of a file.
        out: Output folder, or None.
    """
    started = time.monotonic()
    data_name = Path(data).name if isinstance(data, str | Path) else "examples"
    title = f"{model} on {data_name}"
    with evaluation_folder(Path(out), title) if out else nullcontext() as folder:
        examples = _labeled_examples(task, data, strict)
        predicted: list[Any] = []
        with console.progress("evaluate", len(examples), "examples", passing=True) as bar:
            for prediction in predict(examples):
                predicted.append(prediction)
                bar.advance(1)
        scores = task.score(predicted, examples)
        result = {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}
        if folder is None:
            return result
        write(folder, title, task, predicted, examples, {"of": title, **result})
    return {**result, "out": str(out)}


def _labeled_examples(task: Task, data: str | Path | Iterable[Any], strict: bool) -> list[Any]:
    if isinstance(data, str | Path):
        examples = valid_examples(task.reader.read(Path(data)), str(data), strict)
    else:
        examples = valid_examples(task.reader.values(data), "the examples")
    task.validate(examples)
    return examples
