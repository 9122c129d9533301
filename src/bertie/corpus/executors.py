"""Run work items in parallel: in processes of this machine, or on a Ray cluster.

The result of an item depends only on its argument and on files. Executors yield results in the order of the items, so
the output does not depend on the number of workers or on which of them finishes first.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from bertie.base import console, threads
from bertie.base.errors import MachineError, UsageError, UserError, first_line, install

Item = TypeVar("Item")
ItemResult = TypeVar("ItemResult")
ITEMS_PER_WORKER = 2  # running or queued


@dataclass(frozen=True)
class LocalExecutor:
    """Run work items in processes of this machine; with one worker or one item, in the calling process.

    Workers are new processes, not forks: another thread may hold a lock at the moment of a fork.

    Attributes:
        workers: Number of processes. 0: one per processor.
    """

    workers: int = 0

    def run(self, function: Callable[[Item], ItemResult], items: Sequence[Item]) -> Generator[ItemResult]:
        """Yield `function(item)` for each item, in order.

        Raises:
            UserError: `function` raised it.
            MachineError: A worker was lost.
        """
        workers = min(self.workers or threads.cpu_quota(), len(items))
        if workers <= 1:
            yield from map(function, items)
            return
        from loky import ProcessPoolExecutor

        pool = ProcessPoolExecutor(workers, initializer=threads.initialize_worker, initargs=(os.getpid(),))
        try:
            yield from _in_order(lambda item: pool.submit(function, item).result, items, ITEMS_PER_WORKER * workers)
        except BrokenProcessPool as error:
            raise MachineError(
                f"one of {workers} workers was killed, perhaps because memory ran out: repeat the command with fewer --workers"
            ) from error
        finally:
            pool.shutdown(kill_workers=True)  # the results of running items are not needed any more


@dataclass(frozen=True)
class RayExecutor:
    """Run work items on a Ray cluster. All of its machines must see the files under the same paths.

    Attributes:
        address: Address of the cluster's head node, "auto", or "local" to start a cluster on this machine.
        workers: Number of items to run at a time. 0: as many as the cluster has processors.
    """

    address: str = "local"
    workers: int = 0

    def run(self, function: Callable[[Item], ItemResult], items: Sequence[Item]) -> Generator[ItemResult]:
        """Do the same as `LocalExecutor.run`."""
        ray = import_ray()
        owns_cluster = connect_ray(self.address, self.workers or threads.cpu_quota())
        try:
            # A cluster may have more processors than `workers`: never submit more items than that.
            ahead = self.workers or ITEMS_PER_WORKER * int(ray.cluster_resources().get("CPU", 1))
            remote = ray.remote(_run_single_threaded)
            yield from _in_order(lambda item: partial(ray.get, remote.remote(function, item)), items, ahead)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, UserError) else MachineError(f"a worker failed: {cause!r}") from error
        except ray.exceptions.RayError as error:
            raise MachineError(f"Ray lost a worker: {first_line(error)}: repeat the command") from error
        finally:
            if owns_cluster:
                ray.shutdown()


Executor = LocalExecutor | RayExecutor


def run(
    executor: Executor,
    function: Callable[[Item], ItemResult],
    items: Sequence[Item],
    title: str,
    unit: str,
    size: Callable[[Item], float] = lambda _: 1,
    detail: Callable[[], str] | None = None,
) -> Iterator[ItemResult]:
    """Yield `function(item)` for each item, in order, with a progress line.

    Args:
        executor: Where to run.
        function: What to run. Its errors are described at `LocalExecutor.run`.
        items: The work items.
        title: Name of the work.
        unit: Unit of the sizes.
        size: Returns the size of an item.
        detail: Returns a note for the progress line while no item ends.
    """
    sizes = [size(item) for item in items]
    with (
        console.progress(title, sum(sizes), unit) as bar,
        console.status(bar, detail) if detail else nullcontext(),
        closing(executor.run(function, items)) as results,
    ):
        for done, result in zip(sizes, results, strict=True):
            yield result
            bar.advance(done)


def import_ray() -> Any:
    """Return the library. Raises UsageError if it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError(f"--executor ray needs Ray: {install('ray')}") from error
    return ray


def connect_ray(address: str, cpus: int) -> bool:
    """Connect this process to a Ray cluster.

    Args:
        address: Address of the cluster's head node, "auto", or "local" to start a cluster on this machine.
        cpus: Number of processors of a cluster that is started here.

    Returns:
        Whether it was not connected before, so that the caller has to end the connection.

    Raises:
        UserError: There is no such cluster.
    """
    ray = import_ray()
    _require_reachable(address)
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address,
            num_cpus=cpus if address == "local" else None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        # Without this variable, Ray gives its token only to clusters that it finds on its own.
        advice = "if it requires a token, set RAY_AUTH_MODE=token"
        raise UserError(f"no Ray cluster at {address}: {reason}; {advice}") from error
    return True


def _require_reachable(address: str) -> None:
    """Raise UserError if nothing listens at the address. Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"no Ray cluster at {address}: {error}") from error


def _run_single_threaded(function: Callable[[Any], Any], item: Any) -> Any:
    threads.use_one_tokenizer_thread()
    return function(item)


def _in_order(
    submit: Callable[[Item], Callable[[], ItemResult]], items: Sequence[Item], ahead: int
) -> Generator[ItemResult]:
    """Yield results in the order of the items, with up to `ahead` items submitted before a result is awaited.

    submit: starts an item and returns a function that waits for its result.
    """
    submitted: deque[Callable[[], ItemResult]] = deque()
    for item in items:
        submitted.append(submit(item))
        if len(submitted) >= ahead:
            yield submitted.popleft()()
    while submitted:
        yield submitted.popleft()()


def make_executor(kind: str, workers: int, address: str) -> Executor:
    """Build the executor that the flags --executor, --workers and --ray-address ask for.

    Raises:
        UsageError: `workers` is negative, or `address` is given without `kind` "ray".
    """
    if workers < 0:
        raise UsageError(f"--workers {workers}: give a number of processes, or 0 for one per processor")
    if kind == "local" and address != "local":
        raise UsageError(f"--ray-address {address} needs --executor ray")
    return RayExecutor(address, workers) if kind == "ray" else LocalExecutor(workers)
