"""XLNet's encoder: a Transformer with relative positions, and with two streams for permutation language modeling (Yang et al.
2019). `transformer_xl.py` has the same layers, in one stream.

T  packed tokens    Q  query rows    M  rows of a layer, of one stream or both    W  distances
D  hidden size      N  heads         H  head size                                          t  tokens whose states are read
R, K, C  rows and keys of `segment_memory.py`, and their channels
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.config import (
    AboveZero,
    Count,
    DropoutRate,
    DropoutRateOrNone,
    EvenSize,
    LayerCount,
    NotNegative,
    Size,
    SizeOrZero,
    check_ranges,
)
from bertie.base.contracts import Batch, Hidden
from bertie.base.errors import UsageError
from bertie.model.activation import activation
from bertie.model.attention.relative_attention import Terms, relative_dense
from bertie.model.attention.relative_groups import relative_grouped
from bertie.model.attention.segment_memory import keys_seen, parts_of, segments_of, whole_sequences
from bertie.model.config import EncoderFacts, PooledToken
from bertie.model.dropout import drop, drop_add
from bertie.model.encoders.relative_parts import Stored, View, part_of, run_layers
from bertie.model.matrices import Matrices, linear_weights


@dataclass(frozen=True)
class XlnetConfig(EncoderFacts):
    """Sizes and settings of an XLNet encoder. The published base model has 12 layers of size 768 with 12 heads."""

    type_vocab_size = 2  # its attention distinguishes two segments
    vocabulary_heads = ("permutation",)
    causal: ClassVar = False  # in fine-tuning and prediction, every token sees all others
    kind: Literal["xlnet"] = field(default="xlnet", kw_only=True)
    num_hidden_layers: LayerCount
    """Number of layers."""
    hidden_size: EvenSize
    """Size of the hidden states. It must be even, and a multiple of num_attention_heads."""
    num_attention_heads: Size
    """Number of attention heads in each layer."""
    intermediate_size: Size
    """Size of the feed-forward layer inside each layer, usually 4 × hidden_size."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Size = 512
    """Maximum sequence length, in tokens. The model has no weights for positions, so this is only a limit."""
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """Activation function. gelu: exact GELU. gelu_tanh: its tanh approximation."""
    pooled_token: PooledToken = "first"
    """Token that heads for whole texts read. first: [CLS], which bertie puts first. last: the last token, where XLNet's own
    tokenizer puts it."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability after the embeddings and after each attention and feed-forward block."""
    attention_probs_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the attention weights."""
    head_dropout_prob: DropoutRateOrNone = None
    """Dropout probability before the output layer of heads for texts and tokens. If it is omitted, hidden_dropout_prob."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: NotNegative = 1e-12
    """Constant that layer normalization adds to the variance."""
    segment_length: SizeOrZero = 0
    """Tokens of a segment. A token sees its own segment, and the memory before it. 0: a sequence is a single segment."""
    memory_length: SizeOrZero = 0
    """Tokens before a segment whose states it remembers (Transformer-XL's memory). It needs segment_length."""

    def __post_init__(self) -> None:
        check_sizes(self)
        if (self.segment_length > 0) != (self.memory_length > 0):
            raise UsageError("model.segment_length and model.memory_length belong together: give both or neither")

    @property
    def post_norm(self) -> bool:
        return True

    def products(self, batch: Batch, rows: np.ndarray) -> float:
        """Return the multiplications of a forward pass, in both streams if there is an order. batch: NumPy arrays."""
        return relative_products(self, batch, rows, streams=1 if batch.order is None else 2)


def check_sizes(config: Any) -> None:
    """Raise UsageError if a setting is out of its range, or if the hidden size cannot be divided. Transformer-XL has it, too."""
    check_ranges("model", config)
    if config.hidden_size % config.num_attention_heads:
        heads = f"model.num_attention_heads {config.num_attention_heads}"
        raise UsageError(f"model.hidden_size {config.hidden_size} is not a multiple of {heads}: change one of them")


