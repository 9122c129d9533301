"""ELECTRA checkpoints (Clark et al. 2020), discriminators and generators: BERT's layers, with a projection of the
embeddings, and a pooler with GELU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import TASK_SHAPES, Family, Module, architectures
from bertie.checkpoints.families.settings import require

DEFAULTS = {
    **{"vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12},
    **{"num_attention_heads": 4, "intermediate_size": 1024},
}
SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}  # pooler of multiple choice


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Check the pooler of multiple choice. An embedding size that is the hidden size means no projection."""
    if values.get("architectures") == ["ElectraForMultipleChoice"]:
        require(values, SUMMARY)
    return {"embedding_size": 0} if known["embedding_size"] == known["hidden_size"] else {}


SETTINGS = replace(
    bert.SETTINGS,
    keys={**bert.SETTINGS.keys, "embedding_size": "embedding_size"},
    defaults=DEFAULTS,
    # Its heads use GELU whatever the activation of the encoder is. That of the pooler distinguishes it from BERT.
    fixed={"hidden_act": "gelu", "pooler_act": "gelu"},
    supported=bert.SETTINGS.supported | {"hidden_act": "gelu"},
    activation="",
    write=lambda config: (
        bert.SETTINGS.write(config) | {"hidden_act": "gelu", "embedding_size": config.embedding_width, **SUMMARY}
    ),
    reads=tuple(SUMMARY),
    training_only={"summary_last_dropout": None},
    read=read,
)

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
    settings=SETTINGS,
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)
