"""The relation between two marked spans of a text: entity markers, and the states of their start (Soares et al. 2019).

The spans are marked by tokens that are added to the vocabulary (`markers.py`). The head reads the concatenated states of the two
opening markers, or [CLS], as SpanBERT does on TACRED (Joshi et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from bertie.base import console
from bertie.base.config import NoFlag
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.base.report import TextSpan
from bertie.examples.marked_texts import DIRECTED, RelationExample, SpanEnd, relation_name
from bertie.examples.reader import DataFormat, Reader
from bertie.examples.relations import RelationTexts
from bertie.examples.rows import Row
from bertie.model.config import PooledToken
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead, SpanPairHead
from bertie.model.heads.text_pooling import TaskPooling
from bertie.tasks import classes, text_options
from bertie.tasks.encoding import by_example, pooled_position
from bertie.tasks.evaluation.findings import Evaluation, member_table
from bertie.tasks.evaluation.passages import marked, shortened
from bertie.tasks.example_sums import ExampleSums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.markers import MarkerForm, kept_tokens, marked_text, marker_names
from bertie.tasks.predictions import ClassPrediction
from bertie.tasks.relation_metrics import NEGATIVES, relation_counts, relation_sums, relations_of
from bertie.tasks.task import SEQUENCE, TaskDefaults, class_head, count_labels, require_distinct
from bertie.tokenizers import truncation
from bertie.tokenizers.added_tokens import entry_ids
from bertie.tokenizers.tokenizer import Tokenizer

NONE = "none"
TACRED_OUTPUTS = 42
RelationReads = Literal["automatic", "markers", "cls"]


class _Target(NamedTuple):
    first: int
    """Position of the opening marker of the first span in the sequence."""
    second: int
    """That of the second span."""
    label: int
    """Index of the gold label; −1 if it is unknown."""


@dataclass(frozen=True)
class Relate(TaskDefaults):
    """Predict the relation between two marked spans of a text."""

    prediction = ClassPrediction
    unit = SEQUENCE
    paired = None
    beside_head = (
        "a model of relations needs a task.json with its kind (relate), form (masked), labels in the order of its outputs, "
        'and markers, such as {"E1:PERSON": "[unused1]"}'
    )
    constant_predictions = classes.constant_classes

    kind: Literal["relate"] = "relate"
    form: MarkerForm = "markers"
    """How the spans are marked. markers: [E1] … [/E1] and [E2] … [/E2]. typed: the same with the type of the span, such as
    [E1:PERSON] … [/E1:PERSON]. masked: the type in place of the span, [E1:PERSON]."""
    reads: RelationReads = "automatic"
    """Input of the head. markers: the concatenated states of the two opening markers. cls: the pooled [CLS]. automatic: cls if
    the form is masked, else markers."""
    text: str = ""
    """Column of the text with its tags, or of the tokens; empty: text, sentence, token, tokens or words."""
    label: str = ""
    """Column of the relation; empty: relation or label."""
    spans: tuple[str, ...] = ()
    """Columns of the positions, from 0: start and end of the first span, then of the second one. Empty: e1_start, e1_end,
    e2_start, e2_end; or subj_start … obj_end; or head_start … tail_end; or OpenNRE's h and t; without them, the text has
    <e1>…</e1> and <e2>…</e2>."""
    types: tuple[str, ...] = ()
    """Columns of the types of both spans; empty: e1_type and e2_type, subj_type and obj_type, or head_type and tail_type."""
    end: SpanEnd = "automatic"
    """Meaning of the end of a span: its last token or character, or the one after it. automatic: of characters, the one after; of
    tokens, what the data leave no doubt about, and the last one for TACRED's columns."""
    negative: str = ""
    """The class that says "no relation", which F1 leaves out; empty: no_relation or Other, if it is one of the labels. none:
    there is no such class."""
    no_label: tuple[str, ...] = ()
    """Labels that mean that the label is unknown, such as -1; such examples are left out. Empty: detected, if the other
    labels leave no doubt."""
    join_labels: text_options.JoinLabels = False
    labels: tuple[str, ...] = ()
    """The relations; empty: the labels of the training examples, sorted."""
    markers: NoFlag[dict[str, str]] = field(default_factory=dict)
    """The token of each marker, by its name: E1, /E1, E1:PERSON, … Empty: the name in brackets."""
    data_format: NoFlag[DataFormat] = DataFormat()
    """How the training file is read, for other files that are ambiguous."""

    def __post_init__(self) -> None:
        require_distinct(self.labels)
        if len(set(self.markers.values())) < len(self.markers):
            raise UsageError("task.markers has a token twice: each marker needs a token of its own")
        if wrong := [label for label in self.labels if relation_name(label) != label]:
            raise UsageError(f"task.labels names {shorten(wrong[0])!r}: write {relation_name(wrong[0])!r}")

    @property
    def input_form(self) -> str:
        if self.form == "markers":
            return "a text with <e1>…</e1> and <e2>…</e2>"
        return "an object with a text with <e1>…</e1> and <e2>…</e2>, and the types of both spans, such as e1_type and e2_type"

    @property
    def facts(self) -> HeadFacts:
        """A head that reads [CLS] works in transformers' classes for texts, which are given the marked text."""
        shape = "text" if self._reads_cls else None
        return HeadFacts("relations", "the relation between two marked spans", "text-classification", shape)

    @property
    def _reads_cls(self) -> bool:
        return self.reads == "cls" or (self.reads == "automatic" and self.form == "masked")

    @property
    def text_pooling(self) -> TaskPooling | None:
        return "token" if self._reads_cls else None

    @property
    def metric(self) -> str:
        return "macro_f1" if any(DIRECTED.fullmatch(label) for label in self.labels) else "f1"

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """The tokens of the markers."""
        return tuple(self.markers.values())

    @property
    def reader(self) -> Reader:
        typed = self.form != "markers"
        known = tuple(frozenset(name[3:] for name in self.markers if name.startswith(side)) for side in ("E1:", "E2:"))
        types = known if typed and self.markers else None
        settings = (self.text, self.label, self.spans, self.types, self.end, typed)
        labels = (self.no_label, self.labels, self.negative)
        return Reader(RelationTexts(*settings, types, *labels, self.data_format, self.join_labels))  # pyright: ignore

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        """Return None: no head says which markers its texts had. Raises UserError for one that must have had some."""
        if head.shape == "text" and head.outputs == TACRED_OUTPUTS and not head.names:
            raise UserError(f"its head has {TACRED_OUTPUTS} outputs, as SpanBERT on TACRED: {cls.beside_head}")
        return None

    def as_trained(self, trained: Relate) -> Relate:
        for name, usual in (("form", "markers"), ("reads", "automatic")):
            if getattr(self, name) not in (usual, getattr(trained, name)):
                raise UsageError(f'task.{name}: the model was trained with "{getattr(trained, name)}": use it')
        negative = self.negative or trained.negative
        kept = replace(self, form=trained.form, reads=trained.reads, markers=trained.markers, negative=negative)
        data_format = trained.data_format if trained.end == "automatic" else DataFormat(end=trained.end)
        return replace(kept, data_format=data_format)

    def fit(self, examples: list[RelationExample]) -> Relate:
        """Return the task with the labels and the markers of the training examples, unless settings name them.

        Raises:
            UserError: A label is missing or unknown, all are equal, or a span has no type where the form needs it.
            UsageError: It is unclear which class is the negative one, or there is no such class.
        """
        labels = classes.classes_of(self.labels, examples)
        negative = self._negative_of(labels)
        without = "there is no negative class" if negative == NONE else f"the negative class is {negative}"
        console.info(f"{without}: f1 and macro_f1 count all other relations (--task.negative)")
        names = sorted({name for example in examples for side in marker_names(self.form, example) for name in side})
        markers = self.markers or {name: f"[{name}]" for name in names}
        fitted = replace(self, labels=labels, negative=negative, markers=markers)
        fitted.validate(examples)
        return fitted

    def _negative_of(self, labels: tuple[str, ...]) -> str:
        """Return the negative class, or `NONE`."""
        if self.negative and self.negative not in (*labels, NONE):
            raise UsageError(f"task.negative is {self.negative!r}, but the relations are {join_names(labels)}")
        known = [name for name in NEGATIVES if name in labels]
        if not self.negative and len(known) > 1:
            raise UsageError(f"{' and '.join(known)} could both be the negative class: choose with --task.negative")
        return self.negative or (known[0] if known else NONE)

    @property
    def _scored(self) -> tuple[list[str], str]:
        """The relations that F1 counts, and the negative class; "" if there is none."""
        negative_class = self._negative_of(self.labels)
        negative = negative_class if negative_class in self.labels else ""
        return relations_of(self.labels, negative), negative

    def validate(self, examples: list[RelationExample]) -> None:
        """Check that every example has a label that is one of the task's, and types with markers.

        Raises UserError for the first that has not.
        """
        classes.require_classes(self.labels, examples, "relations")
        if self.markers:
            for example in examples:
                marked_text(self.form, self.markers, example)

    def encode(self, examples: list[RelationExample], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Encode one sequence per example: the marked text, or the part of it around the markers.

        Raises:
            UserError: A text has a marker of its own, or a span has a type without a marker.
            UsageError: `max_length` leaves no room for the markers.
        """
        if not self.markers:
            raise UsageError("the task has no markers yet: fit it on training examples")
        texts = [marked_text(self.form, self.markers, example) for example in examples]
        ids, is_marker = entry_ids(tokenizer, self.added_tokens), np.zeros(tokenizer.size, bool)
        is_marker[[*ids.values()]] = True
        index = {label: number for number, label in enumerate(self.labels)}
        most, sequences = max_length - truncation.special_tokens(tokenizer, 1), []
        for number, (example, text) in enumerate(zip(examples, truncation.tokenize(tokenizer, texts), strict=True)):
            names = marker_names(self.form, example)
            at = np.flatnonzero(is_marker[text.ids])
            if len(at) != len(names[0] + names[1]):
                raise UserError(f"{example.source}: the text has a marker of its own, such as {self.added_tokens[0]!r}")
            if len(at) > most:
                raise UsageError(f"max_length is {max_length}, but the markers alone are {len(at)} tokens: raise it")
            sequence = truncation.add_special_tokens(tokenizer, [text.take(kept_tokens(at, len(text.ids), most))])
            first, second = (int(np.argmax(sequence.input_ids == ids[self.markers[side[0]]])) for side in names)
            target = _Target(first, second, index.get(str(example.label), -1))
            truncated = max(len(text.ids) - most, 0)
            sequences.append(replace(sequence, example=number, target=target, truncated=truncated))
        return sequences

    def head_positions(self, sequence: Sequence, pooled: PooledToken) -> np.ndarray:
        if self._reads_cls:
            return pooled_position(self, sequence, pooled)
        return np.array(sorted(sequence.target[:2]), np.int64)

    def head(self, config: EncoderConfig, width: int) -> PooledHead | SpanPairHead:
        if self._reads_cls:
            return class_head(self, config, width)
        return SpanPairHead(width, count_labels(self), head_dropout(config))

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        """Return one target per sequence. index: for markers, the first and the second span of each sequence."""
        labels = np.array([sequence.target.label for sequence in sequences], np.int64)
        if not self._reads_cls:
            pairs = index.reshape(-1, 2)
            swapped = [sequence.target.first > sequence.target.second for sequence in sequences]
            index = np.where(np.array(swapped)[:, None], pairs[:, ::-1], pairs).ravel()
        return Targets(index, np.maximum(labels, 0), (labels >= 0).astype(np.float32))

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[RelationExample]
    ) -> list[ClassPrediction]:
        logits = [self._logits(*each) for each in zip(outputs, sequences, strict=True)]
        return [classes.most_probable(self, each[0]) for each in by_example(logits, sequences, len(examples))]

    def _logits(self, rows: np.ndarray, sequence: Sequence) -> np.ndarray:
        """Return the logits of a sequence, float32 [C], from the outputs of its head."""
        if self._reads_cls:
            return rows[0]
        first = int(sequence.target.first > sequence.target.second)
        return rows[first, : len(self.labels)] + rows[1 - first, len(self.labels) :]

    def with_labels_of(self, rows: list[Row], examples: list[RelationExample]) -> Relate:
        return replace(self, labels=classes.labels_in(rows, examples))

    def read_prediction(self, values: dict[str, Any], example: RelationExample, place: str) -> ClassPrediction:  # noqa: ARG002
        return classes.read_class(self.labels, values, place, "relations", relation_name)

    def sums(self, predictions: list[ClassPrediction], examples: list[RelationExample]) -> dict[str, ExampleSums]:
        self.validate(examples)
        return relation_sums(*classes.gold_and_predicted(predictions, examples), *self._scored)

    def evaluate(self, predictions: list[ClassPrediction], examples: list[RelationExample]) -> Evaluation:
        self.validate(examples)
        relations, negative = self._scored
        note = "A relation with the wrong direction is wrong. macro_f1 is the mean of this F1, f1 is computed over all together"
        note += f", without {negative}." if negative else "."
        header = ("relation", "precision", "recall", "f1", "support", "found")
        counts = relation_counts(*classes.gold_and_predicted(predictions, examples), relations, negative)
        table = member_table("relations", "By relation", header, relations, counts.sum(0).astype(int), note)
        return classes.evaluate_classes(self.labels, predictions, examples, lambda i: [_marked(examples[i])], table)


def _marked(example: RelationExample) -> list[TextSpan]:
    """Return the text, shortened, with its spans marked."""
    named = (example.first, "e1", example.first_type), (example.second, "e2", example.second_type)
    spans = sorted((*span, f"{name} {kind or ''}".rstrip()) for span, name, kind in named)
    return shortened(marked(example.text, "gold", spans))
