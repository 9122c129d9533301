"""Heads: from the hidden states of the encoder to logits and losses.

Each head has a method `logits` for prediction. Its `forward(hidden, targets)` returns the `Loss`. Dimensions besides those
of `contracts`: V vocabulary entries, C outputs, E size of the word embeddings or PAIR_SIZE.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.base.contracts import Hidden, Loss, Targets
from bertie.model.activation import activation
from bertie.model.config import HeadActivation, HeadLayer, HeadLayers, TransformerConfig
from bertie.model.dropout import drop
from bertie.model.losses.losses import binary_cross_entropy, cross_entropy, grouped_cross_entropy

LossOf = Callable[[Tensor, Targets], Loss]
PAIR_SIZE = 64  # size of the vectors whose dot product scores a pair of start and end


def _norm(width: int, layers: HeadLayers) -> nn.LayerNorm | None:
    return None if layers.norm_eps is None else nn.LayerNorm(width, eps=layers.norm_eps, bias=layers.bias)


def _activated(act: HeadLayer, x: Tensor) -> Tensor:
    if act == "none":
        return x
    return torch.tanh(x) if act == "tanh" else activation(act, x)


class PooledHead(nn.Module):
    """Head for whole sequences: BERT's pooler (dense layer and activation on [CLS]), dropout, output layer (Devlin et al.
    2018, figure 4 a and b). GPT's has no pooler, and a matrix without a bias (Radford et al. 2018, section 3.2).

    With late pooling, the features are already `pooled`.
    """

    def __init__(
        self, width: int, outputs: int, dropout: float, loss: LossOf = cross_entropy, layers: HeadLayers = HeadLayers()
    ):
        super().__init__()
        linear = layers.act == "none"
        self.pooler = None if linear else nn.Linear(width, width, layers.bias)
        self.norm = _norm(width, layers)
        self.out = nn.Linear(width, outputs, bias=not linear)
        self.dropout = dropout
        self.loss = loss
        self.act: HeadLayer = layers.act
        self.late = False
        """Whether `logits` receives what `pooled` returned."""

    def leave_only_output(self) -> None:
        """Leave out all layers before the output layer."""
        self.pooler, self.norm, self.late = nn.Identity(), None, True

    def pooled(self, x_SD: Float[Tensor, "S D"]) -> Float[Tensor, "S D"]:
        """Return the input of the output layer."""
        if self.pooler is None:
            return x_SD
        x_SD = _activated(self.act, self.pooler(x_SD))
        return x_SD if self.norm is None else self.norm(x_SD)

    def logits(self, first_SD: Float[Tensor, "S D"]) -> Float[Tensor, "S C"]:
        x_SD = first_SD if self.late else self.pooled(first_SD)
        return self.out(drop(x_SD, self.dropout, self.training))

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return self.loss(self.logits(hidden.last[targets.index]), targets)


class TokenHead(nn.Module):
    """Head for single tokens: dropout and an output layer (Devlin et al. 2018, figure 4 c and d).

    In ModernBERT, a dense layer, an activation and layer normalization come before them.

    It computes logits for all rows, because nearly all have a target. Selecting those with a target first would give a number
    of rows that differs between batches, and each new number is expensive (`finetuning/single_run.py`).
    """

    def __init__(
        self, width: int, outputs: int, dropout: float, loss: LossOf = cross_entropy, layers: HeadLayers = HeadLayers()
    ):
        super().__init__()
        self.dense = nn.Linear(width, width, layers.bias) if layers.on_tokens else None
        self.norm = _norm(width, layers) if layers.on_tokens else None
        self.out = nn.Linear(width, outputs)
        self.dropout = dropout
        self.loss = loss
        self.act: HeadLayer = layers.act

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P C"]:
        if self.dense is not None:
            x_PD = _activated(self.act, self.dense(x_PD))
            x_PD = x_PD if self.norm is None else self.norm(x_PD)
        return self.out(drop(x_PD, self.dropout, self.training))

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return self.loss(self.logits(hidden.last)[targets.index], targets)


class SpanPairHead(nn.Module):
    """Head for two spans: dropout and an output layer on the concatenated states of two tokens (Soares et al. 2019).

    The output layer is linear, so each token has its own share of the logits: `logits` returns for every token its share as
    the first one of a pair, then that as the second one, and the logits of a pair are the sum of both.
    """

    def __init__(self, width: int, outputs: int, dropout: float):
        super().__init__()
        self.out = nn.Linear(2 * width, outputs)
        self.dropout = dropout

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P 2C"]:
        x_PD = drop(x_PD, self.dropout, self.training)
        first_CD, second_CD = self.out.weight.chunk(2, 1)
        return torch.cat([F.linear(x_PD, first_CD, self.out.bias), F.linear(x_PD, second_CD)], 1)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """Return the loss. targets.index: two rows per prediction, one for the first token and one for the second."""
        shares_P2C = self.logits(hidden.last[targets.index]).unflatten(1, (2, -1))
        return cross_entropy(shares_P2C[0::2, 0] + shares_P2C[1::2, 1], targets)


class ReplacedTokenHead(nn.Module):
    """ELECTRA's head for replaced token detection: dense layer, activation, one output per token (Clark et al. 2020).

    The output is the logit of "another token was here before". Targets have the label 1 for replaced tokens, else 0.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, 1)
        self.act: HeadActivation = config.head_act
        self.products = self.dense.weight.numel()

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P 1"]:
        return self.out(activation(self.act, self.dense(x_PD)))

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return binary_cross_entropy(self.logits(hidden.last[targets.index]), targets)


class ConditionalSpanHead(nn.Module):
    """Head for answer spans whose end depends on the start.

    The score of an end is the sum of its own logit and the dot product of two vectors: one of the start token and one of
    the end token. The logits are [P, 2 + 2 · PAIR_SIZE]: start logit, end logit, the token's vector as a start, and its
    vector as an end.
    """

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, 2)
        self.pair = nn.Linear(width, 2 * PAIR_SIZE)

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P C"]:
        return torch.cat([self.out(x_PD), self.pair(x_PD) / PAIR_SIZE**0.25], 1)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """Return the loss of starts and ends. In training, the end is conditioned on the gold start."""
        logits_PC = self.logits(hidden.last)[targets.index].float()
        bounds_P2, start_PE, end_PE = logits_PC.split([2, PAIR_SIZE, PAIR_SIZE], 1)
        group_PE = targets.label[:, None].expand_as(start_PE)
        gold_PE = torch.zeros_like(start_PE).scatter_add(0, group_PE, start_PE * targets.weight[:, :1])
        pair_score_P = (gold_PE.gather(0, group_PE) * end_PE).sum(1)
        return grouped_cross_entropy(bounds_P2 + F.pad(pair_score_P[:, None], (1, 0)), targets)
