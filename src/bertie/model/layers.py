"""The Transformer layer: attention, then feed-forward, each with dropout, a residual and layer normalization.

`layer_output` has the equations. `LayerParts` has the products that it calls: from `Layer`, or from an engine, where they are
quantized or fused.

T  packed tokens    Q  query rows: T, or fewer    D  hidden size    N  heads    H  head size
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Ragged
from bertie.model.activation import activation
from bertie.model.attention.attention import HALVES, IMPLEMENTATIONS, AttentionKind, automatic, fits_varlen, varlen
from bertie.model.attention.disentangled import Distances, disentangled
from bertie.model.attention.relative_attention import reach_of
from bertie.model.attention.relative_bias import RelativeBias
from bertie.model.attention.window import CAUSAL, FULL, AttentionInput, Pattern, by_direction, pattern_of
from bertie.model.config import Activation, TransformerConfig
from bertie.model.distinct_words import DistinctWords
from bertie.model.dropout import drop_add
from bertie.model.kernels import short_attention
from bertie.model.matrices import Matrices, linear_weights
from bertie.model.normalization import norm_of
from bertie.model.positions import rotate

Mix = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Mixes values by attention. From queries [Q, N, H], keys and values [T, N, H], and the rows of the queries as in
`layer_output`, to [Q, D]."""
MixAll = Callable[[Tensor, Tensor | None], Tensor]
"""Mixes values by attention among all tokens, rotation included. From queries, keys and values side by side,
[T, 3, N, H] in half precision, and the rotation, to [T, D]."""


class LayerParts(NamedTuple):
    """The products of a layer with its weights, and its normalization. The residuals may be overwritten."""

    norm_first: bool
    """Whether layer normalization is before attention and feed-forward, instead of after their residuals."""
    pattern: Pattern
    """Which keys a query attends to."""
    heads: int
    """Number of attention heads."""
    key_value_heads: int
    """Number of heads of keys and values, K."""
    attention_norm: Callable[[Tensor], Tensor]
    """Layer normalization of attention."""
    norm: Callable[[Tensor], Tensor]
    """Layer normalization of the feed-forward block."""
    qkv: Callable[[Tensor], Tensor]
    """Returns queries, keys and values side by side. [T, D] → [T, D + 2 K H]."""
    split: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None
    """Returns the queries, [Q, D], and the keys and values side by side, [T, 2 K H]. None: the layer has `qkv` only."""
    add_attention: Callable[[Tensor, Tensor], Tensor]
    """Returns the sum of the projection of mixed values and the residual. [Q, D], [Q, D] → [Q, D]."""
    widen: Callable[[Tensor], Tensor]
    """Returns the first product of the feed-forward block, with its activation. [Q, D] → [Q, F], F: intermediate size."""
    add_narrowed: Callable[[Tensor, Tensor], Tensor]
    """Returns the sum of the second product of the feed-forward block and the residual. [Q, F], [Q, D] → [Q, D]."""


def layer_output(
    parts: LayerParts,
    mix: Mix,
    x_TD: Float[Tensor, "T D"],
    rows: Int[Tensor, " Q"] | None,
    rotation: Float[Tensor, "T H"] | None,
    mix_all: MixAll | None = None,
) -> Float[Tensor, "Q D"]:
    """Compute a layer's output.

    Args:
        parts: The layer.
        mix: Attention, among the queries, keys and values that it is given.
        x_TD: Input hidden states.
        rows: Positions in T whose output is needed. None: all, so Q = T.
        rotation: Cosines and sines of rotary position embeddings. None: no rotation.
        mix_all: Attention in half precision, when all tokens are queries. None: `mix`.
    """
    x_QD = x_TD if rows is None else x_TD[rows]
    # No name for what is not needed later: its memory, which is still in the cache, is used again.
    x_QD = parts.add_attention(
        _mixed(parts, mix, parts.attention_norm(x_TD) if parts.norm_first else x_TD, rows, rotation, mix_all), x_QD
    )
    if parts.norm_first:
        return parts.add_narrowed(parts.widen(parts.norm(x_QD)), x_QD)
    x_QD = parts.attention_norm(x_QD)
    return parts.norm(parts.add_narrowed(parts.widen(x_QD), x_QD))


