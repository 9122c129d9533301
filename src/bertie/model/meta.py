"""Models without weights, for their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bertie.model.initialization import Uninitialized


@contextmanager
def no_weights() -> Iterator[None]:
    """Build modules on torch's meta device: they have shapes, but no memory for the weights."""
    with torch.device("meta"), Uninitialized():
        yield
