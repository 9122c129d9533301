"""The Reformer's encoder: local and hashed attention in reversible layers (Kitaev et al. 2020).

T  packed tokens    Q  query rows    P  predictions     V  vocabulary entries
D  hidden size      E  size of a stream: D / 2          N  heads    H  head size
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Hidden
from bertie.model.activation import activation
from bertie.model.attention.lsh_attention import (
    Chunks,
    SlotOrder,
    attend,
    hash_buckets,
    hashed_order,
    hyperplanes,
    lay_out,
    shared_keys,
    text_order,
)
from bertie.model.dropout import drop
from bertie.model.encoders.axial import AxialEmbedding
from bertie.model.encoders.reformer_config import LayerKind, ReformerConfig
from bertie.model.encoders.reversible import Branch, run_reversible, run_stored
from bertie.model.head_facts import HeadShape
from bertie.model.heads.vocabulary_heads import VocabularyHead
from bertie.model.matrices import Matrices, linear_weights

SEEDS = 2**62


class ReformerEmbeddings(nn.Module):
    """Word embeddings plus positions, each with dropout."""

    def __init__(self, config: ReformerConfig):
        super().__init__()
        size = config.stream_size
        self.word = nn.Embedding(config.vocab_size, size)
        axial = config.position_embedding == "axial"
        self.position = (
            AxialEmbedding(config.axial_pos_shape, config.axial_pos_embds_dim)
            if axial
            else nn.Embedding(config.max_position_embeddings, size)
        )
        self.dropout = config.hidden_dropout_prob

    def forward(self, batch: Batch) -> Float[Tensor, "T E"]:
        word_TE, position_TE = self.word(batch.input_ids), self.position(batch.position_ids)
        return drop(word_TE, self.dropout, self.training) + drop(position_TE, self.dropout, self.training)


class LocalAttention(nn.Module):
    """Attention among the tokens of neighboring chunks."""

    def __init__(self, config: ReformerConfig):
        super().__init__()
        self.config = config
        inner = config.num_attention_heads * config.head_size
        self.norm = nn.LayerNorm(config.stream_size, eps=config.layer_norm_eps)
        self.qkv = nn.Linear(config.stream_size, 3 * inner, bias=False)
        self.out = nn.Linear(inner, config.stream_size, bias=False)

    def forward(self, chunks: Chunks, _seed: int, x_TE: Tensor, _kept: Tensor | None) -> tuple[Tensor, None]:
        q, k, v = _heads(self.qkv(self.norm(x_TE)), 3, self.config.num_attention_heads)
        return _finish(self, q, k, v, text_order(chunks, self.config.num_attention_heads), chunks, shared=False), None


class HashedAttention(nn.Module):
    """Attention among tokens with near queries, which are the keys, too."""

    def __init__(self, config: ReformerConfig):
        super().__init__()
        self.config = config
        inner = config.num_attention_heads * config.head_size
        self.norm = nn.LayerNorm(config.stream_size, eps=config.layer_norm_eps)
        self.qk_v = nn.Linear(config.stream_size, 2 * inner, bias=False)
        self.out = nn.Linear(inner, config.stream_size, bias=False)

    def forward(self, chunks: Chunks, seed: int, x_TE: Tensor, buckets: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output and the buckets of the tokens, [N, R, T].

        Args:
            chunks: The chunks of the batch.
            seed: Seed of the hyperplanes.
            x_TE: Input.
            buckets: The buckets, if they are known. None: the tokens are hashed.
        """
        config = self.config
        q, v = _heads(self.qk_v(self.norm(x_TE)), 2, config.num_attention_heads)
        if buckets is None:
            planes = hyperplanes(seed, len(q), config.head_size, config.num_hashes, config.buckets)
            with torch.no_grad(), _exact(x_TE):
                buckets = hash_buckets(q, planes.to(q), config.buckets)
            buckets = buckets.to(torch.int16 if config.bucket_count < 2**15 else torch.int32)
        order = hashed_order(buckets, chunks, config.bucket_count)
        return _finish(self, q, shared_keys(q), v, order, chunks, shared=True), buckets


def _heads(x_TF: Tensor, parts: int, heads: int) -> tuple[Float[Tensor, "N T H"], ...]:
    """Return queries, keys and values by head, in fp32 at least."""
    exact = x_TF.to(torch.promote_types(x_TF.dtype, torch.float32))
    return exact.unflatten(1, (parts, heads, -1)).permute(1, 2, 0, 3).contiguous().unbind(0)


