"""The loop: one for pre-training and for every task. It yields; the caller logs, evaluates, saves and stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bertie import runtime, seeding
from bertie.batches.loader import Step
from bertie.contracts import Loss, MicroBatch
from bertie.model.bert import BertModel
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.schedules import Schedule


class MicroBatches(Protocol):
    """A list of micro-batches, or what makes them when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> list[MicroBatch]: ...


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step did. losses: over the whole step, by head; grad_norm: before clipping; tokens: real ones.

    Losses and norm may still be on their way in a GPU's queue. skipped: 1 where they are no numbers: nothing was changed.
    """

    step: int
    work: Step
    losses: dict[str, Loss]
    grad_norm: Tensor
    skipped: Tensor
    learning_rate: float
    tokens: int


@dataclass(frozen=True)
class LoopSettings:
    """The numbers of the loop. weights: the factor of each head's loss."""

    steps: int
    learning_rate: float
    max_grad_norm: float
    seed: int
    precision: Literal["fp32", "bf16"]
    loss_weights: dict[str, float]


def train_steps(
    model: BertModel,
    stream: Iterable[Step],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    descent: LoopSettings,
    first_step: int = 0,
    ranks: Ranks = SINGLE_PROCESS,
) -> Iterator[StepResult]:
    """Train from `first_step` up to descent.steps; each micro-batch of a step is one forward and backward pass.

    Losses are sums divided by the count of the whole step, so the split into micro-batches and ranks does not change
    them. A step whose loss or gradient is no number changes neither weights nor optimizer. The host never waits for a GPU.
    """
    device, losses_of = model.device, ranks.loss_function(model)
    names = list(descent.loss_weights)
    for step, work in zip(range(first_step, descent.steps), stream):  # noqa: B905 - the stream has no end
        own = [[micro.counts[name] for name in names] + [micro.tokens] for micro in work.batches]
        *counts, tokens = ranks.sum_values([sum(column) for column in zip(*own, strict=True)])
        factors = [losses_of.scale * descent.loss_weights[n] / (c or 1.0) for n, c in zip(names, counts, strict=True)]
        sums = torch.zeros(len(names), 3, dtype=torch.float64, device=device)
        for number, micro in enumerate(work.batches):
            runtime.reseed_torch(descent.seed, seeding.DROPOUT, step, work.first + number)
            with losses_of.gradient_sync(last=number + 1 == len(work.batches)):
                with runtime.autocast(descent.precision, device):
                    losses = losses_of(micro.tensors(device))
                torch.stack(
                    [factor * losses[n].total for n, factor in zip(names, factors, strict=True)]
                ).sum().backward()
            sums += _rows(names, losses)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), descent.max_grad_norm)
        together = _together(names, sums, ranks)
        learning_rate = descent.learning_rate * schedule.factor(step, descent.steps)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * group.get("share", 1.0)
        skipped = _update(optimizer, [grad_norm, *(loss.total for loss in together.values())])
        yield StepResult(step, work, together, grad_norm, skipped, learning_rate, int(tokens))


def _update(optimizer: torch.optim.Optimizer, measures: list[Tensor]) -> Tensor:
    """One step of the optimizer, unless a measure is no finite number; returns 1 where it was skipped, else 0.

    `found_inf` is how torch's gradient scaler tells an optimizer the same, on the device.
    """
    skipped = (~torch.isfinite(torch.stack([measure.float() for measure in measures])).all()).float()
    optimizer.found_inf = skipped  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return skipped


def _rows(names: list[str], losses: dict[str, Loss]) -> Tensor:
    """[heads, 3]: total, count and hits of each. Sums stay sums, so those of micro-batches and ranks are added up."""
    return torch.stack([torch.stack([losses[n].total, losses[n].count, losses[n].hits]) for n in names]).detach()


def _together(names: list[str], sums: Tensor, ranks: Ranks) -> dict[str, Loss]:
    ranks.sum_inplace(sums)
    return {name: Loss(*row) for name, row in zip(names, sums, strict=True)}


@torch.no_grad()
def evaluate(
    model: BertModel,
    work: MicroBatches,
    precision: Literal["fp32", "bf16"],
    ranks: Ranks = SINGLE_PROCESS,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Loss] | None:
    """The losses over all of `work`, without dropout; the model is left as it was. None: `stopping` said so in between.

    The ranks take turns; all of them ask `stopping` equally often.
    """
    names, training = list(model.heads), model.training
    sums = torch.zeros(len(names), 3, dtype=torch.float64, device=model.device)
    model.eval()
    try:
        for start in range(0, len(work), ranks.count):
            if ranks.any(stopping()):
                return None
            for micro in work[start + ranks.rank : start + ranks.rank + 1]:  # none, after the last one's turn
                with runtime.autocast(precision, model.device):
                    sums += _rows(names, model(micro.tensors(model.device)))
    finally:
        model.train(training)
    return _together(names, sums, ranks)
