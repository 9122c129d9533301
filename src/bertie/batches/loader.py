"""Steps of pre-training rows, as a pure function of (seed, epoch, step in the epoch)."""

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
    """A step is `count` rows of `tokens` tokens: the micro-batches. Ranks and workers may split rows, never change them."""

    rows: int
    row_tokens: int

    @classmethod
    def of(cls, batch_size: int, max_length: int, row_tokens: int) -> StepShape:
        """Rows that hold batch_size × max_length tokens (the batch as the paper counts it), each of about row_tokens."""
        total = batch_size * max_length
        count = max(1, round(total / row_tokens))
        return cls(count, max(max_length, math.ceil(total / count / 8) * 8))


@dataclass(frozen=True)
class Position:
    """Where a run stands in its data; all that resuming needs."""

    epoch: int = 0
    step: int = 0  # within the epoch


@dataclass(frozen=True, eq=False)
class Step:
    """The micro-batches of one optimizer step, where it stands, and where the next one does.

    first: the number of the first of them within the step, where other ranks have some of it.
    """

    batches: list[MicroBatch]
    position: Position
    after: Position
    first: int = 0


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A step whose `count` rows are not built yet: whoever has only some of them to do builds only those."""

    row: Callable[[int], Batch]
    rows: int
    position: Position
    after: Position

    @property
    def batches(self) -> list[Batch]:
        """All of its rows."""
        return [self.row(number) for number in range(self.rows)]


@dataclass(frozen=True, eq=False)
class Loader:
    corpus: Corpus
    tokenizer: Tokenizer
    layout: Layout
    rows: StepShape
    seed: int

    def steps(self, position: Position) -> Iterator[StepPlan]:
        """Endless steps from `position` on. What came before is not read. Errors: UserError if a step is more than the corpus."""
        while True:
            epoch = self.layout.epoch(self.corpus, self.tokenizer, self.seed, position.epoch)
            per_window = [row_count(epoch.lengths(w), self.rows.row_tokens) for w in range(epoch.windows)]
            steps = sum(per_window) // self.rows.rows
            if steps == 0:
                raise UserError(
                    f"the corpus fills {sum(per_window)} rows of {self.rows.row_tokens} tokens and one step takes "
                    f"{self.rows.rows}: lower --training.batch-size or give more text"
                )

            @lru_cache(maxsize=2)  # a step's rows lie in one window, or two
            def packed(window: int, epoch=epoch) -> tuple[list, list[list[int]]]:
                spans = epoch.window(window)
                return spans, pack(epoch.lengths(window), self.rows.row_tokens)

            def row(step: int, index: int, epoch=epoch, per_window=per_window, packed=packed) -> Batch:
                index, window = step * self.rows.rows + index, 0
                while index >= per_window[window]:
                    index -= per_window[window]
                    window += 1
                spans, rows = packed(window)
                sequences = [epoch.sequence(spans[i]) for i in rows[index]]
                gap = self.rows.row_tokens - sum(map(len, sequences))
                limit = self.layout.max_length
                return collate(sequences + filler(gap, self.tokenizer.pad_id, limit), limit)

            for step in range(position.step, steps):
                at, last = Position(position.epoch, step), step + 1 == steps
                after = Position(position.epoch + 1, 0) if last else Position(position.epoch, step + 1)
                yield StepPlan(partial(row, step), self.rows.rows, at, after)
            position = Position(position.epoch + 1, 0)
