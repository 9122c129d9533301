"""Compare a converted model with its source: hidden states, outputs of heads, scores, and the results of other libraries.

S  sequences    L  length of the longest one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch

from bertie import console
from bertie.checkpoints.families import family_of
from bertie.checkpoints.huggingface import transformers_heads
from bertie.contracts import Batch, Sequence
from bertie.errors import UserError
from bertie.model.head_facts import facts_of
from bertie.model.model import Model
from bertie.predict.answers import CallResults, answers
from bertie.predict.compare_libraries import wrong
from bertie.predict.comparison import Compared
from bertie.predict.engines.graph import Graph
from bertie.predict.predictor import Predictor
from bertie.tasks import Task
from bertie.tasks.data.unlabeled import UnlabeledReader
from bertie.tasks.inference import infer
from bertie.text import truncation

TOLERANCE = 1e-4
"""Largest difference of fp32, relative to the largest value."""
MIN_COSINE = 0.98
"""Smallest cosine of a hidden state in bf16 with that of the source."""
GridOutputs = Callable[[np.ndarray, np.ndarray, np.ndarray], list[np.ndarray]]
"""From input_ids, attention_mask and token_type_ids, int64 [S, L], to all outputs of a graph."""


def sequences(predictor: Predictor, data: str | Path | None) -> list[Sequence]:
    """Return real inputs of a model.

    Args:
        predictor: The model.
        data: Examples of its task; for a model without a task, texts. None: texts that come with Python.

    Raises:
        UsageError: The file is missing or does not fit the task.
        UserError: It holds nothing readable.
    """
    if data is not None and predictor.task is not None:
        examples = [each for each in predictor.task.reader.stream(Path(data)) if not isinstance(each, UserError)]
        found = predictor.task.encode(examples, predictor.tokenizer, predictor.max_length) if examples else []
    else:
        plain = own_texts() if data is None else texts(data)
        found = truncation.encode(predictor.tokenizer, plain, None, max_length=predictor.max_length) if plain else []
        half = len(plain) // 2
        found += truncation.encode(
            predictor.tokenizer, plain[:half], plain[half:][:half], max_length=predictor.max_length
        )
    if not found:
        raise UserError(f"{data}: no readable examples in it")
    return found


def texts(path: str | Path) -> list[str]:
    """Return the readable texts of a file."""
    rows = UnlabeledReader().stream(Path(path))
    return [row if isinstance(row, str) else " ".join(row) for row in rows if not isinstance(row, UserError)]


def own_texts() -> list[str]:
    """Return paragraphs of Python's documentation, which every machine has, of very different lengths."""
    paragraphs = (part for text in topics.topics.values() for part in text.split("\n\n"))
    return [" ".join(part.split()) for part in paragraphs if len(part) > 20][:2000:20]


