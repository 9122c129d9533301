"""What an evaluation tells of tagged words, and of the entities that they make."""

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
    gold = [list(example.tags or ()) for example in examples]
    found = [each.tags for each in predictions]
    there, said = ([tag for tags in side for tag in tags] for side in (gold, found))
    right = np.array([one == other for one, other in zip(there, said, strict=True)])
    sure = np.array([probability for each in predictions for probability in each.probabilities])
    # The probability of a gold tag that was not chosen is not known, but it is no more than what the chosen one leaves.
    read = sure > 0  # others found no room
    words = log_losses(np.where(right, sure, 1 - sure)) * read
    ends = np.cumsum([len(tags) for tags in gold])
    losses = np.array([part.sum() for part in np.split(words, ends[:-1])])
    known = [*labels, *sorted(set(there) - set(labels))]
    findings: list[Finding] = [_entities(gold, found)] if names_entities(known) else []
    findings += [*class_findings(there, said, known, "tag"), calibration(sure[read], right[read], {}, "words")]

    def passage(i: int) -> Passage:
        wrong = sum(one != other for one, other in zip(gold[i], found[i], strict=True))
        facts = {"wrong": f"{wrong} of {len(gold[i])} words"}
        return Passage(facts, [_marked(examples[i], predictions[i])])

    lines = [{"gold": tags, "loss": loss} for tags, loss in zip(gold, losses.tolist(), strict=True)]
    loss = "the least −log of the gold tags' probabilities that those of the chosen ones leave, summed over the words, nats"
    return Evaluation(lines, losses, loss, tuple(findings), passage)


def _entities(gold: list[list[str]], found: list[list[str]]) -> Table:
    counts = entity_counts(gold, found)
    rows = [(kind, *precision_recall_f1(*each), each[1], each[2]) for kind, each in sorted(counts.items())]
    note = "Whole entities: right are those with the same words and kind, as the CoNLL-2003 shared task counted them."
    return Table("entities", "By kind of entity", ("entity", *MEASURES, "found"), rows, note)


def _marked(example: TaggedSentence, prediction: TagPrediction) -> list[TextSpan]:
    """Words of wrong tags with what they are and what they were taken for; the others together."""
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
