"""The encoders: the union of their configurations, and the function that builds an encoder from its configuration.

Every encoder turns a packed `Batch` into `Hidden`. It has

- `config`: its configuration;
- `embeddings.word`: the word embeddings, `nn.Embedding` [V, E];
- `layers`: its layers, lowest first;
- `forward(batch, rows, all_layers)`, as documented in `TransformerEncoder`.

To add an encoder, add a file with a configuration and a module, and their names to the two unions.
"""

from __future__ import annotations

from dataclasses import replace

from bertie.model.attention import Kind
from bertie.model.config import TransformerConfig
from bertie.model.lstm import LstmConfig, LstmEncoder
from bertie.model.static import StaticConfig, StaticEncoder
from bertie.model.transformer import TransformerEncoder
from bertie.model.xlnet import XlnetConfig, XlnetEncoder

EncoderConfig = TransformerConfig | LstmConfig | StaticConfig | XlnetConfig
Encoder = TransformerEncoder | LstmEncoder | StaticEncoder | XlnetEncoder


def build_encoder(config: EncoderConfig, attention: Kind = "automatic") -> Encoder:
    """Build an encoder.

    Args:
        config: Its configuration.
        attention: The attention implementation of a Transformer.
    """
    match config:
        case LstmConfig():
            return LstmEncoder(config)
        case StaticConfig():
            return StaticEncoder(config)
        case XlnetConfig():
            return XlnetEncoder(config)
        case _:
            return TransformerEncoder(config, attention)


def with_dropout(
    config: EncoderConfig, hidden_dropout_prob: float, attention_probs_dropout_prob: float
) -> EncoderConfig:
    """Return the configuration with other dropout probabilities. An encoder without attention has only the first one."""
    if isinstance(config, LstmConfig | StaticConfig):
        return replace(config, hidden_dropout_prob=hidden_dropout_prob)
    dropout = {"hidden_dropout_prob": hidden_dropout_prob, "attention_probs_dropout_prob": attention_probs_dropout_prob}
    return replace(config, **dropout)
