"""The answer with the attention of a text. It grows with layers × heads × tokens², so every step of it is bounded.

N  heads of a layer    L  tokens of the text
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float

from bertie.contracts import Sequence
from bertie.serve.limits import Refused
from bertie.serve.operations import ServedModel
from bertie.serve.widths import base64_of

DECIMALS = 5
TOKENS_PER_CHARACTER = 4  # at most, but for rare characters: byte-level BPE has up to one token per byte


def answer_bytes(model: ServedModel, characters: int) -> int:
    """Return the bytes of the probabilities of a text, at most, before it is tokenized."""
    assert model.attention_tokens is not None
    tokens = min(model.attention_tokens, TOKENS_PER_CHARACTER * characters + 4)  # 4: special tokens of a pair
    config = model.transformer()
    return 4 * config.num_hidden_layers * config.num_attention_heads * tokens**2


def encode_whole(model: ServedModel, values: list[list[str]]) -> list[Sequence]:
    """Return the sequences of texts and pairs. Raises Refused, with status 413, for one that is too long."""
    assert model.attention_tokens is not None
    sequences = [model.encode_attention(texts) for texts in values]
    for sequence in sequences:
        if len(sequence) > model.attention_tokens:
            limit = f"shows the attention of at most {model.attention_tokens:,}"
            raise Refused(
                413, "too_many_tokens", f"{len(sequence):,} tokens, and the model {limit}: shorten it", "text"
            )
    return sequences


def attention_json(attention: Float[np.ndarray, "layers N L L"], encoding_format: str) -> Any:
    """Return the probabilities as a value for JSON: lists, already encoded, or base64."""
    if encoding_format == "base64":
        return base64_of(attention)
    # Layer by layer: as objects of Python, all numbers would take ten times their memory.
    rounded = (layer.astype(np.float64).round(DECIMALS).tolist() for layer in attention)
    return [msgspec.Raw(msgspec.json.encode(layer)) for layer in rounded]