def _mixed(
    parts: LayerParts,
    mix: Mix,
    x_TD: Tensor,
    rows: Tensor | None,
    rotation: Tensor | None,
    mix_all: MixAll | None,
) -> Float[Tensor, "Q D"]:
    """Return the values, mixed by attention, before the output projection."""
    asking = rows if parts.split is not None and parts.pattern == FULL else None  # others need all tokens as queries
    if asking is None or parts.split is None:
        qkv_TNH = parts.qkv(x_TD).unflatten(-1, (parts.heads + 2 * parts.key_value_heads, -1))
        if mix_all is not None and qkv_TNH.dtype in HALVES:
            mixed_TD = mix_all(qkv_TNH.unflatten(1, (3, parts.heads)), rotation)
            return mixed_TD if rows is None else mixed_TD[rows]
        q, k, v = qkv_TNH.split((parts.heads, parts.key_value_heads, parts.key_value_heads), 1)
    else:
        q = parts.split[0](x_TD[asking]).unflatten(-1, (parts.heads, -1))
        k, v = parts.split[1](x_TD).unflatten(-1, (2 * parts.key_value_heads, -1)).chunk(2, 1)
    if rotation is not None:
        q, k = rotate(q, rotation if asking is None else rotation[asking]), rotate(k, rotation)
    if parts.key_value_heads < parts.heads:
        k, v = (x.repeat_interleave(parts.heads // parts.key_value_heads, 1) for x in (k, v))
    mixed_QD = mix(q, k, v, asking)
    return mixed_QD if rows is asking else mixed_QD[rows]


class SelfAttention(nn.Module):
    """Multi-head self-attention, with the query, key and value projections in one matrix."""

    def __init__(
        self,
        config: TransformerConfig,
        implementation: AttentionKind,
        number: int,
        relative: RelativeBias | Distances | None,
    ):
        super().__init__()
        self.heads, self.key_value_heads = config.num_attention_heads, config.key_value_heads
        keys = config.hidden_size // self.heads * self.key_value_heads
        self.qkv = nn.Linear(config.hidden_size, config.hidden_size + 2 * keys, config.use_bias)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, config.use_bias)
        self.dropout = config.attention_probs_dropout_prob
        self.pattern = pattern_of(config, number, relative if isinstance(relative, RelativeBias) else None)
        self.attend = IMPLEMENTATIONS[implementation]
        # In a tuple, so that it is not a submodule: the encoder owns and saves it.
        self.distances = (relative,) if isinstance(relative, Distances) else ()

    @property
    def fits_varlen(self) -> bool:
        """Whether attention in training is `varlen`, in half precision on a GPU."""
        return self.attend in (automatic, varlen) and fits_varlen(self._size, self.dropout, self.pattern)

    @property
    def _size(self) -> int:
        return self.qkv.in_features // self.heads

    def fits_short(self, ragged: Ragged) -> bool:
        """Whether `mix_short` supports these sequences, in half precision.

        Only in compiled layers: where torch's compiler works on a GPU, Triton does.
        """
        is_compiled = torch.compiler.is_compiling() and torch.version.hip is None
        is_there = is_compiled and ragged.cu_seqlens.device.type == short_attention.DEVICE
        fits = ragged.max_seqlen <= short_attention.LONGEST and self._size in short_attention.SIZES
        is_plain = self.attend is automatic and self.key_value_heads == self.heads and not self.distances
        return is_there and fits and is_plain and self.fits_varlen and ragged.causal is None

    def mix_short(self, ragged: Ragged, qkv_T3NH: Tensor, rotation: Tensor | None) -> Float[Tensor, "T D"]:
        """Mix values within each sequence of `ragged`, in one operation. With it, this is a `MixAll`."""
        left, right = self.pattern.sides
        arguments = (qkv_T3NH, rotation, ragged.cu_seqlens.int(), ragged.max_seqlen, left, right)
        return short_attention.short_attention(*arguments)[0].flatten(1)

    def pattern_in(self, ragged: Ragged) -> Pattern:
        """Return the pattern, without a window that no sequence exceeds: then some rows alone can be queries."""
        window = self.pattern.window
        fits = window is not None and ragged.max_seqlen <= window + 1
        return self.pattern._replace(window=None) if fits else self.pattern

    def query(self, x_QD: Float[Tensor, "Q D"]) -> Float[Tensor, "Q D"]:
        """Return the queries: the first part of `qkv`."""
        return self._part(x_QD, slice(self.qkv.in_features))

    def key_value(self, x_TD: Float[Tensor, "T D"]) -> Float[Tensor, "T F"]:
        """Return the keys and values: the rest of `qkv`."""
        return self._part(x_TD, slice(self.qkv.in_features, None))

    def _part(self, x_TD: Tensor, part: slice) -> Tensor:
        return F.linear(x_TD, self.qkv.weight[part], None if self.qkv.bias is None else self.qkv.bias[part])

    def mix(
        self, ragged: Ragged, q_QNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, rows: Tensor | None
    ) -> Float[Tensor, "Q D"]:
        """Mix values within each sequence of `ragged`. With it, this is a `Mix`."""
        for distances in self.distances:
            dropout, size = self.dropout if self.training else 0.0, self.qkv.in_features
            r_WD = distances(reach_of(ragged)).to(q_QNH.dtype)
            asked_WD, seen_WD = self._part(r_WD, slice(2 * size)).chunk(2, 1)
            return disentangled(q_QNH, k_TNH, v_TNH, asked_WD, seen_WD, ragged, dropout).flatten(1)
        queries = ragged if rows is None else Ragged(torch.searchsorted(rows, ragged.cu_seqlens), ragged.max_seqlen)
        dropout = self.dropout if self.training else 0.0
        inputs = AttentionInput(q_QNH, k_TNH, v_TNH, queries, ragged, dropout, self.pattern_in(ragged))
        return (self.attend(inputs) if ragged.causal is None else by_direction(self.attend, inputs)).flatten(1)


class Layer(nn.Module):
    """One Transformer layer. `number`: its number, from 0; `relative`: what the encoder has for all layers."""

    def __init__(
        self,
        config: TransformerConfig,
        implementation: AttentionKind,
        number: int,
        relative: RelativeBias | Distances | None = None,
    ):
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.use_bias
        self.attention = SelfAttention(config, implementation, number, relative)
        normalized = config.norm_position == "modern" and number == 0  # its input is: the embeddings
        self.attention_norm = nn.Identity() if normalized else norm_of(config, width)
        self.up = nn.Linear(width, inner * (2 if config.gated else 1), bias)
        self.down = nn.Linear(inner, width, bias)
        self.norm = norm_of(config, width)
        self.act: Activation = config.hidden_act
        self.dropout = config.hidden_dropout_prob
        self.norm_first = config.norm_position != "post"

    def forward(
        self,
        x_TD: Float[Tensor, "T D"],
        ragged: Ragged,
        rows: Int[Tensor, " Q"] | None = None,
        rotation: Float[Tensor, "T H"] | None = None,
        words: DistinctWords | None = None,
    ) -> Float[Tensor, "Q D"]:
        """Compute `layer_output` within the sequences of `ragged`, from queries, keys and values of `words`. Rows are sorted."""
        attention = self.attention
        mix_all = partial(attention.mix_short, ragged) if attention.fits_short(ragged) else None
        parts = self.parts._replace(pattern=attention.pattern_in(ragged) if ragged.causal is None else CAUSAL)
        if words is not None:
            parts = parts._replace(qkv=lambda x_TD: F.embedding(words.number, attention.qkv(x_TD[words.first])))
        return layer_output(parts, partial(attention.mix, ragged), x_TD, rows, rotation, mix_all)

    def become_identity(self) -> None:
        """Let a layer with residuals outside of its normalization return its input, until it is trained."""
        for linear in (self.attention.out, self.down):
            for parameter in linear.parameters():
                nn.init.zeros_(parameter)

    def matrices(self) -> Matrices:
        """Return the matrices of the layer: see `HasMatrices`. Queries, keys and values are one if their widths differ."""
        qkv = self.attention.qkv
        stacked = {qkv.weight: 3 if qkv.out_features == 3 * qkv.in_features else 1}
        stacked |= {self.up.weight: self.up.out_features // self.down.in_features}  # 2 with a gate
        return linear_weights(self) | stacked

    @property
    def parts(self) -> LayerParts:
        """The parts of the layer."""
        attention = self.attention
        return LayerParts(
            norm_first=self.norm_first,
            pattern=attention.pattern,
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            attention_norm=self.attention_norm,
            norm=self.norm,
            qkv=attention.qkv,
            split=(attention.query, attention.key_value),
            add_attention=lambda mixed_QD, residual_QD: self._add(attention.out(mixed_QD), residual_QD),
            widen=lambda x_QD: activation(self.act, self.up(x_QD)),
            add_narrowed=lambda inner_QF, residual_QD: self._add(self.down(inner_QF), residual_QD),
        )

    def _add(self, x_QD: Tensor, residual_QD: Tensor) -> Float[Tensor, "Q D"]:
        return drop_add(x_QD, residual_QD, self.dropout, self.training)
