"""The shipped configurations have the sizes that the paper states."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from bertie.base import config as configuration
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.heads.heads import PooledHead
from bertie.model.model import Model
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig

VOCABULARY = 30522
PRETRAINING = configuration.shipped("pretrain")
PUBLISHED = ("base-roberta", "gpt2-small", *(name for name in PRETRAINING if name.endswith("-paper")))


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def built(name: str, vocabulary: int = VOCABULARY) -> tuple[PretrainConfig, Model]:
    """The complete pre-training model, without memory for its weights."""
    config = configuration.load(PretrainConfig, name, "pretrain")
    size = replace(config.model, vocab_size=vocabulary)
    with torch.device("meta"):
        encoder = build_encoder(size)
        return config, Model(encoder, {o.kind: o.head(encoder) for o in config.objectives})


@pytest.mark.parametrize(
    ("name", "encoder_and_pooler", "pretraining"),
    [("base", 109_482_240, 110_106_428), ("large", 335_141_888, 336_226_108)],
)
@pytest.mark.parametrize("recipe", ["", "-paper"])
def test_parameter_counts_are_those_of_bert(name: str, encoder_and_pooler: int, pretraining: int, recipe: str) -> None:
    _, model = built(name + recipe)
    assert parameters(model) == pretraining
    nsp = model.heads["nsp"]
    assert isinstance(nsp, PooledHead)
    assert parameters(model.encoder) + parameters(nsp.pooler) == encoder_and_pooler


def test_parameter_counts_are_those_of_roberta_and_gpt_2() -> None:
    """transformers counts three more vectors in RobertaForMaskedLM: one segment, and two positions that are never used."""
    assert parameters(built("base-roberta", 50_265)[1]) == 124_697_433 - 3 * 768
    assert parameters(built("gpt2-small", 50_257)[1]) == 124_439_808


@pytest.mark.parametrize("name", PRETRAINING)
def test_every_shipped_configuration_builds(name: str) -> None:
    config, model = built(name)
    assert {objective.kind for objective in config.objectives} == set(model.heads)
    size, dropout = config.model, 0.1 if name in PUBLISHED else 0.0
    fewer = {field.name: 1 for field in fields(size) if field.name == "num_hidden_layers"}
    assert config.optimizer.build(Model(build_encoder(replace(size, vocab_size=9, **fewer)), {}))
    assert size.hidden_dropout_prob == dropout
    if isinstance(size, TransformerConfig):
        assert size.hidden_size == (32 if name == "demo" else 64) * size.num_attention_heads
        if name not in ("modern-large", "demo"):
            assert size.intermediate_size == (1.5 if size.gated else 4) * size.hidden_size  # ModernBERT-base and BERT
        assert size.attention_probs_dropout_prob == dropout


def test_shipped_configurations_have_the_published_sizes() -> None:
    published = {
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (4, 512),
        "medium": (8, 512),
        "base": (12, 768),
        "large": (24, 1024),
    }
    for name, (layers, width) in published.items():
        for recipe in ("", "-paper"):
            size = configuration.load(PretrainConfig, name + recipe, "pretrain").model
            assert (size.num_hidden_layers, size.hidden_size) == (layers, width)
            assert size.max_position_embeddings == 512


@pytest.mark.parametrize(
    ("name", "millions", "layers", "intermediate_size"),
    [("modern-base", 149, 22, 1152), ("modern-large", 395, 28, 2624)],
)
def test_large_modern_recipes_have_the_sizes_of_modernbert(
    name: str, millions: int, layers: int, intermediate_size: int
) -> None:
    """Warner et al. 2024, tables 1 and 3, with their vocabulary of 50,368 entries."""
    config, model = built(name, 50_368)
    assert round(parameters(model.encoder) / 1e6) in (millions, millions - 1)
    size = config.model
    assert isinstance(size, TransformerConfig)
    assert (size.num_hidden_layers, size.intermediate_size) == (layers, intermediate_size)
    assert (size.local_attention, size.global_attention_every, size.rotary_base) == (128, 3, 160_000)


def test_small_modern_recipes_have_the_sizes_of_bert() -> None:
    for name in ("tiny", "mini", "small"):
        bert, modern = (
            configuration.load(PretrainConfig, prefix + name, "pretrain").model for prefix in ("", "modern-")
        )
        assert (bert.num_hidden_layers, bert.hidden_size) == (modern.num_hidden_layers, modern.hidden_size)


def test_sizes_of_the_electras_of_the_paper() -> None:
    """Clark et al. 2020, table 1: 14 million parameters for small and 110 million for base, without the generator."""
    for name, millions, generator in (("electra-small-paper", 14, 64), ("electra-base-paper", 110, 256)):
        recipe = configuration.load(PretrainConfig, name, "pretrain")
        with torch.device("meta"):
            model = new_model(replace(recipe.model, vocab_size=VOCABULARY), recipe.objectives, 0)
        assert round(parameters(model.encoder) / 1e6) in (millions, millions - 1)
        assert model.generator is not None
        assert model.generator.config.hidden_size == generator
        assert model.generator.config.num_hidden_layers == 12
