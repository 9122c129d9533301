"""What a training needs of memory, by calculation, and how many rows a forward pass may take, by trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bertie import runtime
from bertie.batches.loader import Position
from bertie.contracts import MicroBatch
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.objectives import Objective
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes in fp32. activations: what one forward pass keeps for the way back."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def fixed(self) -> int:
        """Whatever the micro-batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.fixed + self.activations


def estimate_memory(
    size: BertConfig, objectives: tuple[Objective, ...], micro: MicroBatch, recompute: bool
) -> MemoryEstimate:
    """What training on micro-batches like this one takes, counted on a model that has shapes and no numbers.

    Counted is all that autograd keeps; under mixed precision about half of the activations. While a layer is computed
    again, what it keeps is there too. Work space, of a few activations' size, comes on top.
    """
    kept = _kept(size, objectives, micro, recompute)
    if recompute:
        one, none = (_kept(replace(size, num_hidden_layers=n), objectives, micro, False) for n in (2, 1))
        kept += one - none
    with torch.device("meta"):
        weights = 4 * new_model(size, objectives, 0).size
    return MemoryEstimate(weights, weights, 2 * weights, kept)


def _kept(size: BertConfig, objectives: tuple[Objective, ...], micro: MicroBatch, recompute: bool) -> int:
    """Bytes that autograd keeps of a forward pass, beside the weights."""
    with torch.device("meta"):
        model = new_model(size, objectives, 0)
    model.encoder.recompute = recompute
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by storage; the tensors stay, so that no storage's number is used again

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = model(micro.tensors("meta"))
    del losses
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


USABLE_SHARE = 0.9  # of a GPU's free memory: the rest is for fragments, and what libraries take later


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def rows_that_fit(
    model: BertModel, optimizer: torch.optim.Optimizer, feed: Feed, precision: Literal["fp32", "bf16"]
) -> int:
    """On a GPU, rows whose forward and backward pass its free memory has room for; elsewhere 1, which caches like best."""
    device = model.device
    if device.type != "cuda":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    to_come = 0 if optimizer.state else 2 * weights  # Adam's
    to_come += weights if feed.ranks.count > 1 else 0  # in which gradients are exchanged
    room = int(USABLE_SHARE * (free + torch.cuda.memory_allocated(device))) - to_come
    found = []
    for leg in feed.phases:
        plan = next(leg.loader(feed.shards, feed.seed).steps(Position()))

        def peak(rows: int, plan=plan) -> int:
            [micro] = feed.micro_batches(plan, range(rows), rows)
            return _peak(model, micro, precision)

        if plan.rows > 1:
            found.append(largest_fitting(peak, room))
    return min(found, default=1)


def largest_fitting(peak: Callable[[int], int], room: int) -> int:
    """The rows whose peak is within `room`, at least 1, if every row adds as much as the second. peak(rows): bytes."""
    one = peak(1)
    try:
        two = peak(2)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        torch.cuda.empty_cache()
        return 1
    return max(1, 1 + (room - one) // max(two - one, 1))


def _peak(model: BertModel, micro: MicroBatch, precision: Literal["fp32", "bf16"]) -> int:
    """Bytes that are allocated at the highest during one pass, with gradients and weights."""
    torch.cuda.reset_peak_memory_stats()
    one_pass(model, micro, precision)
    return torch.cuda.max_memory_allocated()


def one_pass(model: BertModel, micro: MicroBatch, precision: Literal["fp32", "bf16"]) -> None:
    """Forward and backward, as in training; the gradients are dropped."""
    with runtime.autocast(precision, model.device):
        losses = model(micro.tensors(model.device))
    torch.stack([loss.total for loss in losses.values()]).sum().backward()
    model.zero_grad(set_to_none=True)
