"""Checks of the model that several objectives share."""

from __future__ import annotations

from bertie.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig

OWN_OBJECTIVES = {"lstm": "bilm", "xlnet": "plm"}
"""The objective of each encoder that is not a Transformer."""


def require_transformer(kind: str, model: EncoderConfig) -> TransformerConfig:
    """Return the configuration of a Transformer. Raise UsageError, which names the objective, for another encoder."""
    if not isinstance(model, TransformerConfig):
        own = OWN_OBJECTIVES.get(model.kind)
        instead = f'replace objectives.{kind} by one of kind "{own}"' if own else f"remove objectives.{kind}"
        raise UsageError(
            f'objectives.{kind} needs a Transformer, and model.kind is "{model.kind}": set model.kind to "transformer", or '
            f"{instead}"
        )
    return model
