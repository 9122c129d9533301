"""Work on a long input that the ranks of torchrun share: rank 0 reads it, every n-th block is computed by rank n."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

import torch.distributed as dist

from bertie.base import console
from bertie.training.distributed import SINGLE_PROCESS, Ranks, process_group, translated_errors
from bertie.training.run_folder import require_same_settings

# Others wait while rank 0 counts the rows of a large file, or scores all predictions, or its reader pauses (`| less`).
LONGEST_WAIT = timedelta(days=30)


@dataclass(frozen=True)
class Sharing:
    """Computes blocks as `map` does, on all ranks, in rounds of one block for each rank."""

    ranks: Ranks

    @property
    def first(self) -> bool:
        """Return whether this is the rank that reads, prints and writes."""
        return self.ranks.first

    def __call__(self, compute: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of `compute` in the order of the blocks, lazily.

        Args:
            compute: The same function on every rank. Its blocks and results are sent as Python objects.
            blocks: The blocks. Ranks other than 0 do not read them, but compute what rank 0 sends, and yield nothing.
        """
        if self.ranks.count == 1:
            yield from map(compute, blocks)
            return
        answers: list[tuple[list[Any], list[str]]] = []
        for dealt in self._deal(blocks):
            yield from _results(answers)  # of the round before, while the other ranks compute
            with console.collected() as warnings:
                results = [compute(block) for block in dealt]
            answers = _gather(self.ranks, (results, warnings))
        yield from _results(answers)

    def _deal(self, blocks: Iterable[Any]) -> Iterator[list[Any]]:
        """Yield this rank's block of each round. In the last round, not every rank has one."""
        remaining, goes_on = iter(blocks), True
        while goes_on:
            parts = [list(islice(remaining, 1)) for _ in range(self.ranks.count)] if self.first else []
            received: list[Any] = [None]
            with translated_errors():
                dist.scatter_object_list(received, [(part, bool(parts[-1])) for part in parts] or None)
            part, goes_on = received[0]
            yield part


ALONE = Sharing(SINGLE_PROCESS)


@contextmanager
def shared_work(command: object) -> Iterator[Sharing]:
    """Join the process group of torchrun for the `with` block, and share the work in it.

    Without torchrun, this process does all of the work.

    Args:
        command: The arguments of this rank, a dataclass. It is refused if rank 0 has other arguments.
    """
    with process_group(LONGEST_WAIT) as ranks:
        require_same_settings({name: str(value) for name, value in vars(command).items()}, ranks, ())
        yield Sharing(ranks)


def gather(ranks: Ranks, items: list[Any]) -> list[Any]:
    """Return on rank 0 the items of all ranks, each of which has every `ranks.count`-th one; on other ranks nothing."""
    parts = _gather(ranks, items) if ranks.count > 1 else [items]
    return [parts[i % ranks.count][i // ranks.count] for i in range(sum(map(len, parts)))]


def _gather(ranks: Ranks, value: Any) -> list[Any]:
    """Return on rank 0 the values of all ranks, on other ranks nothing."""
    received: list[Any] = [None] * ranks.count if ranks.first else []
    with translated_errors():
        dist.gather_object(value, received or None)
    return received


def _results(answers: list[tuple[list[Any], list[str]]]) -> Iterator[Any]:
    """Yield the results of a round, and repeat the warnings of the ranks."""
    for results, warnings in answers:
        for text in warnings:
            console.warn(text, once=True)
        yield from results
