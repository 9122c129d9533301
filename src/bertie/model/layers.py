"""The Transformer layer: attention, then feed-forward, each with dropout, a residual and layer normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.contracts import Ragged
from bertie.model.activation import activation
from bertie.model.attention import IMPLEMENTATIONS, Kind, automatic, fits_varlen, varlen
from bertie.model.attention_pattern import FULL, pattern_of
from bertie.model.config import Activation, TransformerConfig
from bertie.model.dropout import drop_add
from bertie.model.positions import rotate


class SelfAttention(nn.Module):
    """Multi-head self-attention, with the query, key and value projections in one matrix."""

    def __init__(self, config: TransformerConfig, implementation: Kind, number: int):
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, config.use_bias)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, config.use_bias)
        self.dropout = config.attention_probs_dropout_prob
        self.pattern = pattern_of(config, number)
        self.attend = IMPLEMENTATIONS[implementation]

    @property
    def fits_varlen(self) -> bool:
        """Whether attention in training is `varlen`, in half precision on a GPU."""
        size = self.qkv.out_features // (3 * self.heads)
        return self.attend in (automatic, varlen) and fits_varlen(size, self.dropout, self.pattern)

    def forward(
        self,
        x_TD: Float[Tensor, "T D"],
        ragged: Ragged,
        rows: Int[Tensor, " Q"] | None,
        queries: Ragged,
        angles: Float[Tensor, "T R"] | None,
    ) -> Float[Tensor, "Q D"]:
        if rows is not None and self.pattern != FULL:  # such a pattern needs every token as a query
            return self.out(self._mixed(x_TD, ragged, None, ragged, angles)[rows])
        return self.out(self._mixed(x_TD, ragged, rows, queries, angles))

    def _mixed(
        self, x_TD: Tensor, ragged: Ragged, rows: Tensor | None, queries: Ragged, angles: Tensor | None
    ) -> Float[Tensor, "Q D"]:
        """Return the values, mixed by attention, before the output projection."""
        if rows is None:
            q, k, v = self.qkv(x_TD).unflatten(-1, (3, self.heads, -1)).unbind(1)
        else:
            size, weight, bias = x_TD.shape[-1], self.qkv.weight, self.qkv.bias
            q_bias, kv_bias = (None, None) if bias is None else (bias[:size], bias[size:])
            q = F.linear(x_TD[rows], weight[:size], q_bias).unflatten(-1, (self.heads, -1))
            k, v = F.linear(x_TD, weight[size:], kv_bias).unflatten(-1, (2, self.heads, -1)).unbind(1)
        if angles is not None:
            q, k = rotate(q, angles if rows is None else angles[rows]), rotate(k, angles)
        dropout = self.dropout if self.training else 0.0
        return self.attend(q, k, v, queries, ragged, dropout=dropout, pattern=self.pattern).flatten(1)


class Layer(nn.Module):
    """One Transformer layer. `number`: its number, from 0."""

    def __init__(self, config: TransformerConfig, implementation: Kind, number: int):
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.use_bias
        self.attention = SelfAttention(config, implementation, number)
        normalized = config.norm_position == "modern" and number == 0  # its input is: the embeddings
        norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=bias)
        self.attention_norm = nn.Identity() if normalized else norm
        self.up = nn.Linear(width, inner * (2 if config.gated else 1), bias)
        self.down = nn.Linear(inner, width, bias)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=bias)
        self.act: Activation = config.hidden_act
        self.dropout = config.hidden_dropout_prob
        self.norm_first = config.norm_position != "post"

    def forward(
        self,
        x_TD: Float[Tensor, "T D"],
        ragged: Ragged,
        rows: Int[Tensor, " Q"] | None = None,
        angles: Float[Tensor, "T R"] | None = None,
    ) -> Float[Tensor, "Q D"]:
        """Compute the layer's output.

        Args:
            x_TD: Input hidden states.
            ragged: Boundaries of the sequences.
            rows: Sorted positions in T whose output is needed. None: all, so Q = T.
            angles: Angles of rotary position embeddings. None: no rotation.
        """
        queries = ragged if rows is None else Ragged(torch.searchsorted(rows, ragged.cu_seqlens), ragged.max_seqlen)
        x_QD = x_TD if rows is None else x_TD[rows]
        if self.norm_first:
            mixed = self.attention(self.attention_norm(x_TD), ragged, rows, queries, angles)
            x_QD = drop_add(mixed, x_QD, self.dropout, self.training)
            return drop_add(self._feed_forward(self.norm(x_QD)), x_QD, self.dropout, self.training)
        mixed = self.attention(x_TD, ragged, rows, queries, angles)
        x_QD = self.attention_norm(drop_add(mixed, x_QD, self.dropout, self.training))
        return self.norm(drop_add(self._feed_forward(x_QD), x_QD, self.dropout, self.training))

    def _feed_forward(self, x_QD: Float[Tensor, "Q D"]) -> Float[Tensor, "Q D"]:
        return self.down(activation(self.act, self.up(x_QD)))
