"""Where pieces of work run: processes of this machine, or a Ray cluster. A piece is a function of its argument and of files.

Both give results in the order of the pieces, so that nothing depends on how many workers there are, or on which was first.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from bertie import threads
from bertie.errors import MachineError, UsageError, UserError

Piece = TypeVar("Piece")
Result = TypeVar("Result")
WAITING = 2  # pieces that are begun, or wait, for each worker


class Executor(Protocol):
    def run(self, work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Generator[Result]:
        """Results in order. Errors: what `work` raises, UserError for a worker that was lost."""
        ...


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine; one works where it is called. workers: 0 for as many as there are processors.

    They are new processes, no forks of this one, whose other threads may hold a lock at that moment.
    """

    workers: int = 0

    def run(self, work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Generator[Result]:
        workers = min(self.workers or threads.cpu_quota(), len(pieces))
        if workers <= 1:
            yield from map(work, pieces)
            return
        from loky import ProcessPoolExecutor

        pool = ProcessPoolExecutor(workers, initializer=threads.initialize_worker, initargs=(os.getpid(),))
        try:
            yield from _in_order(lambda piece: pool.submit(work, piece).result, pieces, WAITING * workers)
        except BrokenProcessPool as error:
            raise MachineError(
                f"one of {workers} workers was ended from outside, perhaps for want of memory: the same command goes on; "
                "fewer --workers take less"
            ) from error
        finally:
            pool.shutdown(kill_workers=True)  # what they are at is of no use any more


@dataclass(frozen=True)
class RayExecutor:
    """A Ray cluster; all its machines must see the files. address: of its head, "local" to start one on this machine."""

    address: str = "local"
    workers: int = 0

    def run(self, work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Generator[Result]:
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            raise UsageError("--executor ray needs Ray: pip install 'bertie[ray]'") from error
        _require_reachable(self.address)
        mine = not ray.is_initialized()
        if mine:
            amount = (self.workers or threads.cpu_quota()) if self.address == "local" else None
            try:
                ray.init(
                    self.address,
                    num_cpus=amount,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise UserError(f"no Ray cluster at {self.address}: {' '.join(str(error).split())[:200]}") from error
        try:
            # A cluster may have more processors: no more pieces are begun than the workers that were asked for.
            ahead = self.workers or WAITING * int(ray.cluster_resources().get("CPU", 1))
            remote = ray.remote(_alone)
            yield from _in_order(lambda piece: partial(ray.get, remote.remote(work, piece)), pieces, ahead)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, UserError) else MachineError(f"a worker failed: {cause!r}") from error
        except ray.exceptions.RayError as error:
            raise MachineError(f"Ray lost a worker: {str(error).splitlines()[0]}; the same command goes on") from error
        finally:
            if mine:
                ray.shutdown()


def _require_reachable(address: str) -> None:
    """Errors: UserError where nobody listens there: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"no Ray cluster at {address}: {error}") from error


def _alone(work: Callable[[Any], Any], piece: Any) -> Any:
    threads.use_one_tokenizer_thread()
    return work(piece)


def _in_order(begin: Callable[[Piece], Callable[[], Result]], pieces: Sequence[Piece], ahead: int) -> Generator[Result]:
    """Results of `pieces`, with `ahead` of them begun before the first is asked for. begin: gives what waits for it."""
    begun: deque[Callable[[], Result]] = deque()
    for piece in pieces:
        begun.append(begin(piece))
        if len(begun) >= ahead:
            yield begun.popleft()()
    while begun:
        yield begun.popleft()()


def make_executor(kind: str, workers: int, address: str) -> Executor:
    """Errors: UsageError."""
    if workers < 0:
        raise UsageError(f"--workers {workers}: give a number of processes, or 0 for one on each processor")
    if kind == "local" and address != "local":
        raise UsageError(f"--ray-address {address}: say --executor ray too")
    return RayExecutor(address, workers) if kind == "ray" else LocalExecutor(workers)
