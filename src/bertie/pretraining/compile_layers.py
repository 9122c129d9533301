"""Compilation of the encoder's layers on machines that support it."""

from __future__ import annotations

from bertie.base import console, runtime
from bertie.base.errors import first_line
from bertie.model.attention.flash_attention import use_flash_attention_3
from bertie.model.model import Model
from bertie.pretraining.feed import Feed
from bertie.training.memory import is_out_of_memory, one_pass


def compile_if_possible(model: Model, feed: Feed, precision: runtime.Resolved) -> bool:
    """Compile the layers of the encoder and of a generator, and run one pass of each phase, since their lengths may differ.

    If compilation fails, restore the uncompiled layers. Rank 0 warns, also of a rank that will hold up the others.

    Returns:
        Whether the layers are compiled.
    """
    if not model.transformers:  # other encoders run as they are
        return False
    reasons = feed.ranks.gather(_failure(model, feed, precision))
    for rank, reason in enumerate(reasons):
        if reason:
            where = f"rank {rank}: " * (len(reasons) > 1)
            console.warn(f"{where}cannot compile the layers, training continues without compilation: {reason}")
    return not reasons[feed.ranks.rank]


def _failure(model: Model, feed: Feed, precision: runtime.Resolved) -> str:
    """Compile the layers. Return why that failed, in one line; empty if it did not."""
    use_flash_attention_3()
    uncompiled = [transformer.call for transformer in model.transformers]
    for transformer in model.transformers:
        transformer.compile_layers(half=precision == "bf16" and model.device.type == "cuda")
    try:
        for phase in feed.phases:
            plan = feed.first_step(phase)
            for rows in feed.pass_sizes(plan):
                one_pass(model, feed.first_rows(plan, rows), precision)
    except Exception as error:  # compilers, drivers and kernels raise many kinds of errors
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        for transformer, call in zip(model.transformers, uncompiled, strict=True):
            transformer.call = call
        return first_line(error)
    return ""
