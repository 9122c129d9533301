"""The heads of several objectives."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from bertie.model.encoder import Encoder
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import Objective


def build_heads(
    objectives: Iterable[Objective], encoder: Encoder, generator: TransformerEncoder | None = None
) -> dict[str, nn.Module]:
    """Build the head of each objective.

    Args:
        objectives: The objectives.
        encoder: The encoder that the heads read.
        generator: ELECTRA's generator, to which the head of masked language modeling then belongs.
    """
    owners: dict[str, Encoder] = {} if generator is None else {"mlm": generator}
    heads: dict[str, nn.Module] = {}
    for objective in objectives:
        owner = owners.get(objective.kind, encoder)
        heads[objective.kind] = objective.head(owner.config, owner)
    return heads
