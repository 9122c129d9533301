"""The steps of pre-training on several sources, whose rows take turns by weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from bertie.base.contracts import Batch
from bertie.batches.loader import Loader, Position, StepPlan

_EPOCHS = 1 << 20  # between the random numbers of two phases


@dataclass(frozen=True, eq=False)
class MixtureLoader:
    """The source of steps whose rows are of several corpora.

    After any number of rows, each corpus has had its share, to within a row (the divisor method of Webster). Each has epochs of
    its own. A step is a pure function of (seed, epoch, step).
    """

    loaders: tuple[Loader, ...]
    """Of each corpus."""
    weights: tuple[float, ...]
    """How often a row is of each corpus, relative to the others."""

    def steps(self, position: Position) -> Iterator[StepPlan]:
        """Yield steps without end. They count through: an epoch does not end, and each phase of a run has one."""
        [shape] = {loader.shape for loader in self.loaders}
        start = Position(position.epoch * _EPOCHS)
        streams = [replace(loader, shape=replace(shape, rows=1)).steps(start) for loader in self.loaders]
        weights, drawn = np.array(self.weights), np.zeros(len(self.weights), np.int64)
        for step in count():
            before, plans = drawn.copy(), list[StepPlan]()
            for _ in range(shape.rows):
                source = int(np.argmax(weights / (2 * drawn + 1)))
                drawn[source] += 1
                plans.append(next(streams[source]))
            if step >= position.step:
                current, after = Position(position.epoch, step), Position(position.epoch, step + 1)
                tokens = tuple(int(rows) * shape.row_tokens for rows in drawn - before)
                build = partial(_row, plans)
                yield StepPlan(build, shape.rows, current, after, position.epoch, source_tokens=tokens)


def _row(plans: list[StepPlan], number: int) -> Batch:
    return plans[number].build_row(0)
