"""Pre-training objectives, one file each.

- mlm.py: masked language modeling
- nsp.py: next sentence prediction
- sbo.py: span boundary objective, as in SpanBERT
- clm.py: causal language modeling, as in GPT
- bilm.py: language modeling in both directions, as in ELMo
- rtd.py: replaced token detection, as in ELECTRA
- distil.py: knowledge distillation, as in DistilBERT
- plm.py: permutation language modeling, as in XLNet

masking.py selects the tokens of masked language modeling. heads.py, initialization.py and requirements.py hold what several
objectives share.

An objective is a frozen dataclass with its settings and four methods:

- `check` refuses a model, a layout or a combination with other objectives that does not suit it.
- `label` corrupts a packed row and returns the targets (NumPy, in the loader).
- `head` builds the module that predicts them.
- `initialize` sets initial weights that are not random.

To add an objective, add a file here and its name to the union.
"""

from __future__ import annotations

from bertie.objectives.bilm import BidirectionalLM
from bertie.objectives.clm import CausalLM
from bertie.objectives.distil import Distillation
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.nsp import NextSentence
from bertie.objectives.plm import PermutationLM
from bertie.objectives.rtd import ReplacedToken
from bertie.objectives.sbo import SpanBoundary

Objective = (
    MaskedLM | NextSentence | CausalLM | BidirectionalLM | SpanBoundary | ReplacedToken | Distillation | PermutationLM
)

__all__ = [
    "BidirectionalLM",
    "CausalLM",
    "Distillation",
    "MaskedLM",
    "NextSentence",
    "Objective",
    "PermutationLM",
    "ReplacedToken",
    "SpanBoundary",
]
