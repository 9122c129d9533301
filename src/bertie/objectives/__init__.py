"""Pre-training objectives, one file each.

- mlm.py: masked language modeling
- mntp.py: masked next token prediction, as in GPT-BERT
- nsp.py: next sentence prediction
- sbo.py: span boundary objective, as in SpanBERT
- clm.py: causal language modeling, as in GPT
- bilm.py: language modeling in both directions, as in ELMo
- rtd.py: replaced token detection, as in ELECTRA
- distil.py: knowledge distillation, as in DistilBERT
- plm.py: permutation language modeling, as in XLNet
- skip.py: the sentences before and after, as in Skip-thoughts

Read objective.py first: it has the contract that every objective fulfills. label_row.py lets those of a recipe label a row.
nsp.py is the smallest objective. Several share masking.py (which tokens are selected), requirements.py (checks),
initialization.py (weights that are counted in the corpus) and heads.py (builds the heads of a recipe).

To add an objective, add a file here and its name to the union.
"""

from __future__ import annotations

from bertie.objectives.bilm import BidirectionalLM
from bertie.objectives.clm import CausalLM
from bertie.objectives.distil import Distillation
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.mntp import MaskedNextToken
from bertie.objectives.nsp import NextSentence
from bertie.objectives.objective import Objective
from bertie.objectives.plm import PermutationLM
from bertie.objectives.rtd import ReplacedToken
from bertie.objectives.sbo import SpanBoundary
from bertie.objectives.skip import SkipThoughts

AnyObjective = (
    MaskedLM
    | MaskedNextToken
    | NextSentence
    | CausalLM
    | BidirectionalLM
    | SpanBoundary
    | ReplacedToken
    | Distillation
    | PermutationLM
    | SkipThoughts
    | Objective
)
"""The objectives of bertie, and every other class that fulfills the protocol (`base/own_code.py`)."""
