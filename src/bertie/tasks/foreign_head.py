"""Heads that other libraries have trained."""

from __future__ import annotations

from dataclasses import dataclass

from bertie.model.head_facts import HeadShape


@dataclass(frozen=True)
class ForeignHead:
    """A head of another library, as its folder describes it."""

    shape: HeadShape
    """Its output."""
    outputs: int
    """Number of its outputs."""
    names: tuple[str, ...]
    """Names of the outputs in config.json; empty: it names none."""
    problem_type: str
    """`problem_type` in config.json; empty: it says nothing."""
    activation: str = ""
    """Activation of a cross-encoder's scores, "Identity" or "Sigmoid"; empty: it is no cross-encoder."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the outputs, or those that transformers gives them."""
        return self.names or tuple(f"LABEL_{number}" for number in range(self.outputs))
