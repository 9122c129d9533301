"""Tasks that put tokens of their own into texts."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable


@runtime_checkable
class AddsTokens(Protocol):
    """A task whose sequences have tokens that the vocabulary may lack. Fine-tuning adds them to it."""

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """The tokens, as soon as `Task.fit` has determined them."""
        ...

    def as_trained(self, own: Any) -> Self:
        """Return the task with the tokens, and the way to put them into texts, of a trained task of its kind.

        Raises UsageError if it asks for another way.
        """
        ...
