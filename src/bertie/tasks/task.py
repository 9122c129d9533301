"""The contract of a fine-tuning task. Read this page before you add one.

A task is a frozen dataclass in its own file. Its fields are its configuration: they become flags, TOML keys and task.json.
Its methods turn examples into sequences, sequences into a loss, and head outputs into predictions and scores.

Fine-tuning calls the methods in this order:

1. `reader` reads the training file into examples.
2. `fit` completes the task from them, such as with class names. Its `reader` reads the dev file, `validate` checks it.
3. `encode` tokenizes all examples into sequences, of which `training_sequences` selects the ones to train on.
4. `head` builds the task head.
5. For every micro-batch, `head_positions` selects the tokens that the head reads, and `targets` gives their gold labels.
6. After training, the head's outputs on the dev sequences go to `decode`, which returns one prediction per example.
   A task with a `tuned` field is then calibrated on them and decodes once more.
7. `score` computes the metrics, which are compared with the metrics of `constant_predictions` to detect a failed run.
   `evaluate` adds the details for report.html, and `sums` what a bootstrap needs.

`bertie predict` uses `reader.stream`, `encode`, `head_positions` and `decode`. `bertie score` needs no model: it uses
`read_prediction` and `score`. The other members are facts that other rooms ask for.

A task inherits `TaskDefaults`. Methods that several tasks have in common are functions, which they name as their method:
`encode = encode_texts`.

    C  outputs of the head per token
    P  tokens of a batch that the head reads
"""

from __future__ import annotations

from dataclasses import Field, asdict, replace
from pathlib import Path
from typing import Any, ClassVar, NewType, Protocol, Self

import numpy as np
from torch import nn

from bertie.base import console
from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError, join_names
from bertie.examples import labels
from bertie.examples.reader import Reader
from bertie.examples.rows import Row
from bertie.model.config import PooledToken
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts, with_facts
from bertie.model.heads.heads import PooledHead
from bertie.model.heads.text_pooling import TaskPooling
from bertie.tasks.encoding import all_texts, as_given, as_whole, by_unit, no_relevance
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.example_sums import ExampleSums, score_by_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.prediction_files import read_predictions
from bertie.tasks.scale import NumberScale
from bertie.tokenizers.tokenizer import Tokenizer

Unit = NewType("Unit", str)
SEQUENCE, EXAMPLE, BATCH = Unit("sequence"), Unit("example"), Unit("batch")


