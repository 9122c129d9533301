"""Transformer-XL: a causal Transformer with relative positions, whose segments remember the text before them (Dai et al.
2019).

T  packed tokens    Q  query rows     S  texts that grow
D  hidden size      R  stored tokens  C  channels of a key and a value: 2 × D
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
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
)
from bertie.base.contracts import Batch, Hidden
from bertie.model.attention.segment_memory import parts_of, segments_of
from bertie.model.config import EncoderFacts, PooledToken
from bertie.model.embeddings import WordEmbeddings
from bertie.model.encoders.relative_parts import Stored, part_of, run_layers
from bertie.model.encoders.xlnet import XlnetLayer, check_sizes, relative_products
from bertie.model.head_facts import HeadShape
from bertie.model.heads.vocabulary_heads import VocabularyHead


@dataclass(frozen=True)
class TransformerXlConfig(EncoderFacts):
    """Sizes and settings of a Transformer-XL. The published model of WikiText-103 has 18 layers of size 1024 with 16 heads."""

    vocabulary_heads = ("next",)
    causal: ClassVar = True
    pooled_token: ClassVar[PooledToken] = "last"  # which sees all others
    kind: Literal["transformer_xl"] = field(default="transformer_xl", kw_only=True)
    num_hidden_layers: LayerCount
    """Number of layers."""
    hidden_size: EvenSize
    """Size of the hidden states. It must be even, and a multiple of num_attention_heads."""
    num_attention_heads: Size
    """Number of attention heads in each layer."""
    intermediate_size: Size
    """Size of the feed-forward layer inside each layer."""
    segment_length: Size
    """Tokens of a segment. A token sees the tokens before it in its segment, and the memory of the segment."""
    memory_length: SizeOrZero
    """Tokens before a segment whose states it remembers. No gradient flows into them. 0: no memory, so a segment knows
    nothing of the text before it."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Size = 16_384
    """Maximum length of a sequence in training, in tokens. The model has no weights for positions, so this is only a limit:
    likelihoods and generated texts may be longer."""
    hidden_act: Literal["relu", "gelu", "gelu_tanh"] = "relu"
    """Activation function. gelu: exact GELU. gelu_tanh: its tanh approximation."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability after the embeddings and after each attention and feed-forward block."""
    attention_probs_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the attention weights."""
    head_dropout_prob: DropoutRateOrNone = None
    """Dropout probability before the output layer of heads for texts and tokens. If it is omitted, hidden_dropout_prob."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: NotNegative = 1e-5
    """Constant that layer normalization adds to the variance."""

    __post_init__ = check_sizes

    @property
    def post_norm(self) -> bool:
        return True

    def products(self, batch: Batch, rows: np.ndarray) -> float:
        """Return the multiplications of a forward pass. batch: NumPy arrays."""
        return relative_products(self, batch, rows, streams=1)


@dataclass(frozen=True, eq=False)
class TextState:
    """The state of a model after the part of a text that it has read."""

    tokens: int
    """Number of these tokens."""
    layers: tuple[Float[Tensor, "R C"], ...]
    """Keys and values of the last ones, as many as later tokens see, for each layer."""


class TransformerXlEncoder(nn.Module):
    """Transformer-XL has XLNet's layers, in one stream: a token sees the tokens before it in its segment, and the
    memory. Dropout is where BERT has it."""

    def __init__(self, config: TransformerXlConfig):
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.embeddings = WordEmbeddings(config.vocab_size, size, config.hidden_dropout_prob, math.sqrt(size))
        self.layers = nn.ModuleList(XlnetLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch; see `TransformerEncoder.forward`. A sequence is read from its first token, in segments.

        Args:
            batch: Packed sequences. Their lengths have no limit.
            rows: Sorted positions in T at which the last layer is computed. None: all positions.
            all_layers: If true, also return the output of the embeddings and of every layer. Do not combine it with `rows`.

        Returns:
            Hidden states; `last` is [T, D], or [Q, D] with `rows`.
        """
        tokens, config = len(batch.input_ids), self.config
        segments = segments_of(batch.ragged, tokens, config.segment_length, config.memory_length)
        parts = [part_of(segment, *_from_the_left(batch), rows, query_stream=False) for segment in parts_of(segments)]
        outputs, last = run_layers(self.layers, self.embeddings(batch), None, rows, parts)
        return Hidden(last, (*outputs, last) if all_layers else None)

    def begin(self) -> TextState:
        """Return the state before the first token of a text."""
        none = self.embeddings.word.weight.new_empty(0, 2 * self.config.hidden_size)
        return TextState(0, (none,) * len(self.layers))

    @torch.no_grad()
    def read_on(self, batch: Batch, readings: list[TextState]) -> tuple[Float[Tensor, "T D"], list[TextState]]:
        """Read more tokens of some texts. All tokens of a text, one after the other or together, give what `forward` gives.

        Args:
            batch: The next tokens of each text, one or more, as its sequences.
            readings: What is kept of each text.

        Returns:
            The output of the last layer, and what is kept now.
        """
        config, tokens = self.config, len(batch.input_ids)
        begin, counts = [reading.tokens for reading in readings], [len(reading.layers[0]) for reading in readings]
        segments = segments_of(batch.ragged, tokens, config.segment_length, config.memory_length, begin, counts)
        part = part_of(segments, *_from_the_left(batch), None, query_stream=False)
        stores = [Stored(torch.cat(column)) for column in zip(*(reading.layers for reading in readings), strict=True)]
        _, last = run_layers(self.layers, self.embeddings(batch), None, None, [part], stores)
        old = [store.kv[: sum(counts)].split(counts) for store in stores]
        new = [store.kv[sum(counts) :].split(batch.ragged.lengths.tolist()) for store in stores]
        grown, lengths = [], batch.ragged.lengths.tolist()
        for number, (reading, length) in enumerate(zip(readings, lengths, strict=True)):
            tokens = reading.tokens + length
            seen = tokens % config.segment_length + config.memory_length  # by the next token, if there are so many
            layers = (torch.cat([a[number], b[number]]) for a, b in zip(old, new, strict=True))
            grown.append(TextState(tokens, tuple(kv_RC[max(len(kv_RC) - seen, 0) :] for kv_RC in layers)))
        return last, grown

    def vocabulary_head(self, shape: HeadShape) -> VocabularyHead:  # noqa: ARG002
        """Return the published adaptive softmax without clusters (`cutoffs` is empty): see `BringsVocabularyHead`."""
        return VocabularyHead(self.embeddings.word, bias=True)


def _from_the_left(batch: Batch) -> tuple[Int[Tensor, " T"], Int[Tensor, " T"]]:
    """Return the segment ids of the tokens, which are all 0, and their ranks, with which a token sees those before it.

    Ranks only compare tokens of one segment.
    """
    return torch.zeros_like(batch.input_ids), torch.arange(len(batch.input_ids), device=batch.input_ids.device)
