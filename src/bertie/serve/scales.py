"""Scores of classes and of pairs, on the scale that clients ask for: as the model was trained, or before its activation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bertie.serve.numbers import json_numbers
from bertie.serve.queue import QueuedJob
from bertie.tasks import Task
from bertie.tasks.encoding import by_example

ScoreScale = Literal["model", "raw", "sigmoid"]
"""model: probabilities of classes, and a number as `Predictor.predict` returns it. raw: the outputs of the head, before softmax
or sigmoid. sigmoid: as model, but of a number the sigmoid of the output, which other servers return for rerankers."""
ONLY = "LABEL_0"
"""What transformers calls the only output of a head."""


@dataclass(frozen=True)
class Scores:
    """The scores of a text or a pair of texts. It has the fields of predictions that `Task.relevance` reads."""

    probabilities: dict[str, float]
    """The score of each class, in the order of the task's labels; of a number, the score of `ONLY`."""

    @property
    def score(self) -> float:
        """The only score."""
        [score] = self.probabilities.values()
        return score


def scores_of(task: Task, job: QueuedJob, examples: list[Any], scale: ScoreScale) -> list[Scores]:
    """Return the scores of examples, from the outputs of the head. The outputs of several windows are averaged.

    Args:
        task: A task whose head has the shape "text".
        job: The computed sequences.
        examples: The examples.
        scale: The scale.
    """
    if scale == "model" or (scale == "sigmoid" and task.labels):
        found = task.decode(job.results, job.sequences, examples)
        return [Scores(each.probabilities if task.labels else {ONLY: each.score}) for each in found]
    grouped = by_example(job.results, job.sequences, len(examples))
    means: list[list[float]] = json_numbers(np.stack([np.concatenate(rows).mean(0) for rows in grouped]))
    if scale == "sigmoid":
        means = [[0.5 + 0.5 * math.tanh(0.5 * output) for output in each] for each in means]
    return [Scores(dict(zip(task.labels or (ONLY,), each, strict=True))) for each in means]
