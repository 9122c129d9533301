"""A run in phases: most steps on short sequences, the last ones on long ones (Devlin et al. 2018, appendix A.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bertie.batches.layouts import Layout
from bertie.batches.loader import Loader, Position, StepPlan, StepShape
from bertie.errors import UsageError, require_range
from bertie.text.shards import Shards


@dataclass(frozen=True)
class Phase:
    """A part of the steps with a length and a batch of its own."""

    share: float
    """Of all steps; the shares of all phases make 1."""
    max_length: int = 0
    """Tokens in the longest sequence; 0: the layout's."""
    batch_size: int = 0
    """Sequences of full length a step; 0: training's."""

    def __post_init__(self) -> None:
        require_range("phases", self, "share", low=0, high=1, above=True)
        require_range("phases", self, "max_length", "batch_size", low=0)


@dataclass(frozen=True, eq=False)
class ResolvedPhase:
    """A phase, worked out. until: the first step (of the whole run) that is no longer of it."""

    end_step: int
    layout: Layout
    batch_size: int
    shape: StepShape

    def loader(self, shards: Shards, seed: int) -> Loader:
        return Loader(shards.train, shards.tokenizer, self.layout, self.shape, seed)


def resolve_phases(
    phases: tuple[Phase, ...], layout: Layout, batch_size: int, row_tokens: int, steps: int
) -> list[ResolvedPhase]:
    """What each phase comes to; without phases, one. Errors: UsageError naming the phase that cannot be."""
    if phases and abs(sum(phase.share for phase in phases) - 1) > 1e-6:
        raise UsageError(f"phases: the shares make {sum(phase.share for phase in phases):g} together: they must make 1")
    made: list[ResolvedPhase] = []
    share = 0.0
    for number, phase in enumerate(phases or (Phase(1.0),)):
        share += phase.share
        until = steps if number + 1 == len(phases) else round(share * steps)
        if until <= (made[-1].end_step if made else 0):
            raise UsageError(
                f"phases.{number}: {phase.share:g} of {steps} steps is no step: raise share or training.steps"
            )
        try:
            own = replace(layout, max_length=phase.max_length or layout.max_length)
        except UsageError as error:
            raise UsageError(str(error).replace("layout", f"phases.{number}")) from error
        size = phase.batch_size or batch_size
        made.append(ResolvedPhase(until, own, size, StepShape.of(size, own.max_length, row_tokens)))
    return made


def phase_index(way: list[ResolvedPhase], step: int) -> int:
    """The number of the leg that a step (from 0) belongs to."""
    return next(number for number, leg in enumerate(way) if step < leg.end_step)


def plan_steps(
    way: list[ResolvedPhase], shards: Shards, seed: int, first: int, position: Position
) -> Iterator[StepPlan]:
    """The steps of a run from `first` on, which stands at `position`. A phase begins with a new epoch."""
    step = first
    for leg in way[phase_index(way, first) :]:
        for work in leg.loader(shards, seed).steps(position):
            step += 1
            ended = step == leg.end_step
            position = Position(work.position.epoch + 1, 0) if ended else work.after
            yield replace(work, after=position)
            if ended:
                break
