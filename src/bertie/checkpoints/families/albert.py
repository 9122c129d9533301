"""ALBERT checkpoints (Lan et al. 2020): BERT's layers with shared weights, and a projection of smaller embeddings.

The published ones have a SentencePiece vocabulary of the kind unigram.
"""

from __future__ import annotations

from typing import Any

from bertie.base.errors import UsageError
from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import TASK_HEADS, TASK_SHAPES, Family, architectures, joined
from bertie.checkpoints.families.settings import Settings
from bertie.model.config import TransformerConfig

LAYER = "encoder.albert_layer_groups.{n}.albert_layers.0"
DEFAULTS = {
    **{"vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "intermediate_size": 16384},
    **{"num_hidden_layers": 12, "num_hidden_groups": 1, "num_attention_heads": 64, "hidden_act": "gelu_new"},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1},
}


def suits(config: TransformerConfig) -> bool:
    """Return whether the class computes the same. It always has a projection, and at least one group."""
    return (
        config.type_vocab_size > 0
        and config.embedding_width != config.hidden_size
        and config.num_hidden_groups > 0
        and _same_groups(config.num_hidden_layers, config.num_hidden_groups)
    )


def read(_: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Refuse groups and a projection that bertie does not have."""
    layers, groups = known["num_hidden_layers"], known["num_hidden_groups"]
    if not 1 <= groups <= layers or not _same_groups(layers, groups):
        raise UsageError(
            f"num_hidden_groups is {groups!r}; bertie supports 1 to num_hidden_layers {layers}, except where transformers "
            "rounds a layer into another group"
        )
    if (width := known.get("embedding_size")) == known.get("hidden_size"):
        raise UsageError(f"embedding_size equals hidden_size {width}; bertie supports only a different size")
    return {}


def _same_groups(layers: int, groups: int) -> bool:
    """Return whether transformers, which rounds, finds the same group of every layer as `TransformerConfig.group`."""
    return all(int(layer / (layers / groups)) == layer * groups // layers for layer in range(layers))


SETTINGS = Settings(
    keys={
        **{name: name for name in (*bert.KEYS, "embedding_size", "num_hidden_groups")},
        "head_dropout_prob": "classifier_dropout_prob",
    },
    defaults=DEFAULTS,
    supported={"position_embedding_type": "absolute", "inner_group_num": 1},
    activation="hidden_act",
    suits=suits,
    write=lambda _: {"inner_group_num": 1},
    without_effect=(
        *("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"),
        "classifier_dropout",
    ),
    read=read,
)

FAMILY = Family(
    model_type="albert",
    title="ALBERT",
    base="albert.",
    encoder={
        **{theirs: ours for theirs, ours in bert.FAMILY.encoder.items() if ".embeddings." in ours},
        "encoder.embedding_hidden_mapping_in": "encoder.embeddings.project",
        joined(f"{LAYER}.attention", "query", "key", "value"): "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attention.dense": "encoder.layers.{n}.attention.out",
        f"{LAYER}.attention.LayerNorm": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.ffn": "encoder.layers.{n}.up",
        f"{LAYER}.ffn_output": "encoder.layers.{n}.down",
        f"{LAYER}.full_layer_layer_norm": "encoder.layers.{n}.norm",
        "pooler": "pooler",
    },
    heads={
        "masked": {
            "predictions.dense": "dense",
            "predictions.LayerNorm": "norm",
            "predictions": "",
        },
        "pair": {"sop_classifier.classifier": "out"},
        **TASK_HEADS,
    },
    architectures=architectures("Albert", "masked", *TASK_SHAPES)
    | {frozenset({"masked", "pair"}): "AlbertForPreTraining"},
    settings=SETTINGS,
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
)