class TaskDefaults(Protocol):
    """The members that most tasks have in common. A task inherits them, and has members of its own where it differs."""

    beside_head: Any = ""
    """The files that a folder of another library needs beside a head of this task, for messages, if it adds tokens."""
    recipe: Any = "classify"
    """The recipe of fine-tuning with the other settings, for a task outside of bertie: a shipped one, or a TOML file."""
    untrainable: Any = ""
    """Why an example may have no sequence to train on, for messages."""
    shows_example: Any = False
    """Whether fine-tuning prints its first example as the model reads it, because it may have prompts or several texts."""
    tuned: Any = ""
    """Name of the field with a parameter that `calibrate` tunes after training, such as the threshold of SQuAD 2.0. The field is
    empty or None if it was not tuned. Empty: the task has no such parameter."""
    base_learning_rate: Any = 5e-5
    """The peak learning rate for an encoder of the size of BERT-base, from the literature."""
    base_epochs: Any = 3
    """The number of epochs for thousands of examples, from the literature."""
    scored_apart: Any = False
    """Whether also a single run is tuned on the selection half of the dev examples and scored on the report half."""
    score_with_odds: Any = None
    """Scores predictions, where questions with odds above a threshold have no answer, and the best thresholds: see
    `squad_metrics.score_with_odds`. None: the task has no questions. Predictions of questions belong to the examples by ids."""
    score = score_by_sums
    """Computes the metrics, by name: see `example_sums.score_by_sums`. Raises UserError as `validate`."""
    as_trained = as_given
    """Returns the task with what only training decides about reading and encoding, from the task of a trained model. Raises
    UsageError if a setting contradicts it."""
    relevance = no_relevance
    """Returns how to read from the prediction for a pair how relevant the second text is for the first.

    Takes the class whose probability is the relevance; empty: the one whose name says so. Returns None if the task does not
    predict for pairs. Raises UsageError if the class is unknown, the task has no classes, or it is unclear which means
    "relevant".
    """

    training_units = by_unit
    """Groups the sequences to train on into what is shuffled and counted, as `unit` says."""
    drawn = as_whole
    """Returns the sequences of a unit that an epoch trains on. Takes a number in [0, 1), random in each epoch."""
    of_model = as_given
    """Returns the task with what it leaves to the model that it is trained from; takes its `SentenceEmbedding` and its folder."""
    together = all_texts
    """Returns for each example the texts of which held-out examples have none."""

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:  # noqa: ARG003
        """Return the task that a head of another library was trained for. None if it is another task."""
        return None

    @property
    def number_scale(self) -> NumberScale:
        """The scale of the numbers that the head learns, if it learns them standardized."""
        return NumberScale()

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """Tokens of its sequences that the vocabulary may lack, once `fit` has determined them. Fine-tuning adds them."""
        return ()

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return the sequences to train on. Also selects the sequences of the dev loss."""
        return sequences

    def start_with_frequencies(self, head: Any, sequences: list[Sequence]) -> None:
        """Set the output biases of a new head in place, from the sequences to train on."""

    def calibrate(self, predictions: list[Any], examples: list[Any]) -> Any:  # noqa: ARG002
        """Return the task with the parameter tuned on these predictions and their labeled examples."""
        return self

    def prediction_rows(self, path: Path) -> list[Row | UserError]:
        """Read a file of predictions as rows of named values.

        Raises:
            UserError: A line cannot be read.
            UsageError: The file is missing, or has an unknown format.
        """
        return read_predictions(path)

    def counts(self) -> Any:
        """Return a summary of no examples: `add` adds one, in fixed memory, and `len` is the number of different things."""
        return labels.FirstExamples()

    def fit_counts(self: Any, counts: Any, where: str) -> Any:
        """Return the task that fits the examples of a summary. Raises the errors of fine-tuning on them, in the same words."""
        rules = self.reader.kind.label_rules
        with console.silenced():
            return self.fit(labels.labeled(rules, labels.spelled(rules, counts.examples, where), where, training=True))

    def with_labels_of(self, rows: list[Row], examples: list[Any]) -> Any:  # noqa: ARG002
        """Return the task, which has no classes yet, with the classes of the predictions or else of the labeled examples."""
        return self

    def to_row(self, example: Any) -> dict[str, Any]:
        """Return an example as a row that its reader reads, for examples of files without rows."""
        return {name: value for name, value in asdict(example).items() if value is not None and name != "source"}

    def own_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer of a run that is fine-tuned from a model with another one: it truncates as the task does."""
        keeps = getattr(self, "truncation", None)
        return tokenizer if keeps is None else replace(tokenizer, truncates_left=keeps == "tail")

    def without_scale(self) -> Any:
        """Return the task for a head whose outputs are on the scale of the examples."""
        return self

    def with_aggregation(self: Any, strategy: Any) -> Any:  # noqa: ARG002
        """Return the task with another strategy for subwords. Raises UsageError if it does not fit the task or its labels."""
        raise UsageError(f"aggregation_strategy is for the task tag, and the task is {self.kind}: omit it")


class ReadsExamples(Protocol):
    """How a task reads examples. `examples` are always what its reader yields, without errors."""

    @property
    def input_form(self) -> str:
        """How an input in memory looks, for messages: "a text"."""
        ...

    @property
    def paired(self) -> bool | None:
        """Whether it reads pairs of texts. None: also single ones, or something else."""
        ...

    @property
    def reader(self) -> Reader:
        """The reader of this task's examples, with the columns that the configuration names."""
        ...

    def fit(self, examples: list[Any]) -> Task:
        """Return the task completed from the training examples, for instance with the class names that occur in them.

        Called once, before anything is encoded.

        Args:
            examples: The training examples, at least one.

        Raises:
            UserError: The examples cannot be learned from: a label is missing, or all labels are equal.
            UsageError: The configuration contradicts itself or the examples.
        """
        ...

    def validate(self, examples: list[Any]) -> None:
        """Check that `score` can score these examples.

        Raises:
            UserError: Names the first example that cannot be scored.
        """
        ...


