"""The heads of several objectives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import get_args

from torch import nn

from bertie.model.encoder import Encoder
from bertie.model.encoders.electra import GENERATOR_HEAD
from bertie.model.head_facts import with_facts
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import AnyObjective


def objectives_named(kinds: Collection[str]) -> list[AnyObjective]:
    """Return the objectives of these kinds, with their default settings. Other kinds, such as the kinds of tasks, are omitted."""
    return [objective() for objective in get_args(AnyObjective) if objective.kind in kinds]


def build_heads(
    objectives: Iterable[AnyObjective], encoder: Encoder, generator: TransformerEncoder | None = None
) -> dict[str, nn.Module]:
    """Build the head of each objective, with its `facts`.

    Args:
        objectives: The objectives.
        encoder: The encoder that the heads read.
        generator: ELECTRA's generator, which one of the heads then reads.
    """
    owners: dict[str, Encoder] = {} if generator is None else {GENERATOR_HEAD: generator}
    heads: dict[str, nn.Module] = {}
    for objective in objectives:
        heads[objective.kind] = with_facts(objective.head(owners.get(objective.kind, encoder)), objective.facts)
    return heads
