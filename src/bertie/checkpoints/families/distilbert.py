"""DistilBERT checkpoints (Sanh et al. 2019): BERT's layers without segments, and a pooler with ReLU."""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import TASK_SHAPES, Family, Module, architectures
from bertie.checkpoints.families.settings import (
    has_defaults,
    read_activation,
    read_keys,
    require,
    sinusoidal_table,
    without_sinusoidal_table,
)
from bertie.model.config import TransformerConfig

LAYER = "distilbert.transformer.layer.{n}"
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{"vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "n_layers"},
    **{"num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"},
    **{"max_position_embeddings": "max_position_embeddings", "initializer_range": "initializer_range"},
    **{"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"},
}
DEFAULTS = {"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}


def fits(config: TransformerConfig) -> bool:
    """Return whether the class represents an encoder. The activation of the pooler distinguishes it from RoBERTa."""
    free = (*KEYS, "hidden_act", "position_embedding", "type_vocab_size", "pooler_act")
    return (
        has_defaults(config, free)
        and config.hidden_act in bert.ACTIVATIONS
        and config.position_embedding in ("learned", "sinusoidal")
        and (config.type_vocab_size, config.pooler_act) == (0, "relu")
    )


def to_config(config: TransformerConfig) -> dict[str, Any]:
    values = {theirs: getattr(config, ours) for ours, theirs in KEYS.items()}
    return values | {
        "activation": bert.ACTIVATIONS[config.hidden_act],
        "sinusoidal_pos_embds": config.position_embedding == "sinusoidal",
        "seq_classif_dropout": config.hidden_dropout_prob,
        "qa_dropout": 0.0,
    }


def from_config(values: dict[str, Any]) -> dict[str, Any]:
    require(values, position_embedding_type="absolute", tie_word_embeddings=True)
    activation = read_activation(values.get("activation", "gelu"), "activation", bert.READ_ACTIVATIONS)
    return read_keys(values, KEYS, DEFAULTS) | {
        "hidden_act": activation,
        "position_embedding": "sinusoidal" if values.get("sinusoidal_pos_embds") else "learned",
        "type_vocab_size": 0,
        "pooler_act": "relu",
    }


POOLED = (Module("pooler", "pre_classifier"), Module("out", "classifier"))

FAMILY = Family(
    model_type="distilbert",
    title="DistilBERT",
    base="distilbert.",
    encoder=(
        Module("encoder.embeddings.word", "distilbert.embeddings.word_embeddings"),
        Module("encoder.embeddings.position", "distilbert.embeddings.position_embeddings"),
        Module("encoder.embeddings.norm", "distilbert.embeddings.LayerNorm"),
        Module(
            "encoder.layers.{n}.attention.qkv",
            tuple(f"{LAYER}.attention.{part}" for part in ("q_lin", "k_lin", "v_lin")),
        ),
        Module("encoder.layers.{n}.attention.out", f"{LAYER}.attention.out_lin"),
        Module("encoder.layers.{n}.attention_norm", f"{LAYER}.sa_layer_norm"),
        Module("encoder.layers.{n}.up", f"{LAYER}.ffn.lin1"),
        Module("encoder.layers.{n}.down", f"{LAYER}.ffn.lin2"),
        Module("encoder.layers.{n}.norm", f"{LAYER}.output_layer_norm"),
    ),
    heads={
        "masked": (
            Module("dense", "vocab_transform"),
            Module("norm", "vocab_layer_norm"),
            Module("", "vocab_projector"),
        ),
        "text": POOLED,
        "choice": POOLED,
        "tokens": (Module("out", "classifier"),),
        "start_end": (Module("out", "qa_outputs"),),
    },
    architectures=architectures("DistilBert", "masked", *TASK_SHAPES),
    fits=fits,
    to_config=to_config,
    from_config=from_config,
    ignored=r"position_ids$|^vocab_projector\.weight$",
    derived=sinusoidal_table,
    without_derived=without_sinusoidal_table,
)
