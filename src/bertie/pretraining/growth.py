"""Models that grow: some layers are trained first, and the others, which begin as the identity, join later."""

from __future__ import annotations

from collections.abc import Sequence

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.transformer import TransformerEncoder
from bertie.pretraining.phases import Phase


def require_growth(phases: Sequence[Phase], model: EncoderConfig) -> None:
    """Raise UsageError if the layers of some phases do not make a model that grows to its full size."""
    depths = [phase.layers or model.num_hidden_layers for phase in phases]
    if not any(phase.layers for phase in phases):
        return
    if depths != sorted(depths) or depths[-1] != model.num_hidden_layers:
        raise UsageError(
            f"phases: layers {depths}: give as many as before or more in each, and all {model.num_hidden_layers} in the last"
        )
    require_identity("phases: layers", model)


def require_identity(what: str, model: EncoderConfig) -> None:
    """Raise UsageError if a layer of a model cannot be the identity. what: what needs it, in the plural."""
    if not isinstance(model, TransformerConfig) or model.norm_position == "post" or model.shares_layers:
        raise UsageError(f"{what} need model.norm_position pre or modern, and no num_hidden_groups: change one of them")


def become_identity(encoder: Encoder, first: int) -> None:
    """Make the layers from number `first` on the identity, in place."""
    assert isinstance(encoder, TransformerEncoder)
    for number in range(first, len(encoder.layers)):
        encoder.layers[number].become_identity()
