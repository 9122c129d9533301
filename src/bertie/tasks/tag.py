"""Token classification: a tag for every word, from a linear layer on its first subword (Devlin et al.

2018, section 5.3). Tags that mark entities (`examples/tag_form.py`) also give entities with their characters (`aggregation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import numpy as np

from bertie.base import console
from bertie.base.config import NoFlag, Range, check_ranges
from bertie.base.console import percent
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.base.report import TextSpan
from bertie.examples.conll import ConllFile, Keep
from bertie.examples.labels import LabelRules
from bertie.examples.marked_texts import SpanEnd
from bertie.examples.reader import DataFormat, Reader
from bertie.examples.rows import Row, parse_finite
from bertie.examples.sentences import TaggedSentences
from bertie.examples.tag_form import Scheme, TagForm
from bertie.examples.tagged import TaggedSentence
from bertie.examples.words import Units
from bertie.model.config import PooledToken
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import TokenHead
from bertie.tasks import aggregation, tag_tokens, text_options
from bertie.tasks.class_weights import ClassWeights, fit_weights, weigh
from bertie.tasks.encoding import by_example
from bertie.tasks.entities import entities, entity_counts
from bertie.tasks.evaluation.calibration import calibration, log_losses
from bertie.tasks.evaluation.findings import MEASURES, Evaluation, Finding, Table, class_findings, member_table
from bertie.tasks.evaluation.passages import Passage, marked, shortened
from bertie.tasks.example_sums import ExampleSums, tag_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.prediction_files import answer_of, read_predictions
from bertie.tasks.predictions import TagPrediction
from bertie.tasks.tag_schemes import TagCounts, find_form, form_of, require_complete
from bertie.tasks.tag_tokens import Strategy, WordTargets, WordTokens, continued
from bertie.tasks.task import SEQUENCE, TaskDefaults, count_labels, require_distinct
from bertie.tokenizers.characters import by_characters
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import Truncation


@dataclass(frozen=True)
class Tag(TaskDefaults):
    """Predict a tag for every word of a sentence."""

    facts = HeadFacts("tagging", "a tag for every word", "token-classification", "tokens")
    prediction = TagPrediction
    unit = SEQUENCE
    text_pooling = None
    paired = None
    untrainable = "the model reads none of the words"
    input_form = "a text, or a list of words"

    kind: Literal["tag"] = "tag"
    word: Annotated[int, Range(-1)] = -1
    """Column of the word in a CoNLL file, from 0; -1: the second (FORM) in .conllu, else the first."""
    tag: int = -1
    """Column of the tag in a CoNLL file, from 0; negative: from the end. Required for .conllu, where 3 is UPOS."""
    comments: Keep = ""
    """Lines that begin with "#" before a sentence of a CoNLL file: skip them as comments, or keep them as words. Empty:
    detected; if in doubt, bertie stops and asks."""
    tokens: str = ""
    """Key of the words in .jsonl, or of the text of annotated spans; empty: tokens, words or text."""
    tags: str = ""
    """Key of the tags in .jsonl; empty: tags, ner_tags, labels or ner. Or of spans; empty: entities, spans, label or labels."""
    labels: tuple[str, ...] = ()
    """The tags; empty: the tags of the training examples, sorted. If the data have numbers instead, name the tags in
    the order of their numbers."""
    scheme: Scheme = ""
    """How tags mark entities: iob1, bio, io, iobes, bilou, bmes, biewo, bmewo, or none, for tags of single words;
    empty: detected from all tags of the training examples."""
    class_weights: ClassWeights = "none"
    """Weights of the tags in the loss. balanced: n / (number of tags · n_c) for a tag of n_c of n words. A table: one weight
    for each tag."""
    units: Units = "words"
    """What has a tag. words: each word. characters: each character, with its combining marks, for scripts without blanks and
    spans that end within words. The tokenizer of the run reads every character by itself."""
    end: SpanEnd = "automatic"
    """What the end of an annotated span names: its last character, or the one after it. automatic: the one after it, unless
    spans of a single character show otherwise."""
    truncation: Truncation = "windows"
    """Part to read of a sentence that is too long. windows: all of it, in overlapping windows. head, tail, head_tail:
    only the beginning, the end, or both; other words get no prediction."""
    doc_stride: text_options.WindowStride = 0
    sorted_labels: NoFlag[bool] = False
    """Whether the labels are the tags of the training examples, sorted. Numbers in other data are then no indices of them."""
    data_format: NoFlag[DataFormat] = DataFormat()
    """How the training file is read, for other files that are ambiguous."""
    aggregation_strategy: NoFlag[Strategy] = "words"
    """How predictions for subwords become entities: see `aggregation`."""
    in_place: NoFlag[bool] = False
    """Whether raw texts are read as they stand: see `tag_tokens`. Without it, their words are read as a list of words, as
    those of the training examples were."""

    def __post_init__(self) -> None:
        check_ranges("task", self)
        require_distinct(self.labels)

    @property
    def metric(self) -> str:
        return "f1" if self.form else "accuracy"

    @property
    def form(self) -> TagForm | None:
        """How its tags mark entities; None if they do not."""
        return form_of(self.labels, self.scheme)

    @property
    def reader(self) -> Reader:
        names = () if self.sorted_labels else self.labels
        scheme = "bio" if self.scheme in ("", "none") else self.scheme
        form = self.form or TagForm(scheme)
        columns = (self.word, self.tag, self.tokens, self.tags)
        more = {"data_format": self.data_format, "units": self.units, "end": self.end}
        return Reader(TaggedSentences(*columns, names, form, self.comments, self.labels, **more))

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        return cls(labels=head.labels, in_place=True) if head.shape == "tokens" else None

    def as_trained(self, trained: Tag) -> Tag:
        """Return the task with the scheme of the trained one, unless it names one, and how that read labels and comments."""
        scheme = self.scheme or trained.scheme
        how = {name: getattr(trained, name) for name in ("in_place", "aggregation_strategy", "units")}
        return replace(self, scheme=scheme, sorted_labels=trained.sorted_labels, data_format=trained.data_format, **how)

    def fit(self, examples: list[TaggedSentence]) -> Tag:
        """Return the task with the tags of the training examples, unless `labels` names them, and with their scheme.

        Raises:
            UserError: Tags are missing, all are equal, or one is not in `labels`, or does not fit the scheme of the others.
            UsageError: `labels` names a single tag, the tags contradict `scheme` or fit a scheme only in part, or
                `class_weights` lack a tag.
        """
        return self.fit_counts(self.counts(examples))

    def counts(self, examples: Iterable[TaggedSentence] = ()) -> TagCounts:
        """Count the tags of examples."""
        return TagCounts(examples)

    def fit_counts(self, counts: TagCounts, where: str = "") -> Tag:  # noqa: ARG002
        """Return the task as `fit`, which raises the same errors, from the counts of the examples."""
        if counts.untagged:
            raise _without_tags(counts.untagged)
        if len(self.labels) == 1:
            only = shorten(self.labels[0])
            raise UsageError(f"task.labels names one tag, {only!r}: name all tags, or omit it to detect them")
        tags = counts.tags
        labels = self.labels or tuple(sorted(tags))
        if len(labels) < 2:
            only = min(labels)
            raise UserError(f"every word has the tag {shorten(only)!r} ({counts.place(only)} …): nothing to learn")
        if not self.labels and all(parse_finite(label) is not None for label in labels):
            remedy = "name them in the order of their numbers with --task.labels, or name the numbers to keep them"
            raise UsageError(f"the tags are numbers ({join_names(labels)}): {remedy}")
        for tag, other in LabelRules(labels).alike(tags).items():
            raise UserError(f"the tags {other!a} and {tag!a} look the same: write them in the same way")
        known = set(labels)
        if unknown := [tag for tag in tags if tag not in known]:
            problem = f"{counts.place(unknown[0])}: the tag {shorten(unknown[0])!r} is not in task.labels"
            raise UserError(f"{problem}: {join_names(labels)}")
        weights = fit_weights(self.class_weights, labels, [tags[label] for label in labels])
        form = find_form(counts, self.scheme, self.labels)
        scheme: Scheme = form.scheme if form else "none"
        form_facts = {"scheme": scheme, "sorted_labels": not self.labels, "in_place": counts.has_texts}
        return replace(self, labels=labels, class_weights=weights, **form_facts)

    def validate(self, examples: list[TaggedSentence]) -> None:
        """Check that every sentence has tags. Warns of words with an unknown gold tag: they always count as errors.

        Raises:
            UserError: A sentence has no tags, an unknown tag does not fit the scheme, or not a single tag is one of the
                task's.
            UsageError: The entities have another scheme.
        """
        _require_tags(examples)
        counted, known, form = TagCounts(examples), set(self.labels), self.form
        found = counted.tags.keys()
        if form and all(form.mark(tag) for tag in found):
            require_complete(form, counted)
        if not known or found <= known:
            return
        unknown = [(each.place(i), t) for each in examples for i, t in enumerate(each.tags or ()) if t not in known]
        source, names = unknown[0][0], join_names(sorted({tag for _, tag in unknown}))
        if not found & known:
            raise UserError(f"{source}: none of the tags {names} is known; the tags are {join_names(self.labels)}")
        if form and (wrong := [(place, tag) for place, tag in unknown if form.mark(tag) is None]):
            place, tag = wrong[0]
            problem = f"{place}: the tag {shorten(tag)!r} does not fit the scheme {form.scheme}"
            raise UserError(f"{problem} of the model's tags, such as {self.labels[0]}")
        found = f"{names} ({console.plural(len(unknown), 'word')}, first {source})"
        console.warn(f"tags that do not occur in the training examples count as errors: {found}")

    def to_row(self, example: TaggedSentence) -> dict[str, Any]:
        tags = example.tags or ()
        if example.text is None:
            return {"tokens": example.words, "tags": tags}
        if self.units == "characters":  # the tags of the source may follow any scheme
            at, parts = 0, list[tuple[str, str]]()
            for (start, end), tag in zip(example.places, tags, strict=True):
                parts += [(example.text[at:start], "O"), (example.text[start:end], tag)]
                at = end
            tokens, tags = zip(*(part for part in (*parts, (example.text[at:], "O")) if part[0]), strict=True)
            return {"tokens": tokens, "tags": tags}
        found = entities(tags, cast(TaggedSentences, self.reader.kind).form)
        spans = [(example.places[first][0], example.places[end - 1][1], kind) for kind, first, end in found]
        return {"text": example.text, "spans": [{"start": a, "end": b, "label": kind} for a, b, kind in spans]}

    def own_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        tokenizer = super().own_tokenizer(tokenizer)
        return tokenizer if self.units == "words" else by_characters(tokenizer)

    def encode(self, examples: list[TaggedSentence], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Encode the sentences. `Sequence.offsets` holds the numbers of tokens instead of characters (see `tag_tokens`).

        The target names the tokens that the sequence predicts tags for: the first subword of each word, or all subwords if
        the `aggregation_strategy` needs them.
        """
        label_index = {label: i for i, label in enumerate(self.labels)}
        strategy, lengths = self.aggregation_strategy, (max_length, self.truncation, self.doc_stride)
        tokenized = tag_tokens.tokenize(tokenizer, examples, strategy, self.in_place)
        self._report_straddling(examples, tokenized)
        sequences = []
        for i, (example, tokens) in enumerate(zip(examples, tokenized, strict=True)):
            tags = np.array([label_index.get(tag, -1) for tag in example.tags or [""] * len(example.words)], np.int64)
            for window, positions, index in tag_tokens.windows_of(tokenizer, tokens, strategy, *lengths):
                read = tokens.take(index)
                target = WordTargets(positions, np.where(read.first, tags[read.words], -1), index, read)
                sequences.append(replace(window, example=i, target=target, weight=1.0))
        return sequences

    def _report_straddling(self, examples: list[TaggedSentence], tokenized: list[WordTokens]) -> None:
        """Say how many tokens have words with tags that one token cannot give."""
        places = [
            example.place(first)
            for example, tokens in zip(examples, tokenized, strict=True)
            for first, last in tokens.shared
            if (tags := example.tags)
            and any(tags[i + 1] != continued(self.form, tags[i], self.labels) for i in range(first, last))
        ]
        if places:
            count = f"{len(places):,}, the first in {places[0]}"
            console.warn(
                f"tokens that straddle the end of a span: {count}; a token has one tag, that of its first word"
            )

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        return [sequence for sequence in sequences if (sequence.target.tags >= 0).any()]

    def head_positions(self, sequence: Sequence, pooled: PooledToken) -> np.ndarray:  # noqa: ARG002
        return sequence.target.positions

    def head(self, config: EncoderConfig, width: int) -> TokenHead:
        return TokenHead(width, count_labels(self), head_dropout(config), layers=config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        tags = np.concatenate([sequence.target.tags for sequence in sequences])
        targets = Targets(index, np.maximum(tags, 0), (tags >= 0).astype(np.float32))
        return weigh(targets, self.class_weights, self.labels)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[TaggedSentence]
    ) -> list[TagPrediction]:
        """Return the tags and the entities of each sentence.

        Truncated words, and punctuation that the tokenizer drops, get O, or the first label if there is no O, and
        probability 0.
        """
        form = self.form
        outside = form.outside if form else "O"
        default = outside if outside in self.labels else self.labels[0]
        windows = by_example(list(zip(outputs, sequences, strict=True)), sequences, len(examples))
        return [
            aggregation.aggregate(self.aggregation_strategy, form, self.labels, default, *pair)
            for pair in zip(windows, examples, strict=True)
        ]

    def with_aggregation(self, strategy: Strategy) -> Tag:
        """Return the task with another `aggregation_strategy`. Raises UsageError if its tags give no entities."""
        if strategy == "simple" and self.form is None:
            problem = "aggregation_strategy simple joins entities, and the tags mark none"
            raise UsageError(f"{problem}: {join_names(self.labels)}")
        return replace(self, aggregation_strategy=strategy)

    def prediction_rows(self, path: Path) -> list[Row | UserError]:
        """Read a file of `bertie predict`, or a CoNLL file with the predicted tag in the last column."""
        if path.suffix == ".jsonl":
            return read_predictions(path)
        file = ConllFile(path, self.word, self.tag if path.suffix == ".conllu" else -1)
        return [
            sentence
            if isinstance(sentence, UserError)
            else Row({"tokens": sentence.words, "tags": sentence.tags}, sentence.source, sentence.source)
            for sentence in file.sentences()
        ]

    def with_labels_of(self, rows: list[Row], examples: list[TaggedSentence]) -> Tag:  # noqa: ARG002
        _require_tags(examples)
        counts = TagCounts(examples)
        form = find_form(counts, self.scheme)
        return replace(self, labels=tuple(sorted(counts.tags)), scheme=form.scheme if form else "none")

    def read_prediction(self, values: dict[str, Any], example: TaggedSentence, place: str) -> TagPrediction:
        """Rebuild a prediction. If the object has words, they must be the words of the example."""
        tags, words = answer_of(values, "tags", place), values.get("tokens") or example.words
        if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
            raise UserError(f"{place}: the tags must be a list of strings, found {str(tags)[:40]!r}")
        if len(tags) != len(example.words):
            raise UserError(f"{place}: {len(tags)} tags for the {len(example.words)} words of {example.source}")
        if different := [(a, b) for a, b in zip(words, example.words, strict=False) if a != b]:
            predicted, expected = different[0]
            raise UserError(f"{place}: the word is {predicted!r}, but {example.source} has {expected!r}")
        form = self.form
        if form and (wrong := [tag for tag in tags if form.mark(tag) is None]):
            raise UserError(f"{place}: the predicted tag {shorten(wrong[0])!r} does not fit the scheme {form.scheme}")
        return TagPrediction(list(example.words), list(tags), [])

    def sums(self, predictions: list[TagPrediction], examples: list[TaggedSentence]) -> dict[str, ExampleSums]:
        """Return the rows of `tag_sums`. Raises UserError if a sentence has no tags."""
        _require_tags(examples)
        return tag_sums([list(example.tags or ()) for example in examples], [p.tags for p in predictions], self.form)

    def constant_predictions(self, examples: list[TaggedSentence]) -> list[list[TagPrediction]]:
        """Return one baseline: the most frequent tag for every word."""
        [(tag, _)] = Counter(tag for example in examples for tag in example.tags or ()).most_common(1)
        return [[TagPrediction(list(e.words), [tag] * len(e.words), [1.0] * len(e.words)) for e in examples]]

    def evaluate(self, predictions: list[TagPrediction], examples: list[TaggedSentence]) -> Evaluation:
        """Return the evaluation.

        The loss of a sentence is a lower bound of Σ −log p(gold tag) over its words. Predictions have only the probability
        p of the predicted tag; another gold tag has at most 1 − p.
        """
        _require_tags(examples)
        gold, predicted = [list(example.tags or ()) for example in examples], [each.tags for each in predictions]
        all_gold, all_predicted = (list(chain.from_iterable(side)) for side in (gold, predicted))
        correct = np.array([one == other for one, other in zip(all_gold, all_predicted, strict=True)])
        confidence = np.array([probability for each in predictions for probability in each.probabilities])
        read = confidence > 0  # truncated words have probability 0
        words = log_losses(np.where(correct, confidence, 1 - confidence)) * read
        ends = np.cumsum([len(tags) for tags in gold])
        losses = np.array([part.sum() for part in np.split(words, ends[:-1])])
        known = [*self.labels, *sorted(set(all_gold) - set(self.labels))]
        findings: list[Finding] = [_entities(gold, predicted, self.form)] if self.form else []
        findings += class_findings(all_gold, all_predicted, known, "tag")
        findings.append(calibration(confidence[read], correct[read], {}, "words"))

        def passage(i: int) -> Passage:
            wrong = sum(one != other for one, other in zip(gold[i], predicted[i], strict=True))
            return Passage({"wrong": f"{wrong} of {len(gold[i])} words"}, [_marked(examples[i], predictions[i])])

        loss = "a lower bound of −log of the gold tags' probabilities, summed over the words, in nats"
        return Evaluation({"gold": gold}, losses, loss, tuple(findings), passage)


