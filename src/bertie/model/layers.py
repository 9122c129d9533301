"""BERT's Transformer layer: attention, then feed-forward, each followed by dropout, a residual and layer normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.contracts import Ragged
from bertie.model.activation import activation
from bertie.model.attention import IMPLEMENTATIONS, Kind
from bertie.model.config import Activation, BertConfig
from bertie.model.dropout import drop_add


class SelfAttention(nn.Module):
    """Multi-head self-attention, with the query, key and value projections in one matrix."""

    def __init__(self, config: BertConfig, implementation: Kind):
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = config.attention_probs_dropout_prob
        self.attend = IMPLEMENTATIONS[implementation]

    def forward(
        self, x_TD: Float[Tensor, "T D"], ragged: Ragged, rows: Int[Tensor, " Q"] | None, queries: Ragged
    ) -> Float[Tensor, "Q D"]:
        if rows is None:
            q, k, v = self.qkv(x_TD).unflatten(-1, (3, self.heads, -1)).unbind(1)
        else:
            size = x_TD.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q = F.linear(x_TD[rows], weight[:size], bias[:size]).unflatten(-1, (self.heads, -1))
            k, v = F.linear(x_TD, weight[size:], bias[size:]).unflatten(-1, (2, self.heads, -1)).unbind(1)
        mixed = self.attend(q, k, v, queries, ragged, dropout=self.dropout if self.training else 0.0)
        return self.out(mixed.flatten(1))


class Layer(nn.Module):
    """One Transformer layer."""

    def __init__(self, config: BertConfig, implementation: Kind):
        super().__init__()
        self.attention = SelfAttention(config, implementation)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.act: Activation = config.hidden_act
        self.dropout = config.hidden_dropout_prob

    def forward(
        self, x_TD: Float[Tensor, "T D"], ragged: Ragged, rows: Int[Tensor, " Q"] | None = None
    ) -> Float[Tensor, "Q D"]:
        """Compute the layer's output.

        Args:
            x_TD: Input hidden states.
            ragged: Boundaries of the sequences.
            rows: Sorted positions in T whose output is needed. None: all, so Q = T.
        """
        queries = ragged if rows is None else Ragged(torch.searchsorted(rows, ragged.cu_seqlens), ragged.max_seqlen)
        mixed = self.attention(x_TD, ragged, rows, queries)
        x_QD = x_TD if rows is None else x_TD[rows]
        x_QD = self.attention_norm(drop_add(mixed, x_QD, self.dropout, self.training))
        transformed = self.down(activation(self.act, self.up(x_QD)))
        return self.norm(drop_add(transformed, x_QD, self.dropout, self.training))
