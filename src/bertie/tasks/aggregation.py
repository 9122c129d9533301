"""From predictions for subwords to tags of words and to entities, by the strategies that transformers' pipeline names.

| strategy | what the head reads | tag of a word | entities |
|---|---|---|---|
| words | the first subword of each word, as in training | that of its first subword | of the tags of words |
| first | all subwords, if the pipeline has other words | that of its first subword | of the pipeline's words |
| average | all subwords | of the mean of their probabilities | of the pipeline's words |
| max | all subwords | of the subword with the highest probability | of the pipeline's words |
| simple | all subwords | that of its first subword | of the tags of subwords |
| none | all subwords | that of its first subword | each subword with a tag, under its tag |

The pipeline's words are those of the tokenizer if it marks subwords (##), and what stands between blanks if it does not.

    C  labels
    W  tokens that the head reads in a sequence; in an example: in all its windows
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Any

import numpy as np

from bertie.base import config as configuration
from bertie.base.contracts import Sequence
from bertie.examples.tag_form import TagForm
from bertie.examples.tagged import TaggedSentence
from bertie.tasks.encoding import softmax
from bertie.tasks.entities import entities
from bertie.tasks.predictions import Entity, TagPrediction
from bertie.tasks.tag_tokens import Strategy, WordTokens, continued
from bertie.tasks.task import Task


def with_aggregation(task: Task, strategy: Strategy | None) -> Task:
    """Return a task with a strategy; the task itself for None.

    Raises:
        UsageError: The task does not predict for subwords, or the strategy is unknown or does not fit its labels.
    """
    if strategy is None:
        return task
    configuration.build(Strategy, strategy, "aggregation_strategy")
    return task.with_aggregation(strategy)


def aggregate(
    strategy: Strategy,
    form: TagForm | None,
    labels: tuple[str, ...],
    default: str,
    windows: list[tuple[np.ndarray, Sequence]],
    example: TaggedSentence,
) -> TagPrediction:
    """Return the prediction of an example.

    Args:
        strategy: How predictions for subwords become tags and entities.
        form: How tags mark entities; None: they mark none.
        labels: The tags, in the order of the outputs.
        default: The tag of words that no window holds; their probability is 0.
        windows: The outputs of each window, float32 [W, C], and its sequence, with `WordTargets`.
        example: The example.
    """
    text, places = example.characters()
    words, tags, shares = list(example.words), [default] * len(example.words), [0.0] * len(example.words)
    if not any(len(logits) for logits, _ in windows):
        return TagPrediction(words, tags, shares, None if form is None and strategy != "none" else [])
    targets = [sequence.target for _, sequence in windows]
    order = np.argsort(np.concatenate([target.numbers for target in targets]))  # windows overlap
    p_WC = np.concatenate([softmax(logits) for logits, _ in windows])[order]
    columns: Any = (
        np.concatenate(column)[order] for column in zip(*(target.tokens[:5] for target in targets), strict=True)
    )
    tokens = WordTokens(*columns, covered=targets[0].tokens.covered)
    every = np.ones(len(order), bool) if strategy in ("average", "max") else tokens.first
    for word, _, _, best, share in _units(strategy, tokens.words[every], p_WC[every]):
        tags[word], shares[word] = labels[best], share
    for word in tokens.covered:
        tags[word], shares[word] = continued(form, tags[word - 1], labels), shares[word - 1]
    groups = np.arange(len(order)) if strategy in ("none", "simple") else tokens.groups
    if strategy == "words" or np.array_equal(groups, tokens.words):
        spans = [(*place, tag, share) for place, tag, share in zip(places, tags, shares, strict=True)]
    else:
        ends, units = tokens.places.tolist(), _units(strategy, groups, p_WC)
        spans = [(ends[a][0], ends[b][1], labels[best], share) for _, a, b, best, share in units]
    if strategy == "none":
        outside = form.outside if form else "O"
        found = [Entity(text[a:b], a, b, tag, share) for a, b, tag, share in spans if tag != outside]
    else:
        found = None if form is None else _entities(spans, form, text)
    return TagPrediction(words, tags, shares, found)


def _units(strategy: Strategy, numbers: np.ndarray, p_WC: np.ndarray) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield each word: its number, its first and its last token, its label and the probability of that.

    numbers: int [W], the word of each token, ascending.
    """
    if not len(numbers):
        return
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    lasts = np.append(starts[1:], len(numbers)) - 1
    rows = p_WC[starts]
    if strategy == "average":
        rows = np.add.reduceat(p_WC, starts, axis=0) / (lasts - starts + 1)[:, None]
    elif strategy == "max":
        highest = p_WC.max(1)
        rows = p_WC[[a + int(highest[a : b + 1].argmax()) for a, b in zip(starts, lasts, strict=True)]]
    columns = (numbers[starts], starts, lasts, rows.argmax(1), rows.max(1))
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _entities(spans: Many[tuple[int, int, str, float]], form: TagForm, text: str) -> list[Entity]:
    """Return the entities of words or tokens: their first and last character (exclusive), tags and probabilities."""
    result = []
    for kind, first, last in entities([tag for _, _, tag, _ in spans], form):
        start, end = spans[first][0], spans[last - 1][1]
        share = float(np.mean([share for *_, share in spans[first:last]]))
        result.append(Entity(text[start:end], start, end, kind, share))
    return result
