"""ELECTRA checkpoints (Clark et al. 2020), discriminators and generators: BERT's layers, with a projection of the
embeddings, and a pooler with GELU."""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import TASK_SHAPES, Family, Module, architectures
from bertie.checkpoints.families.settings import has_defaults, read_keys, require
from bertie.model.config import TransformerConfig

DEFAULTS = {
    **{"vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12},
    **{"num_attention_heads": 4, "intermediate_size": 1024},
}
SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}  # pooler of multiple choice


def fits(config: TransformerConfig) -> bool:
    """Return whether the class computes the same. Its heads use GELU whatever the activation of the encoder is.

    The activation of the pooler distinguishes it from BERT.
    """
    return (
        has_defaults(config, (*bert.KEYS, "embedding_size", "pooler_act"))
        and (config.hidden_act, config.pooler_act) == ("gelu", "gelu")
        and config.type_vocab_size > 0
    )


def to_config(config: TransformerConfig) -> dict[str, Any]:
    return bert.to_config(config) | {"embedding_size": config.embedding_width, **SUMMARY}


def from_config(values: dict[str, Any]) -> dict[str, Any]:
    require(values, position_embedding_type="absolute", hidden_act="gelu", is_decoder=False, tie_word_embeddings=True)
    if values.get("architectures") == ["ElectraForMultipleChoice"]:
        require(values, **SUMMARY)
    known = read_keys(values, {name: name for name in (*bert.KEYS, "embedding_size")}, DEFAULTS)
    if known["embedding_size"] == known["hidden_size"]:
        known["embedding_size"] = 0
    return known | {"pooler_act": "gelu"}


FAMILY = Family(
    model_type="electra",
    title="ELECTRA",
    base="electra.",
    encoder=(
        *(row.renamed("bert.", "electra.") for row in bert.FAMILY.encoder if row != bert.POOLER),
        Module("encoder.embeddings.project", "electra.embeddings_project"),
    ),
    heads={
        "replaced": (
            Module("dense", "discriminator_predictions.dense"),
            Module("out", "discriminator_predictions.dense_prediction"),
        ),
        "masked": (
            Module("dense", "generator_predictions.dense"),
            Module("norm", "generator_predictions.LayerNorm"),
            Module("", "generator_lm_head"),
        ),
        "text": (Module("pooler", "classifier.dense"), Module("out", "classifier.out_proj")),
        "choice": (Module("pooler", "sequence_summary.summary"), Module("out", "classifier")),
        "tokens": (Module("out", "classifier"),),
        "start_end": (Module("out", "qa_outputs"),),
    },
    architectures=architectures("Electra", "masked", *TASK_SHAPES) | {frozenset({"replaced"}): "ElectraForPreTraining"},
    fits=fits,
    to_config=to_config,
    from_config=from_config,
    ignored=r"position_ids$|^generator_lm_head\.weight$",
)