def _exact(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which products are computed in the precision of their factors."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if kind in ("cpu", "cuda") else nullcontext()


def _finish(
    layer: LocalAttention | HashedAttention,
    q_NTH: Tensor,
    k_NTH: Tensor,
    v_NTH: Tensor,
    order: SlotOrder,
    chunks: Chunks,
    shared: bool,
) -> Float[Tensor, "T E"]:
    """Mix the values and project the result."""
    config = layer.config
    dropout = config.lsh_dropout if shared else config.attention_probs_dropout_prob
    dropout = dropout if layer.training else 0.0
    with _exact(q_NTH):
        mixed_NTH = attend(q_NTH, k_NTH, v_NTH, order, chunks, config.causal, dropout, shared)
    return drop(layer.out(mixed_NTH.transpose(0, 1).flatten(1)), config.hidden_dropout_prob, layer.training)


class FeedForward(nn.Module):
    """The feed-forward block of a layer."""

    def __init__(self, config: ReformerConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.stream_size, eps=config.layer_norm_eps)
        self.up = nn.Linear(config.stream_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.stream_size)
        self.act: Literal["gelu", "gelu_tanh", "relu"] = config.hidden_act
        self.dropout = config.hidden_dropout_prob

    def forward(self, x_TE: Float[Tensor, "T E"]) -> Float[Tensor, "T E"]:
        inner_TF = activation(self.act, drop(self.up(self.norm(x_TE)), self.dropout, self.training))
        return drop(self.down(inner_TF), self.dropout, self.training)


class ReformerLayer(nn.Module):
    """The two branches of a reversible layer: attention and feed-forward."""

    def __init__(self, config: ReformerConfig, kind: LayerKind):
        super().__init__()
        self.kind: LayerKind = kind
        self.attention = LocalAttention(config) if kind == "local" else HashedAttention(config)
        self.feed_forward = FeedForward(config)
        self.chunk = config.feed_forward_chunk

    def matrices(self) -> Matrices:
        """Return the matrices of the layer: see `HasMatrices`."""
        attention = self.attention
        stacked = {attention.qkv.weight: 3} if isinstance(attention, LocalAttention) else {attention.qk_v.weight: 2}
        return linear_weights(self) | stacked

    def branches(self, chunks: Chunks, hash_seed: int, seeds: tuple[int | None, int | None]) -> tuple[Branch, Branch]:
        """Return both, with seeds of their dropout."""
        f = Branch(partial(self.attention, chunks, hash_seed), tuple(self.attention.parameters()), seeds[0])
        feed_forward = self.feed_forward
        compute = lambda x_TE, _: (feed_forward(x_TE), None)  # noqa: E731
        return f, Branch(compute, tuple(feed_forward.parameters()), seeds[1], self.chunk)


class ReformerEncoder(nn.Module):
    """The Reformer's encoder. Both streams begin with the embeddings. At the end, they are joined and normalized."""

    def __init__(self, config: ReformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = ReformerEmbeddings(config)
        self.layers = nn.ModuleList(ReformerLayer(config, kind) for kind in config.attn_layers)
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch.

        Args:
            batch: Packed sequences.
            rows: Sorted positions in T to return. None: all positions.
            all_layers: If true, also return the embeddings (twice, side by side) and the output of every layer. Then, the
                backward pass does not compute the inputs of the layers again, but stores them.

        Returns:
            Hidden states; `last` is [T, D], or [Q, D] with `rows`.
        """
        x_TE = self.embeddings(batch)
        branches, streams, below = self._branches(batch), (x_TE, x_TE), []
        if torch.is_grad_enabled() and not all_layers:
            streams = run_reversible(branches, x_TE)
        else:
            for following in run_stored(branches, x_TE):
                if all_layers:
                    below.append(torch.cat(streams, 1))
                streams = following
        last_TD = torch.cat(streams, 1)
        last_TD = drop(self.final_norm(last_TD), self.config.hidden_dropout_prob, self.training)
        return Hidden(last_TD if rows is None else last_TD[rows], (*below, last_TD) if all_layers else None)

    def _branches(self, batch: Batch) -> list[tuple[Branch, Branch]]:
        """Return the branches of all layers. In training, their random numbers follow torch's generator."""
        config, count = self.config, len(batch.input_ids)
        kinds: set[LayerKind] = {*config.attn_layers}
        chunks = {kind: lay_out(batch.ragged, count, config.chunk_lengths, config.chunking(kind)) for kind in kinds}
        drops = self.training and any(
            (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.lsh_dropout)
        )
        drawn = [[None, None, config.hash_seed] for _ in self.layers]
        if self.training:
            drawn = torch.randint(SEEDS, (len(self.layers), 3), device="cpu").tolist()
        branches = []
        for layer, (first, second, hashing) in zip(self.layers, drawn, strict=True):
            assert isinstance(layer, ReformerLayer)
            hash_seed = hashing if config.new_hyperplanes else config.hash_seed
            branches.append(layer.branches(chunks[layer.kind], hash_seed, (first, second) if drops else (None, None)))
        return branches

    def vocabulary_head(self, shape: HeadShape) -> VocabularyHead:
        """Return a head with a matrix of its own, which reads both streams: see `BringsVocabularyHead`."""
        matrix = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        return VocabularyHead(matrix, permuted=False if shape == "masked" else None)
