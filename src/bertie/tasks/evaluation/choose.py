"""What an evaluation tells of choices among endings."""

from __future__ import annotations

import numpy as np

from bertie.console import percent
from bertie.report import TextSpan
from bertie.tasks.data.choices import ChoiceExample
from bertie.tasks.evaluation.classes import choice_calibration, class_findings
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.passages import Passage, mark, shortened
from bertie.tasks.predictions import ChoicePrediction


def evaluate_choices(predictions: list[ChoicePrediction], examples: list[ChoiceExample]) -> Evaluation:
    gold = [int(example.label or 0) for example in examples]
    calibration, losses = choice_calibration([np.array(each.probabilities) for each in predictions], gold)
    places = [str(i) for i in range(max(len(example.endings) for example in examples))]
    right, chosen = (list(map(str, side)) for side in (gold, [each.choice for each in predictions]))

    def passage(i: int) -> Passage:
        example, found = examples[i], predictions[i]
        facts = {"gold": f"ending {gold[i]}, {percent(found.probabilities[gold[i]])}"}
        facts["predicted"] = f"ending {found.choice}, {percent(found.probabilities[found.choice])}"
        texts = [shortened([TextSpan(f"{example.context} {example.lead}".strip())])]
        for place, ending in enumerate(example.endings):
            marked = mark(place == gold[i], place == found.choice)
            texts.append([TextSpan(f"{place}. "), TextSpan(ending, marked, percent(found.probabilities[place]))])
        return Passage(facts, texts)

    return Evaluation(
        [{"gold": number, "loss": loss} for number, loss in zip(gold, losses.tolist(), strict=True)],
        losses,
        "−log of the right ending's probability, nats",
        (calibration, *class_findings(right, chosen, places, "place of the ending")),
        passage,
    )
