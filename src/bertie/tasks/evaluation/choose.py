"""The evaluation of multiple choice."""

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
    """Return the evaluation: the loss is −log of the gold ending's probability; classes are the indices of endings."""
    gold = [int(example.label or 0) for example in examples]
    calibration, losses = choice_calibration([np.array(each.probabilities) for each in predictions], gold)
    indices = [str(i) for i in range(max(len(example.endings) for example in examples))]
    gold_names, predicted_names = (list(map(str, side)) for side in (gold, [each.choice for each in predictions]))

    def passage(i: int) -> Passage:
        example, found = examples[i], predictions[i]
        facts = {"gold": f"ending {gold[i]}, {percent(found.probabilities[gold[i]])}"}
        facts["predicted"] = f"ending {found.choice}, {percent(found.probabilities[found.choice])}"
        texts = [shortened([TextSpan(f"{example.context} {example.lead}".strip())])]
        for index, ending in enumerate(example.endings):
            marked = mark(index == gold[i], index == found.choice)
            texts.append([TextSpan(f"{index}. "), TextSpan(ending, marked, percent(found.probabilities[index]))])
        return Passage(facts, texts)

    return Evaluation(
        [{"gold": number, "loss": loss} for number, loss in zip(gold, losses.tolist(), strict=True)],
        losses,
        "−log of the gold ending's probability, in nats",
        (calibration, *class_findings(gold_names, predicted_names, indices, "index of the ending")),
        passage,
    )
