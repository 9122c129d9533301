"""Next sentence prediction (Devlin et al. 2018, section 3.1, task 2). What is "next" is the layout's doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import nn

from bertie.contracts import Batch, Targets
from bertie.errors import require_range
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.model.transformer import Encoder
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class NextSentence:
    """From [CLS], say whether B follows A (0) or comes from elsewhere (1); sequences of kind -1 are not asked."""

    kind: Literal["nsp"] = "nsp"
    weight: float = 1.0
    """Factor of this loss in the sum."""

    def __post_init__(self) -> None:
        require_range("objectives.nsp", self, "weight", low=0)

    def label(self, batch: Batch, tokenizer: Tokenizer, rng: np.random.Generator) -> tuple[Batch, Targets]:  # noqa: ARG002
        """Targets at the first token of every sequence [S]; nothing is corrupted."""
        asked = batch.kind >= 0
        return batch, Targets(batch.ragged.cu_seqlens[:-1], np.where(asked, batch.kind, 0), asked.astype(np.float32))

    def initialize(self, head: nn.Module, corpus: Corpus) -> None:
        """Nothing: two balanced classes start well at random."""

    def head(self, config: BertConfig, encoder: Encoder) -> PooledHead:  # noqa: ARG002
        return PooledHead(config.hidden_size, outputs=2, dropout=0.0)
