"""Models without weights, for their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


@contextmanager
def no_weights() -> Iterator[None]:
    """Build modules on torch's meta device: they have shapes, but no memory for the weights."""
    with torch.device("meta"), _NothingRandom():
        yield


class _NothingRandom(TorchFunctionMode):
    """Skip `init.normal_`, which on the meta device loads torch's compiler first, for a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return given["tensor"] if func is nn.init.normal_ else func(*args, **given)
