"""Sizes and settings of a Reformer (Kitaev et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np

from bertie.base.config import (
    AboveZero,
    Count,
    DropoutRate,
    DropoutRateOrNone,
    EvenSize,
    LayerCount,
    NotNegative,
    Range,
    Size,
    SizeOrZero,
    check_ranges,
)
from bertie.base.contracts import Batch
from bertie.base.errors import UsageError
from bertie.model.attention.lsh_attention import Chunking
from bertie.model.config import EncoderFacts, PooledToken

LayerKind = Literal["local", "lsh"]
KINDS: tuple[LayerKind, ...] = ("local", "lsh")
CHUNKS = ("attn_chunk_length", "num_chunks_before", "num_chunks_after")
HASHING = ("num_hashes", "num_buckets", "hash_seed", "new_hyperplanes")
SETTINGS_OF: dict[str, tuple[str, ...]] = {
    "local": tuple(f"local_{name}" for name in CHUNKS),
    "lsh": (*(f"lsh_{name}" for name in CHUNKS), *HASHING),
    "axial": ("axial_pos_shape", "axial_pos_embds_dim"),
}
"""The settings that only layers of a kind, or axial positions, have."""


@dataclass(frozen=True)
class ReformerConfig(EncoderFacts):
    """Sizes and settings of a Reformer. Its layers are reversible, with two streams of half of hidden_size."""

    vocabulary_heads = ("masked", "next")
    kind: Literal["reformer"] = field(default="reformer", kw_only=True)
    attn_layers: tuple[LayerKind, ...]
    """Attention of each layer. local: a chunk of neighboring tokens and the chunks beside it. lsh: chunks of tokens with near
    queries, by locality-sensitive hashing."""
    hidden_size: EvenSize
    """Size of the hidden states: both streams, each with half of it. It must be even."""
    num_attention_heads: Size
    """Number of attention heads in each layer."""
    intermediate_size: Size
    """Size of the feed-forward layer inside each layer."""
    attention_head_size: SizeOrZero = 0
    """Size of the queries, keys and values of a head. 0: the size of a stream, divided by num_attention_heads."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Annotated[int, Range(1, 100_000_000)] = 4096
    """Maximum sequence length, in tokens. It must be a multiple of the chunk lengths and of the number of buckets."""
    causal: bool = False
    """Let each token attend only to itself and earlier tokens."""
    position_embedding: Literal["axial", "learned"] = "axial"
    """Vectors of positions. axial: the vectors of a row and a column of a grid, side by side. learned: one each."""
    axial_pos_shape: tuple[int, ...] = (64, 64)
    """Rows and columns of this grid. Their product must be max_position_embeddings."""
    axial_pos_embds_dim: tuple[int, ...] = (64, 192)
    """Sizes of the vectors of rows and columns. Together, they must have the size of a stream."""
    local_attn_chunk_length: Size = 64
    """Tokens of a chunk in local layers."""
    local_num_chunks_before: Annotated[int, Range(0, 1000)] = 1
    """Chunks before its own that a token sees in local layers."""
    local_num_chunks_after: Annotated[int, Range(0, 1000)] = 0
    """Chunks after its own that a token sees in local layers. 0 if the model is causal."""
    lsh_attn_chunk_length: Size = 64
    """Tokens of a chunk in layers with hashing."""
    lsh_num_chunks_before: Annotated[int, Range(0, 1000)] = 1
    """Chunks before its own that a token sees in layers with hashing."""
    lsh_num_chunks_after: Annotated[int, Range(0, 1000)] = 0
    """Chunks after its own that a token sees in layers with hashing. 0 if the model is causal."""
    num_hashes: LayerCount = 1
    """Rounds of hashing. More rounds find more of the near keys, and take proportionally longer."""
    num_buckets: tuple[int, ...] = ()
    """Number of hash buckets, even; or several even factors of it, whose hashes are cheaper. Empty: twice as many as the longest
    sequence has chunks, in two factors if they are many."""
    hash_seed: Count = 0
    """Seed of the random hyperplanes of each layer, in prediction."""
    new_hyperplanes: bool = True
    """Draw new hyperplanes in every training step. Without new ones, training uses the hyperplanes of hash_seed, too."""
    feed_forward_chunk: Count = 0
    """Tokens that the feed-forward layer computes at a time, to save memory. 0: all."""
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "relu"
    """Activation function. gelu: exact GELU. gelu_tanh: its tanh approximation."""
    hidden_dropout_prob: DropoutRate = 0.05
    """Dropout probability of the embeddings, of each block and of the last hidden states."""
    attention_probs_dropout_prob: DropoutRate = 0.05
    """Dropout probability of the attention weights."""
    lsh_attention_probs_dropout_prob: DropoutRateOrNone = None
    """The same in layers with hashing. If it is omitted, attention_probs_dropout_prob."""
    head_dropout_prob: DropoutRateOrNone = None
    """Dropout probability before the output layer of heads for texts and tokens. If it is omitted, hidden_dropout_prob."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: NotNegative = 1e-12
    """Constant that layer normalization adds to the variance."""

    def __post_init__(self) -> None:
        if self.lsh_attention_probs_dropout_prob == self.attention_probs_dropout_prob:
            object.__setattr__(self, "lsh_attention_probs_dropout_prob", None)
        if self.attention_head_size * self.num_attention_heads == self.hidden_size // 2:
            object.__setattr__(self, "attention_head_size", 0)
        check_ranges("model", self)
        if not 1 <= len(self.attn_layers) <= 1000:
            raise UsageError(f"model.attn_layers has {len(self.attn_layers)} layers: give 1 to 1000, each local or lsh")
        if not self.attention_head_size and self.stream_size % self.num_attention_heads:
            raise UsageError(
                f"model.hidden_size is {self.hidden_size}, and half of it is not a multiple of model.num_attention_heads "
                f"{self.num_attention_heads}: set model.attention_head_size"
            )
        for name, default in idle_settings(self.attn_layers, self.position_embedding).items():
            if getattr(self, name) != default:
                raise UsageError(f"model.{name} has no effect with these layers and positions: set it to {default}")
        self._check_chunks()
        if self.position_embedding == "axial":
            self._check_positions()

    def _check_chunks(self) -> None:
        """Check the chunks and the buckets. Raises UsageError."""
        longest = f"model.max_position_embeddings {self.max_position_embeddings}"
        for kind in self.attn_layers:
            chunking = self.chunking(kind)
            if self.max_position_embeddings % chunking.length:
                raise UsageError(f"model.{kind}_attn_chunk_length is {chunking.length}: it must divide {longest}")
            if self.causal and chunking.after:
                raise UsageError(f"model.{kind}_num_chunks_after is {chunking.after}: model.causal needs 0")
        wrong = any(factor < 2 or factor % 2 for factor in self.num_buckets)
        if wrong or self.max_position_embeddings % math.prod(self.num_buckets):
            raise UsageError(f"model.num_buckets is {list(self.num_buckets)}: give even factors of {longest}")

    def _check_positions(self) -> None:
        """Check the grid of positions. Raises UsageError."""
        shape, sizes = self.axial_pos_shape, self.axial_pos_embds_dim
        if len(shape) != 2 or min(shape) < 1 or math.prod(shape) != self.max_position_embeddings:
            expected = f"two numbers with the product model.max_position_embeddings {self.max_position_embeddings}"
            raise UsageError(f"model.axial_pos_shape is {list(shape)}: give {expected}")
        if len(sizes) != 2 or min(sizes) < 1 or sum(sizes) != self.stream_size:
            expected = f"two numbers with the sum {self.stream_size}, half of model.hidden_size"
            raise UsageError(f"model.axial_pos_embds_dim is {list(sizes)}: give {expected}")

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return len(self.attn_layers)

    @property
    def stream_size(self) -> int:
        """Size of each of the two streams."""
        return self.hidden_size // 2

    @property
    def head_size(self) -> int:
        """Size of the queries, keys and values of a head."""
        return self.attention_head_size or self.stream_size // self.num_attention_heads

    @property
    def lsh_dropout(self) -> float:
        """Dropout probability of the attention weights in layers with hashing."""
        dropout = self.lsh_attention_probs_dropout_prob
        return self.attention_probs_dropout_prob if dropout is None else dropout

    @property
    def pooled_token(self) -> PooledToken:
        """The token that stands for the whole sequence: the first one, or in a causal model the last one."""
        return "last" if self.causal else "first"

    @property
    def buckets(self) -> tuple[int, ...]:
        """The factors of the number of buckets. By default, their product is the largest power of two that is at most twice
        the number of chunks (section 4 of the paper has 2 l / m buckets)."""
        if self.num_buckets:
            return self.num_buckets
        chunks = self.max_position_embeddings // self.lsh_attn_chunk_length
        power = (2 * chunks).bit_length() - 1
        if 2**power <= 2 * max(math.isqrt(chunks), self.lsh_attn_chunk_length):
            return (2**power,)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    @property
    def bucket_count(self) -> int:
        """Number of buckets."""
        return math.prod(self.buckets)

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """The chunk lengths of the kinds of layers that there are."""
        return tuple(self.chunking(kind).length for kind in KINDS if kind in self.attn_layers)

    def chunking(self, kind: LayerKind) -> Chunking:
        """Return how layers of a kind cut sequences into chunks."""
        if kind == "local":
            return Chunking(self.local_attn_chunk_length, self.local_num_chunks_before, self.local_num_chunks_after)
        return Chunking(
            self.lsh_attn_chunk_length, self.lsh_num_chunks_before, self.lsh_num_chunks_after, self.num_hashes
        )

    def products(self, batch: Batch, rows: np.ndarray) -> float:  # noqa: ARG002
        """Return the multiplications of a forward pass, whose last layer runs at all rows, too. batch: NumPy arrays."""
        width, inner = self.stream_size, self.num_attention_heads * self.head_size
        per_token = 2.0 * width * self.intermediate_size * self.num_hidden_layers
        for kind in self.attn_layers:
            chunking = self.chunking(kind)
            seen = chunking.rounds * chunking.length * (1 + chunking.before + chunking.after)
            hashed = chunking.rounds * sum(self.buckets) // 2 * inner if kind == "lsh" else 0
            per_token += (4 if kind == "local" else 3) * width * inner + 2 * inner * seen + hashed
        return len(batch.input_ids) * per_token


def idle_settings(attn_layers: Sequence[str], position_embedding: str) -> dict[str, Any]:
    """Return the settings that have no effect with these layers and positions, and their defaults."""
    defaults = {setting.name: setting.default for setting in fields(ReformerConfig)}
    used = {*attn_layers, position_embedding}
    return {name: defaults[name] for of, names in SETTINGS_OF.items() if of not in used for name in names}
