"""What pre-training predicts, one file each. A new objective is a file here and a name in the union."""

from __future__ import annotations

from bertie.objectives.mlm import MaskedLM
from bertie.objectives.nsp import NextSentence

Objective = MaskedLM | NextSentence

__all__ = ["MaskedLM", "NextSentence", "Objective"]
