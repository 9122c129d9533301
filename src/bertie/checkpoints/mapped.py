"""Tensors whose memory is mapped from a file: the system reads it when it is used, and drops it when it is released."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mapped:
    """The places of mapped tensors. The files must not change while they are in use."""

    places: list[tuple[int, int]] = field(default_factory=list)
    """Address and bytes of their whole pages, each storage once."""

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Note the storages of mapped tensors. Of the pages that they share with others, none is released."""
        storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in tensors)}
        for address, size in storages.items():
            start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
            whole = (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
            if whole > 0:
                self.places.append((start, whole))

    def release(self) -> None:
        """Give the pages back. Their next use reads them from the file again."""
        for start, size in self.places:
            _advise(start, size, mmap.MADV_DONTNEED)


_advise = ctypes.CDLL(None).madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
