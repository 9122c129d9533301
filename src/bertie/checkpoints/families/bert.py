"""BERT checkpoints (Devlin et al. 2018)."""

from __future__ import annotations

from bertie.checkpoints.families.family import TASK_HEADS, TASK_SHAPES, Family, architectures, joined
from bertie.checkpoints.families.settings import Settings

LAYER = "encoder.layer.{n}"
POOLER = "pooler.dense"
KEYS = (  # keys of config.json that have bertie's names
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("initializer_range", "layer_norm_eps"),
)
HEAD = {"head_dropout_prob": "classifier_dropout"}
DEFAULTS = {
    **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "intermediate_size": 3072,
}

SETTINGS = Settings(
    keys={**{name: name for name in KEYS}, **HEAD},
    defaults=DEFAULTS,
    supported={"position_embedding_type": "absolute"},
    activation="hidden_act",
    suits=lambda config: config.type_vocab_size > 0,
    write=lambda _: {"position_embedding_type": "absolute"},
)

FAMILY = Family(
    model_type="bert",
    title="BERT",
    base="bert.",
    encoder={
        "embeddings.word_embeddings": "encoder.embeddings.word",
        "embeddings.position_embeddings": "encoder.embeddings.position",
        "embeddings.token_type_embeddings": "encoder.embeddings.segment",
        "embeddings.LayerNorm": "encoder.embeddings.norm",
        joined(f"{LAYER}.attention.self", "query", "key", "value"): "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attention.output.dense": "encoder.layers.{n}.attention.out",
        f"{LAYER}.attention.output.LayerNorm": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.intermediate.dense": "encoder.layers.{n}.up",
        f"{LAYER}.output.dense": "encoder.layers.{n}.down",
        f"{LAYER}.output.LayerNorm": "encoder.layers.{n}.norm",
        POOLER: "pooler",
    },
    heads={
        "masked": {
            "cls.predictions.transform.dense": "dense",
            "cls.predictions.transform.LayerNorm": "norm",
            "cls.predictions": "",
        },
        "pair": {"cls.seq_relationship": "out"},
        **TASK_HEADS,
    },
    architectures=architectures("Bert", "masked", *TASK_SHAPES)
    | {
        frozenset({"pair"}): "BertForNextSentencePrediction",
        frozenset({"masked", "pair"}): "BertForPreTraining",
    },
    settings=SETTINGS,
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
