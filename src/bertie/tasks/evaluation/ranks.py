"""The evaluation of predicted numbers whose order counts, beside gold scores, as in Spearman's correlation."""

from __future__ import annotations

import numpy as np

from bertie.base.console import percent
from bertie.examples.texts import Example
from bertie.tasks.evaluation.findings import Evaluation, Scatter
from bertie.tasks.evaluation.passages import Passage, texts_of


def evaluate_ranks(scores: list[float], predicted: list[float], name: str, examples: list[Example]) -> Evaluation:
    """Return the evaluation of pairs with scores.

    Like Spearman's correlation, the loss compares ranks: the distance between the rank of a pair's prediction and the
    rank of its score, as a share of the number of pairs.

    Args:
        scores: The gold scores.
        predicted: The predictions.
        name: What they are.
        examples: The pairs.
    """
    from scipy.stats import rankdata

    by_score, by_prediction = ((rankdata(values) - 0.5) / len(values) for values in (scores, predicted))

    def passage(i: int) -> Passage:
        facts = {"score": f"{scores[i]:g}, above {percent(by_score[i])} of all pairs"}
        facts[name] = f"{predicted[i]:.3f}, above {percent(by_prediction[i])}"
        return Passage(facts, texts_of(examples[i]))

    loss = f"distance between the rank of the {name} and the rank of the score, as a share of all pairs"
    title, points = f"{name.capitalize()} and score", (np.array(scores), np.array(predicted))
    scatter = Scatter("scatter", title, *points, "score", name, diagonal=False)
    return Evaluation({"gold": scores}, np.abs(by_prediction - by_score), loss, (scatter,), passage)
