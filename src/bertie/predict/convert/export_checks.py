"""Whether a converted model is still its source: hidden states, comparisons, scores, and what other libraries load."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie.base import console
from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.checkpoints.families import family_of
from bertie.checkpoints.huggingface import transformers_heads
from bertie.model.head_facts import facts_of
from bertie.predict.convert.compared_texts import texts
from bertie.predict.convert.comparison import TOLERANCE, Compared, wrong
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import token_vectors
from bertie.tasks import Task
from bertie.tasks.metrics import sign

Measurements = dict[str, Any]
"""What was measured of a converted model, as `convert` returns it."""
MIN_COSINE = 0.98
"""Smallest cosine of a hidden state in bf16 and in the source."""


class ModelResults(NamedTuple):
    """The results of a model, so that it need not stay in memory beside the other one."""

    states: np.ndarray
    """Last hidden states, [tokens, D]."""
    scores: dict[str, float]
    """Of a task, with data."""
    vectors: np.ndarray | None = None
    """Of the texts of the data, for a model without a task."""


def measure(predictor: Predictor, members: list[Sequence], data: str | Path | None) -> ModelResults:
    """Compute hidden states of some sequences, and the scores on data."""
    states = np.concatenate(token_vectors(predictor.model, members))
    if data is None:
        return ModelResults(states, {})
    if predictor.task is None:
        return ModelResults(states, {}, predictor.embed(texts(data)))
    return ModelResults(states, predictor.evaluate(data)["scores"])


def differences(before: ModelResults, after: ModelResults) -> Measurements:
    """Compare the last hidden states of two models.

    Returns:
        {"difference", "cosine"}: as `convert` returns them.
    """
    ours, theirs = before.states, after.states
    difference = float(np.abs(ours - theirs).max() / max(float(np.abs(ours).max()), 1e-12))
    return {"difference": difference, "cosine": float(_cosines(ours, theirs).min())}


def _cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return (ours * theirs).sum(1) / np.maximum(norms, 1e-12)


def require_close(precision: str, measured: Measurements) -> None:
    """Raise UserError if the differences are larger than the precision explains. int8 is judged by its scores."""
    worst = max([measured["difference"] if precision == "fp32" else 0.0, *measured.get("outputs", {}).values()])
    if not worst <= TOLERANCE:
        difference = f"{worst:.1e}, relative to its largest value"
        raise UserError(f"the result differs from its source by {difference}: report this bug")
    if precision == "bf16" and not measured["cosine"] >= MIN_COSINE:
        raise UserError(f"bf16 changes a hidden state to a cosine of {measured['cosine']:.3f}: this model needs fp32")
    if not np.isfinite(measured["cosine"]):
        raise UserError("the result has non-finite hidden states: use another precision")


def require_equal(compared: list[Compared], exact: bool) -> None:
    """Check the comparisons. Raises UserError. exact: whether numbers count, too, and not only tokens and names."""
    for fault in wrong(compared):
        if exact or fault.tolerance == 0:
            values = (
                "" if fault.example is None else ", ".join([f"{fault.difference:.1e}", *asdict(fault.example).values()])
            )
            problem = f"the result differs from its source in {fault.what} ({values or fault.reason})"[:500]
            raise UserError(f"{problem}: report this bug")


def compare_scores(before: ModelResults, after: ModelResults, task: Task | None) -> Measurements:
    """Compare the scores of two models on labeled examples, or their vectors of texts if they have no task.

    Returns:
        {"scores", "source_scores", "metric", "loss"}: as `convert` returns them.
    """
    old, new, metric = before.scores, after.scores, "cosine" if task is None else task.metric
    if before.vectors is not None and after.vectors is not None:
        old, new = {"cosine": 1.0}, {"cosine": float(_cosines(before.vectors, after.vectors).mean())}
    return {"scores": new, "source_scores": old, "metric": metric, "loss": sign(metric) * (old[metric] - new[metric])}


def require_small_loss(what: str, measured: Measurements, max_loss: float, remedy: str) -> None:
    """Raise UserError if a model loses too much. measured: the result of `compare_scores`."""
    if measured["loss"] > max_loss:
        problem = f"{what} loses {measured['loss']:.4f} of {measured['metric']}, more than {max_loss:g}"
        raise UserError(f"{problem}: allow it with --max-loss, {remedy}")


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
