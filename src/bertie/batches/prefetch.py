"""Preparing steps in other processes while the model is at work on the ones before."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bertie.errors import UserError

T = TypeVar("T")
AHEAD = 4  # items that each process may be ahead


def ahead(make: Callable[[int, int], Iterator[T]], workers: int) -> Generator[T]:
    """What make(0, 1) gives, in its order, prepared by `workers` processes; 0: by this one, when asked.

    make(worker, workers) gives every `workers`th item, from number `worker` on; endlessly, or all of them to the end.
    Close it to end the processes.
    """
    if workers == 0:
        yield from make(0, 1)
        return
    loader = DataLoader(
        _Parts(make),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD,
        collate_fn=_same,
        worker_init_fn=_deaf,
        multiprocessing_context=multiprocessing.get_context("fork"),  # nothing is copied: the text is mapped
        generator=torch.Generator(),  # else it would draw from torch's own
    )
    for item in _as_long_as_they_live(loader, workers):
        if isinstance(item, UserError):
            try:
                raise item
            finally:
                del item  # else it would keep, by its traceback, everything that waits for it
        yield item


def _as_long_as_they_live(loader: DataLoader, workers: int) -> Iterator[Any]:
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise UserError(
            f"one of {workers} processes that prepare text was ended from outside, perhaps for want of memory: the same "
            "command goes on where the last checkpoint stands; fewer --training.workers take less"
        ) from error


class _Parts(IterableDataset):
    def __init__(self, make: Callable[[int, int], Iterator[Any]]):
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        try:
            yield from self.make(info.id, info.num_workers)
        except UserError as error:  # as a value, so that it comes out as it is
            yield error


def _same(item: Any) -> Any:
    return item


def _deaf(_: int) -> None:
    """Ctrl-C and a scheduler's SIGTERM go to all processes; the training needs these until it has saved, and ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
