"""Checks of the model that several objectives share."""

from __future__ import annotations

from bertie.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig
from bertie.objectives.objective import Objective

OWN_OBJECTIVES = {"lstm": "bilm", "xlnet": "plm"}
"""The objective of each encoder that is not a Transformer."""


def require_both_sides(kind: str, model: EncoderConfig) -> TransformerConfig:
    """Return the configuration of a Transformer that is not causal. Raise UsageError for another encoder."""
    transformer = require_transformer(kind, model)
    if transformer.causal:
        raise UsageError(
            f"objectives.{kind} predicts a token from both sides, and model.causal is true: set model.causal to false, or "
            'train with the objective kind = "clm"'
        )
    return transformer


def before(kind: str, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """Return the objectives before the one of this kind; all if there is none."""
    kinds = [objective.kind for objective in objectives]
    return objectives[: kinds.index(kind) if kind in kinds else None]


def require_partners(kind: str, objectives: tuple[Objective, ...], partners: tuple[str, ...], does: str) -> None:
    """Raise UsageError for an objective that does not work with the one of this kind. does: what this one does."""
    for other in (objective.kind for objective in objectives if objective.kind not in partners):
        raise UsageError(
            f"objectives.{kind} {does}, which objectives.{other} is not made for: remove objectives.{other} or "
            f"objectives.{kind}"
        )


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
