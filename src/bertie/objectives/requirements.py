"""Checks of the model that several objectives share."""

from __future__ import annotations

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadShape
from bertie.objectives.objective import Objective

OWN_OBJECTIVES = {"lstm": "bilm", "xlnet": "plm", "gru": "skip"}
"""The objectives of the encoders that have neither the head of masked nor that of causal language modeling."""


def require_both_sides(kind: str, model: EncoderConfig) -> None:
    """Raise UsageError for an encoder that is causal, or cannot have the head of masked language modeling."""
    require_vocabulary_head(kind, "masked", model)
    if model.causal:
        raise UsageError(
            f"objectives.{kind} predicts a token from both sides, and model.causal is true: set model.causal to false, or "
            'train with the objective kind = "clm"'
        )


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
        raise _other_encoder(kind, "a Transformer", model)
    return model


def require_vocabulary_head(kind: str, shape: HeadShape, model: EncoderConfig) -> None:
    """Raise UsageError, which names the objective, for an encoder that cannot have its head."""
    if shape not in model.vocabulary_heads:
        needs = {"masked": "a model that fills masks", "next": "a model that predicts the next token"}.get(shape, shape)
        raise _other_encoder(kind, f"{needs}, such as a Transformer", model)


def _other_encoder(kind: str, needs: str, model: EncoderConfig) -> UsageError:
    own = OWN_OBJECTIVES.get(model.kind)
    if own is None:
        own = "mlm" if "masked" in model.vocabulary_heads else "clm" if "next" in model.vocabulary_heads else ""
    instead = f'replace objectives.{kind} by one of kind "{own}"' if own else f"remove objectives.{kind}"
    return UsageError(
        f'objectives.{kind} needs {needs}, and model.kind is "{model.kind}": set model.kind to "transformer", or {instead}'
    )
