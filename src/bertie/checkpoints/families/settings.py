"""Checks and conversions of config.json that several families share."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from bertie.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.positions import SinusoidalEmbedding

POSITION = "encoder.embeddings.position.weight"
HALF_PRECISION = 4e-3  # rounding error of numbers up to 1 in bf16


def has_defaults(config: TransformerConfig, free: tuple[str, ...]) -> bool:
    """Return whether all settings of an encoder are BERT's, except for those that are named."""
    return all(
        getattr(config, field.name) == field.default for field in fields(TransformerConfig) if field.name not in free
    )


def read_keys(values: dict[str, Any], keys: dict[str, str], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return settings of an encoder by bertie's names.

    Args:
        values: Contents of config.json.
        keys: bertie's names, and Hugging Face's.
        defaults: Values of keys that config.json omits, by Hugging Face's names.
    """
    found = {ours: values.get(theirs, defaults.get(theirs)) for ours, theirs in keys.items()}
    return {name: value for name, value in found.items() if value is not None}


def require(values: dict[str, Any], **supported: Any) -> None:
    """Check keys of config.json of which bertie supports a single value. Missing keys have this value.

    Raises:
        UsageError: A key has another value.
    """
    for name, value in supported.items():
        if (found := values.get(name, value)) != value:
            raise UsageError(f"{name} is {found!r}; bertie supports {value!r}")


def read_activation(name: Any, key: str, activations: dict[str, str]) -> str:
    """Return bertie's name of an activation.

    Args:
        name: Hugging Face's name.
        key: Its key in config.json.
        activations: bertie's names, by Hugging Face's.

    Raises:
        UsageError: bertie does not support it.
    """
    if str(name) not in activations:
        raise UsageError(f"{key} {str(name)!r} is not supported: give one of {', '.join(activations)}")
    return activations[str(name)]


def sinusoidal_table(config: TransformerConfig) -> dict[str, Tensor]:
    """Return the matrix of sinusoidal positions, which Hugging Face stores and bertie computes; {} for other positions."""
    if config.position_embedding != "sinusoidal":
        return {}
    return {POSITION: SinusoidalEmbedding(config.max_position_embeddings, config.embedding_width).table.clone()}


def without_sinusoidal_table(config: TransformerConfig, weights: dict[str, Tensor]) -> TransformerConfig:
    """Remove the matrix of sinusoidal positions from weights. A matrix with other values is learned, and remains."""
    found = weights.get(POSITION)
    if config.position_embedding != "sinusoidal" or found is None:
        return config
    learned = replace(config, position_embedding="learned")
    if found.shape != (config.max_position_embeddings, config.embedding_width):
        return learned
    if not torch.allclose(found.float(), sinusoidal_table(config)[POSITION], atol=HALF_PRECISION):
        return learned
    del weights[POSITION]
    return config
