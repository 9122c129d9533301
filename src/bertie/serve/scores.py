"""Scores: classes of texts, the relevance of documents for a query, and the passages of an index for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from bertie.checkpoints.sentence_transformers_format import Similarity
from bertie.predict.vectors import paired_similarities, similarities
from bertie.retrieval.index import Hit
from bertie.serve.ask import Answered, Ask, ScoreScale, answered, run
from bertie.serve.limits import Refused, refusing
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import ServedModel
from bertie.serve.predictions import run_task
from bertie.serve.queue import QueuedJob
from bertie.serve.vectors import named_prompt
from bertie.tasks import Task
from bertie.tasks.encoding import by_example, sigmoid
from bertie.tasks.predictions import ONLY
from bertie.tasks.relevance import relevance


@dataclass(frozen=True)
class Scores:
    """The scores of a text or a pair of texts. It has the fields of predictions that `Task.relevance` reads."""

    probabilities: dict[str, float]
    """The score of each class, or each number, in the order of the task's labels; of a single number, the score of `ONLY`."""

    @property
    def score(self) -> float:
        """The only score."""
        [score] = self.probabilities.values()
        return score

    @property
    def ranked(self) -> list[tuple[str, float]]:
        """Classes with their scores, highest score first."""
        return sorted(self.probabilities.items(), key=lambda pair: -pair[1])


async def classify(ask: Ask) -> Answered[list[Scores]]:
    """Return the scores of texts or pairs of texts, from a task that predicts classes or a number for them.

    Raises:
        Refused: As `predict`, or the task predicts something else.
        UserError: A text is invalid.
    """
    model = ask.model("predict")
    task = model.predicting
    if task.facts.shape != "text":
        message = f"the model {model.name} predicts {task.facts.predicts}, not classes or numbers of texts"
        raise Refused(422, "operation", f"{message}: use /v1/predict", "model")
    job, examples = await run_task(ask, model, task)
    return await answered(ask, model, job, _scores, task, job, examples, ask.scale)


def _scores(task: Task, job: QueuedJob, examples: list[Any], scale: ScoreScale) -> list[Scores]:
    """Return the scores of examples, from the outputs of the head. The outputs of several windows are averaged."""
    numbers = task.facts.problem_type == "regression"
    if scale == "model" or (scale == "sigmoid" and not numbers):
        predictions = task.decode(job.results, job.sequences, examples)
        return [Scores(item.scores if numbers else item.probabilities) for item in predictions]
    grouped = by_example(job.results, job.sequences, len(examples))
    outputs = np.stack([np.concatenate(rows).mean(0) for rows in grouped])
    means: list[list[float]] = json_numbers(task.number_scale.restored(outputs).astype(np.float32))
    if scale == "sigmoid":
        means = [sigmoid(np.array(row)).tolist() for row in means]
    return [Scores(dict(zip(task.labels or (ONLY,), row, strict=True))) for row in means]


async def rank(ask: Ask, most: int | None = None) -> Answered[list[tuple[int, float, str]]]:
    """Return the number of each document, its relevance for the query and its text, most relevant first.

    Fields and errors as below. most: number of documents to return; None: all.
    """
    scored = await score_pairs(ask)
    ranked = sorted(zip(count(), scored.results, ask.values[1:], strict=False), key=lambda document: -document[1])
    return scored.with_results(ranked[:most])


async def score_pairs(ask: Ask) -> Answered[list[float]]:
    """Return the score of each pair of texts: the score of a model for pairs, or else the similarity of vectors.

    The first field has one text, such as a query, or as many as the second.

    Raises:
        Refused: As `embed`, or it is unclear which class means "relevant".
        UserError: A text is invalid.
    """
    model = ask.model("vectors")
    (name, query), (param, documents) = ask.fields.items()
    first, second = (value if isinstance(value, list) else [value] for value in (query, documents))
    if (score := _relevance(model, ask.label)) is not None:
        replace(ask, fields={name: query}).check_sizes(list(map(len, first)))
        pairs = list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))
        field = {param: pairs if isinstance(documents, list) else pairs[0]}
        scored = await classify(replace(ask, fields=field))
        return scored.with_results(list(map(float, map(score, scored.results))))
    prompts = [named_prompt(model, kind) for kind in ("query", "document")]
    texts = [*((prompts[0], text) for text in first), *((prompts[1], text) for text in second)]
    sizes = list(map(len, ask.values))
    ask.check_sizes(sizes)
    job = await run(ask, model, "vectors", model.encode_prompted, texts, sizes)
    vectors = np.split(np.stack(job.results), [len(first)])
    similarity = model.predictor.text_embedding.similarity
    return await answered(ask, model, job, _pair_similarities, similarity, *vectors)


async def search(ask: Ask) -> Answered[list[Hit]]:
    """Return the `top_k` passages of an index that are nearest to a query, best first.

    Raises:
        Refused: As `embed`, or the model has no index.
        UserError: The query is invalid.
    """
    model, [query] = ask.model("vectors"), ask.values
    if model.index is None:
        raise Refused(422, "operation", f"{model.name} has no index: start the server with one", "model")
    ask.check_sizes([len(query)])
    encode = partial(model.predictor.text_sequences, prompt=named_prompt(model, "query"))
    job = await run(ask, model, "vectors", encode, [query], [len(query)])
    found, size = model.index.search_vector, len(model.index.passages)
    return await answered(ask, model, job, found, query, job.results[0], ask.top_k, size=size)


def rank_method(model: ServedModel, label: str) -> str:
    """Return how documents are scored: "cross-encoder", or how vectors are compared. Raises Refused as `rank`."""
    paired = _relevance(model, label) is not None
    return "cross-encoder" if paired else model.predictor.text_embedding.similarity


def _relevance(model: ServedModel, label: str) -> Callable[[Any], float] | None:
    with refusing("label"):
        return relevance(model.task, label)


def _pair_similarities(similarity: Similarity, first: np.ndarray, second: np.ndarray) -> list[float]:
    """Compare one vector with each of others, or each with its own."""
    if len(first) == 1:
        return json_numbers(similarities(similarity, first, second)[0])
    return json_numbers(paired_similarities(similarity, first, second))
