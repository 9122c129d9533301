"""DistilBERT checkpoints (Sanh et al. 2019): BERT's layers without segments, and a pooler with ReLU."""

from __future__ import annotations

from bertie.checkpoints.families.family import TASK_HEADS, TASK_SHAPES, Family, Names, architectures, joined
from bertie.checkpoints.families.settings import Settings, sinusoidal_table, without_sinusoidal_table

LAYER = "transformer.layer.{n}"
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{"vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "n_layers"},
    **{"num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"},
    **{"max_position_embeddings": "max_position_embeddings", "initializer_range": "initializer_range"},
    **{"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"},
    "head_dropout_prob": "seq_classif_dropout",
}

SETTINGS = Settings(
    keys=KEYS,
    defaults={
        **{"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
        "seq_classif_dropout": 0.2,
    },
    training_only={"qa_dropout": None},
    fixed={"type_vocab_size": 0, "pooler_act": "relu"},  # the activation of the pooler distinguishes it from RoBERTa
    supported={"position_embedding_type": "absolute"},
    activation="activation",
    free=("position_embedding",),
    suits=lambda config: config.position_embedding in ("learned", "sinusoidal"),
    write=lambda config: {
        "sinusoidal_pos_embds": config.position_embedding == "sinusoidal",
        "qa_dropout": 0.0,
    },
    reads=("sinusoidal_pos_embds",),
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    without_effect=("tie_weights_",),
    read=lambda values, _: {"position_embedding": "sinusoidal" if values.get("sinusoidal_pos_embds") else "learned"},
)
POOLED: Names = {"pre_classifier": "pooler", "classifier": "out"}

FAMILY = Family(
    model_type="distilbert",
    title="DistilBERT",
    base="distilbert.",
    encoder={
        "embeddings.word_embeddings": "encoder.embeddings.word",
        "embeddings.position_embeddings": "encoder.embeddings.position",
        "embeddings.LayerNorm": "encoder.embeddings.norm",
        joined(f"{LAYER}.attention", "q_lin", "k_lin", "v_lin"): "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attention.out_lin": "encoder.layers.{n}.attention.out",
        f"{LAYER}.sa_layer_norm": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.ffn.lin1": "encoder.layers.{n}.up",
        f"{LAYER}.ffn.lin2": "encoder.layers.{n}.down",
        f"{LAYER}.output_layer_norm": "encoder.layers.{n}.norm",
    },
    heads={
        "masked": {
            "vocab_transform": "dense",
            "vocab_layer_norm": "norm",
            "vocab_projector": "",
        },
        **TASK_HEADS,
        "text": POOLED,
        "choice": POOLED,
    },
    architectures=architectures("DistilBert", "masked", *TASK_SHAPES),
    settings=SETTINGS,
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    derived=sinusoidal_table,
    without_derived=without_sinusoidal_table,
)
