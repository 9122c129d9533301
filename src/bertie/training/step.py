"""The computation of one optimizer step: the gradients of its micro-batches, then the update of the weights.

H  heads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bertie.base import runtime, seeding
from bertie.base.contracts import AnyMicroBatch, Loss
from bertie.batches.loader import Step
from bertie.model.model import Model
from bertie.model.transformer import use_layers
from bertie.training.distributed import LossFunction, Ranks


class Outcome(NamedTuple):
    """The results of a step, as tensors that may still be computed."""

    sums: Float[Tensor, "H 3"]
    """Of each head: the total, count and hits of its loss, summed over all micro-batches and ranks."""
    grad_norm: Tensor
    """Scalar: the norm of all gradients, before clipping."""
    skipped: Tensor
    """Scalar: 1 if a loss or the gradient was NaN or infinite, so that the step changed nothing; else 0."""


@dataclass(frozen=True, eq=False)
class StepFunction:
    """Computes optimizer steps, operation by operation."""

    model: Model
    optimizer: torch.optim.Optimizer
    heads: list[str]
    """Kinds of the heads, in the order of the factors and of the sums."""
    max_grad_norm: float
    seed: int
    """Random seed of dropout."""
    precision: runtime.Resolved
    ranks: Ranks
    losses: LossFunction

    def __call__(self, step: int, work: Step, factors: list[float], learning_rate: float) -> Outcome:
        """Compute a step and change the weights in place.

        Args:
            step: Its number, from 0.
            work: The micro-batches of this rank.
            factors: The factor of each head's loss, [H].
            learning_rate: The learning rate; a parameter group multiplies it by its `lr_scale`.
        """
        device = self.model.device
        use_layers(self.model.encoder, work.layers)
        sums = torch.zeros(len(self.heads), 3, dtype=torch.float64, device=device)
        for number, micro in enumerate(work.micro_batches):
            self.seed_dropout(step, work, number)
            with self.losses.gradient_sync(last=number + 1 == len(work.micro_batches)):
                losses = self.add_gradients(micro, factors)
            sums += losses
        self.losses.sum_gradients()
        return self.update(sums, self.rates(learning_rate))

    def seed_dropout(self, step: int, work: Step, number: int) -> None:
        """Seed torch for a micro-batch of a step."""
        runtime.reseed_torch(self.seed, seeding.DROPOUT, step, work.number(number))

    def add_gradients(self, micro: AnyMicroBatch, factors: Sequence[float] | Sequence[Tensor]) -> Float[Tensor, "H 3"]:
        """Add the gradients of a micro-batch to the gradients of the weights. Return the total, count and hits of each head."""
        device = self.model.device
        with runtime.autocast(self.precision, device):
            losses = self.losses(micro.tensors(device))
        torch.stack(
            [factor * losses[name].total for name, factor in zip(self.heads, factors, strict=True)]
        ).sum().backward()
        return stack_losses(self.heads, losses)

    def rates(self, learning_rate: float) -> list[float]:
        """Return the learning rate of each parameter group."""
        return [learning_rate * group.get("lr_scale", 1.0) for group in self.optimizer.param_groups]

    def update(self, sums: Float[Tensor, "H 3"], rates: Sequence[float] | Sequence[Tensor]) -> Outcome:
        """Clip the gradients, take an optimizer step, and drop the gradients.

        Args:
            sums: The sums of all micro-batches of this rank. The sums of all ranks replace them.
            rates: The learning rate of each parameter group.
        """
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.ranks.sum_inplace(sums)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        with runtime.autocast(self.precision, self.model.device):  # Muon computes products of matrices, too
            skipped = _update(self.optimizer, [grad_norm, *sums[:, 0]])
        return Outcome(sums, grad_norm, skipped)


def _update(optimizer: torch.optim.Optimizer, measures: list[Tensor]) -> Tensor:
    """Take an optimizer step, or skip it if a measure is not finite. Return 1 if it was skipped, else 0.

    The decision is made on the device, without a wait: an optimizer skips a step if its `found_inf` is 1. torch's
    gradient scaler uses the same attribute.
    """
    skipped = (~torch.isfinite(torch.stack([measure.float() for measure in measures])).all()).float()
    optimizer.found_inf = skipped  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return skipped


def stack_losses(heads: list[str], losses: dict[str, Loss]) -> Float[Tensor, "H 3"]:
    """Stack the total, count and hits of each head. All are sums, so micro-batches and ranks add up."""
    return torch.stack([torch.stack([losses[n].total, losses[n].count, losses[n].hits]) for n in heads]).detach()
