"""Language modeling beside the task of a fine-tuning: the auxiliary objective of GPT (Radford et al. 2018, section 3.2).

T tokens of a batch
"""

from __future__ import annotations

import numpy as np
from torch import nn

from bertie.contracts import FILLER, Batch, Hidden, Loss, Targets
from bertie.model.chunked_loss import chunked_vocabulary_loss


class AuxiliaryLMHead(nn.Module):
    """Predicts the next token at each token of the inputs, with the matrix of the word embeddings.

    It has no weights. It is neither saved nor used after training.
    """

    auxiliary = True
    """`Model` gives it the states of the encoder, before any pooling, and does not count it among its heads."""

    def __init__(self, word: nn.Embedding):
        super().__init__()
        self.products = word.weight.numel()
        """Multiplications of a prediction."""
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return chunked_vocabulary_loss(hidden.last[targets.index], self.word[0].weight, targets)


def next_token_targets(batch: Batch, separate: bool = False) -> Targets:
    """Return the targets of `AuxiliaryLMHead`: one for every token of a batch of NumPy arrays.

    The label of a token is the next token. The last token of a sequence and filler weigh 0. separate: the encoder reads tokens
    of type 1 as a sequence of their own.
    """
    weight_T = np.repeat(batch.example != FILLER, batch.ragged.lengths).astype(np.float32)
    weight_T[batch.ragged.cu_seqlens[1:] - 1] = 0
    if separate:
        weight_T[:-1][np.diff(batch.token_type_ids) > 0] = 0
    return Targets(np.arange(len(batch.input_ids)), np.append(batch.input_ids[1:], 0), weight_T)
