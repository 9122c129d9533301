"""Checks and conversions of config.json that several families share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from bertie.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig


def has_defaults(config: EncoderConfig, free: tuple[str, ...]) -> bool:
    """Return whether all settings of an encoder are BERT's, except for those that are named."""
    return isinstance(config, TransformerConfig) and all(
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
