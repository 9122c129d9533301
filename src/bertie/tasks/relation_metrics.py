"""Scores of relations: the official rules of TACRED and of SemEval-2010 task 8.

N  examples    K  relations, without direction and without the negative class
"""

from __future__ import annotations

from operator import eq

import numpy as np

from bertie.examples.marked_texts import DIRECTED
from bertie.tasks.example_sums import ExampleSums, f1_sums, mean_sums

NEGATIVES = ("no_relation", "Other")
"""The negative classes of TACRED and of SemEval-2010 task 8."""


def undirected(label: str) -> str:
    """Return the relation without its direction: "Cause-Effect" for "Cause-Effect(e2,e1)"."""
    match = DIRECTED.fullmatch(label)
    return match[1] if match else label


def relations_of(labels: tuple[str, ...], negative: str) -> list[str]:
    """Return the relations of labels, sorted, without direction and without the negative class."""
    return sorted({undirected(label) for label in labels if label != negative})


def relation_counts(gold: list[str], predicted: list[str], relations: list[str], negative: str) -> np.ndarray:
    """Return float64 [N, 3, K]: whether each relation is right, with its direction; gold; and predicted, in any direction."""
    index = {relation: number for number, relation in enumerate(relations)}
    counts = np.zeros((len(gold), 3, len(relations)))
    for row, right, said in zip(counts, gold, predicted, strict=True):
        for kind, label in enumerate((right if right == said else negative, right, said)):
            if label != negative:
                row[kind, index[undirected(label)]] = 1
    return counts


def relation_sums(gold: list[str], found: list[str], relations: list[str], negative: str) -> dict[str, ExampleSums]:
    """Return the rows of the scores, 0 to 1.

    f1, precision, recall: of all relations together without the negative class (micro), as TACRED's scorer. macro_f1: the mean
    F1 of the relations that occur in the gold labels, without the negative class; a relation with the wrong direction is wrong:
    SemEval's official score. accuracy: of all classes. A fraction 0/0 counts as 0.
    """
    counts = relation_counts(gold, found, relations, negative)
    micro = f1_sums(counts.sum(2))
    macro = counts[:, :, counts[:, 1].any(0)].reshape(len(gold), -1)
    return {"f1": micro.pop("f1"), "macro_f1": ("f1", macro), **micro, "accuracy": mean_sums([*map(eq, gold, found)])}