def relative_products(config: Any, batch: Batch, rows: np.ndarray, streams: int) -> float:
    """Return the multiplications of a forward pass of XLNet or Transformer-XL. batch: NumPy arrays.

    A query has three products with each of its keys: with the key, with its distance, and with its value. All distances
    between tokens are projected once per layer. Training projects the states of a memory a second time, which counts as none:
    the result is the same.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    per_row = 2 * width * width + 2 * width * config.intermediate_size  # queries, output, feed-forward
    cu_seqlens, tokens = batch.ragged.cu_seqlens, len(batch.input_ids)
    keys = keys_seen(cu_seqlens, np.arange(tokens), config.segment_length, config.memory_length)
    shared = tokens * 2 * width * width + 2 * keys.max() * width * width  # keys, values, distances
    last = shared + len(rows) * per_row + 3 * width * keys[rows].sum()
    layer = shared + tokens * per_row + 3 * width * keys.sum()
    if streams > 1:
        layer += last - shared
    return float((layers - 1) * layer + last)


class XlnetEmbeddings(nn.Module):
    """Word embeddings without positions, and the vector from which the query stream starts."""

    def __init__(self, config: XlnetConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mask = nn.Embedding(1, config.hidden_size)
        self.dropout = config.hidden_dropout_prob

    def forward(self, batch: Batch) -> Float[Tensor, "T D"]:
        return drop(self.word(batch.input_ids), self.dropout, self.training)

    def queries(self, rows: Int[Tensor, " Q"]) -> Float[Tensor, "Q D"]:
        """Return the initial query stream: the same vector in every row, with dropout."""
        return drop(self.mask.weight.expand(len(rows), -1), self.dropout, self.training)


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions and segments (see `relative_attention.py`)."""

    def __init__(self, config: Any):
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.distance = nn.Linear(size, size, bias=False)
        self.content_bias, self.position_bias = (nn.Parameter(torch.empty(size)) for _ in range(2))
        # s, for keys of the same segment and of the other one. Transformer-XL does not tell them apart.
        self.segment = nn.Embedding(2, size) if config.type_vocab_size else None
        self.segment_bias = nn.Parameter(torch.empty(size)) if config.type_vocab_size else None
        self.out = nn.Linear(size, size, bias=False)
        self.dropout = config.attention_probs_dropout_prob
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set u, v and w to 0, like all biases initially."""
        for bias in (self.content_bias, self.position_bias, self.segment_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self, x_MD: Float[Tensor, "M D"], h_TD: Float[Tensor, "t D"], view: View, stored: Stored | None = None
    ) -> Float[Tensor, "M D"]:
        """Return what the rows of all streams, one stream after the other, gather from the tokens."""
        size, weight = h_TD.shape[1], self.qkv.weight
        if x_MD is h_TD:
            q_MNH, kv_RC = self.qkv(h_TD).split([size, 2 * size], 1)
        else:
            q_MNH, kv_RC = F.linear(x_MD, weight[:size]), F.linear(h_TD, weight[size:])
        if stored is not None:
            kv_RC = stored.extended(kv_RC)
        kv_KC = view.segments.gather(kv_RC, h_TD, lambda states: F.linear(states, weight[size:]))
        k_KNH, v_KNH = kv_KC.unflatten(1, (2, self.heads, -1)).unbind(1)
        q_MNH = q_MNH.unflatten(1, (self.heads, -1))
        r_WNH = self.distance(view.distances).unflatten(1, (self.heads, -1))
        none_D = torch.zeros_like(self.content_bias)
        other_D = none_D if self.segment is None else self.segment.weight[1] - self.segment.weight[0]
        segment_bias_D = none_D if self.segment_bias is None else self.segment_bias
        vectors = (other_D, self.content_bias, self.position_bias, segment_bias_D)
        vectors_NH = (vector.to(q_MNH.dtype).view(self.heads, -1) for vector in vectors)
        attend = relative_grouped if x_MD.device.type == "cpu" else relative_dense
        dropout, terms = self.dropout if self.training else 0.0, Terms(q_MNH, k_KNH, v_KNH, r_WNH, *vectors_NH)
        return self.out(attend(terms, view.streams, view.keys, dropout).flatten(1))


class XlnetLayer(nn.Module):
    """Attention, then feed-forward, each with dropout, a residual connection and layer normalization."""

    def __init__(self, config: Any):
        super().__init__()
        self.attention = RelativeAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.act: Literal["gelu", "gelu_tanh", "relu"] = config.hidden_act
        self.dropout = config.hidden_dropout_prob

    def forward(
        self, x_MD: Float[Tensor, "M D"], h_TD: Float[Tensor, "t D"], view: View, stored: Stored | None = None
    ) -> Float[Tensor, "M D"]:
        """Compute the layer's output.

        Args:
            x_MD: Input of the rows to compute, one stream after the other.
            h_TD: Input of the tokens that they see. The rows gather from it.
            view: The rows of each stream, and what they see.
            stored: Keys and values of the layer that earlier passes have computed. It gets the new ones. None: there are
                none, and nothing is stored.
        """
        mixed = self.attention(x_MD, h_TD, view, stored)
        x_MD = self.attention_norm(drop_add(mixed, x_MD, self.dropout, self.training))
        return self.norm(drop_add(self.down(activation(self.act, self.up(x_MD))), x_MD, self.dropout, self.training))

    def matrices(self) -> Matrices:
        """Return the matrices of the layer: see `HasMatrices`."""
        return linear_weights(self) | {self.attention.qkv.weight: 3}


class XlnetEncoder(nn.Module):
    """XLNet's encoder.

    For a batch with `order`, it runs two streams (section 2.3). In the content stream, a token sees itself and the tokens of
    lower rank. The query stream has only the rows that are predicted. It begins with a trained vector instead of the token,
    and sees the tokens of lower rank: so it knows the position that it predicts, but not the token there.

    For a batch without `order`, every token sees all tokens of its sequence. Dropout is where BERT has it.
    """

    def __init__(self, config: XlnetConfig):
        super().__init__()
        self.config = config
        self.embeddings = XlnetEmbeddings(config)
        self.layers = nn.ModuleList(XlnetLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch; see `TransformerEncoder.forward`.

        Args:
            batch: Packed sequences. With `order`, every sequence needs a token of rank 0.
            rows: Sorted positions in T at which the last layer is computed. None: all positions.
            all_layers: If true, also return the output of the embeddings and of every layer. Do not combine it with `rows`.

        Returns:
            Hidden states; `last` is [T, D], or [Q, D] with `rows`. With `order`, `last` is the query stream.
        """
        config, ordered = self.config, batch.order is not None
        rank = torch.zeros_like(batch.input_ids) if batch.order is None else batch.order
        if ordered and rows is None:
            rows = torch.arange(len(rank), device=rank.device)
        if config.segment_length:
            segments = segments_of(batch.ragged, len(rank), config.segment_length, config.memory_length)
        else:
            segments = whole_sequences(batch.ragged, batch.position_ids)
        parts = [part_of(segment, batch.token_type_ids, rank, rows, ordered) for segment in parts_of(segments)]
        h_TD = self.embeddings(batch)
        g_QD = self.embeddings.queries(rows) if ordered and rows is not None else None
        outputs, last = run_layers(self.layers, h_TD, g_QD, rows, parts)
        return Hidden(last, (*outputs, last) if all_layers else None)
