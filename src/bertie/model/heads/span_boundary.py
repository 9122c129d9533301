"""The head of the span boundary objective. It has no method `logits`, because nothing predicts with it after training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bertie.base.contracts import BoundaryTargets, Hidden, Loss, Targets
from bertie.model.config import TransformerConfig
from bertie.model.losses.losses import vocabulary_loss

POSITIONS = 20  # predicted tokens per span, as in SpanBERT's release: the 10 words of a span rarely have more
POSITION_SIZE = 200  # size of the position embeddings in the paper


class SpanBoundaryHead(nn.Module):
    """SpanBERT's head for a token of a span (Joshi et al. 2020, section 3.2).

    Two layers with GELU and layer norm map the hidden states of the tokens beside the span, and the embedding of the
    token's position in the span, to a vector. The output matrix is the matrix of the word embeddings (tied weights).
    """

    def __init__(self, config: TransformerConfig, word: nn.Embedding):
        super().__init__()
        width = config.hidden_size
        self.position = nn.Embedding(POSITIONS, POSITION_SIZE)
        self.first = nn.Linear(2 * width + POSITION_SIZE, width)
        self.first_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.second = nn.Linear(width, config.embedding_width)
        self.second_norm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.products = sum(layer.weight.numel() for layer in (self.first, self.second, word))
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it

    def forward(self, hidden: Hidden, targets: BoundaryTargets) -> Loss:
        boundaries_PX = hidden.last[targets.index].view(len(targets.label), -1)  # X = 2 D
        x_PX = torch.cat([boundaries_PX, self.position(targets.offset).to(boundaries_PX.dtype)], 1)
        x_PD = self.first_norm(F.gelu(self.first(x_PX)))
        x_PE = self.second_norm(F.gelu(self.second(x_PD)))  # E = size of the word embeddings
        predicted = Targets(targets.index[::2], targets.label, targets.weight)
        return vocabulary_loss(x_PE, self.word[0].weight, predicted, self.bias)
