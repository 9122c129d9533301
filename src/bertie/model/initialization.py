"""Random initial weights, and models without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bertie.model.encoders.characters import CharacterCNN
from bertie.model.encoders.xlnet import RelativeAttention
from bertie.model.normalization import RmsNorm


def initialize_weights(module: nn.Module, standard_deviation: float, truncation: float = 2.0) -> None:
    """Set BERT's random initial weights in place, with torch's generator.

    Matrices have a truncated normal distribution, biases are 0, and the weights of normalization are 1.
    LSTMs, GRUs and filters over characters have PyTorch's default: a uniform distribution within ±1 / √size.

    Args:
        module: Module to initialize, with all its submodules.
        standard_deviation: Standard deviation of the normal distribution.
        truncation: The distribution is truncated at this many standard deviations.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            limit = truncation * standard_deviation
            nn.init.trunc_normal_(part.weight, std=standard_deviation, a=-limit, b=limit)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm | RmsNorm | nn.RNNBase | nn.Conv1d | CharacterCNN | RelativeAttention):
            part.reset_parameters()


class Uninitialized(TorchFunctionMode):
    """A context in which new modules get no initial weights, because a checkpoint's follow or only sizes are needed.

    Random weights take a second in BERT-base. On the meta device, the first ones load torch's compiler: another second.
    """

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def no_weights() -> Iterator[None]:
    """Build modules on torch's meta device in the block: they have shapes, but no memory for the weights."""
    with torch.device("meta"), Uninitialized():
        yield
