"""What the server offers besides its models. Reads no library for HTTP, so that the command line knows it without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DialectName = Literal["tei", "infinity", "vllm", "hf", "cohere", "ollama"]
"""The dialects beside bertie's own."""


@dataclass(frozen=True)
class Front:
    """What the server offers, and to which web pages."""

    origins: tuple[str, ...] = ()
    """The web pages that browsers let use it."""
    page: bool = True
    """Whether it has a page of its own."""
    dialect: DialectName | None = None
    """The dialect that has the paths without a base that several claim."""
