"""What an evaluation tells of classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bertie.console import percent
from bertie.tasks.assessment.classes import choice_calibration, class_findings
from bertie.tasks.assessment.findings import Assessment
from bertie.tasks.assessment.passages import Passage, texts_of
from bertie.tasks.data.texts import Example

if TYPE_CHECKING:
    from bertie.tasks.classify import Classified


def assess_classes(labels: tuple[str, ...], predictions: list[Classified], examples: list[Example]) -> Assessment:
    gold = [str(example.label) for example in examples]
    number = {label: i for i, label in enumerate(labels)}
    probabilities = [np.array([each.probabilities[label] for label in labels]) for each in predictions]
    calibration, losses = choice_calibration(probabilities, [number[label] for label in gold])

    def passage(i: int) -> Passage:
        found = predictions[i]
        facts = {"gold": f"{gold[i]}, {percent(found.probabilities[gold[i]])}"}
        facts["predicted"] = f"{found.label}, {percent(found.probabilities[found.label])}"
        return Passage(facts, texts_of(examples[i]))

    return Assessment(
        [{"gold": label, "loss": loss} for label, loss in zip(gold, losses.tolist(), strict=True)],
        losses,
        "−log of the gold label's probability, nats",
        (*class_findings(gold, [each.label for each in predictions], labels, "class"), calibration),
        passage,
    )
