"""A tag for every word: one added layer on the first piece of each (Devlin et al. 2018, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UsageError, UserError
from bertie.model.config import BertConfig
from bertie.model.heads import TokenHead
from bertie.tasks.assessment.findings import Assessment
from bertie.tasks.assessment.tag import assess_tags
from bertie.tasks.contract import Unit
from bertie.tasks.data.columns import Sentence, Sentences, TagColumns
from bertie.tasks.encoding import softmax
from bertie.tasks.entities import entity_scores, names_entities
from bertie.text import framing
from bertie.text.framing import Long, Pieces
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tags:
    """tags: one a word; probabilities: of each."""

    tags: list[str]
    probabilities: list[float]


class _Words(NamedTuple):
    """Of one sequence, the words whose tags are read there: where their first pieces lie, their numbers, their tags."""

    positions: np.ndarray
    numbers: np.ndarray
    tags: np.ndarray


@dataclass(frozen=True)
class Tag:
    kind: Literal["tag"] = "tag"
    word: int = 0
    """Column of the word in a file of columns, from 0 (CoNLL-U's words are in 1)."""
    tag: int = -1
    """Column of the tag, from 0, or from the end: -1 is the last (CoNLL-U's parts of speech are in 3)."""
    labels: tuple[str, ...] = ()
    """The tags; empty: those of the training examples, sorted."""
    long: Long = "windows"
    """What is read of sentences that are too long: windows of all of it; head, tail and head_tail leave words without a tag."""
    step: int = 0
    """Tokens from the start of a window to that of the next; 0: half a window."""

    @property
    def unit(self) -> Unit:
        return "sequence"

    @property
    def reader(self) -> Sentences:
        return Sentences(TagColumns(self.word, self.tag))

    def fit(self, examples: list[Sentence]) -> Tag:
        """The task with the tags of the training examples. Errors: UserError for missing tags or a single one."""
        self.check(examples)
        labels = self.labels or tuple(sorted({tag for example in examples for tag in example.tags or ()}))
        if len(labels) < 2:
            raise UserError(f"every word has the tag {min(labels)!r} ({examples[0].source} …): nothing to learn")
        return replace(self, labels=labels)

    def check(self, examples: list[Sentence]) -> None:
        """Errors: UserError naming the first sentence without tags."""
        for example in examples:
            if example.tags is None:
                raise UserError(f"{example.source}: words without tags; name their column with --task.tag")

    def encode(self, examples: list[Sentence], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """offsets: of each token its word, and which piece of that it is; a word is read where most of its context is."""
        number = {label: i for i, label in enumerate(self.labels)}
        sequences = []
        for i, (example, pieces) in enumerate(zip(examples, _pieces(tokenizer, examples), strict=True)):
            tags = np.array([number.get(tag, -1) for tag in example.tags or [""] * len(example.words)], np.int64)
            windows = framing.fit(tokenizer, [pieces], max_length, self.long, self.step)
            best = _best_windows(windows, len(example.words))
            for part, window in enumerate(windows):
                positions, words = _first_pieces(window)
                here = best[words] == part
                target = _Words(positions[here], words[here], tags[words[here]])
                sequences.append(replace(window, example=i, target=target, share=1.0))
        return sequences

    def training(self, sequences: list[Sequence]) -> list[Sequence]:
        return [sequence for sequence in sequences if (sequence.target.tags >= 0).any()]

    def reads(self, sequence: Sequence) -> np.ndarray:
        return sequence.target.positions

    def head(self, config: BertConfig) -> TokenHead:
        if not self.labels:
            raise UsageError("the task has no tags yet: fit it on training examples, or give task.labels")
        return TokenHead(config, len(self.labels), config.hidden_dropout_prob)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        tags = np.concatenate([sequence.target.tags for sequence in sequences])
        return Targets(index, np.maximum(tags, 0), (tags >= 0).astype(np.float32))

    def decode(self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Sentence]) -> list[Tags]:
        """A word that found no room has the tag O, where there is one, or the first, and probability 0."""
        none = "O" if "O" in self.labels else self.labels[0]
        found = [Tags([none] * len(example.words), [0.0] * len(example.words)) for example in examples]
        for logits_WC, sequence in zip(outputs, sequences, strict=True):
            tags = found[sequence.example]
            probabilities_WC = softmax(logits_WC)
            for word, best, row in zip(sequence.target.numbers, logits_WC.argmax(1), probabilities_WC, strict=True):
                tags.tags[word], tags.probabilities[word] = self.labels[best], float(row[best])
        return found

    def score(self, predictions: list[Tags], examples: list[Sentence]) -> dict[str, float]:
        """accuracy of words, and, where the tags name entities (B-…, I-…), precision, recall and f1 of whole entities."""
        self.check(examples)
        gold, found = [list(example.tags or ()) for example in examples], [each.tags for each in predictions]
        right = [a == b for one, other in zip(gold, found, strict=True) for a, b in zip(one, other, strict=True)]
        scores = {"accuracy": float(np.mean(right))}
        return scores | entity_scores(gold, found) if names_entities(self.labels) else scores

    def assess(self, predictions: list[Tags], examples: list[Sentence]) -> Assessment:
        self.check(examples)
        return assess_tags(self.labels, predictions, examples)


def _pieces(tokenizer: Tokenizer, examples: list[Sentence]) -> list[Pieces]:
    """Each word's pieces; a word that is nothing to the tokenizer (a control character) is [UNK]."""
    found = []
    for example, encoding in zip(examples, tokenizer.encode_words([e.words for e in examples]), strict=True):
        words = np.array(encoding.word_ids, np.int32)
        ids = np.array(encoding.ids, np.int32)
        if missing := sorted(set(range(len(example.words))) - set(words.tolist())):
            at = np.searchsorted(words, missing)
            words = np.insert(words, at, missing)
            ids = np.insert(ids, at, tokenizer.unk_id)
        starts = np.searchsorted(words, words)
        found.append(Pieces(ids, np.stack([words, np.arange(len(words)) - starts], 1).astype(np.int32)))
    return found


def _first_pieces(window: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the first pieces of words, and which words those are."""
    assert window.offsets is not None
    inside = window.offsets[1:-1]  # between [CLS] and [SEP]
    positions = np.flatnonzero(inside[:, 1] == 0)
    return positions + 1, inside[positions, 0]


def _best_windows(windows: list[Sequence], words: int) -> np.ndarray:
    """For each word the window in which its first piece is farthest from both ends; the first one of equals. -1: in none."""
    best, farthest = np.full(words, -1), np.full(words, -1)
    for part, window in enumerate(windows):
        positions, numbers = _first_pieces(window)
        away = np.minimum(positions, len(window) - 1 - positions)
        better = away > farthest[numbers]
        best[numbers[better]], farthest[numbers[better]] = part, away[better]
    return best
