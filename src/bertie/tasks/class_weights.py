"""Weights of classes in the loss, for data in which some classes are rare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from bertie.base.contracts import Targets
from bertie.base.errors import UsageError, UserError, join_names, shorten

ClassWeights = Literal["none", "balanced"] | dict[str, float]
"""none: all classes weigh the same. balanced: rare classes weigh more. A table: the weight of every class."""


def fit_weights(
    setting: ClassWeights, labels: Sequence[str], counts: Sequence[int], positives_of: int = 0
) -> ClassWeights:
    """Return the weight of every class, or "none".

    With "balanced", a class with n_c of n members weighs n / (C · n_c), as in scikit-learn's
    `compute_class_weight("balanced")`. The positive examples of a label weigh (n − n_c) / n_c: the ratio of these weights for
    the two classes "has the label" and "has it not", as torch's `BCEWithLogitsLoss` recommends for its `pos_weight`.

    Args:
        setting: The setting.
        labels: The C classes.
        counts: How many members each class has in the training examples, n_c.
        positives_of: Number n of examples, if each label is a decision of its own; 0: each member has one class.

    Raises:
        UsageError: A table lacks a class, has an unknown one, or has a weight that is not positive, or that
            float32 cannot hold.
        UserError: "balanced" gives a class no weight, because no example has it, or every one.
    """
    if setting == "none":
        return setting
    if setting == "balanced":
        n = positives_of or sum(counts)
        for label, count in zip(labels, counts, strict=True):
            if not 0 < count < n:
                which = "no training example has" if not count else "all training examples have"
                problem = f"task.class_weights is balanced, but {which} {shorten(label)!r}"
                raise UserError(f"{problem}: give a table of weights, or correct task.labels")
        weights = [(n - count) / count if positives_of else n / (len(labels) * count) for count in counts]
        return dict(zip(labels, weights, strict=True))
    if unknown := sorted(setting.keys() - set(labels)):
        problem = f"task.class_weights has a weight for {shorten(unknown[0])!r}"
        raise UsageError(f"{problem}, which is not one of the classes {join_names(labels)}")
    if missing := [label for label in labels if label not in setting]:
        raise UsageError(f"task.class_weights has no weight for {join_names(missing)}: give one for every class")
    if wrong := [label for label in labels if not 0 < setting[label] < math.inf]:
        problem = f"the weight of {shorten(wrong[0])!r} is {setting[wrong[0]]:g}"
        raise UsageError(f"task.class_weights: {problem}: give a finite number above 0")
    return {label: setting[label] for label in labels}


def weight_array(weights: ClassWeights, labels: Sequence[str]) -> np.ndarray:
    """Return the weights of fitted classes, float32 [C]."""
    return np.array([weights[label] if isinstance(weights, dict) else 1.0 for label in labels], np.float32)


def weigh(targets: Targets, weights: ClassWeights, labels: Sequence[str]) -> Targets:
    """Return targets whose predictions weigh as much as the class of their label. The loss is the weighted mean."""
    if weights == "none":
        return targets
    return replace(targets, weight=targets.weight * weight_array(weights, labels)[targets.label])
