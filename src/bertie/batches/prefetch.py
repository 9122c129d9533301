"""Preparing steps in other processes while the model is at work on the ones before.

torch's DataLoader would do, were it not for a process that is killed (want of memory): its processes share locks, which one
of them then keeps for ever, and its error comes out wherever the training happens to be. Here each has a pipe of its own
and nothing else; where it ends, the pipe ends.
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

from bertie import threads
from bertie.errors import UserError

T = TypeVar("T")
STEPS_AHEAD = 4  # items that each process may be ahead


def prefetch(make: Callable[[int, int], Iterator[T]], workers: int) -> Generator[T]:
    """What make(0, 1) gives, in its order, prepared by `workers` processes; 0: by this one, when asked.

    make(worker, workers) gives every `workers`th item, from number `worker` on; endlessly, or all of them to the end.
    Close it to end the processes. Errors: those of make; UserError where a process is ended from outside.
    """
    if workers == 0:
        yield from make(0, 1)
        return
    own = [_Worker(make, number, workers) for number in range(workers)]
    try:
        for worker in cycle(own):
            kind, value = worker.next()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        value = None  # else an error would keep, by its traceback, everything that waits for it
        for worker in own:
            worker.end()


class _Worker:
    def __init__(self, make: Callable[[int, int], Iterator[Any]], number: int, workers: int):
        fork = multiprocessing.get_context("fork")  # nothing is copied: the text is mapped
        self.workers = workers
        self.pipe, theirs = fork.Pipe(duplex=False)
        self.process = fork.Process(target=_prepare, args=(make, number, workers, theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()  # else the pipe would not end with the process

    def next(self) -> tuple[str, Any]:
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise UserError(
                f"one of {self.workers} processes that prepare text was ended from outside, perhaps for want of memory: the same "
                "command goes on where the last checkpoint stands; fewer --training.workers take less"
            ) from error

    def end(self) -> None:
        self.process.kill()  # it has nothing to lose
        self.process.join()
        self.process.close()
        self.pipe.close()


def _prepare(
    make: Callable[[int, int], Iterator[Any]], number: int, workers: int, pipe: Connection, parent: int
) -> None:
    threads.initialize_worker(parent)
    # A scheduler's goes to all processes; the training needs this one until it has saved.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    waiting: Queue[tuple[str, Any]] = Queue(STEPS_AHEAD - 1)  # and the one that is on its way
    sender = Thread(target=_send, args=(pipe, waiting))
    sender.start()
    try:
        for item in make(number, workers):
            waiting.put(("item", item))
        waiting.put(("end", None))
    except UserError as error:  # as it is
        waiting.put(("error", error))
    except Exception:
        waiting.put(("error", RuntimeError(f"in a process that prepares text:\n{traceback.format_exc()}")))
    sender.join()  # for ever: it is ended by whoever reads


def _send(pipe: Connection, waiting: Queue[tuple[str, Any]]) -> None:
    with suppress(OSError):  # whoever read is gone
        while True:
            pipe.send(waiting.get())
    os._exit(1)
