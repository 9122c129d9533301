"""The encoders: the union of their configurations, and the function that builds an encoder from its configuration.

Every encoder turns a packed `Batch` into `Hidden`. It has

- `config`: its configuration;
- `embeddings.word`: the word embeddings, `nn.Embedding` [V, E];
- `layers`: its layers, lowest first;
- `forward(batch, rows, all_layers)`, as documented in `TransformerEncoder`.

To add an encoder, add a file with a configuration and a module, and their names to the two unions.
"""

from __future__ import annotations

from bertie.model.attention import Kind
from bertie.model.config import TransformerConfig
from bertie.model.transformer import TransformerEncoder

EncoderConfig = TransformerConfig
Encoder = TransformerEncoder


def build_encoder(config: EncoderConfig, attention: Kind = "automatic") -> Encoder:
    """Build an encoder.

    Args:
        config: Its configuration.
        attention: The attention implementation, for encoders with attention.
    """
    return TransformerEncoder(config, attention)
