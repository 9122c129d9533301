"""BERT checkpoints (Devlin et al. 2018)."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from bertie.checkpoints.families.family import TASK_SHAPES, Family, Module, architectures
from bertie.checkpoints.families.settings import require
from bertie.errors import UsageError
from bertie.model.config import TransformerConfig

LAYER = "bert.encoder.layer.{n}"
POOLER = Module("pooler", "bert.pooler.dense")
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}  # bertie -> Hugging Face
READ_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"gelu_new": "gelu_tanh"}
KEYS = (  # keys of config.json that have bertie's names
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("initializer_range", "layer_norm_eps"),
)


def plain_bert(config: TransformerConfig) -> bool:
    """Return whether an encoder has BERT's structure, whatever its sizes."""
    if config.hidden_act not in ACTIVATIONS:
        return False
    defaults = {field.name: field.default for field in fields(TransformerConfig)}
    return all(getattr(config, name) == default for name, default in defaults.items() if name not in KEYS)


def fits(config: TransformerConfig) -> bool:
    return plain_bert(config) and config.type_vocab_size > 0


def to_config(config: TransformerConfig) -> dict[str, Any]:
    values = {name: value for name, value in asdict(config).items() if name in KEYS}
    values |= {"hidden_act": ACTIVATIONS[config.hidden_act], "classifier_dropout": None}
    return values | {"position_embedding_type": "absolute"}


def from_config(values: dict[str, Any]) -> dict[str, Any]:
    require(values, position_embedding_type="absolute", is_decoder=False, tie_word_embeddings=True)
    return known_keys(values)


def known_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of config.json that have bertie's names, with bertie's name of the activation."""
    known = {name: values[name] for name in KEYS if values.get(name) is not None}
    activation = str(known.get("hidden_act", "gelu"))
    if activation not in READ_ACTIVATIONS:
        raise UsageError(f"hidden_act {activation!r} is not supported: give one of {', '.join(READ_ACTIVATIONS)}")
    return known | {"hidden_act": READ_ACTIVATIONS[activation]}


FAMILY = Family(
    model_type="bert",
    title="BERT",
    base="bert.",
    encoder=(
        Module("encoder.embeddings.word", "bert.embeddings.word_embeddings"),
        Module("encoder.embeddings.position", "bert.embeddings.position_embeddings"),
        Module("encoder.embeddings.segment", "bert.embeddings.token_type_embeddings"),
        Module("encoder.embeddings.norm", "bert.embeddings.LayerNorm"),
        Module(
            "encoder.layers.{n}.attention.qkv",
            tuple(f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value")),
        ),
        Module("encoder.layers.{n}.attention.out", f"{LAYER}.attention.output.dense"),
        Module("encoder.layers.{n}.attention_norm", f"{LAYER}.attention.output.LayerNorm"),
        Module("encoder.layers.{n}.up", f"{LAYER}.intermediate.dense"),
        Module("encoder.layers.{n}.down", f"{LAYER}.output.dense"),
        Module("encoder.layers.{n}.norm", f"{LAYER}.output.LayerNorm"),
        POOLER,
    ),
    heads={
        "masked": (
            Module("dense", "cls.predictions.transform.dense"),
            Module("norm", "cls.predictions.transform.LayerNorm"),
            Module("", "cls.predictions"),
        ),
        "pair": (Module("out", "cls.seq_relationship"),),
        **dict.fromkeys(("text", "choice", "tokens"), (Module("out", "classifier"),)),
        "start_end": (Module("out", "qa_outputs"),),
    },
    architectures=architectures("Bert", "masked", *TASK_SHAPES)
    | {
        frozenset({"pair"}): "BertForNextSentencePrediction",
        frozenset({"masked", "pair"}): "BertForPreTraining",
    },
    fits=fits,
    to_config=to_config,
    from_config=from_config,
    ignored=r"position_ids$|^cls\.predictions\.decoder\.",
)
