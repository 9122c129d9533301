"""Scores of predicted sets of labels, and the threshold of each label.

N  examples
C  labels
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bertie.tasks.example_sums import ExampleSums, mean_sums
from bertie.tasks.metrics import precision_recall_f1

DEFAULT_THRESHOLD = 0.5
MIN_TUNED = 5
"""A label with fewer examples, with it or without it, keeps DEFAULT_THRESHOLD: chance would set another one."""


@dataclass(frozen=True)
class LabelSetPrediction:
    """The labels whose probability reaches their threshold, and the probability of every label, in the order of the task's
    labels."""

    labels: list[str]
    probabilities: dict[str, float]


def indicators(sets: Sequence[Collection[str]], labels: Sequence[str]) -> np.ndarray:
    """Return which example has which label: bool [N, C]."""
    index = {label: i for i, label in enumerate(labels)}
    found_NC = np.zeros((len(sets), len(labels)), bool)
    for row, labels_of_row in zip(found_NC, sets, strict=True):
        row[[index[label] for label in labels_of_row]] = True
    return found_NC


def label_set_sums(gold_NC: np.ndarray, found_NC: np.ndarray) -> dict[str, ExampleSums]:
    """Return the rows of the scores, 0 to 1, from which example has which label, bool [N, C] each.

    f1: of all decisions together (micro). macro_f1: the mean over the labels. sample_f1: the mean over the examples.
    exact_match: the share of examples with all labels right. The means leave out a label, or an example, without gold and
    predicted labels, as scikit-learn's with zero_division=np.nan.
    """
    counts = np.stack([gold_NC & found_NC, gold_NC, found_NC], 1).astype(float)
    f1_N = precision_recall_f1(*counts.sum(2).T)[2]
    return {
        "f1": ("f1", counts.sum(2)),
        "macro_f1": ("f1", counts.reshape(len(gold_NC), -1)),
        "sample_f1": ("mean", np.stack([f1_N, (gold_NC | found_NC).any(1)], 1)),
        "exact_match": mean_sums((gold_NC == found_NC).all(1)),
    }


def tuned_thresholds(probabilities_NC: np.ndarray, gold_NC: np.ndarray) -> tuple[float, ...]:
    """Return the threshold of each label with the largest F1 of this label.

    Args:
        probabilities_NC: The predicted probabilities, float64.
        gold_NC: Which example has which label, bool.
    """
    return tuple(_tuned(p_N, gold_N) for p_N, gold_N in zip(probabilities_NC.T, gold_NC.T, strict=True))


def _tuned(p_N: np.ndarray, gold_N: np.ndarray) -> float:
    """Return the middle between the two neighboring probabilities that the best threshold separates."""
    if min(gold_N.sum(), (~gold_N).sum()) < MIN_TUNED:
        return DEFAULT_THRESHOLD
    order = np.argsort(-p_N, kind="stable")
    sorted_N = p_N[order]
    f1_N = 2 * np.cumsum(gold_N[order]) / (np.arange(1, len(p_N) + 1) + gold_N.sum())  # if the first n have the label
    following_N = np.append(sorted_N[1:], 0.0)
    ends = np.append(np.flatnonzero(np.diff(sorted_N)), len(p_N) - 1)  # a threshold cannot separate equal probabilities
    best = ends[f1_N[ends] == f1_N[ends].max()]
    return float(min((sorted_N[best] + following_N[best]) / 2, key=lambda middle: abs(middle - DEFAULT_THRESHOLD)))
