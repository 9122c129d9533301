"""What other rooms need to know about a head. The task or the objective that builds a head says it: `head.facts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

HeadShape = Literal["text", "choice", "tokens", "span", "pair", "masked", "next", "permutation", "replaced", "vectors"]
"""What a head computes, as far as a class of transformers does, too. A family of checkpoints maps it to names and classes.

text: outputs for the vector of a text or a pair. choice: one output for each of several texts. tokens: outputs for every
token. span: logits of a start and an end. pair: two classes for a pair of sentences. masked, next, permutation: the
vocabulary at a masked token, for the next token, in any order. replaced: one output for every token. vectors: no weights.
"""


@dataclass(frozen=True)
class HeadFacts:
    """What people and the model card say of a head, and the shape of it."""

    name: str
    """Name of the task or the objective, for people: "masked LM"."""
    predicts: str
    """The end of "It predicts …"."""
    hub_tag: str = "feature-extraction"
    """The pipeline tag of the Hugging Face Hub."""
    shape: HeadShape | None = None
    """None: no class of transformers has such a head."""


def with_facts(head: nn.Module, facts: HeadFacts) -> nn.Module:
    """Return the head with its facts."""
    head.facts = facts  # pyright: ignore[reportArgumentType]
    return head


def facts_of(head: Any) -> HeadFacts:
    """Return the facts of a head of a model."""
    return head.facts
