"""The encoders: the union of their configurations, and the function that builds an encoder from its configuration.

Every encoder turns a packed `Batch` into `Hidden`. It has

- `config`: its configuration;
- `embeddings.word`: the word embeddings, `nn.Embedding` [V, E], unless it computes them from characters;
- `layers`: its layers, lowest first;
- `forward(batch, rows, all_layers)`, as documented in `TransformerEncoder`.

To add an encoder, add a file with a configuration and a module, and their names at the same place of the two
unions.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Protocol, get_args, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from bertie.base.contracts import Batch, Hidden
from bertie.base.errors import UsageError
from bertie.model.attention.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.encoders.gru import GruConfig, GruEncoder
from bertie.model.encoders.lstm import LstmConfig, LstmEncoder
from bertie.model.encoders.reformer import ReformerEncoder
from bertie.model.encoders.reformer_config import ReformerConfig
from bertie.model.encoders.static import StaticConfig, StaticEncoder
from bertie.model.encoders.transformer_xl import TransformerXlConfig, TransformerXlEncoder
from bertie.model.encoders.xlnet import XlnetConfig, XlnetEncoder
from bertie.model.transformer import TransformerEncoder
from bertie.tokenizers.tokenizer import Tokenizer

EncoderConfig = (
    TransformerConfig | LstmConfig | GruConfig | StaticConfig | TransformerXlConfig | XlnetConfig | ReformerConfig
)
Encoder = (
    TransformerEncoder
    | LstmEncoder
    | GruEncoder
    | StaticEncoder
    | TransformerXlEncoder
    | XlnetEncoder
    | ReformerEncoder
)


@runtime_checkable
class Replacement(Protocol):
    """A module that takes the place of a model's encoder in prediction: an engine (`bertie.predict.engines`)."""

    config: Any
    embeddings: Any

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden: ...

    def __call__(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden: ...


def build_encoder(config: EncoderConfig, attention: AttentionKind = "automatic") -> Encoder:
    """Build an encoder.

    Args:
        config: Its configuration.
        attention: The attention implementation of a Transformer.
    """
    encoder = dict(zip(get_args(EncoderConfig), get_args(Encoder), strict=True))[type(config)]
    return encoder(config, *([attention] if encoder is TransformerEncoder else []))


def spell_entries(encoder: Encoder, tokenizer: Tokenizer) -> None:
    """Set the spelling of the vocabulary's entries in an encoder that computes vectors from characters.

    Others need none. The spelling is no weight, so every encoder needs this call before it can run.
    """
    if isinstance(encoder, LstmEncoder) and encoder.embeddings.characters is not None:
        encoder.embeddings.characters.spell(tokenizer)


def head_dropout(config: EncoderConfig) -> float:
    """Return the dropout probability before the output layer of heads for texts and tokens."""
    return config.hidden_dropout_prob if config.head_dropout_prob is None else config.head_dropout_prob


def with_dropout(
    config: EncoderConfig, hidden_dropout_prob: float, attention_probs_dropout_prob: float
) -> EncoderConfig:
    """Return the configuration with other dropout probabilities in the encoder.

    An encoder without attention has only the first one.
    """
    attention = dict.fromkeys(
        ("attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob"), attention_probs_dropout_prob
    )
    dropout = {"hidden_dropout_prob": hidden_dropout_prob, **attention}
    settings = {field.name for field in fields(config)}
    return replace(config, **{name: value for name, value in dropout.items() if name in settings})


def with_language(config: EncoderConfig, language: str) -> EncoderConfig:
    """Return the configuration with another default language. Empty: the one that it has.

    Raises:
        UsageError: The model has no embedding for this language.
    """
    if not language:
        return config
    if not config.languages:
        raise UsageError(f"language is {language!r}, but the model has no language embeddings: omit it")
    if language not in config.languages:
        raise UsageError(f"language is {language!r}: choose from the model's, {', '.join(config.languages)}")
    return replace(config, language="" if language == config.languages[0] else language)
