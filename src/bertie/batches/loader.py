"""The steps of pre-training, each a few packed rows, as a pure function of (seed, epoch, step in the epoch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from bertie.base.contracts import Batch, MicroBatch
from bertie.base.errors import UserError
from bertie.batches.collate import collate, filler
from bertie.batches.layouts import Layout
from bertie.batches.packing import pack, row_count
from bertie.batches.sections import sections
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer


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
    """Step within the section, from 0."""
    section: int = 0
    """Section within the epoch, from 0. Without `Loader.shuffle_tokens`, an epoch is one section."""


@dataclass(frozen=True, eq=False)
class Step:
    """The micro-batches of one optimizer step that this rank computes."""

    micro_batches: list[MicroBatch]
    position: Position
    """Position of this step."""
    after: Position
    """Position of the next step."""
    source_tokens: tuple[int, ...] = ()
    """Tokens of each source of a mixture on all ranks, filler included."""
    numbers: tuple[int, ...] = ()
    """Of each micro-batch a number that no other one of the step has, on any rank. Empty: 0, 1, 2 …"""
    layers: int = 0
    """The first layers of the encoder, which alone are computed and trained. 0: all are."""

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
    source_tokens: tuple[int, ...] = ()
    """Tokens of the rows of each source of a mixture, filler included."""
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
    shuffle_tokens: int = 0
    """Most tokens that are shuffled together, see `sections`; 0: all of the corpus."""

    def steps(self, position: Position) -> Iterator[StepPlan]:
        """Yield steps without end, beginning at `position`. Earlier steps are not read.

        The rows that remain at the end of a section, fewer than a step has, are not used. While the steps of a section are
        built, the shards of the next one are fetched, if the corpus is in an object store.

        Raises:
            UserError: A step needs more rows than the corpus has.
        """
        while True:
            source, parts = self._sections(position.epoch)
            refuse, most = position.section == 0, 0
            for section in range(position.section, len(parts)):
                last = section + 1 == len(parts)
                following = self._sections(position.epoch + 1)[1][0] if last else parts[section + 1]
                corpus, stream = self.corpus, source
                if len(parts) > 1:
                    corpus, stream = corpus.select(parts[section]), source * len(self.corpus.tokens) + section
                rows, build_row = self._rows(corpus, stream)
                steps, most = rows // self.shape.rows, max(most, rows)
                end = Position(position.epoch + 1) if last else Position(position.epoch, 0, section + 1)
                for step in range(position.step, steps):
                    if step == position.step + 1:  # not before: a sample is one step, and its process may be forked
                        self.corpus.fetch_ahead([*parts[section], *following])
                    current = Position(position.epoch, step, section)
                    after = end if step + 1 == steps else Position(position.epoch, step + 1, section)
                    build = partial(_row_of_step, build_row, step * self.shape.rows)
                    yield StepPlan(build, self.shape.rows, current, after, stream)
                position = end
            if refuse and most < self.shape.rows:
                fills = f"{most} of the {self.shape.rows} rows" if most else "no row"
                lower = " or lower --training.batch-size" * (most > 0)
                raise UserError(
                    f"corpus too small: it fills {fills} of {self.shape.row_tokens:,} tokens of a step. Add text{lower}"
                )
            if position.section:  # a damaged one, after the last section
                position = Position(position.epoch + 1)

    def _sections(self, epoch: int) -> tuple[int, list[np.ndarray]]:
        """Return the epoch whose random numbers an epoch has, and the shards of its sections."""
        source = epoch % self.static_epochs if self.static_epochs else epoch
        return source, sections(self.corpus.shard_starts, self.shuffle_tokens, self.seed, source)

    def _rows(self, corpus: Corpus, epoch: int) -> tuple[int, Callable[[int], Batch]]:
        """Shuffle and pack a corpus. Return the number of its rows, and what builds the row with a number."""
        tokens, limit = self.shape.row_tokens, self.layout.max_length
        shuffled = self.layout.epoch(corpus, self.tokenizer, self.seed, epoch)
        per_window = [row_count(shuffled.lengths(w), tokens) for w in range(shuffled.windows)]

        @lru_cache(maxsize=2)  # the rows of a step are in one window or two
        def packed(window: int) -> tuple[list, list[list[int]]]:
            return shuffled.window(window), pack(shuffled.lengths(window), tokens)

        def build_row(index: int) -> Batch:
            window = 0
            while index >= per_window[window]:
                index -= per_window[window]
                window += 1
            spans, rows = packed(window)
            sequences = [shuffled.sequence(spans[i]) for i in rows[index]]
            return collate(sequences + filler(tokens - sum(map(len, sequences)), self.tokenizer.pad_id, limit), limit)

        return sum(per_window), build_row


def _row_of_step(build_row: Callable[[int], Batch], first: int, index: int) -> Batch:
    return build_row(first + index)
