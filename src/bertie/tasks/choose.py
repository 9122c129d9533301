"""Multiple choice: select the best of several endings of a context (Devlin et al. 2018, section 4.4: SWAG).

Each ending is encoded together with the context. A vector times the pooled [CLS] gives its score; the loss is a softmax
over the endings. The paper does not say whether [CLS] is pooled; it is here, as in the models that others have
released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np

from bertie.base.config import NoFlag, Range, ranges
from bertie.base.console import percent
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UserError
from bertie.base.report import TextSpan
from bertie.examples.choices import ChoiceExample, Choices
from bertie.examples.reader import DataFormat, Reader
from bertie.examples.rows import parse_index
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.model.heads.text_pooling import pooling_facts
from bertie.model.losses.losses import grouped_cross_entropy
from bertie.tasks import text_options
from bertie.tasks.encoding import by_example, pooled_position, softmax
from bertie.tasks.evaluation.calibration import choice_calibration
from bertie.tasks.evaluation.findings import Evaluation, class_findings
from bertie.tasks.evaluation.passages import Passage, mark, shortened
from bertie.tasks.example_sums import ExampleSums, mean_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.prediction_files import answer_of
from bertie.tasks.predictions import ChoicePrediction
from bertie.tasks.task import EXAMPLE, TaskDefaults, own_pooling
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Choose(TaskDefaults):
    """Select the best of several endings of a context."""

    base_learning_rate = 2e-5
    facts = HeadFacts("multiple choice", "the best of several endings", "multiple-choice", "choice")
    prediction = ChoicePrediction
    labels = ()
    paired = True
    unit = EXAMPLE
    metric = "accuracy"
    text_pooling = own_pooling
    input_form = "a list of a context and its endings"
    head_positions = pooled_position

    kind: Literal["choose"] = "choose"
    context: str = ""
    """Column of the context; empty: detected from the header."""
    question: str = ""
    """Column of a second text, which stands before each ending, as in "context [SEP] question ending"; empty: question, beside a
    column of the context. The words cause and effect of COPA become its questions."""
    endings: tuple[str, ...] = ()
    """Columns of the endings, in order, or one column with a list; empty: ending0, ending1 …, endings, choices or options."""
    label: str = ""
    """Column of the gold ending: its number, its letter, its text, or the name of its column; empty: detected from the header."""
    labels_from: Annotated[int | None, Range(0, 1)] = None
    """Number of the first ending in the labels, 0 or 1; None: detected from the file, else 1 in SocialIQA's files, 0 in
    others."""
    pooling: text_options.HeadReads = "model"
    data_format: NoFlag[DataFormat] = DataFormat()
    """How the training file is read, for other files that are ambiguous."""

    __post_init__ = ranges("task")

    @property
    def reader(self) -> Reader:
        columns = (self.context, self.label, self.endings, self.question)
        return Reader(Choices(*columns, self.labels_from, data_format=self.data_format))

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        return cls() if head.shape == "choice" else None

    def as_trained(self, trained: Choose) -> Choose:
        """Return the task that counts as the trained one, where a file leaves a doubt."""
        return replace(self, data_format=trained.data_format)

    def fit(self, examples: list[ChoiceExample]) -> Choose:
        self.validate(examples)
        return self

    def validate(self, examples: list[ChoiceExample]) -> None:
        """Check that every example has a gold ending. Raises UserError for the first that has none."""
        for example in examples:
            if example.label is None:
                raise UserError(f"{example.source}: no label; name the column of the gold ending with --task.label")

    def encode(self, examples: list[ChoiceExample], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Encode one sequence per ending.

        The target is 1 for the gold ending, 0 for the others, None without a label.
        """
        contexts = truncation.tokenize(tokenizer, [example.context for example in examples])
        texts = [f"{e.lead} {ending}" if e.lead else ending for e in examples for ending in e.endings]
        endings = iter(truncation.tokenize(tokenizer, texts))
        sequences, separate = [], pooling_facts(self.pooling).separate
        for number, (example, context) in enumerate(zip(examples, contexts, strict=True)):
            for part in range(len(example.endings)):
                texts = [context, next(endings)]
                [sequence] = truncation.to_sequences(tokenizer, texts, max_length, separate=separate)
                target = None if example.label is None else int(part == example.label)
                sequences.append(replace(sequence, example=number, part=part, target=target))
        return sequences

    def head(self, config: EncoderConfig, width: int) -> PooledHead:
        return PooledHead(width, 1, head_dropout(config), grouped_cross_entropy, config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        """Return targets that group the endings of each example: the softmax runs over a group."""
        _, group = np.unique([sequence.example for sequence in sequences], return_inverse=True)
        weight = np.array([sequence.target or 0 for sequence in sequences], np.float32)
        return Targets(index, group.astype(np.int64), weight)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[ChoiceExample]
    ) -> list[ChoicePrediction]:
        probabilities = [softmax(np.concatenate(rows)[:, 0]) for rows in by_example(outputs, sequences, len(examples))]
        return [ChoicePrediction(int(shares.argmax()), shares.tolist()) for shares in probabilities]

    def read_prediction(self, values: dict[str, Any], example: ChoiceExample, place: str) -> ChoicePrediction:
        predicted = str(answer_of(values, "choice", place))
        index = parse_index(predicted)
        if index is None or index >= len(example.endings):
            last = len(example.endings) - 1
            raise UserError(f"{place}: the prediction is {predicted[:20]!r}, but the endings are 0 to {last}")
        return ChoicePrediction(index, [])

    def sums(self, predictions: list[ChoicePrediction], examples: list[ChoiceExample]) -> dict[str, ExampleSums]:
        self.validate(examples)
        hits = [prediction.choice == example.label for prediction, example in zip(predictions, examples, strict=True)]
        return {"accuracy": mean_sums(hits)}

    def constant_predictions(self, examples: list[ChoiceExample]) -> list[list[ChoicePrediction]]:
        """Return one baseline per index: always this ending, or the last one of examples with fewer endings."""
        most = max(len(example.endings) for example in examples)
        return [[_certain(min(index, len(e.endings) - 1), len(e.endings)) for e in examples] for index in range(most)]

    def evaluate(self, predictions: list[ChoicePrediction], examples: list[ChoiceExample]) -> Evaluation:
        """Return the evaluation: the loss is −log of the gold ending's probability; classes are the indices of endings."""
        self.validate(examples)
        gold, choices = [int(example.label or 0) for example in examples], [each.choice for each in predictions]
        calibration, losses = choice_calibration([np.array(each.probabilities) for each in predictions], gold)
        indices = [str(i) for i in range(max(len(example.endings) for example in examples))]
        gold_names, chosen = (list(map(str, side)) for side in (gold, choices))

        def passage(i: int) -> Passage:
            example, shares = examples[i], [percent(p) for p in predictions[i].probabilities]
            sides = {"gold": gold[i], "predicted": choices[i]}
            texts = [shortened([TextSpan(f"{example.context} {example.lead}".strip())])]
            for index, ending in enumerate(example.endings):
                marked = mark(index == gold[i], index == choices[i])
                texts.append([TextSpan(f"{index}. "), TextSpan(ending, marked, shares[index])])
            return Passage({side: f"ending {index}, {shares[index]}" for side, index in sides.items()}, texts)

        findings = (calibration, *class_findings(gold_names, chosen, indices, "index of the ending"))
        return Evaluation({"gold": gold}, losses, "−log of the gold ending's probability, in nats", findings, passage)


def _certain(index: int, endings: int) -> ChoicePrediction:
    """The prediction of one ending with probability 1."""
    return ChoicePrediction(index, [float(i == index) for i in range(endings)])
