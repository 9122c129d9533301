"""What an evaluation tells of choices among endings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bertie.console import percent
from bertie.report import Part
from bertie.tasks.assessment.classes import choice_calibration, class_findings
from bertie.tasks.assessment.findings import Assessment
from bertie.tasks.assessment.passages import Passage, mark, shortened
from bertie.tasks.data.choices import Choice

if TYPE_CHECKING:
    from bertie.tasks.choose import Chosen


def assess_choices(predictions: list[Chosen], examples: list[Choice]) -> Assessment:
    gold = [int(example.label or 0) for example in examples]
    calibration, losses = choice_calibration([np.array(each.probabilities) for each in predictions], gold)
    places = [str(i) for i in range(max(len(example.endings) for example in examples))]
    right, chosen = (list(map(str, side)) for side in (gold, [each.choice for each in predictions]))

    def passage(i: int) -> Passage:
        example, found = examples[i], predictions[i]
        facts = {"gold": f"ending {gold[i]}, {percent(found.probabilities[gold[i]])}"}
        facts["predicted"] = f"ending {found.choice}, {percent(found.probabilities[found.choice])}"
        texts = [shortened([Part(f"{example.context} {example.lead}".strip())])]
        for place, ending in enumerate(example.endings):
            marked = mark(place == gold[i], place == found.choice)
            texts.append([Part(f"{place}. "), Part(ending, marked, percent(found.probabilities[place]))])
        return Passage(facts, texts)

    return Assessment(
        [{"gold": number, "loss": loss} for number, loss in zip(gold, losses.tolist(), strict=True)],
        losses,
        "−log of the right ending's probability, nats",
        (calibration, *class_findings(right, chosen, places, "place of the ending")),
        passage,
    )
