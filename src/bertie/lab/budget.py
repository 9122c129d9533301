"""A budget of a lab file as a number of optimizer steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertie.errors import UsageError
from bertie.lab.config import Budget
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.step_cost import flops_per_step, seconds_per_step, tokens_per_step
from bertie.training.distributed import SINGLE_PROCESS


def with_steps(config: PretrainConfig, steps: int) -> PretrainConfig:
    """Return the recipe with another number of steps.

    Raises:
        UsageError: The budget is less than one step.
    """
    if steps < 1:
        raise UsageError("the budget is less than one step: raise budget.amount, or lower training.batch_size")
    return replace(config, training=replace(config.training, steps=steps))


def known_steps(budget: Budget | None, config: PretrainConfig) -> int | None:
    """Return the steps of a budget in steps or tokens. None: `measured_steps` needs the shards."""
    if budget is None:
        return config.training.steps
    if budget.unit == "steps":
        return round(budget.amount)
    return round(budget.amount / tokens_per_step(config)) if budget.unit == "tokens" else None


def measured_steps(budget: Budget, config: PretrainConfig, shards: Path, threads: int) -> int:
    """Return the steps of a budget in floating-point operations or seconds.

    Args:
        budget: The budget.
        config: The recipe.
        shards: The shards it trains on.
        threads: Number of CPU threads.
    """
    setup = set_up(config, shards, shards.parent / "run", threads, SINGLE_PROCESS)
    cost = flops_per_step(setup) if budget.unit == "flops" else seconds_per_step(setup)
    return round(budget.amount / cost)
