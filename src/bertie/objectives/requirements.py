"""Checks of the model and of the other objectives that several objectives share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadShape
from bertie.objectives.objective import Objective

C = TypeVar("C", bound=Any)


def require_both_sides(kind: str, model: EncoderConfig) -> None:
    """Raise UsageError for an encoder that is causal, or cannot have the head of masked language modeling."""
    require_vocabulary_head(kind, "masked", model)
    if model.causal:
        raise UsageError(
            f'objectives.{kind} needs model.causal false: set it, or train with the objective kind = "clm"'
        )


def before(kind: str, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """Return the objectives before the one of this kind; all if there is none."""
    kinds = [objective.kind for objective in objectives]
    return objectives[: kinds.index(kind) if kind in kinds else None]


def refuse_others(kind: str, others: Iterable[Objective]) -> None:
    """Raise UsageError if there is an objective that does not work with the one of this kind."""
    for other in others:
        names = f"objectives.{other.kind}", f"objectives.{kind}"
        raise UsageError(f"{names[1]} does not work with {names[0]}: remove {' or '.join(names)}")


def require_replacements(objective: Any) -> None:
    """Raise UsageError unless the objective replaces some of the tokens that it masks, and not more than all."""
    total = objective.mask_replace_prob + objective.random_replace_prob
    if not 0 < total <= 1:
        raise UsageError(
            f"objectives.{objective.kind}: mask_replace_prob and random_replace_prob add up to {total:g}: their sum must be "
            "more than 0 and at most 1"
        )


def require_encoder(kind: str, model: EncoderConfig, needed: type[C]) -> C:
    """Return the configuration of the encoder, if it is of the kind that an objective needs. Raises UsageError otherwise."""
    if isinstance(model, needed):
        return model
    raise UsageError(
        f'objectives.{kind} does not work with model.kind "{model.kind}": set it to "{needed.kind}", or change the objective'
    )


def require_transformer(kind: str, model: EncoderConfig) -> TransformerConfig:
    """Return the configuration of a Transformer. Raise UsageError, which names the objective, for another encoder."""
    return require_encoder(kind, model, TransformerConfig)


def require_vocabulary_head(kind: str, shape: HeadShape, model: EncoderConfig) -> None:
    """Raise UsageError, which names the objective, for an encoder that cannot have its head."""
    if shape not in model.vocabulary_heads:
        require_transformer(kind, model)
