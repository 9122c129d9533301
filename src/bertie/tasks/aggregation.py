"""From predictions for subwords to tags of words and to entities, by the strategies that transformers' pipeline names.

| strategy | what the head reads | tag of a word | entities |
|---|---|---|---|
| first | the first subword of each word, as in training | that of its first subword | of the tags of words |
| average | all subwords | of the mean of their probabilities | of the tags of words |
| max | all subwords | of the subword with the highest probability | of the tags of words |
| simple | all subwords | that of its first subword | of the tags of subwords |
| none | all subwords | that of its first subword | each subword with a tag, under its tag |

    C  labels
    W  tokens that the head reads in a sequence; in an example: in all its windows
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from bertie.base import config as configuration
from bertie.base.contracts import Sequence
from bertie.examples.tag_form import TagForm
from bertie.examples.tagged import TaggedSentence
from bertie.tasks import word_alignment
from bertie.tasks.encoding import softmax
from bertie.tasks.entities import entities
from bertie.tasks.predictions import Entity, TagPrediction
from bertie.tasks.task import Task
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText

Strategy = Literal["first", "none", "simple", "average", "max"]


def with_aggregation(task: Task, strategy: Strategy | None) -> Task:
    """Return a task with a strategy; the task itself for None.

    Raises:
        UsageError: The task does not predict for subwords, or the strategy is unknown or does not fit its labels.
    """
    if strategy is None:
        return task
    configuration.build(Strategy, strategy, "aggregation_strategy")
    return task.with_aggregation(strategy)


class WordTargets(NamedTuple):
    """The tokens that one sequence predicts tags for. A token in two windows is predicted in one of them."""

    positions: np.ndarray
    """int64 [W]: their positions in the sequence."""
    numbers: np.ndarray
    """int [W]: the indices of their words in the sentence."""
    tags: np.ndarray
    """int64 [W]: indices of the gold tags; −1 where unknown, and for all subwords but the first of a word."""
    places: np.ndarray | None = None
    """int32 [W, 2]: first and last character (exclusive) of each token in the text, if the strategy needs them."""


def read_tokens(
    strategy: Strategy, windows: list[Sequence], pieces: TokenizedText, words: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the tokens that the head reads in each window: their positions, and the indices of their words."""
    assert pieces.offsets is not None
    starts = np.searchsorted(pieces.offsets[:, 0], np.arange(words))
    read, tokens = [], []
    for window in windows:
        assert window.offsets is not None
        order = window.offsets[:, 1]
        positions = np.flatnonzero(order == 1 if strategy == "first" else order)
        numbers = window.offsets[positions, 0]
        read.append((positions, numbers))
        tokens.append((positions, starts[numbers] + order[positions] - 1))
    best = word_alignment.most_context(windows, tokens, len(pieces.ids))
    chosen = [best[numbers] == part for part, (_, numbers) in enumerate(tokens)]
    return [(positions[kept], numbers[kept]) for (positions, numbers), kept in zip(read, chosen, strict=True)]


def with_places(
    strategy: Strategy, tokenizer: Tokenizer, sequences: list[Sequence], examples: list[TaggedSentence]
) -> list[Sequence]:
    """Return the sequences with the characters of their tokens in the targets, if the strategy needs them."""
    if strategy not in ("none", "simple"):
        return sequences
    encoded = word_alignment.piece_places(tokenizer, [example.words for example in examples])
    placed = []
    for sequence in sequences:
        target, example = sequence.target, examples[sequence.example]
        assert sequence.offsets is not None
        _, offsets = example.characters()
        order = sequence.offsets[target.positions, 1].tolist()
        within = encoded[sequence.example]
        places = [
            [offsets[word][0] + place for place in within[word][number - 1]]
            for word, number in zip(target.numbers.tolist(), order, strict=True)
        ]
        placed.append(replace(sequence, target=target._replace(places=np.array(places, np.int32).reshape(-1, 2))))
    return placed


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
    size = len(example.words)
    prediction = TagPrediction(list(example.words), [default] * size, [0.0] * size)
    text, places = example.characters()
    rows = [softmax(logits) for logits, _ in windows]
    targets = [sequence.target for _, sequence in windows]
    numbers = np.concatenate([np.zeros(0, np.int64), *(target.numbers for target in targets)])
    probabilities_WC = np.concatenate([np.zeros((0, len(labels))), *rows])
    order = _order(windows)  # windows overlap
    numbers, probabilities_WC = numbers[order], probabilities_WC[order]
    of_words, words = _of_words(strategy, numbers, probabilities_WC)
    for word, best, row in zip(words.tolist(), of_words.argmax(1).tolist(), of_words, strict=True):
        prediction.tags[word], prediction.probabilities[word] = labels[best], float(row[best])
    if strategy not in ("none", "simple"):
        found = None if form is None else _entities(prediction.tags, prediction.probabilities, places, form, text)
        return replace(prediction, entities=found)
    characters = np.concatenate([np.zeros((0, 2), np.int32), *(target.places for target in targets)])[order]
    tags = [labels[best] for best in probabilities_WC.argmax(1)]
    highest = probabilities_WC.max(1).tolist() if tags else []
    if strategy == "none":
        marked = zip(characters.tolist(), tags, highest, strict=True)
        outside = form.outside if form else "O"
        single = [Entity(text[a:b], a, b, tag, share) for (a, b), tag, share in marked if tag != outside]
        return replace(prediction, entities=single)
    assert form is not None
    spans = [(int(first), int(last)) for first, last in characters]
    return replace(prediction, entities=_entities(tags, highest, spans, form, text))


def _order(windows: list[tuple[np.ndarray, Sequence]]) -> np.ndarray:
    """Return the order of the text of the tokens that several windows read: int64 [W]."""
    keys = [np.zeros((0, 2), np.int32)]
    for _, sequence in windows:
        assert sequence.offsets is not None
        keys.append(sequence.offsets[sequence.target.positions])
    words, pieces = np.concatenate(keys).T
    return np.lexsort((pieces, words))


def _of_words(strategy: Strategy, numbers: np.ndarray, probabilities_WC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities that decide about each word that was read, and the indices of these words."""
    if strategy == "first":
        return probabilities_WC, numbers
    words, starts, counts = np.unique(numbers, return_index=True, return_counts=True)
    if strategy == "average" and len(words):
        return np.add.reduceat(probabilities_WC, starts, axis=0) / counts[:, None], words
    if strategy == "max" and len(words):
        highest = probabilities_WC.max(1)
        best = [a + int(highest[a : a + n].argmax()) for a, n in zip(starts.tolist(), counts.tolist(), strict=True)]
        return probabilities_WC[best], words
    return probabilities_WC[starts], words


def _entities(
    tags: list[str], probabilities: list[float], places: Many[tuple[int, int]], form: TagForm, text: str
) -> list[Entity]:
    result = []
    for kind, first, last in entities(tags, form):
        start, end = places[first][0], places[last - 1][1]
        result.append(Entity(text[start:end], start, end, kind, float(np.mean(probabilities[first:last]))))
    return result
