"""ELECTRA checkpoints (Clark et al. 2020), discriminators and generators: BERT's layers, with a projection of the
embeddings, and a pooler with GELU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import TASK_HEADS, TASK_SHAPES, Family, architectures
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
    encoder={
        **{theirs: ours for theirs, ours in bert.FAMILY.encoder.items() if theirs != bert.POOLER},
        "embeddings_project": "encoder.embeddings.project",
    },
    heads={
        "replaced": {
            "discriminator_predictions.dense": "dense",
            "discriminator_predictions.dense_prediction": "out",
        },
        "masked": {
            "generator_predictions.dense": "dense",
            "generator_predictions.LayerNorm": "norm",
            "generator_lm_head": "",
        },
        **TASK_HEADS,
        "text": {"classifier.dense": "pooler", "classifier.out_proj": "out"},
        "choice": {"sequence_summary.summary": "pooler", "classifier": "out"},
    },
    architectures=architectures("Electra", "masked", *TASK_SHAPES) | {frozenset({"replaced"}): "ElectraForPreTraining"},
    settings=SETTINGS,
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)
