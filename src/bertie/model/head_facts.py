"""Facts about a head that other rooms use. The task or the objective that builds a head sets them: `head.facts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import nn

HeadShape = Literal[
    "text", "choice", "tokens", "start_end", "pair", "masked", "next", "permutation", "replaced", "vectors"
]
"""Output of a head, if a class of transformers has it, too. A family of checkpoints maps it to names and classes.

text: outputs for the vector of a text or a pair. choice: one output for each of several texts. tokens: outputs for every
token. start_end: logits of a start and an end for every token. pair: two classes for a pair of sentences. masked, next,
permutation: the vocabulary at a masked token, for the next token, in any order. replaced: one output for every token. vectors:
no weights.
"""


@dataclass(frozen=True)
class HeadFacts:
    """Names of a head for people and the model card, and its shape."""

    name: str
    """Name of the task or the objective, for people: "masked LM"."""
    predicts: str
    """The end of "It predicts …"."""
    hub_tag: str = "feature-extraction"
    """The pipeline tag of the Hugging Face Hub."""
    shape: HeadShape | None = None
    """None: no class of transformers has such a head."""
    problem_type: str = ""
    """`problem_type` of transformers, which tells apart heads of one shape. Empty: not written."""

    @property
    def pools(self) -> bool:
        """Whether the head reads one vector of a sequence. The others read all tokens."""
        return self.shape in ("text", "choice", "pair")


def with_facts(head: nn.Module, facts: HeadFacts) -> nn.Module:
    """Return the head with its facts."""
    head.facts = cast(Any, facts)  # nn.Module declares that its attributes are tensors or modules
    return head


def facts_of(head: Any) -> HeadFacts:
    """Return the facts of a head of a model."""
    return head.facts
