"""The numbers of a BERT, under the names of its own bert_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertie.errors import UsageError, require_range

Activation = Literal["gelu", "gelu_tanh"]


@dataclass(frozen=True)
class BertConfig:
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int = 0
    """Entries of the vocabulary; 0: as many as the tokenizer has."""
    max_position_embeddings: int = 512
    """The longest sequence, in tokens."""
    type_vocab_size: int = 2
    hidden_act: Activation = "gelu"
    """erf GELU as in BERT's first release, or the tanh approximation of the later ones."""
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        require_range("model", self, "num_hidden_layers", low=1, high=1000)
        sizes = ("hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
        require_range("model", self, *sizes, "type_vocab_size", low=1, high=1_000_000)
        require_range("model", self, "vocab_size", "layer_norm_eps", low=0)
        require_range("model", self, "initializer_range", low=0, above=True)
        require_range("model", self, "hidden_dropout_prob", "attention_probs_dropout_prob", low=0, high=0.99)
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                f"model.hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads"
            )
