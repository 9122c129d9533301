"""The groups of parameters that optimizers treat alike: by weight decay and by depth."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from bertie.base.config import check_ranges
from bertie.base.errors import UsageError

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def check(optimizer: Any) -> None:
    """Check the settings that all optimizers have. Raises UsageError."""
    check_ranges("optimizer", optimizer)
    if len(optimizer.betas) != 2 or not all(0 <= beta < 1 for beta in optimizer.betas):
        raise UsageError(f"optimizer.betas is {list(optimizer.betas)}: give two numbers from 0 to below 1")


def parameter_groups(
    model: nn.Module, weight_decay: float, layer_decay: float, embedding_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Group the trainable parameters by learning rate and weight decay.

    `lr_scale` of a group, a factor of the learning rate, is layer_decay to the power of its depth, for embeddings times
    embedding_lr_scale. Layers with the same weights count as one.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    scales = {name: 1.0 if layer_decay == 1 else layer_decay ** _depth(name, model) for name in trained}
    scales |= {name: embedding_lr_scale * scales[name] for name in trained if name.startswith("encoder.embeddings.")}
    groups = []
    for lr_scale in sorted(set(scales.values()), reverse=True):
        parameters = [parameter for name, parameter in trained.items() if scales[name] == lr_scale]
        matrices = [p for p in parameters if p.ndim > 1]
        vectors = [p for p in parameters if p.ndim <= 1]
        groups.append({"params": matrices, "weight_decay": weight_decay, "lr_scale": lr_scale})
        groups.append({"params": vectors, "weight_decay": 0.0, "lr_scale": lr_scale})
    return [group for group in groups if group["params"]]


def _depth(name: str, model: nn.Module) -> int:
    """Return the depth of a parameter below the heads: 0 for heads, 1 for the last layer, layers + 1 for embeddings."""
    layers = {match[1] for key, _ in model.named_parameters() if (match := _LAYER.match(key))}
    if match := _LAYER.match(name):
        return len(layers) - int(match[1])
    return len(layers) + 1 if name.startswith("encoder.") else 0


def replace_unless(skipped: Tensor | None, old: Tensor, new: Tensor) -> None:
    """Overwrite a tensor in place, unless `skipped` is 1: the `found_inf` of an optimizer, which the loop sets."""
    old.copy_(new if skipped is None else torch.where(skipped > 0, old, new))
