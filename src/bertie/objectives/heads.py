"""The heads of several objectives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

from bertie.base import config as configuration
from bertie.base import console, own_code
from bertie.base.errors import naming
from bertie.checkpoints.families.settings import OBJECTIVES
from bertie.checkpoints.read import Checkpoint
from bertie.model.encoder import Encoder
from bertie.model.encoders.electra import GENERATOR_HEAD
from bertie.model.head_facts import with_facts
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import AnyObjective


def objectives_of(checkpoint: Checkpoint) -> list[AnyObjective]:
    """Return the objectives whose heads a checkpoint has. A head of code that may not be imported is left out, with a warning.

    Raises:
        UsageError: The code is missing, or does not fit.
    """
    found = objectives_named(checkpoint.heads)
    others = checkpoint.heads - {objective.kind for objective in found} - {checkpoint.task.get("kind")}
    tables = checkpoint.settings.get(OBJECTIVES) if others else None
    for table in tables if isinstance(tables, list) else ():
        name = str(table.get("kind")) if isinstance(table, dict) else ""
        what = f"{checkpoint.folder}: without the head {' or '.join(sorted(others))}, whose objective"
        if refusal := own_code.refusal(name, what):
            console.warn(refusal, once=True)
            continue
        with naming(checkpoint.folder):
            own = configuration.build(AnyObjective, table, OBJECTIVES)
        found += [own] if own.kind in others else []
    return found


def objectives_named(kinds: Collection[str]) -> list[AnyObjective]:
    """Return the objectives of these kinds, with their default settings. Other kinds, such as the kinds of tasks, are omitted."""
    return [objective() for kind, objective in configuration.kinds(AnyObjective).items() if kind in kinds]


def build_heads(
    objectives: Iterable[AnyObjective], encoder: Encoder, generator: TransformerEncoder | None = None
) -> dict[str, nn.Module]:
    """Build the head of each objective, with its `facts`, and if it is the user's own, with a table of it (`own`).

    Args:
        objectives: The objectives.
        encoder: The encoder that the heads read.
        generator: ELECTRA's generator, which one of the heads then reads.
    """
    owners: dict[str, Encoder] = {} if generator is None else {GENERATOR_HEAD: generator}
    heads: dict[str, nn.Module] = {}
    for objective in objectives:
        head: Any = with_facts(objective.head(owners.get(objective.kind, encoder)), objective.facts)
        head.own = configuration.plain(objective) if own_code.name_of(type(objective)) else None
        heads[objective.kind] = head
    return heads
