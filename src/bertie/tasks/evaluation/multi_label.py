"""The evaluation of multi-label classification."""

from __future__ import annotations

import numpy as np

from bertie.console import percent
from bertie.tasks.data.label_sets import LabelSetExample
from bertie.tasks.evaluation.calibration import calibration, log_losses
from bertie.tasks.evaluation.findings import Evaluation, Table
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.label_sets import LabelSetPrediction, indicators


def evaluate_label_sets(
    labels: tuple[str, ...],
    thresholds: tuple[float, ...],
    predictions: list[LabelSetPrediction],
    examples: list[LabelSetExample],
) -> Evaluation:
    """Return the evaluation: the loss is the sum over the labels of −log of the right answer's probability."""
    gold = [list(example.labels or ()) for example in examples]
    gold_NC = indicators(gold, labels)
    found_NC = indicators([each.labels for each in predictions], labels)
    p_NC = np.array([[each.probabilities[label] for label in labels] for each in predictions])
    losses = log_losses(np.where(gold_NC, p_NC, 1 - p_NC)).sum(1)

    def passage(i: int) -> Passage:
        p = predictions[i].probabilities
        sides = {"gold": gold[i], "predicted": predictions[i].labels}
        facts = {side: ", ".join(f"{name} {percent(p[name])}" for name in names) for side, names in sides.items()}
        return Passage({side: text or "no label" for side, text in facts.items()}, texts_of(examples[i]))

    return Evaluation(
        [{"gold": names, "loss": loss} for names, loss in zip(gold, losses.tolist(), strict=True)],
        losses,
        "−log of the probability that each label is there or not, as it is, summed over the labels, in nats",
        (_by_label(labels, thresholds, gold_NC, found_NC), calibration(p_NC.ravel(), gold_NC.ravel(), {}, "decisions")),
        passage,
    )


def _by_label(
    labels: tuple[str, ...], thresholds: tuple[float, ...], gold_NC: np.ndarray, found_NC: np.ndarray
) -> Table:
    right, support, found = (gold_NC & found_NC).sum(0), gold_NC.sum(0), found_NC.sum(0)
    precision, recall = right / np.maximum(found, 1), right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + found, 1)
    columns = [precision.tolist(), recall.tolist(), f1.tolist(), thresholds, support.tolist(), found.tolist()]
    header = ("label", "precision", "recall", "f1", "threshold", "support", "found")
    without = int((~gold_NC.any(1)).sum())
    note = f"A label is predicted if its probability reaches its threshold. {without:,} examples have no label."
    return Table("labels", "By label", header, list(zip(labels, *columns, strict=True)), note)
