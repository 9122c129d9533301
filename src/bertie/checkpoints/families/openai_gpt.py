"""Checkpoints of the first GPT (Radford et al. 2018): normalization after each residual, and none of the embeddings.

As for GPT-2, heads for texts have a counterpart if they are one matrix, as in the paper (section 3.2).
"""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families import gpt2
from bertie.checkpoints.families.family import Family
from bertie.checkpoints.families.settings import Settings, choice
from bertie.model.config import TransformerConfig

ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu"}  # "gelu" is the tanh approximation here


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the activation, the size of the feed-forward layer, and the layer of heads."""
    act = choice(values, "afn", "gelu", ACTIVATIONS)
    return {"hidden_act": act, "intermediate_size": 4 * known["hidden_size"]} | gpt2.head_layer(values)


def write(config: TransformerConfig) -> dict[str, Any]:
    names = {"afn": ACTIVATIONS[config.hidden_act], "embd_pdrop": config.hidden_dropout_prob}
    return names | gpt2.written_layer(config)


def suits(config: TransformerConfig) -> bool:
    """Return whether the class represents an encoder."""
    wide = config.intermediate_size == 4 * config.hidden_size
    return config.hidden_act in ACTIVATIONS and wide and config.pooler_act in gpt2.LAYERS


SETTINGS = Settings(
    keys={ours: theirs for ours, theirs in gpt2.KEYS.items() if ours != "intermediate_size"},
    defaults={
        **{"vocab_size": 40478, "n_positions": 512, "n_embd": 768, "n_layer": 12, "n_head": 12},
        "layer_norm_epsilon": 1e-5,
    },
    fixed={"causal": True, "embedding_norm": False, "type_vocab_size": 0},
    supported={"tie_word_embeddings": True},
    training_only={"embd_pdrop": None},
    free=("hidden_act", "intermediate_size", "pooler_act"),
    suits=suits,
    write=write,
    read=read,
    reads=("afn", "pooler_act"),
    aliases=gpt2.SETTINGS.aliases,
    without_effect=("n_special", *gpt2.SETTINGS.without_effect),
)

FAMILY = Family(
    model_type="openai-gpt",
    title="GPT",
    base="transformer.",
    encoder={
        "tokens_embed": "encoder.embeddings.word",
        "positions_embed": "encoder.embeddings.position",
        **{theirs: ours for theirs, ours in gpt2.FAMILY.encoder.items() if ".layers." in ours},
    },
    heads=gpt2.FAMILY.heads,
    transposed=gpt2.FAMILY.transposed,
    architectures={
        **{frozenset(): "OpenAIGPTModel", frozenset({"next"}): "OpenAIGPTLMHeadModel"},
        frozenset({"text"}): "OpenAIGPTForSequenceClassification",
    },
    represents=gpt2.represents,
    without_head="OpenAIGPTLMHeadModel",
    settings=SETTINGS,
    ignored=gpt2.FAMILY.ignored,
)
