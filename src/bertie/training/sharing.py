"""Work on a long input that the ranks of torchrun share: rank 0 reads it, sends out blocks, and gets the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bertie import console
from bertie.errors import SaidElsewhereError, UsageError, UserError
from bertie.training.distributed import SINGLE_PROCESS, Ranks, process_group, translated_errors

# Others wait while rank 0 counts the rows of a large file, or scores all predictions, or its reader pauses (`| less`).
LONGEST_WAIT = timedelta(days=30)


@dataclass(frozen=True)
class _Order:
    """What rank 0 sends to another rank: a block to compute, the end of the blocks, or the end of the command."""

    block: Any = None
    end: bool = False
    exit_code: int | None = None


@dataclass(frozen=True)
class _Answer:
    """What another rank sends to rank 0: at first that it is ready, then the result of each block."""

    result: Any = None
    error: UserError | None = None
    warnings: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """When it is ready: what has to be the same on all ranks."""


@dataclass(eq=False)
class Sharing:
    """Computes blocks as `map` does, on all ranks.

    The blocks go round the ranks: each rank has one, and gets its next one as soon as its result has arrived. So rank 0
    holds at most one block for each rank, and one result. A block is computed as by a single process, whichever rank
    gets it.
    """

    ranks: Ranks
    facts: dict[str, str] = field(default_factory=dict)
    """What has to be the same on all ranks, such as the model, by its name in a message."""

    def __post_init__(self) -> None:
        # Of each rank, the answers that it owes to rank 0. At first, each has to say that it is ready.
        self._owed = [0] + [1] * (self.ranks.count - 1)
        self._ended = self.ranks.count == 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that reads, prints and writes."""
        return self.ranks.first

    def __call__(self, compute: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of `compute` in the order of the blocks, lazily.

        Args:
            compute: The same function on every rank. Its blocks and results are sent as Python objects.
            blocks: The blocks. Ranks other than 0 do not read them, but compute what rank 0 sends, and yield nothing.

        Raises:
            UserError: `compute` has raised it on a rank, or a rank has ended.
            UsageError: A rank has other `facts`.
        """
        if self.ranks.count == 1:
            yield from map(compute, blocks)
        elif self.first:
            yield from self._share_out(compute, blocks)
        else:
            self._compute_orders(compute)

    def end(self, error: Exception | None = None) -> None:
        """End the work on all ranks. Call it once on each rank.

        Args:
            error: What this rank has failed with.

        Raises:
            UserError: On rank 0, what another rank has failed with.
            SaidElsewhereError: On other ranks, if any rank has failed.
        """
        if self._ended:
            return
        self._ended = True
        if self.first:
            self._end_others(error)
            return
        if self._owed[self.ranks.rank]:
            self._answer(_Answer(error=_message(error, self.ranks.rank) if error else None))
        order = _receive(0)
        if order.exit_code and (error is None or isinstance(error, UserError)):  # a bug has a traceback
            raise SaidElsewhereError(order.exit_code)

    def _share_out(self, compute: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterator[Any]:
        others, remaining = range(1, self.ranks.count), iter(blocks)
        for rank in others:
            if self._owed[rank]:
                self._receive_answer(rank)
        # The rank of each block that is not yielded yet, and rank 0's own blocks.
        sent = deque[tuple[int, Any]]()
        for rank in range(self.ranks.count):
            self._send_next(rank, remaining, sent)
        while sent:
            rank, block = sent.popleft()
            result = self._receive_answer(rank).result if rank else compute(block)
            self._send_next(rank, remaining, sent)
            yield result
        for rank in others:
            _send(_Order(end=True), rank)

    def _send_next(self, rank: int, blocks: Iterator[Any], sent: deque[tuple[int, Any]]) -> None:
        for block in blocks:
            if rank:
                _send(_Order(block), rank)
                self._owed[rank] += 1
            sent.append((rank, None if rank else block))
            return

    def _receive_answer(self, rank: int) -> _Answer:
        """Receive an answer, and repeat its warnings. Raises its error."""
        answer: _Answer = _receive(rank)
        self._owed[rank] -= 1
        for text in answer.warnings:
            console.warn(text, once=True)
        if answer.error is not None:
            raise answer.error
        for name, value in answer.facts:
            if value != self.facts.get(name):
                raise UsageError(f"rank {rank} has another {name} than rank 0: give all ranks the same")
        return answer

    def _end_others(self, error: Exception | None) -> None:
        failed = error
        for rank in range(1, self.ranks.count):
            try:
                while self._owed[rank]:
                    self._receive_answer(rank)
            except UserError as other:  # one that is gone, or has failed, too
                failed = failed or other
        for rank in range(1, self.ranks.count):
            try:
                _send(_Order(exit_code=_exit_code(failed)), rank)
            except UserError as other:
                failed = failed or other
        if failed and failed is not error:
            raise failed

    def _compute_orders(self, compute: Callable[[Any], Any]) -> None:
        if self._owed[self.ranks.rank]:
            self._answer(_Answer(facts=tuple(self.facts.items())))
        while not (order := _receive(0)).end:
            if order.exit_code is not None:  # rank 0 has failed, or needs no more results
                self._ended = True
                if order.exit_code:
                    raise SaidElsewhereError(order.exit_code)
                return
            self._owed[self.ranks.rank] = 1
            with console.collected() as warnings:
                result = compute(order.block)
            self._answer(_Answer(result, warnings=tuple(warnings)))

    def _answer(self, answer: _Answer) -> None:
        self._owed[self.ranks.rank] = 0
        _send(answer, 0)


ALONE = Sharing(SINGLE_PROCESS)


@contextmanager
def shared_work(command: object) -> Iterator[Sharing]:
    """Join the process group of torchrun for the `with` block, and share the work in it.

    If a rank fails, all ranks end, and rank 0 prints why. Without torchrun, this process does all of the work.

    Args:
        command: What this rank was asked for. Rank 0 refuses ranks that were asked for something else.
    """
    with process_group(LONGEST_WAIT) as ranks:
        sharing = Sharing(ranks, {"command": repr(command)})
        try:
            yield sharing
        except Exception as error:  # an interrupt reaches all ranks: none waits for another
            sharing.end(error)
            raise
        sharing.end()


def gather(ranks: Ranks, own: list[Any]) -> list[Any]:
    """Return on rank 0 the items of all ranks, of which each rank has every `ranks.count`-th one; on others nothing."""
    if not ranks.first:
        _send(own, 0)
        return []
    parts = [own, *(_receive(rank) for rank in range(1, ranks.count))]
    number = sum(map(len, parts))
    return [parts[i % ranks.count][i // ranks.count] for i in range(number)]


def _exit_code(error: Exception | None) -> int:
    """Return the exit code of the command. A reader such as `head` that closes the pipe ends it as it should."""
    return 0 if error is None or isinstance(error, BrokenPipeError) else getattr(error, "exit_code", 1)


def _message(error: Exception, rank: int) -> UserError:
    """Return an error for rank 0 to raise."""
    return error if isinstance(error, UserError) else UserError(f"rank {rank}: {type(error).__name__}: {error}")


def _send(value: Any, rank: int) -> None:
    with translated_errors():
        dist.send_object_list([value], rank, device=torch.device("cpu"))


def _receive(rank: int) -> Any:
    received = [None]
    with translated_errors():
        dist.recv_object_list(received, rank, device=torch.device("cpu"))
    return received[0]
