"""Tensors at a fixed place in a GPU's memory, which recorded work reads, filled with one copy from the host."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 256  # bytes, as torch allocates tensors; compiled code assumes 16
HOST_COPIES = 3  # the host fills one while the GPU may still read those before


class StaticInputs:
    """Tensors by name. As in `MicroBatch.tensors`, integers are int64, floats float32 and booleans stay booleans."""

    tensors: dict[str, Tensor]

    def __init__(self, arrays: dict[str, np.ndarray], device: torch.device):
        """Allocate the tensors. arrays: what they will hold; only the shapes and types are read."""
        places, end = dict[str, slice](), 0
        for name, array in arrays.items():
            size = _dtype(array).itemsize * array.size
            places[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._bytes = torch.zeros(end, dtype=torch.uint8, device=device)
        self.tensors = _views(self._bytes, places, arrays)
        self._hosts = cycle([_Host(places, arrays, end, device.type == "cuda") for _ in range(HOST_COPIES)])

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Set the values of all tensors, in the order of the GPU's work. The host does not wait for the copy."""
        host = next(self._hosts)
        host.wait()
        for name, view in host.views.items():
            view[...] = arrays[name]
        self._bytes.copy_(host.bytes, non_blocking=True)
        host.begin()


class _Host:
    """Memory of the host from which a GPU copies, with views of its parts."""

    def __init__(self, places: dict[str, slice], arrays: dict[str, np.ndarray], size: int, pinned: bool):
        self.bytes = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        self.views = {name: tensor.numpy() for name, tensor in _views(self.bytes, places, arrays).items()}
        self._copied = torch.cuda.Event() if pinned else None

    def wait(self) -> None:
        """Wait until the GPU has read the memory."""
        if self._copied is not None:
            self._copied.synchronize()

    def begin(self) -> None:
        """Note that the GPU will read the memory."""
        if self._copied is not None:
            self._copied.record()


def _views(memory: Tensor, places: dict[str, slice], arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: memory[place].view(_dtype(arrays[name])).view(arrays[name].shape) for name, place in places.items()}


def _dtype(array: np.ndarray) -> torch.dtype:
    if array.dtype == bool:
        return torch.bool
    return torch.float32 if np.issubdtype(array.dtype, np.floating) else torch.int64