class EncodesExamples(Protocol):
    """How a task turns examples into sequences, and the outputs of its head into predictions.

    `sequences` are always what `encode` returned for the examples, in the same order.
    """

    @property
    def kind(self) -> str:
        """The name of the task: the key of its head, and its `kind` in TOML and task.json."""
        ...

    @property
    def text_pooling(self) -> TaskPooling | None:
        """The vector of a text, or a pair of texts, if the head reads one. None: the head reads tokens."""
        ...

    @property
    def unit(self) -> Unit:
        """The unit that training shuffles and counts as one item of a batch.

        "sequence": each sequence by itself. "example": all sequences of an example; they stay in one micro-batch.
        "batch": all sequences of an example, and the loss compares the texts of the whole batch with each other. Its head
        computes `vectors` of the texts of each micro-batch, and the loss of all of them in `compare`; see `PoolingHead`.
        """
        ...

    def encode(self, examples: list[Any], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Tokenize examples into sequences: one or more per example.

        Called for training, dev and prediction alike. Unlabeled examples get sequences without a target.

        Args:
            examples: The examples.
            tokenizer: The model's tokenizer.
            max_length: Most tokens of a sequence, special tokens included.

        Returns:
            Sequences in the order of the examples. `Sequence.example` is the index into `examples`, `part` the number
            of the window, ending or text, `target` the gold label in a form of the task's own, and `truncated` the
            number of tokens that were left out.

        Raises:
            UserError: An example does not fit the task, for instance one text where the task needs a pair.
        """
        ...

    def head_positions(self, sequence: Sequence, pooled: PooledToken) -> np.ndarray:
        """Return the positions whose states the head reads: int64, sorted. The last layer is computed only for these tokens.

        Args:
            sequence: The sequence.
            pooled: The token that stands for the whole sequence in this encoder.
        """
        ...

    def head(self, config: EncoderConfig, width: int) -> nn.Module:
        """Build the task head, untrained.

        Args:
            config: The model's configuration.
            width: The size of the vectors that the head reads: the hidden size, unless layers are concatenated or a
                BiLSTM stands between encoder and head.

        Returns:
            A module whose `forward(hidden, targets)` returns a `Loss` and whose `logits(vectors)` returns float [P, C].
        """
        ...

    def targets(self, batch: Any, sequences: list[Sequence], index: np.ndarray) -> Any:
        """Return the gold labels of a micro-batch for the head's `forward`: `Targets` or `PairTargets`.

        Args:
            batch: The collated sequences. None for the unit "batch", where `sequences` are those of all micro-batches.
            sequences: The sequences of the batch, without filler sequences.
            index: int64 [P], the rows of the batch that `head_positions` named, sequence after sequence.
        """
        ...

    def decode(self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Any]) -> list[Any]:
        """Turn head outputs into predictions.

        Args:
            outputs: For each sequence float32 [positions that the head reads, C].
            sequences: The sequences, in the order of `outputs`.
            examples: The examples that the sequences come from.

        Returns:
            One prediction per example, of a class in `tasks/predictions.py`.
        """
        ...


class ScoresPredictions(Protocol):
    """How a task scores predictions. They belong to the examples, in the same order."""

    @property
    def metric(self) -> str:
        """The key of `score` that selects the best run unless the configuration names another one. See `metrics.sign`."""
        ...

    def read_prediction(self, values: dict[str, Any], example: Any, place: str) -> Any:
        """Rebuild a prediction from its JSON object, as far as `score` needs it.

        Args:
            values: The object that `prediction_to_json` made, or one row of a prediction file.
            example: The example that it belongs to.
            place: The file and line, for error messages.

        Raises:
            UserError: The object is not a prediction for this example.
        """
        ...

    def sums(self, predictions: list[Any], examples: list[Any]) -> dict[str, ExampleSums]:
        """Return the metrics of `score` that follow from sums over the examples: a formula, and a row for each example.

        Raises:
            UserError: As `validate`.
        """
        ...

    def constant_predictions(self, examples: list[Any]) -> list[list[Any]]:
        """Return baselines that predict the same for every example, each as one list of predictions.

        The best of them scores as high as a constant prediction can. A run that does not beat it has failed.
        """
        ...

    def evaluate(self, predictions: list[Any], examples: list[Any]) -> Evaluation:
        """Analyze predictions beyond the scores: the loss of each example, tables and charts, texts to show.

        Raises:
            UserError: As `validate`.
        """
        ...


class Task(ReadsExamples, EncodesExamples, ScoresPredictions, TaskDefaults, Protocol):
    """The contract of a task with fine-tuning, prediction and scoring.

    Mark fields that `fit` determines as `config.NoFlag`: they are stored in task.json but are not flags.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names or tags in the order of the head's outputs; empty for tasks without classes."""
        ...

    @property
    def facts(self) -> HeadFacts:
        """Facts about its head for other rooms."""
        ...

    @property
    def prediction(self) -> Any:
        """The class of its predictions, or the union of several."""
        ...


def build_head(task: Task, config: EncoderConfig, width: int) -> nn.Module:
    """Build the head of a task, with its facts. Arguments as of `Task.head`."""
    return with_facts(task.head(config, width), task.facts)


@property
def own_pooling(task: Any) -> TaskPooling:
    """The part that the head reads: `Task.text_pooling` of a task with a field `pooling`."""
    return task.pooling


def require_distinct(labels: tuple[str, ...]) -> None:
    """Raise UsageError if `task.labels` names a label twice."""
    if len(set(labels)) < len(labels):
        raise UsageError(f"task.labels names a label twice: {join_names(labels)}")


def count_labels(task: Task) -> int:
    """Return the number of labels. Raises UsageError if there are none yet."""
    if not task.labels:
        raise UsageError("the task has no labels yet: fit it on training examples, or set task.labels")
    return len(task.labels)


def class_head(task: Task, config: EncoderConfig, width: int) -> PooledHead:
    """Return a linear layer on the pooled [CLS], with one output per class: `Task.head`."""
    return PooledHead(width, count_labels(task), head_dropout(config), layers=config.head_layers)
