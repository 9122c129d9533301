"""The evaluation of tagging: of words, and of the entities that tags mark."""

from __future__ import annotations

import numpy as np

from bertie.console import percent
from bertie.report import TextSpan
from bertie.tasks.data.conll import TaggedSentence
from bertie.tasks.entities import entity_counts, names_entities, precision_recall_f1
from bertie.tasks.evaluation.calibration import calibration, log_losses
from bertie.tasks.evaluation.classes import MEASURES, class_findings
from bertie.tasks.evaluation.findings import Evaluation, Finding, Table
from bertie.tasks.evaluation.passages import Passage, shortened
from bertie.tasks.predictions import TagPrediction


def evaluate_tags(
    labels: tuple[str, ...], predictions: list[TagPrediction], examples: list[TaggedSentence]
) -> Evaluation:
    """Return the evaluation.

    The loss of a sentence is a lower bound of Σ −log p(gold tag) over its words. Predictions have only the probability
    p of the predicted tag; another gold tag has at most 1 − p.
    """
    gold = [list(example.tags or ()) for example in examples]
    predicted = [each.tags for each in predictions]
    all_gold, all_predicted = ([tag for tags in side for tag in tags] for side in (gold, predicted))
    correct = np.array([one == other for one, other in zip(all_gold, all_predicted, strict=True)])
    confidence = np.array([probability for each in predictions for probability in each.probabilities])
    read = confidence > 0  # truncated words have probability 0
    words = log_losses(np.where(correct, confidence, 1 - confidence)) * read
    ends = np.cumsum([len(tags) for tags in gold])
    losses = np.array([part.sum() for part in np.split(words, ends[:-1])])
    known = [*labels, *sorted(set(all_gold) - set(labels))]
    findings: list[Finding] = [_entities(gold, predicted)] if names_entities(known) else []
    findings += class_findings(all_gold, all_predicted, known, "tag")
    findings.append(calibration(confidence[read], correct[read], {}, "words"))

    def passage(i: int) -> Passage:
        wrong = sum(one != other for one, other in zip(gold[i], predicted[i], strict=True))
        facts = {"wrong": f"{wrong} of {len(gold[i])} words"}
        return Passage(facts, [_marked(examples[i], predictions[i])])

    lines = [{"gold": tags, "loss": loss} for tags, loss in zip(gold, losses.tolist(), strict=True)]
    loss = "a lower bound of −log of the gold tags' probabilities, summed over the words, in nats"
    return Evaluation(lines, losses, loss, tuple(findings), passage)


def _entities(gold: list[list[str]], predicted: list[list[str]]) -> Table:
    counts = entity_counts(gold, predicted)
    rows = [(kind, *precision_recall_f1(*each), each[1], each[2]) for kind, each in sorted(counts.items())]
    note = "Scores of whole entities: correct if the words and the kind match, as in the CoNLL-2003 shared task."
    return Table("entities", "By kind of entity", ("entity", *MEASURES, "found"), rows, note)


def _marked(example: TaggedSentence, prediction: TagPrediction) -> list[TextSpan]:
    """Return the sentence, shortened, with each wrong word marked and followed by its gold and its predicted tag."""
    parts = [TextSpan("")]
    for word, gold, tag, p in zip(
        example.words, example.tags or (), prediction.tags, prediction.probabilities, strict=True
    ):
        if gold != tag:
            parts.append(TextSpan(word, "wrong", f"{gold} → {tag}, {percent(p)}"))
            parts.append(TextSpan(" "))
        else:
            parts[-1] = TextSpan(f"{parts[-1].text}{word} ")
    return shortened(parts)
