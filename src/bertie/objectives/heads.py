"""The heads of several objectives."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn

from bertie.base import config as configuration
from bertie.base import console, own_code
from bertie.base.errors import UserError
from bertie.checkpoints.find import run_settings
from bertie.checkpoints.read import Checkpoint
from bertie.model.encoder import Encoder
from bertie.model.encoders.electra import GENERATOR_HEAD
from bertie.model.head_facts import with_facts
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import AnyObjective


def objectives_of(checkpoint: Checkpoint) -> list[AnyObjective]:
    """Return the objectives whose heads a checkpoint has.

    The user's own are in the config.toml of its run. A head of code that may not be imported is left out, with a warning.
    """
    found = objectives_named(checkpoint.heads)
    others = checkpoint.heads - {objective.kind for objective in found} - {checkpoint.task.get("kind")}
    tables = run_settings(checkpoint.folder).get("objectives") if others else None
    for table in tables if isinstance(tables, list) else ():
        name = str(table.get("kind")) if isinstance(table, dict) else ""
        if own_code.is_name(name):
            try:
                own_code.require_allowed(name, f"{checkpoint.folder}: the objective")
                own = configuration.build(AnyObjective, table, "objectives")
            except UserError as error:
                console.warn(f"the head {' or '.join(sorted(others))} is left out: {error}", once=True)
            else:
                found += [own] if own.kind in others else []
    return found


def objectives_named(kinds: Collection[str]) -> list[AnyObjective]:
    """Return the objectives of these kinds, with their default settings. Other kinds, such as the kinds of tasks, are omitted."""
    return [objective() for kind, objective in configuration.kinds(AnyObjective).items() if kind in kinds]


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
