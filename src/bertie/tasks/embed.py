"""Sentence embeddings: texts with similar meaning get similar vectors (Reimers & Gurevych 2019). Trained on pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from bertie.base.config import AboveZero, NoFlag, ranges
from bertie.base.contracts import PairTargets, Sequence
from bertie.base.errors import UsageError, UserError, shorten
from bertie.base.report import TextSpan
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.examples.queries.tuples import tuple_reader
from bertie.examples.rows import describe_bad_number, parse_label_number
from bertie.examples.texts import Example
from bertie.model.config import PooledToken
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.pooling_head import PoolingHead, VectorLoss
from bertie.model.losses.compared import LossName
from bertie.model.pooling import Pooling, pool
from bertie.tasks import text_options
from bertie.tasks.encoding import by_unit, pooled_position, queries
from bertie.tasks.evaluation.findings import Evaluation, Histogram, Table
from bertie.tasks.evaluation.passages import Passage, shortened
from bertie.tasks.evaluation.ranks import evaluate_ranks
from bertie.tasks.example_sums import ExampleSums, number_sums, scores
from bertie.tasks.known_positives import compared, numbers_of, partner_ranks, with_relation
from bertie.tasks.prediction_files import answer_of, require_number
from bertie.tasks.predictions import SimilarityPrediction, rounded
from bertie.tasks.task import BATCH, EXAMPLE, TaskDefaults, Unit
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Embed(TaskDefaults):
    """Embed texts as vectors whose cosine similarity measures similarity of meaning.

    Trained on pairs that are right, maybe with negatives, the loss is a softmax over all other texts of the batch. No known
    positive of a query in the data is ever among its negatives. Trained on scored pairs, it is the squared error between the
    cosine of a pair and its score, rescaled to 0 to 1.
    """

    base_learning_rate = 2e-5
    base_epochs = 1
    shows_example = True
    facts = HeadFacts("sentence embeddings", "vectors of texts", "sentence-similarity", "vectors")
    prediction = SimilarityPrediction
    text_pooling = None
    labels = ()
    paired = None
    input_form = "a list of two texts"
    reader = tuple_reader

    kind: Literal["embed"] = "embed"
    text: str = ""
    """Column of the first text; empty: detected from the header."""
    text_pair: str = ""
    """Column of the second text, which is right for the first; empty: detected from the header."""
    negatives: tuple[str, ...] = ()
    """Columns of texts that are wrong for the first one; empty: detected from the header, such as negative or neg."""
    label: str = ""
    """Column of the score, if there is one; empty: detected from the header."""
    no_label: text_options.UnknownLabels = ()
    pooling: Pooling | None = None
    """Pooling of the token vectors into the vector of the text. By default as the files of the model say, otherwise mean."""
    query_prompt: str | None = None
    """Text before each first text. By default as the files of the model say, usually none."""
    document_prompt: str | None = None
    """Text before each other text. By default as the files of the model say, usually none."""
    loss: LossName | None = None
    """Loss. By default infonce for pairs without scores, mse for pairs with scores, margin_mse for tuples with a teacher's."""
    positives: Literal["pairs", "one", "all"] | None = None
    """What an epoch has of a query with several positives: one, the query once, with one of them, which is the default; all, the
    query once, with all of them; pairs, each pair once. Only for infonce."""
    both_directions: bool = False
    """Also contrast each second text with all first texts. Only for infonce."""
    scale: AboveZero = 20.0
    """Factor on the cosines, 1 / temperature. Not for mse."""
    learn_scale: bool = False
    """Learn the factor, from `scale` on."""
    widths: tuple[int, ...] = ()
    """Also train the first numbers of the vectors, as many as these, so that shorter vectors stay good (Matryoshka)."""
    scored: NoFlag[bool] = False
    """Whether pairs have scores; set from the training examples."""
    lowest: NoFlag[float] = 0.0
    """The score that corresponds to cosine 0; set from the training examples."""
    highest: NoFlag[float] = 1.0
    """The score that corresponds to cosine 1; set from the training examples."""

    __post_init__ = ranges("task")

    @property
    def unit(self) -> Unit:
        return BATCH if self.loss_name in ("infonce", "cosent") else EXAMPLE

    @property
    def loss_name(self) -> LossName:
        """The loss, once `fit` knows the data."""
        return self.loss or ("mse" if self.scored else "infonce")

    @property
    def by_pair(self) -> bool:
        """Whether an epoch has each pair, and not each query, once."""
        return self.positives == "pairs" or self.loss_name != "infonce"

    @property
    def prompts(self) -> tuple[str, str]:
        """The prompts of first and other texts."""
        return self.query_prompt or "", self.document_prompt or ""

    @property
    def metric(self) -> str:
        return "spearman" if self.scored else "accuracy"

    def as_trained(self, trained: Embed) -> Embed:
        """Return the task for pairs with scores or without, with their range, and the prompts, as the trained one."""
        names = ("scored", "lowest", "highest", "loss", "pooling", "query_prompt", "document_prompt")
        return replace(self, **{name: getattr(trained, name) for name in names})

    def of_model(self, files: SentenceEmbedding | None, where: Any) -> Embed:
        """Return the task with the pooling and the prompts that the files of a model name, where it leaves them to these.

        Raises UsageError if it leaves out a prompt of the model.
        """
        own = {} if files is None else files.prompts
        default = own.get(files.default_prompt or "", "") if files else ""
        documents = [own[name] for name in ("document", "passage", "corpus") if name in own]
        wanted = {"query_prompt": own.get("query", default), "document_prompt": documents[0] if documents else default}
        for name, prompt in wanted.items():
            if prompt and getattr(self, name) == "":
                raise UsageError(f"task.{name} is empty, and {where} has the prompt {prompt!r}: omit task.{name}")
        prompts = {name: prompt for name, prompt in wanted.items() if getattr(self, name) is None}
        single = files.pooling[0] if files and len(files.pooling) == 1 else "mean"
        return replace(self, pooling=self.pooling or single, **prompts)

    def together(self, examples: list[Example]) -> list[tuple[str, ...]]:
        """Return the query of each example, or both texts of a scored pair."""
        return queries(self, examples) if examples[0].label is None else [example.texts for example in examples]

    def fit(self, examples: list[Example]) -> Embed:
        """Return the task with the range of the scores, if the pairs have any.

        Raises:
            UserError: A second text is missing, only some pairs have scores, all scores are equal, or the labels are
                several classes.
        """
        known, taught = _scores(examples), any(example.scores for example in examples)
        loss = self.loss or ("margin_mse" if taught else None)
        if taught and not all(example.scores for example in examples):
            bad = next(example for example in examples if not example.scores)
            raise UserError(f"{bad.source}: no scores, but other tuples have some")
        for names, fits, needed in (
            (("mse", "cosent"), bool(known), "pairs with scores"),
            (("margin_mse", "kl"), taught, "tuples with a teacher's scores"),
            (("infonce",), not known, "pairs without scores"),
        ):
            if loss in names and not fits:
                raise UsageError(f"task.loss {loss} learns from {needed}: the training examples are others")
        task = replace(self, scored=bool(known), loss=loss)
        if (self.both_directions or self.positives) and task.loss_name != "infonce":
            raise UsageError("task.positives and task.both_directions are for infonce: leave them out")
        if loss == "margin_mse" and not all(example.negatives for example in examples):
            raise UserError("task.loss margin_mse needs a negative in each training example")
        if not known:
            return task
        if min(known) == max(known):
            problem = f"every pair has the score {known[0]:g} ({examples[0].source} …): nothing to learn"
            raise UserError(problem, "If all are positive pairs, leave the column out")
        return replace(task, lowest=min(known), highest=max(known))

    def validate(self, examples: list[Example]) -> None:
        """Check that the examples are pairs, with scores if the training examples have them. Raises UserError."""
        if not _scores(examples) and self.scored:
            raise UserError(f"{examples[0].source}: no score, but the training pairs have scores")

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Encode the texts of each example: part 0 is the first text, 1 the second, the others are its negatives."""
        _require_pairs(examples)
        first, other = self.prompts
        texts = [(example.text, example.text_pair or "", *example.negatives) for example in examples]
        prompted = [[(other if part else first) + text for part, text in enumerate(of)] for of in texts]
        distinct = list(dict.fromkeys(text for of in prompted for text in of))  # a text may be in many pairs
        pieces = truncation.tokenize(tokenizer, distinct)
        made = {
            text: truncation.to_sequences(tokenizer, [of], max_length)[0]
            for text, of in zip(distinct, pieces, strict=True)
        }
        sequences, width = [], self.highest - self.lowest
        for number, (example, of) in enumerate(zip(examples, prompted, strict=True)):
            score = parse_label_number(example.label)
            target = None if score is None or not width else (score - self.lowest) / width
            targets = [None, *example.scores] if example.scores else [target] * len(of)
            for part, text in enumerate(of):
                sequences.append(replace(made[text], example=number, part=part, target=targets[part]))
        return with_relation(sequences)

    def training_units(self, sequences: list[Sequence]) -> list[list[Sequence]]:
        """Return the sequences of each pair; or of each query with all its positives and negatives, each text once."""
        if self.by_pair:
            return by_unit(self, sequences)
        grouped: dict[int, dict[tuple[int, int], Sequence]] = {}
        query = -1
        for sequence in sequences:
            if sequence.part == 0:
                query = sequence.target.number
            grouped.setdefault(query, {}).setdefault((min(sequence.part, 2), sequence.target.number), sequence)
        return [list(unit.values()) for unit in grouped.values()]

    def drawn(self, unit: list[Sequence], number: float) -> list[Sequence]:
        if self.by_pair or self.positives == "all":
            return unit
        positives = [sequence for sequence in unit if sequence.part == 1]
        chosen = positives[int(number * len(positives))]
        return [sequence for sequence in unit if sequence.part != 1 or sequence is chosen]

    def head_positions(self, sequence: Sequence, pooled: PooledToken) -> np.ndarray:
        return pooled_position(self, sequence, pooled) if self.pooling == "cls" else np.arange(len(sequence))

    def head(self, config: EncoderConfig, width: int) -> PoolingHead:
        """Return the head. Raises UsageError if it would pool a first token that does not stand for the text, or for widths that
        the vectors do not have."""
        if any(not 0 < each < width for each in self.widths):
            raise UsageError(f"task.widths is {list(self.widths)}: the vectors have {width} numbers: give less")
        if self.pooling == "cls" and config.pooled_token == "last":
            problem = 'task.pooling is "cls", the first token, but in this model the last token represents the text'
            raise UsageError(f'{problem}: set task.pooling to "lasttoken" or "mean"')
        how = VectorLoss(self.loss_name, self.scale, self.learn_scale, self.widths)
        return PoolingHead(self.pooling or "mean", how, self.prompts)

    def targets(self, batch: Any, sequences: list[Sequence], index: np.ndarray) -> PairTargets:  # noqa: ARG002
        positions = [1 if self.pooling == "cls" else len(sequence) for sequence in sequences]
        text = np.repeat(np.arange(len(sequences)), positions)
        return compared(sequences, index, text, self.loss_name == "infonce", self.both_directions)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]
    ) -> list[SimilarityPrediction]:
        vectors = [[np.zeros(0, np.float32)] * 2 for _ in examples]
        for rows, sequence in zip(outputs, sequences, strict=True):
            one_text = torch.zeros(len(rows), dtype=torch.long)
            if sequence.part > 1:
                continue
            vector = F.normalize(pool(self.pooling or "mean", torch.from_numpy(rows), one_text, 1))[0].numpy()
            vectors[sequence.example][sequence.part] = vector
        return [SimilarityPrediction(rounded(float(first @ second)), (first, second)) for first, second in vectors]

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> SimilarityPrediction:
        if parse_label_number(example.label) is None:
            needed = "scoring pairs without scores needs vectors, which prediction files lack"
            raise UserError(f"{example.source}: no score; {needed}")
        unknown = np.zeros(0, np.float32)
        return SimilarityPrediction(require_number(answer_of(values, "similarity", place), place), (unknown, unknown))

    def score(self, predictions: list[SimilarityPrediction], examples: list[Example]) -> dict[str, float]:
        """Return spearman and pearson of cosines and scores, or accuracy for pairs without scores.

        accuracy is the share of first texts whose own second text is nearer than all other second texts.

        Raises:
            UserError: As `validate`.
        """
        if sums := self.sums(predictions, examples):
            return scores(sums)
        return {"accuracy": float((_ranks(predictions, examples)[0] == 1).mean())}

    def sums(self, predictions: list[SimilarityPrediction], examples: list[Example]) -> dict[str, ExampleSums]:
        """Return the rows of pearson and spearman. Which second text is nearest is no sum over the examples."""
        self.validate(examples)
        if parse_label_number(examples[0].label) is None:
            return {}
        sums = number_sums([float(example.label or 0) for example in examples], [p.similarity for p in predictions])
        return {name: sums[name] for name in ("spearman", "pearson")}

    def evaluate(self, predictions: list[SimilarityPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        if known := _scores(examples):
            return evaluate_ranks(known, [each.similarity for each in predictions], "similarity", examples)
        return _evaluate_retrieval(predictions, examples)

    def constant_predictions(self, examples: list[Example]) -> list[list[SimilarityPrediction]]:
        """Return one baseline: the same vector for every text."""
        same = np.ones(1, np.float32)
        return [[SimilarityPrediction(1.0, (same, same)) for _ in examples]]


def _scores(examples: list[Example]) -> list[float]:
    """Return the scores of all pairs, or an empty list.

    Pairs that all have the same class label count as positive pairs.
    """
    _require_pairs(examples)
    scores = [parse_label_number(example.label) for example in examples]
    known = [score for score in scores if score is not None]
    if not known and len({example.label for example in examples}) > 1:
        problem = (
            f"{examples[0].source}: the label {shorten(str(examples[0].label))!r} is not a score, and labels differ"
        )
        raise UserError(f"{problem}: embed learns from scores, or from positive pairs only; remove the other pairs")
    if 0 < len(known) < len(scores):
        bad = examples[scores.index(None)]
        problem = "no score" if bad.label is None else f"the score {describe_bad_number(bad.label)}"
        raise UserError(f"{bad.source}: {problem}, but other pairs have one")
    return known


def _require_pairs(examples: list[Example]) -> None:
    for example in examples:
        if example.text_pair is None:
            remedy = "name the second column with --task.text-pair"
            raise UserError(f"{example.source}: found one text, expected a pair; {remedy}")


def _evaluate_retrieval(predictions: list[SimilarityPrediction], examples: list[Example]) -> Evaluation:
    """Return the evaluation of pairs without scores: rank the own second text among all second texts by similarity."""
    ranks, nearest = _ranks(predictions, examples)
    candidates = len({example.text_pair for example in examples})

    def passage(i: int) -> Passage:
        partner, other = examples[i].text_pair or "", examples[nearest[i]].text_pair or ""
        cosine = float(predictions[i].vectors[0] @ predictions[nearest[i]].vectors[1])
        texts = [
            shortened([TextSpan(examples[i].text)]),
            shortened([TextSpan(partner, "gold", f"{predictions[i].similarity:.3f}")]),
            shortened([TextSpan(other, "wrong", f"{cosine:.3f}")]),
        ]
        return Passage({"rank of its own partner": f"{ranks[i]:,} of {candidates:,}"}, texts[: 2 + (ranks[i] > 1)])

    shares = {
        **{f"among the nearest {k}": (ranks <= k).mean() for k in (1, 5, 10)},
        "mean of 1 / rank": (1 / ranks).mean(),
        "median of the rank": np.median(ranks),
    }
    powers = np.floor(np.log2(ranks)).astype(np.int64)
    bars = {f"{2**k:,}–{2 ** (k + 1) - 1:,}" if k else "1": int(n) for k, n in enumerate(np.bincount(powers))}
    loss = "number of second texts that are more similar than its own partner"
    findings = (
        Table("partners", "Retrieval of the partner", ("", "value"), [(k, float(v)) for k, v in shares.items()]),
        Histogram("ranks", "Ranks", bars, "rank of the own partner", "number of examples, by the rank of the partner"),
    )
    return Evaluation({"rank": ranks.tolist()}, ranks - 1, loss, findings, passage)


def _ranks(predictions: list[SimilarityPrediction], examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Return `partner_ranks` of pairs of texts."""
    first, second = (np.stack([prediction.vectors[side] for prediction in predictions]) for side in (0, 1))
    texts, partners = numbers_of([e.text for e in examples]), numbers_of([e.text_pair for e in examples])
    return partner_ranks(first, second, texts, partners)
