"""The loop: one for pre-training and for every task. It yields; the caller logs, evaluates, saves and stops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertie import runtime, streams
from bertie.batches.loader import Position, Step
from bertie.contracts import Loss, MicroBatch
from bertie.model.bert import BertModel
from bertie.training.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Progress:
    """What a step did. losses: over the whole step, by head; grad_norm: before clipping; tokens: real ones."""

    step: int
    after: Position
    losses: dict[str, Loss]
    grad_norm: Tensor
    learning_rate: float
    tokens: int


@dataclass(frozen=True)
class Descent:
    """The numbers of the loop. weights: the factor of each head's loss."""

    steps: int
    learning_rate: float
    clip: float
    seed: int
    precision: Literal["fp32", "bf16"]
    weights: dict[str, float]


def fit(
    model: BertModel,
    stream: Iterable[Step[MicroBatch]],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    descent: Descent,
    first_step: int = 0,
) -> Iterator[Progress]:
    """Train from `first_step` up to descent.steps; each micro-batch of a step is one forward and backward pass.

    Losses are sums divided by the count of the whole step, so the split into micro-batches does not change them.
    """
    device = model.device
    for step, work in zip(range(first_step, descent.steps), stream):  # noqa: B905 - the stream has no end
        counts = _sum_counts(work.batches)
        totals: list[dict[str, Loss]] = []
        for row, micro in enumerate(work.batches):
            runtime.reseed_torch(descent.seed, streams.DROPOUT, step, row)
            with runtime.autocast(descent.precision, device):
                losses = forward(model, micro.tensors(device))
            objective = torch.stack(
                [descent.weights[n] * loss.total / max(counts[n], 1.0) for n, loss in losses.items()]
            )
            objective.sum().backward()
            totals.append({n: Loss(loss.total.detach(), loss.count, loss.hits) for n, loss in losses.items()})
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), descent.clip)
        learning_rate = descent.learning_rate * schedule.factor(step, descent.steps)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens = sum(micro.tokens for micro in work.batches)
        yield Progress(step, work.after, add_losses(totals), grad_norm, learning_rate, tokens)


def forward(model: BertModel, micro: MicroBatch) -> dict[str, Loss]:
    """The losses of one micro-batch, by head."""
    hidden = model.encoder(micro.batch, micro.rows)
    return {name: model.heads[name](hidden, targets) for name, targets in micro.targets.items()}


def add_losses(parts: list[dict[str, Loss]]) -> dict[str, Loss]:
    """Sums stay sums: the loss of several micro-batches is that of all their predictions."""

    def together(losses: list[Loss]) -> Loss:
        hits = [loss.hits for loss in losses if loss.hits is not None]
        return Loss(
            torch.stack([loss.total for loss in losses]).sum(),
            torch.stack([loss.count for loss in losses]).sum(),
            torch.stack(hits).sum() if hits else None,
        )

    return {name: together([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def evaluate(model: BertModel, work: Iterable[MicroBatch], precision: Literal["fp32", "bf16"]) -> dict[str, Loss]:
    """The losses over all of `work`, without dropout; the model is left as it was."""
    training = model.training
    model.eval()
    with runtime.autocast(precision, model.device):
        parts = [forward(model, micro.tensors(model.device)) for micro in work]
    model.train(training)
    return add_losses(parts)


def _sum_counts(batches: list[MicroBatch]) -> dict[str, float]:
    counts = [batch.counts for batch in batches]
    return {name: sum(count[name] for count in counts) for name in counts[0]}
