"""What every analysis offers and returns."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from bertie.inspect.attention import Group
from bertie.inspect.tables import Table


class AttentionAnalysis(Protocol):
    """Reads the attention of a pass over texts. Several of them share one pass."""

    def see(self, group: Group, layer: int, probabilities: Tensor) -> None:
        """Receive the attention of one layer of one group, as `attention.SeeLayer`. Keep only sums."""
        ...

    def tables(self) -> list[Table]:
        """Return what was found, after the last group."""
        ...


@dataclass(frozen=True, eq=False)
class InputFindings:
    """What the analyses of one input found."""

    name: str
    """Name of the input, such as "text": its key in inspect.json."""
    facts: dict[str, Any]
    """Numbers about the input, such as how many texts were read, for inspect.json."""
    tables: list[Table]
    """The tables."""
    summary: Many[str] = field(default=())
    """Lines for the terminal."""


def see_all(analyses: Many[AttentionAnalysis], group: Group, layer: int, probabilities: Tensor) -> None:
    """Show the attention to several analyses, so that they share one pass."""
    for analysis in analyses:
        analysis.see(group, layer, probabilities)