def grid(members: list[Sequence]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return input_ids, attention_mask and token_type_ids of sequences, padded at the end."""
    shape = (len(members), max(map(len, members)))
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for i, each in enumerate(members):
        own = slice(len(each))
        ids[i, own], mask[i, own], segments[i, own] = each.input_ids, 1, each.token_type_ids
    return ids, mask, segments


def graph_differences(graph: Graph, computed: GridOutputs, members: list[Sequence]) -> dict[str, float]:
    """Return the largest difference of each output of a graph in another library, relative to torch's largest value.

    The grids have padding, and different sizes. Outputs at padding do not count.
    """
    worst: dict[str, float] = {}
    for group in (members[:5], members[5:6], sorted(members, key=len)[-2:]):
        if not group:
            continue
        ids, mask, segments = grid(group)
        with torch.inference_mode():
            expected = graph(*(torch.from_numpy(array) for array in (ids, mask, segments)))
        for name, theirs, ours in zip(graph.outputs, computed(ids, mask, segments), expected, strict=True):
            right = ours.numpy()
            difference = np.abs(theirs - right)
            if right.shape[:2] == mask.shape:
                difference = difference[mask == 1]
            worst[name] = max(worst.get(name, 0.0), float(difference.max() / np.abs(right).max()))
    return worst


@dataclass(frozen=True, eq=False)
class ModelResults:
    """What a model computes, so that it need not stay in memory beside the other one."""

    states: np.ndarray
    """Last hidden states, [tokens, D]."""
    answers: list[CallResults]
    scores: dict[str, float]
    """Of a task, with data."""
    vectors: np.ndarray | None
    """Of the texts of the data, for a model without a task."""


def measure(predictor: Predictor, members: list[Sequence], data: str | Path | None) -> ModelResults:
    """Compute what is compared."""
    states, vectors = _hidden_states(predictor, members), None
    scores: dict[str, float] = {}
    if data is not None and predictor.task is not None:
        scores = predictor.evaluate(data)["scores"]
    elif data is not None:
        vectors = predictor.embed(texts(data))
    with console.silenced():  # of texts that are truncated on purpose
        return ModelResults(states, answers(predictor, members), scores, vectors)


def differences(before: ModelResults, after: ModelResults) -> dict[str, Any]:
    """Compare the last hidden states of two models.

    Returns:
        {"difference", "cosine"}: as `convert` returns them.
    """
    ours, theirs = before.states, after.states
    difference = float(np.abs(ours - theirs).max() / max(float(np.abs(ours).max()), 1e-12))
    return {"difference": difference, "cosine": float(_cosines(ours, theirs).min())}


def _hidden_states(predictor: Predictor, members: list[Sequence]) -> np.ndarray:
    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        return np.split(predictor.model.encoder(batch).last.numpy(), batch.ragged.cu_seqlens[1:-1].numpy())

    return np.concatenate(infer(predictor.model, members, compute))


def _cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return (ours * theirs).sum(1) / np.maximum(norms, 1e-12)


def require_close(precision: str, found: dict[str, Any]) -> None:
    """Raise UserError if the differences are larger than the precision explains. int8 is judged by its scores."""
    worst = max([found["difference"] if precision == "fp32" else 0.0, *found.get("outputs", {}).values()])
    if not worst <= TOLERANCE:
        difference = f"{worst:.1e}, relative to its largest value"
        raise UserError(f"the result differs from its source by {difference}: report this bug")
    if precision == "bf16" and not found["cosine"] >= MIN_COSINE:
        raise UserError(f"bf16 changes a hidden state to a cosine of {found['cosine']:.3f}: this model needs fp32")
    if not np.isfinite(found["cosine"]):
        raise UserError("the result has non-finite hidden states: use another precision")


def require_equal(compared: list[Compared], exact: bool) -> None:
    """Check the comparisons. Raises UserError. exact: whether numbers count, too, and not only tokens and names."""
    for each in wrong(compared):
        if exact or each.tolerance == 0:
            example = "" if each.example is None else ": " + ", ".join(asdict(each.example).values())
            why = each.reason if each.example is None else f"{each.difference:.1e}"
            raise UserError(
                f"the result differs from its source in {each.what} ({why}{example})"[:500] + ": report this bug"
            )


def compare_scores(before: ModelResults, after: ModelResults, task: Task | None) -> dict[str, Any]:
    """Compare the scores of two models on labeled examples, or their vectors of texts if they have no task.

    Returns:
        {"scores", "source_scores", "metric", "loss"}: as `convert` returns them.
    """
    old, new, metric = before.scores, after.scores, "cosine" if task is None else task.metric
    if before.vectors is not None and after.vectors is not None:
        old, new = {"cosine": 1.0}, {"cosine": float(_cosines(before.vectors, after.vectors).mean())}
    return {"scores": new, "source_scores": old, "metric": metric, "loss": old[metric] - new[metric]}


def can_load(predictor: Predictor, out: Path) -> bool:
    """Return whether transformers has a class for the encoder, and say if it has none, or none for the heads.

    Args:
        predictor: The converted model.
        out: The name that its folder gets, for messages.
    """
    if not family_of(predictor.model.encoder.config).in_transformers:
        console.warn(f"{out}: no class of transformers has the structure of this model: only bertie loads it")
        return False
    if transformers_heads(predictor.model) is None:
        names = ", ".join(facts_of(predictor.model.heads[kind]).name for kind in sorted(predictor.model.encoder_heads))
        console.warn(f"{out}: transformers has no class for the head ({names}): it loads the encoder, and bertie all")
    return True


def as_library_sees(predictor: Predictor) -> Predictor:
    """Return a model without the heads for which transformers has no class."""
    known = transformers_heads(predictor.model) or {}
    heads = {
        kind: head for kind, head in predictor.model.heads.items() if kind in known or facts_of(head).shape == "vectors"
    }
    if len(heads) == len(predictor.model.heads):
        return predictor
    task = predictor.task if predictor.task is not None and predictor.task.kind in heads else None
    return replace(predictor, model=Model(predictor.model.encoder, heads), task=task)
