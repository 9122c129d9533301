"""Items up to a total size."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
BATCH_CHARACTERS = 1 << 20  # characters of text to tokenize at a time


def batches(
    items: Iterable[T], limit: int = BATCH_CHARACTERS, size: Callable[[Any], int] = len, most: int = sys.maxsize
) -> Iterator[list[T]]:
    """Yield lists of items. The item that brings a list to the limit ends it.

    Args:
        items: The items, such as texts.
        limit: Total size after which a list ends.
        size: Returns the size of an item.
        most: Items after which a list ends, too.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit or len(batch) == most:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def up_to(items: Iterable[T], limit: int, size: Callable[[Any], int] = len) -> Iterator[T]:
    """Yield the first items, at least one, up to a total size of `limit`."""
    total = 0
    for item in items:
        if total and total + size(item) > limit:
            return
        total += size(item)
        yield item
