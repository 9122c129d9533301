"""The data of pre-training: rows of a corpus, masked and labeled by the objectives, as micro-batches of this rank."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count, islice, pairwise
from typing import Any

from bertie.base import console, seeding
from bertie.base.contracts import Batch, MicroBatch
from bertie.base.errors import UsageError
from bertie.batches.collate import join
from bertie.batches.loader import Position, Step, StepPlan
from bertie.batches.prefetch import prefetch
from bertie.corpus.shards import Shards
from bertie.objectives import AnyObjective
from bertie.objectives.label_row import label_row
from bertie.pretraining.phases import ResolvedPhase, phase_index
from bertie.pretraining.repetition import MANY_EPOCHS, warn_of_repetition
from bertie.training.clock import Clock
from bertie.training.distributed import Ranks
from bertie.training.length import Length


@dataclass(frozen=True, eq=False)
class Feed:
    """The training steps of a run, for this rank.

    Each row is labeled separately, as a pure function of (seed, epoch, step, row) and of the fraction of the run that is
    complete. The number of rows per forward pass, the split into ranks and the number of workers therefore do not change
    the data.
    """

    phases: list[ResolvedPhase]
    shards: Shards
    objectives: tuple[AnyObjective, ...]
    seed: int
    micro_batch: int
    """Most rows of one forward pass."""
    workers: int
    """Processes that prepare steps in advance."""
    ranks: Ranks
    length: Length
    """The length of the run, which decides when a phase ends."""

    def __post_init__(self) -> None:
        for number, phase in enumerate(self.phases):
            if phase.shape.rows < self.ranks.count:
                rows = console.plural(phase.shape.rows, "row")
                raise UsageError(
                    f"a step of phase {number + 1} has {rows} for {self.ranks.count} ranks: lower training.row_tokens, or "
                    "raise training.batch_size"
                )

    def steps(self, first: int, position: Position) -> Generator[Step]:
        """Generate this rank's part of every step, from step `first` on, which begins at `position` in the data.

        Every phase begins with a new epoch.
        """
        _first_step.cache_clear()  # the start is over, and a layout of billions of tokens takes gigabytes
        while not self.length.is_over(first):
            phase = self.phase_of(first)
            with closing(prefetch(partial(self._part, phase, first, position), self.workers)) as stream:
                for step in stream:
                    position, first = step.position, first + 1
                    # With a number of steps, `pretrain` has warned before the first one.
                    if isinstance(self.length, Clock) and position == Position(MANY_EPOCHS, 0):
                        warn_of_repetition(MANY_EPOCHS + 1)
                    yield step
                    if self.phase_of(first) != phase or self.length.is_over(first):
                        break
            position = Position(position.epoch + 1, 0)

    def _part(self, phase: int, first: int, position: Position, worker: int, workers: int) -> Iterator[Step]:
        """Build every `workers`-th step of a phase, beginning with number `worker` after step `first`."""
        plans = self.phases[phase].loader(self.shards, self.seed).steps(position)
        for number, plan in zip(count(first + worker, workers), islice(plans, worker, None, workers), strict=False):
            step = self.build(replace(plan, progress=self.length.estimate(number)))
            yield replace(step, layers=self.phases[phase].layers)

    def phase_of(self, step: int) -> int:
        """Return the index of the phase of a step (from 0); with a clock, of the present moment."""
        return phase_index(self.phases, self.length.part_of(step))

    def build(self, plan: StepPlan) -> Step:
        """Build this rank's micro-batches of a step."""
        parts = passes(self.ranks.own_range(plan.rows), self.micro_batch)
        numbers = tuple(part.start for part in parts)
        return Step(self.micro_batches(plan, parts), plan.position, plan.after, plan.source_tokens, numbers)

    def micro_batches(self, plan: StepPlan, parts: list[range]) -> list[MicroBatch]:
        """Build a micro-batch of each of the given parts of the rows of a step, masked and labeled."""
        stream = (seeding.LABELS, plan.source_epoch, plan.position.step)
        tokenizer, progress = self.shards.tokenizer, plan.progress

        def labeled(row: int) -> tuple[Batch, dict[str, Any]]:
            batch = plan.build_row(row)
            return label_row(batch, self.objectives, tokenizer, self.seed, *stream, row, progress=progress)

        return [join([labeled(row) for row in part]) for part in parts]

    def pass_sizes(self, plan: StepPlan) -> list[int]:
        """Return the different numbers of rows in the forward passes of this rank, in ascending order."""
        return sorted({len(part) for part in passes(self.ranks.own_range(plan.rows), self.micro_batch)})

    def first_step(self, phase: ResolvedPhase) -> StepPlan:
        """Plan a step of a phase as a sample: the first step of epoch 0. Raise UserError if the corpus is too small."""
        return _first_step(phase, self.shards, self.seed)

    def first_rows(self, plan: StepPlan, rows: int) -> MicroBatch:
        """Build the first rows of a step as one micro-batch."""
        [micro] = self.micro_batches(plan, [range(rows)])
        return micro


@lru_cache(maxsize=4)  # to lay out a large corpus takes seconds, and a start needs samples several times
def _first_step(phase: ResolvedPhase, shards: Shards, seed: int) -> StepPlan:
    return next(phase.loader(shards, seed).steps(Position()))


def passes(rows: range, most: int) -> list[range]:
    """Split rows into forward passes.

    They have the same size, which GPUs compute fastest, if there is a divisor that is large enough; otherwise, their sizes
    differ by 1.

    Args:
        rows: The rows.
        most: Most rows of a pass.
    """
    count = -(-len(rows) // most)
    equal = next(parts for parts in range(count, len(rows) + 1) if len(rows) % parts == 0)
    count = equal if equal < 2 * count else count
    ends = [rows.start + len(rows) * part // count for part in range(count + 1)]
    return [range(*pair) for pair in pairwise(ends)]
