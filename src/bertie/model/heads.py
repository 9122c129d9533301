"""From hidden rows to logits, one layer added for each use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.contracts import Hidden, Loss, Targets
from bertie.model.config import Activation, BertConfig
from bertie.model.dropout import drop
from bertie.model.layers import activation
from bertie.model.losses import cross_entropy


class MaskedLMHead(nn.Module):
    """Dense, activation, norm, then the word embeddings' own matrix and a bias: logits over the vocabulary."""

    def __init__(self, config: BertConfig, word: nn.Embedding):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.act: Activation = config.hidden_act
        self.word = (word,)  # in a tuple: used here, owned and saved by the encoder

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P V"]:
        return F.linear(self.norm(activation(self.act, self.dense(x_PD))), self.word[0].weight, self.bias)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return cross_entropy(self.logits(hidden.last[targets.index]), targets)


class PooledHead(nn.Module):
    """BERT's pooler (dense and tanh on the first token), dropout, one added layer: logits over the classes."""

    def __init__(self, config: BertConfig, classes: int, dropout: float):
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, classes)
        self.dropout = dropout

    def logits(self, first_SD: Float[Tensor, "S D"]) -> Float[Tensor, "S C"]:
        return self.out(drop(torch.tanh(self.pooler(first_SD)), self.dropout, self.training))

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return cross_entropy(self.logits(hidden.last[targets.index]), targets)
