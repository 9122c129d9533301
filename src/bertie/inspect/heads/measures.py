"""Measures that color the page's map of heads: a number per head, from the tables of `bertie inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bertie.base.console import plural
from bertie.inspect.heads.statistics import STATISTICS, short_name
from bertie.inspect.tables import Tables

Scale = Literal["share", "size", "number", "difference"]
MeasureKind = Literal["Attention", "Relations", "Coreference", "Loss"]


@dataclass(frozen=True)
class Measure:
    """A number per head."""

    key: str
    """Its name in the address of the page."""
    kind: MeasureKind
    """Its group."""
    short: str
    """Its name."""
    label: str
    """Its meaning, in a few words."""
    scale: Scale
    """A share from 0 to 1, which is shown in percent; a size, whose colors begin at 0, too; another number; or a difference,
    which has 0 in the middle of the colors."""
    values: list[float | None]
    """Its values, layer by layer."""
    baseline: float | None = None
    """The value to compare with."""
    baseline_name: str = ""
    """Meaning of this value."""
    questions: int = 0
    """Number of words or mentions that it is measured on, if it is an accuracy."""
    relation: str = ""
    """The relation that the heads are to find."""
    directions: list[int] | None = None
    """For every head, the better direction: 0 from the dependent to its head, 1 from the head to its dependent."""


def _attention(tables: Tables) -> Iterator[Measure]:
    heads, uniform = tables["heads"].plain(), tables["uniform_head"].plain()
    for name, meaning in STATISTICS.items():
        scale: Scale = "share" if name.startswith("to_") else "number"
        values, base = _rounded(heads[name]), uniform[name][0]
        yield Measure(name, "Attention", short_name(name), meaning, scale, values, base, "A uniform head")


def _relations(tables: Tables) -> Iterator[Measure]:
    best = {row["relation"]: row for row in tables["relations"].rows()}
    columns = tables["relation_heads"].columns
    names = np.asarray(columns["relation"], dtype=object)
    for relation in sorted(best, key=lambda name: -best[name]["words"]):
        accuracy = np.asarray(columns["accuracy"])[names == relation].reshape(2, -1)  # directions, then heads
        row = best[relation]
        label = f"share of {plural(row['words'], 'word')} with the relation {relation} whose syntactic head is found"
        values, directions = _rounded(accuracy.max(0).tolist()), accuracy.argmax(0).tolist()
        base, rule = row["baseline"], f"The word at {row['offset']:+d}".replace("-", "−")
        key, count = f"relation-{relation}", row["words"]
        yield Measure(key, "Relations", relation, label, "share", values, base, rule, count, relation, directions)


def _coreference(tables: Tables) -> Iterator[Measure]:
    rows = [row for row in tables["coreference"].rows() if row["method"] == "attention"]
    for best in tables["coreference_best"].rows():
        kind = best["mention_type"]
        values = _rounded([row["accuracy"] for row in rows if row["mention_type"] == kind])
        label = f"share of {best['mentions']:,} mentions ({kind}) whose antecedent is found"
        base, rule = best["baseline"], f"The rule “{best['rule']}”"
        key, count = f"antecedent-{kind}", best["mentions"]
        yield Measure(key, "Coreference", kind, label, "share", values, base, rule, count)


def _losses(tables: Tables) -> Iterator[Measure]:
    table = tables["head_importance"]
    scales: dict[str, Scale] = {"importance": "size", "loss_increase": "difference"}
    for name, scale in scales.items():
        values = _rounded(table.plain()[name])
        yield Measure(name, "Loss", name.replace("_", " "), table.meaning[name], scale, values)


def _rounded(values: list[Any]) -> list[float | None]:
    """Return values with four digits, which is enough for colors and text."""
    return [None if value is None else float(f"{value:.4g}") for value in values]


_BUILD = {"heads": _attention, "relations": _relations, "coreference": _coreference, "head_importance": _losses}


def measures(tables: Tables) -> list[Measure]:
    """Return the measures that the tables have."""
    return [measure for name, build in _BUILD.items() if name in tables for measure in build(tables)]
