"""Language modeling beside the task of a fine-tuning: the auxiliary objective of GPT (Radford et al. 2018, section 3.2).

T tokens of a batch    R tokens as the encoder reads them: T, or more if it reads texts more than once
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from bertie.contracts import FILLER, Batch, Hidden, Loss, Targets
from bertie.model.chunked_loss import chunked_vocabulary_loss


class AuxiliaryLMHead(nn.Module):
    """Predicts the next token at each token of the inputs, with the matrix of the word embeddings.

    It has no weights. It is neither saved nor used after training.
    """

    auxiliary = True
    """`Model` gives it what the encoder has read and computed, and does not count it among its heads."""

    def __init__(self, word: nn.Embedding):
        super().__init__()
        self.products = word.weight.numel()
        """Multiplications of a prediction."""
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """Return the cross-entropy of the next tokens, with the weight 1 for each.

        Args:
            hidden: The states of all tokens, [R, D], and the batch that the encoder has read.
            targets: `next_token_targets`, whose weights have the same sum. The labels are those of the batch in `hidden`.
        """
        batch = hidden.batch
        assert batch is not None
        ids_R, ends = batch.input_ids, batch.ragged.cu_seqlens[1:] - 1
        weight_R = (batch.example != FILLER).float()[batch.ragged.owners(len(ids_R))]
        weight_R[ends] = 0
        targets = Targets(torch.arange(len(ids_R), device=ids_R.device), ids_R.roll(-1), weight_R)
        return chunked_vocabulary_loss(hidden.last, self.word[0].weight, targets)


def next_token_targets(batch: Batch, readings: int = 1) -> Targets:
    """Return the targets of `AuxiliaryLMHead`: one for every token of a batch of NumPy arrays.

    The last token of a sequence and filler weigh 0. readings: how often the encoder reads each text.
    """
    weight_T = np.repeat(batch.example != FILLER, batch.ragged.lengths).astype(np.float32) * readings
    weight_T[batch.ragged.cu_seqlens[1:] - 1] = 0
    return Targets(np.arange(len(batch.input_ids)), np.append(batch.input_ids[1:], 0), weight_T)
