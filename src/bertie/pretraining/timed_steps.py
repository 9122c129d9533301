"""The steps of a run that follows the clock (see `training/clock.py`): the clock decides when a phase ends."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

from bertie.batches.loader import Position, Step, StepPlan
from bertie.batches.prefetch import prefetch
from bertie.pretraining.phases import ResolvedPhase, phase_index
from bertie.pretraining.repetition import MANY_EPOCHS, warn_of_repetition
from bertie.text.shards import Shards
from bertie.training.clock import Clock


def timed_steps(
    phases: list[ResolvedPhase],
    shards: Shards,
    seed: int,
    workers: int,
    build: Callable[[StepPlan], Step],
    clock: Clock,
    position: Position,
) -> Generator[Step]:
    """Generate steps without end. Every phase begins with a new epoch.

    Args:
        phases: The phases, whose ends count parts of the run.
        shards: The corpus.
        seed: The random seed of the run.
        workers: Processes that prepare steps in advance.
        build: Builds a step.
        clock: The clock.
        position: Position of the first step in the data.
    """
    warned = False
    while True:
        number = phase_index(phases, clock.part)
        plans = phases[number].loader(shards, seed).steps
        part = partial(_part, plans, position, build, clock)
        with closing(prefetch(part, workers)) as stream:
            for step in stream:
                if phase_index(phases, clock.part) != number:
                    break
                if step.position.epoch >= MANY_EPOCHS and not warned:
                    warned = True
                    warn_of_repetition(MANY_EPOCHS + 1)
                yield step
                position = step.position
        position = Position(position.epoch + 1, 0)


def _part(
    plans: Callable[[Position], Iterator[StepPlan]],
    position: Position,
    build: Callable[[StepPlan], Step],
    clock: Clock,
    worker: int,
    workers: int,
) -> Iterator[Step]:
    """Build every `workers`-th step, beginning with that of number `worker`."""
    for plan in islice(plans(position), worker, None, workers):
        yield build(replace(plan, progress=clock.estimate()))
