"""The evaluation of classification."""

from __future__ import annotations

import numpy as np

from bertie.console import percent
from bertie.tasks.data.texts import Example
from bertie.tasks.evaluation.classes import choice_calibration, class_findings
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.predictions import ClassPrediction


def evaluate_classes(
    labels: tuple[str, ...], predictions: list[ClassPrediction], examples: list[Example]
) -> Evaluation:
    """Return the evaluation: the loss is −log of the gold label's probability."""
    gold = [str(example.label) for example in examples]
    number = {label: i for i, label in enumerate(labels)}
    probabilities = [np.array([each.probabilities[label] for label in labels]) for each in predictions]
    calibration, losses = choice_calibration(probabilities, [number[label] for label in gold])

    def passage(i: int) -> Passage:
        found = predictions[i]
        facts = {"gold": f"{gold[i]}, {percent(found.probabilities[gold[i]])}"}
        facts["predicted"] = f"{found.label}, {percent(found.probabilities[found.label])}"
        return Passage(facts, texts_of(examples[i]))

    return Evaluation(
        [{"gold": label, "loss": loss} for label, loss in zip(gold, losses.tolist(), strict=True)],
        losses,
        "−log of the gold label's probability, in nats",
        (*class_findings(gold, [each.label for each in predictions], labels, "class"), calibration),
        passage,
    )
