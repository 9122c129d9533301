"""How many rows a forward pass may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from bertie import runtime
from bertie.batches.loader import Position
from bertie.contracts import MicroBatch
from bertie.model.bert import BertModel
from bertie.training.feed import Feed

USED = 0.9  # of a GPU's free memory: the rest is for fragments, and what libraries take later


def rows_that_fit(model: BertModel, feed: Feed, precision: Literal["fp32", "bf16"]) -> int:
    """On a GPU, rows whose forward and backward pass its free memory has room for; elsewhere 1, which caches like best."""
    device = model.device
    if device.type != "cuda":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    state = 2 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())  # Adam's, to come
    room = int(USED * (free + torch.cuda.memory_allocated(device))) - state
    found = []
    for leg in feed.way:
        plan = next(leg.loader(feed.shards, feed.seed).steps(Position()))

        def peak(rows: int, plan=plan) -> int:
            [micro] = feed.micro_batches(plan, range(rows), rows)
            return _peak(model, micro, precision)

        if plan.count > 1:
            found.append(fitting(peak, room))
    return min(found, default=1)


def fitting(peak: Callable[[int], int], room: int) -> int:
    """The rows whose peak is within `room`, at least 1, if every row adds as much as the second. peak(rows): bytes."""
    one, two = peak(1), peak(2)
    return max(1, 1 + (room - one) // max(two - one, 1))


def _peak(model: BertModel, micro: MicroBatch, precision: Literal["fp32", "bf16"]) -> int:
    """Bytes that are allocated at the highest during one pass, with gradients and weights."""
    torch.cuda.reset_peak_memory_stats()
    with runtime.autocast(precision, model.device):
        losses = model(micro.tensors(model.device))
    torch.stack([loss.total for loss in losses.values()]).sum().backward()
    model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated()