def _require_tags(examples: list[TaggedSentence]) -> None:
    for example in examples:
        if example.tags is None:
            raise _without_tags(example.source)


def _without_tags(source: str) -> UserError:
    remedy = "name their column with --task.tag, or their key in .jsonl with --task.tags"
    return UserError(f"{source}: words without tags; {remedy}")


def _entities(gold: list[list[str]], predicted: list[list[str]], form: TagForm) -> Table:
    counts = entity_counts(gold, predicted, form)
    kinds = sorted(counts)
    members = np.array([counts[kind] for kind in kinds], int).reshape(-1, 3).T
    rule = "seqeval in strict mode" if form.strict else "the CoNLL-2003 shared task"
    note = f"Scores of whole entities: correct if the words and the kind match, as in {rule}."
    return member_table("entities", "By kind of entity", ("entity", *MEASURES, "found"), kinds, members, note)


def _marked(example: TaggedSentence, prediction: TagPrediction) -> list[TextSpan]:
    """Return the sentence, shortened, with each wrong word marked and followed by its gold and its predicted tag."""
    text, places = example.characters()
    words = zip(places, example.tags or (), prediction.tags, prediction.probabilities, strict=True)
    wrong = [(*place, f"{gold} → {tag}, {percent(p)}") for place, gold, tag, p in words if gold != tag]
    return shortened(marked(text, "wrong", wrong))
