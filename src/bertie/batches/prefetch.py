"""Preparation of steps in worker processes while the model computes earlier ones.

torch's DataLoader does not survive the kill of a worker (out of memory, for example): its workers share locks, which a
killed worker never releases, and the error surfaces anywhere in the training. Here each worker has only its own pipe, which
closes when the worker ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection
from queue import Queue
from threading import Thread
from typing import Any, TypeVar

from bertie.base import threads
from bertie.base.errors import UserError

T = TypeVar("T")
STEPS_AHEAD = 4  # items that each worker prepares in advance


def prefetch(make: Callable[[int, int], Iterator[T]], workers: int) -> Generator[T]:
    """Yield the items of make(0, 1), in their order, prepared by worker processes.

    Close the generator to end the processes.

    Args:
        make: make(worker, workers) yields every `workers`-th item, beginning with item number `worker`. It may be infinite.
        workers: Number of worker processes. 0: this process prepares each item when the caller asks for it.

    Raises:
        UserError: A worker was killed.
        Exception: An error of `make`: a UserError unchanged, any other as a RuntimeError with its traceback.
    """
    if workers == 0:
        yield from make(0, 1)
        return
    processes = [_Worker(make, number, workers) for number in range(workers)]
    try:
        for worker in cycle(processes):
            kind, value = worker.next()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        value = None  # an error's traceback would keep the frames alive
        for worker in processes:
            worker.end()


class _Worker:
    def __init__(self, make: Callable[[int, int], Iterator[Any]], number: int, workers: int):
        fork = multiprocessing.get_context("fork")  # copies nothing: the shards are memory-mapped
        self.workers = workers
        self.pipe, sending_end = fork.Pipe(duplex=False)
        arguments = (make, number, workers, sending_end, os.getpid())
        self.process = fork.Process(target=_prepare, args=arguments, daemon=True)
        self.process.start()
        sending_end.close()  # so that the pipe closes when the process ends

    def next(self) -> tuple[str, Any]:
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise UserError(
                f"one of {self.workers} processes that prepare text was killed, perhaps because memory ran out: resume "
                "with fewer --training.workers"
            ) from error

    def end(self) -> None:
        self.process.kill()  # safe, because a worker has no state to save
        self.process.join()
        self.process.close()
        self.pipe.close()


def _prepare(
    make: Callable[[int, int], Iterator[Any]], number: int, workers: int, pipe: Connection, parent: int
) -> None:
    threads.initialize_worker(parent)
    # A job scheduler sends SIGTERM to all processes. The training needs this one until it has saved a checkpoint.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    queue: Queue[tuple[str, Any]] = Queue(STEPS_AHEAD - 1)  # one more item is in the pipe
    sender = Thread(target=_send, args=(pipe, queue))
    sender.start()
    try:
        for item in make(number, workers):
            queue.put(("item", item))
        queue.put(("end", None))
    except UserError as error:
        queue.put(("error", error))
    except Exception:
        queue.put(("error", RuntimeError(f"in a process that prepares text:\n{traceback.format_exc()}")))
    sender.join()  # waits until the reader kills this process


def _send(pipe: Connection, queue: Queue[tuple[str, Any]]) -> None:
    with suppress(OSError):  # the reader has ended
        while True:
            pipe.send(queue.get())
    os._exit(1)
