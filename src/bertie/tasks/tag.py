"""A tag for every word: one added layer on the first piece of each (Devlin et al. 2018, section 5.3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from bertie import console
from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UsageError, UserError, require_range
from bertie.model.config import BertConfig
from bertie.model.heads import TokenHead
from bertie.tasks import word_alignment
from bertie.tasks.data.conll import ConllReader, TagColumns, TaggedSentence
from bertie.tasks.data.prediction_files import answer_of
from bertie.tasks.data.rows import join_names, shorten
from bertie.tasks.encoding import softmax
from bertie.tasks.entities import entity_scores, names_entities
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.tag import evaluate_tags
from bertie.tasks.predictions import TagPrediction
from bertie.tasks.task import Unit
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import Truncation


class _Words(NamedTuple):
    """Of one sequence, the words whose tags are read there: where their first pieces lie, their numbers, their tags."""

    positions: np.ndarray
    numbers: np.ndarray
    tags: np.ndarray


@dataclass(frozen=True)
class Tag:
    kind: Literal["tag"] = "tag"
    word: int = -1
    """Column of the word in a file of columns, from 0; -1: CoNLL-U's in .conllu, else the first."""
    tag: int = -1
    """Column of the tag, from 0, or from the end: -1 is the last. CoNLL-U's has to be named: parts of speech are in 3."""
    tokens: str = ""
    """Key of the words in .jsonl (empty: tokens or words)."""
    tags: str = ""
    """Key of their tags in .jsonl (empty: tags, ner_tags, labels or ner)."""
    labels: tuple[str, ...] = ()
    """The tags; empty: those of the training examples, sorted."""
    truncation: Truncation = "windows"
    """What is read of sentences that are too long: windows of all of it; head, tail and head_tail leave words without a tag."""
    doc_stride: int = 0
    """Tokens from the start of a window to that of the next; 0: half a window."""

    def __post_init__(self) -> None:
        require_range("task", self, "doc_stride", low=0)
        require_range("task", self, "word", low=-1)
        if len(set(self.labels)) < len(self.labels):
            raise UsageError(f"task.labels names a tag twice: {join_names(self.labels)}")

    @property
    def unit(self) -> Unit:
        return "sequence"

    @property
    def metric(self) -> str:
        return "f1" if names_entities(self.labels) else "accuracy"

    @property
    def reader(self) -> ConllReader:
        return ConllReader(TagColumns(self.word, self.tag, self.tokens, self.tags))

    def fit(self, examples: list[TaggedSentence]) -> Tag:
        """The task with the tags of the training examples. Errors: UserError for missing tags or a single one."""
        self._require_tags(examples)
        if len(self.labels) == 1:
            raise UsageError(f"task.labels names one tag, {shorten(self.labels[0])!r}: name all, or leave it out")
        labels = self.labels or tuple(sorted({tag for example in examples for tag in example.tags or ()}))
        if len(labels) < 2:
            raise UserError(
                f"every word has the tag {shorten(min(labels))!r} ({examples[0].source} …): nothing to learn"
            )
        for example in examples:
            if other := [tag for tag in example.tags or () if tag not in labels]:
                known = join_names(labels)
                raise UserError(f"{example.source}: the tag {shorten(other[0])!r} is none of task.labels: {known}")
        return replace(self, labels=labels)

    def validate(self, examples: list[TaggedSentence]) -> None:
        """Errors: UserError naming the first sentence without tags, or where no tag is one of the task's. Some others count
        as wrong, which is said."""
        self._require_tags(examples)
        strange = [
            (each, tag) for each in examples for tag in each.tags or () if self.labels and tag not in self.labels
        ]
        if not strange:
            return
        first, named = strange[0], join_names(sorted({tag for _, tag in strange}))
        if all(tag not in self.labels for each in examples for tag in each.tags or ()):
            raise UserError(
                f"{first[0].source}: {named}: none of these tags is known; there are {join_names(self.labels)}"
            )
        told = f"tags that training has not: {named} (first in {first[0].source})"
        console.warn(f"{console.plural(len(strange), 'word')} can only be wrong, with {told}")

    def _require_tags(self, examples: list[TaggedSentence]) -> None:
        for example in examples:
            if example.tags is None:
                remedy = "name their column with --task.tag, in .jsonl their key with --task.tags"
                raise UserError(f"{example.source}: words without tags; {remedy}")

    def encode(self, examples: list[TaggedSentence], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """offsets: of each token its word, and which piece of that it is; a word is read where most of its context is."""
        label_number = {label: i for i, label in enumerate(self.labels)}
        found = word_alignment.tokenize_words(tokenizer, [example.words for example in examples])
        sequences = []
        for i, (example, pieces) in enumerate(zip(examples, found, strict=True)):
            tags = np.array([label_number.get(tag, -1) for tag in example.tags or [""] * len(example.words)], np.int64)
            windows = truncation.to_sequences(tokenizer, [pieces], max_length, self.truncation, self.doc_stride)
            best = word_alignment.best_windows(windows, len(example.words))
            for part, window in enumerate(windows):
                positions, numbers = word_alignment.first_pieces(window)
                here = best[numbers] == part
                target = _Words(positions[here], numbers[here], tags[numbers[here]])
                sequences.append(replace(window, example=i, target=target, weight=1.0))
        return sequences

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        return [sequence for sequence in sequences if (sequence.target.tags >= 0).any()]

    def head_positions(self, sequence: Sequence) -> np.ndarray:
        return sequence.target.positions

    def head(self, config: BertConfig, width: int) -> TokenHead:
        if not self.labels:
            raise UsageError("the task has no tags yet: fit it on training examples, or give task.labels")
        return TokenHead(width, len(self.labels), config.hidden_dropout_prob)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        tags = np.concatenate([sequence.target.tags for sequence in sequences])
        return Targets(index, np.maximum(tags, 0), (tags >= 0).astype(np.float32))

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[TaggedSentence]
    ) -> list[TagPrediction]:
        """A word that found no room has the tag O, where there is one, or the first, and probability 0."""
        none = "O" if "O" in self.labels else self.labels[0]
        found = [
            TagPrediction(list(each.words), [none] * len(each.words), [0.0] * len(each.words)) for each in examples
        ]
        for logits_WC, sequence in zip(outputs, sequences, strict=True):
            tags = found[sequence.example]
            probabilities_WC = softmax(logits_WC)
            for word, best, row in zip(sequence.target.numbers, logits_WC.argmax(1), probabilities_WC, strict=True):
                tags.tags[word], tags.probabilities[word] = self.labels[best], float(row[best])
        return found

    def read_prediction(self, values: dict[str, Any], example: TaggedSentence, place: str) -> TagPrediction:
        """The words are compared too, where they are given."""
        said, words = answer_of(values, "tags", place), values.get("tokens", example.words)
        if not isinstance(said, list | tuple) or not all(isinstance(tag, str) for tag in said):
            raise UserError(f"{place}: the tags must be a list of strings, found {str(said)[:40]!r}")
        if not isinstance(words, list | tuple):
            raise UserError(f"{place}: the tokens must be a list of words, found {str(words)[:40]!r}")
        if len(said) != len(example.words):
            raise UserError(f"{place}: {len(said)} tags for the {len(example.words)} words of {example.source}")
        if other := [(a, b) for a, b in zip(words, example.words, strict=False) if a != b]:
            raise UserError(f"{place}: the word {other[0][0]!r}, where {example.source} has {other[0][1]!r}")
        return TagPrediction(list(example.words), list(said), [])

    def score(self, predictions: list[TagPrediction], examples: list[TaggedSentence]) -> dict[str, float]:
        """accuracy of words, and, where the tags name entities (B-…, I-…), precision, recall and f1 of whole entities."""
        self._require_tags(examples)
        gold, found = [list(example.tags or ()) for example in examples], [each.tags for each in predictions]
        right = [a == b for one, other in zip(gold, found, strict=True) for a, b in zip(one, other, strict=True)]
        scores = {"accuracy": float(np.mean(right))}
        return scores | entity_scores(gold, found) if names_entities(self.labels) else scores

    def constant_predictions(self, examples: list[TaggedSentence]) -> list[list[TagPrediction]]:
        [(tag, _)] = Counter(tag for example in examples for tag in example.tags or ()).most_common(1)
        return [[TagPrediction(list(e.words), [tag] * len(e.words), [1.0] * len(e.words)) for e in examples]]

    def evaluate(self, predictions: list[TagPrediction], examples: list[TaggedSentence]) -> Evaluation:
        self._require_tags(examples)
        return evaluate_tags(self.labels, predictions, examples)
