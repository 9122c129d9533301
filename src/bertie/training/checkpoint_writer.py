"""Checkpoints written in the background: training goes on while a copy of its tensors is written.

A thread writes, one checkpoint at a time. A write that fails, for example on a full disk, is said and tried again, until it
succeeds or a newer checkpoint takes its place. `complete` waits for a checkpoint that the training must not outrun, such as
the one after SIGTERM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from bertie.base import console
from bertie.base.errors import UserError

RETRY_SECONDS = 60.0


class CheckpointWriter:
    """Writes the checkpoints of a run. Only the thread of the training calls its methods."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._save: Callable[[], None] | None = None  # what is not written yet
        self._hurry = Event()  # set: no further try
        self._failures: list[UserError] = []  # not yet said
        self._fatal: BaseException | None = None
        self._seconds: list[float] = []

    def settle(self) -> None:
        """Wait for the end of the last try of the checkpoint in flight, which a newer one replaces if it has failed."""
        self._join()
        self._save = None

    def write(self, save: Callable[[], None]) -> None:
        """Begin to write a checkpoint. `settle` comes before.

        Args:
            save: Writes it. It must read nothing that the training changes.
        """
        self._save, self._hurry = save, Event()
        self._thread = Thread(target=self._run, args=(save, self._hurry), name="checkpoint", daemon=True)
        self._thread.start()

    def complete(self) -> None:
        """Wait for the checkpoint in flight. If it has failed, it is tried once more.

        Raises:
            UserError: It cannot be written.
        """
        self._join()
        if self._save is not None:
            self._save()
            self._save = None

    def abandon(self) -> None:
        """Let the last try be the one that runs now, and do not wait for it: another process may take over the folder."""
        self._hurry.set()

    def poll(self) -> list[float]:
        """Say what has failed. Returns the seconds that the checkpoints took that were completed since the last call.

        Raises:
            BaseException: An error that is not about a file.
        """
        while self._failures:
            console.warn(f"{self._failures.pop(0)}; training continues, and will write the checkpoint again")
        if self._fatal is not None:
            self._join()
        seconds, self._seconds = self._seconds, []
        return seconds

    def _join(self) -> None:
        """Wait for the end of the last try."""
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()
            self._thread = None
        if self._fatal is not None:
            error, self._fatal, self._save = self._fatal, None, None
            raise error

    def _run(self, save: Callable[[], None], hurry: Event) -> None:
        while True:
            begun = time.monotonic()
            try:
                save()
            except UserError as error:
                self._failures.append(error)
                if hurry.wait(RETRY_SECONDS):
                    return
            except BaseException as error:  # poll raises it in the thread of the training
                self._fatal = error
                return
            else:
                self._save = None
                self._seconds.append(time.monotonic() - begun)
                return


@contextmanager
def checkpoint_writer() -> Iterator[CheckpointWriter]:
    """Yield a writer. At the end of the block, the checkpoint in flight is complete, or its error is raised.

    KeyboardInterrupt leaves at once: after the first signal nothing is in flight, and a second one asks not to wait.
    """
    writer = CheckpointWriter()
    try:
        yield writer
    except KeyboardInterrupt:
        writer.abandon()
        raise
    except BaseException:
        with suppress(Exception):
            writer.settle()
        raise
    writer.complete()
