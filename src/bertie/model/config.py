"""Sizes and hyperparameters of a BERT, under the names that BERT's bert_config.json uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertie.errors import UsageError, require_range

Activation = Literal["gelu", "gelu_tanh"]


@dataclass(frozen=True)
class BertConfig:
    """Sizes and hyperparameters of a BERT. BERT-base has 12 layers of size 768 with 12 heads, intermediate size 3072."""

    num_hidden_layers: int
    """Number of Transformer layers."""
    hidden_size: int
    """Size of the hidden states. It must be a multiple of num_attention_heads."""
    num_attention_heads: int
    """Number of attention heads in each layer."""
    intermediate_size: int
    """Size of the feed-forward layer inside each Transformer layer, usually 4 × hidden_size."""
    vocab_size: int = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: int = 512
    """Maximum sequence length, in tokens."""
    type_vocab_size: int = 2
    """Number of segment ids (token types)."""
    hidden_act: Activation = "gelu"
    """Activation function. gelu: exact GELU, as in BERT's first release. gelu_tanh: its tanh approximation, as in later
    releases."""
    hidden_dropout_prob: float = 0.1
    """Dropout probability after the embeddings and after each attention and feed-forward block."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout probability of the attention weights."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: float = 1e-12
    """Constant that layer normalization adds to the variance."""

    def __post_init__(self) -> None:
        require_range("model", self, "num_hidden_layers", low=1, high=1000)
        sizes = ("hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
        require_range("model", self, *sizes, "type_vocab_size", low=1, high=1_000_000)
        require_range("model", self, "vocab_size", "layer_norm_eps", low=0)
        require_range("model", self, "initializer_range", low=0, above=True)
        require_range("model", self, "hidden_dropout_prob", "attention_probs_dropout_prob", low=0, high=0.99)
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                f"model.hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads: "
                "change model.hidden_size or model.num_attention_heads"
            )
