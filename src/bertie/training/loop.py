"""Optimizer steps and held-out losses, for pre-training and for every task.

`train_steps` turns batches into losses, gradients and updates. It yields the result of each step; its caller
(trainer.py) logs, evaluates, saves and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from bertie.base import runtime
from bertie.base.contracts import AnyMicroBatch, Loss
from bertie.batches.loader import Step
from bertie.model.model import Model
from bertie.training.captured import CapturedSteps, CudaGraphs
from bertie.training.distributed import SINGLE_PROCESS, LossFunction, Ranks, TimedSums
from bertie.training.length import Length
from bertie.training.schedules import Schedule
from bertie.training.step import StepFunction, stack_losses


class MicroBatches(Protocol):
    """A list of micro-batches, or an object that builds them when a slice is requested."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> Sequence[AnyMicroBatch]: ...


@dataclass(frozen=True, eq=False)
class StepResult:
    """The result of one optimizer step. On a GPU, its tensors may still be computed."""

    step: int
    """Number of the step, from 0."""
    work: Step
    """The micro-batches of this rank."""
    losses: dict[str, Loss]
    """By head: the losses summed over all micro-batches and ranks."""
    grad_norm: Tensor
    """Scalar: the norm of all gradients, before clipping."""
    skipped: Tensor
    """Scalar: 1 if a loss or the gradient was NaN or infinite, so that the step changed nothing; else 0."""
    learning_rate: float
    tokens: int
    """Tokens of all ranks, without filler."""
    waits: list[float]
    """Of each rank: seconds that it waited for the others before the step before. Empty if there is one rank."""


@dataclass(frozen=True)
class LoopSettings:
    """The hyperparameters of the loop."""

    length: Length
    """When the run ends, and what the schedule follows."""
    learning_rate: float
    """The peak, which the schedule's factor multiplies."""
    max_grad_norm: float
    seed: int
    """Random seed of dropout."""
    precision: runtime.Resolved
    loss_weights: dict[str, float]
    """The factor of each head's loss."""
    constant_tokens: bool = False
    """Whether all rows of a phase have the same number of tokens, and each rank has some in every step, as in pre-training.
    Then a GPU can repeat recorded steps (captured.py)."""
    grows: bool = False
    """Whether some steps train only the first layers (`Step.layers`)."""


def train_steps(
    model: Model,
    stream: Iterable[Step],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    settings: LoopSettings,
    first_step: int = 0,
    ranks: Ranks = SINGLE_PROCESS,
) -> Iterator[StepResult]:
    """Train from `first_step` to the last step, with gradient accumulation over the micro-batches of each step.

    The loss of a step is a sum over all predictions, divided by their number. The split of a step into micro-batches
    and ranks therefore does not change it. A step whose loss or gradient is NaN or infinite changes neither the weights
    nor the optimizer state. The host never waits for a GPU.

    Args:
        model: The model, whose weights are changed in place.
        stream: The steps from `first_step` on: this rank's micro-batches.
        optimizer: The optimizer of the model's parameters.
        schedule: The schedule of the learning rate.
        settings: The hyperparameters.
        first_step: Number of the first step, from 0.
        ranks: The processes that train together.

    Yields:
        The result of each step, after its update.
    """
    length, names = settings.length, list(settings.loss_weights)
    compute, scale = _step_function(model, optimizer, settings, ranks)
    if length.is_over(first_step):
        return
    sums = TimedSums(ranks)
    for step, work in enumerate(stream, first_step):
        counts_of_passes = [[micro.counts[name] for name in names] + [micro.tokens] for micro in work.micro_batches]
        none = [0.0] * (len(names) + 1)  # the sums of a rank without work in this step
        *counts, tokens = sums([sum(column) for column in zip(none, *counts_of_passes, strict=True)])
        weights = settings.loss_weights
        factors = [scale * weights[name] / (count or 1.0) for name, count in zip(names, counts, strict=True)]
        learning_rate = settings.learning_rate * schedule.factor(length.part_of(step), length.parts)
        totals, grad_norm, skipped = compute(step, work, factors, learning_rate)
        losses = {name: Loss(*row) for name, row in zip(names, totals, strict=True)}
        yield StepResult(step, work, losses, grad_norm, skipped, learning_rate, int(tokens), sums.waits)
        if length.is_over(step + 1):
            return


def _step_function(
    model: Model, optimizer: torch.optim.Optimizer, settings: LoopSettings, ranks: Ranks
) -> tuple[StepFunction | CapturedSteps, float]:
    """Return the function that computes the steps, and the factor of all losses that several ranks need."""
    all_weights = settings.constant_tokens and not settings.grows
    losses, heads = LossFunction(model, ranks, all_weights), list(settings.loss_weights)
    norm, seed, precision = settings.max_grad_norm, settings.seed, settings.precision
    function = StepFunction(model, optimizer, heads, norm, seed, precision, ranks, losses)
    optimizer.ranks = ranks  # pyright: ignore[reportAttributeAccessIssue] - Muon shares its work out
    device = model.device
    if settings.constant_tokens and device.type == "cuda" and ranks.count == 1 and model.capturable:
        return CapturedSteps(function, partial(CudaGraphs, device)), losses.scale
    return function, losses.scale


@torch.no_grad()
def evaluate(
    model: Model,
    work: MicroBatches,
    precision: runtime.Resolved,
    ranks: Ranks = SINGLE_PROCESS,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Loss] | None:
    """Compute the losses over all micro-batches, without dropout and gradients.

    The ranks take turns. The model is left in the mode (training or evaluation) that it was in.

    Args:
        model: The model.
        work: The micro-batches of all ranks.
        precision: The number format of matrix products.
        ranks: The processes that evaluate together.
        should_stop: Called before each turn, equally often on all ranks. If it returns true on one of them, the
            evaluation ends.

    Returns:
        The summed losses by head, or None if `should_stop` ended the evaluation.
    """
    names, training = list(model.heads), model.training
    sums = torch.zeros(len(names), 3, dtype=torch.float64, device=model.device)
    model.eval()
    try:
        for start in range(0, len(work), ranks.count):
            if ranks.any(should_stop()):
                return None
            for micro in work[start + ranks.rank : start + ranks.rank + 1]:  # may be empty in the last round
                with runtime.autocast(precision, model.device):
                    sums += stack_losses(names, model(micro.tensors(model.device)))
    finally:
        model.train(training)
    ranks.sum_inplace(sums)
    return {name: Loss(*row) for name, row in zip(names, sums, strict=True)}
