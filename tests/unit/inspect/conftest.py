"""A model whose heads attend from known words to known words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bertie.model.model import Model
    from bertie.text.tokenizer import Tokenizer

WORDS = ["the", "cat", "dog", "sees", "likes", "she", "he", "anna", "paul", ".", "##s", "red", "now"]
Plant = Callable[[dict[tuple[int, int], list[tuple[str, str]]]], "Model"]


@pytest.fixture(scope="session")
def word_tokenizer() -> Tokenizer:
    """A tokenizer for WORDS: "cats" is "cat", "##s"."""
    from bertie.text.tokenizer import SPECIAL_TOKENS, Tokenizer

    return Tokenizer.build([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture(scope="session")
def plant(word_tokenizer: Tokenizer) -> Plant:
    """Build a model from (layer, head), both from 0 -> pairs of words: where the head attends from one to the other.

    Elsewhere, attention is about uniform. Embeddings are one-hot vectors, which all layers leave as they are.
    """
    import torch

    from bertie.model.config import TransformerConfig
    from bertie.model.encoder import build_encoder
    from bertie.model.layers import SelfAttention
    from bertie.model.model import Model

    size, heads = 24, 3
    per_head = size // heads
    ids = {token: number for number, token in enumerate(word_tokenizer.vocabulary)}

    def build(planted: dict[tuple[int, int], list[tuple[str, str]]]) -> Model:
        config = TransformerConfig(
            num_hidden_layers=2,
            hidden_size=size,
            num_attention_heads=heads,
            intermediate_size=8,
            vocab_size=len(ids),
            max_position_embeddings=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        encoder = build_encoder(config)
        with torch.no_grad():
            for name, value in encoder.named_parameters():
                value.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            encoder.embeddings.word.weight.copy_(torch.eye(len(ids), size))  # pyright: ignore[reportAttributeAccessIssue]
            layers = [part for part in encoder.modules() if isinstance(part, SelfAttention)]
            for (layer, head), pairs in planted.items():
                q, k, _ = layers[layer].qkv.weight.split(size)
                for row, (source, target) in enumerate(pairs):
                    q[head * per_head + row, ids[source]] = 4.0
                    k[head * per_head + row, ids[target]] = 1.0
        return Model(encoder, {}).eval()

    return build
