"""Compiled layers, where the machine can compile them."""

from __future__ import annotations

from typing import Literal

from bertie import console
from bertie.batches.loader import Position
from bertie.model.bert import BertModel
from bertie.pretraining.feed import Feed, rows_per_pass
from bertie.pretraining.memory import is_out_of_memory, one_pass


def compile_if_possible(model: BertModel, feed: Feed, precision: Literal["fp32", "bf16"]) -> bool:
    """Compile the encoder's layers and do a pass with them; where that does not work, say so, and leave them as they were.

    A pass of each phase, whose rows may be of another length. Returns whether they are compiled.
    """
    plain = model.encoder.call
    model.encoder.compile_layers()
    try:
        for leg in feed.phases:
            plan = next(leg.loader(feed.shards, feed.seed).steps(Position()))
            each = rows_per_pass(len(feed.ranks.own_range(plan.rows)), feed.micro_batch)
            [micro] = feed.micro_batches(plan, range(each), each)
            one_pass(model, micro, precision)
    except Exception as error:  # a compiler, its drivers and its kernels fail in many ways
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        model.encoder.call = plain
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        console.warn(f"the layers cannot be compiled here, and are trained as they are: {reason}")
        return False
    return True
