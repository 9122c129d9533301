"""The steps of pre-training, each a few packed rows, as a pure function of (seed, epoch, step in the epoch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

from bertie.batches.collate import collate, filler
from bertie.batches.layouts import Layout
from bertie.batches.packing import pack, row_count
from bertie.contracts import Batch, MicroBatch
from bertie.errors import UserError
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class StepShape:
    """Size of a step: `rows` rows of `row_tokens` packed tokens each.

    A row is the unit of work. Micro-batches, ranks and workers share out rows and never change them, so the data does not
    depend on the hardware.
    """

    rows: int
    row_tokens: int

    @classmethod
    def of(cls, batch_size: int, max_length: int, row_tokens: int) -> StepShape:
        """Return the shape of a step with batch_size × max_length tokens, the batch size of the paper in tokens.

        Args:
            batch_size: Sequences per step, if all had the maximum length.
            max_length: Maximum sequence length in tokens.
            row_tokens: Wanted row size in tokens. The actual size is near it: a multiple of 8, and at least `max_length`.
        """
        total = batch_size * max_length
        rows = max(1, round(total / max(row_tokens, max_length)))
        return cls(rows, max(max_length, math.ceil(total / rows / 8) * 8))


@dataclass(frozen=True)
class Position:
    """Position of a run in its data. It is sufficient to resume."""

    epoch: int = 0
    step: int = 0
    """Step within the epoch, from 0."""


@dataclass(frozen=True, eq=False)
class Step:
    """The micro-batches of one optimizer step that this rank computes."""

    micro_batches: list[MicroBatch]
    position: Position
    """Position of this step."""
    after: Position
    """Position of the next step."""
    numbers: tuple[int, ...] = ()
    """Of each micro-batch a number that no other one of the step has, on any rank. Empty: 0, 1, 2 …"""

    def number(self, index: int) -> int:
        """Return the number of a micro-batch of this rank. It seeds dropout."""
        return self.numbers[index] if self.numbers else index


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A step whose rows are built on request, so that a rank or worker builds only its own rows."""

    build_row: Callable[[int], Batch]
    """Build the row with this number, from 0."""
    rows: int
    """Number of rows."""
    position: Position
    """Position of this step."""
    after: Position
    """Position of the next step."""
    source_epoch: int
    """The epoch whose random numbers this step uses."""
    progress: float = 0.0
    """Fraction of the run's steps that precede this step, in [0, 1). 0 if the step belongs to no run."""

    @property
    def all_rows(self) -> list[Batch]:
        """Build all rows."""
        return [self.build_row(number) for number in range(self.rows)]


@dataclass(frozen=True, eq=False)
class Loader:
    """The source of pre-training steps."""

    corpus: Corpus
    tokenizer: Tokenizer
    layout: Layout
    shape: StepShape
    seed: int
    static_epochs: int = 0
    """Repeat the random numbers of the first epochs, so many; 0: every epoch has its own."""

    def steps(self, position: Position) -> Iterator[StepPlan]:
        """Yield steps without end, beginning at `position`. Earlier steps are not read.

        The rows that remain at the end of an epoch, fewer than a step has, are not used.

        Raises:
            UserError: A step needs more rows than the corpus has.
        """
        shape = self.shape
        while True:
            source = position.epoch % self.static_epochs if self.static_epochs else position.epoch
            epoch = self.layout.epoch(self.corpus, self.tokenizer, self.seed, source)
            per_window = [row_count(epoch.lengths(w), shape.row_tokens) for w in range(epoch.windows)]
            steps = sum(per_window) // shape.rows
            if steps == 0:
                raise UserError(
                    f"the corpus has {sum(per_window)} rows of {shape.row_tokens} tokens and one step takes "
                    f"{shape.rows}: lower --training.batch-size or give more text"
                )

            @lru_cache(maxsize=2)  # the rows of a step are in one window or two
            def packed(window: int, epoch=epoch) -> tuple[list, list[list[int]]]:
                spans = epoch.window(window)
                return spans, pack(epoch.lengths(window), shape.row_tokens)

            def build_row(step: int, index: int, epoch=epoch, per_window=per_window, packed=packed) -> Batch:
                index, window = step * shape.rows + index, 0
                while index >= per_window[window]:
                    index -= per_window[window]
                    window += 1
                spans, rows = packed(window)
                sequences = [epoch.sequence(spans[i]) for i in rows[index]]
                gap = shape.row_tokens - sum(map(len, sequences))
                limit = self.layout.max_length
                return collate(sequences + filler(gap, self.tokenizer.pad_id, limit), limit)

            for step in range(position.step, steps):
                current, last = Position(position.epoch, step), step + 1 == steps
                after = Position(position.epoch + 1, 0) if last else Position(position.epoch, step + 1)
                yield StepPlan(partial(build_row, step), shape.rows, current, after, source)
            position = Position(position.epoch + 1, 0)
