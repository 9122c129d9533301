"""RoBERTa checkpoints (Liu et al. 2019); in other languages CamemBERT (Martin et al. 2020) and XLM-RoBERTa (Conneau et al. 2020).

The encoder is BERT's with at most one segment. This decides the format: an encoder of BERT's structure with
type_vocab_size 0 or 1 is saved as RoBERTa, any other as BERT. The class of Hugging Face needs a matrix of segment
embeddings, so an encoder without one gets a row of zeros.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import TASK_HEADS, TASK_SHAPES, Family, architectures
from bertie.model.config import TransformerConfig

SEGMENT = "encoder.embeddings.segment.weight"
DEFAULTS = {
    **{"vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2},
}
WITHOUT_SEGMENTS = "bertie_without_segments"  # key of config.json: the row of zeros is not part of the model


SETTINGS = replace(
    bert.SETTINGS,
    defaults=DEFAULTS,
    fixed={"hidden_act": "gelu"},  # its heads use GELU whatever the activation of the encoder is
    supported=bert.SETTINGS.supported | {"hidden_act": "gelu"},
    activation="",
    suits=lambda config: config.type_vocab_size < 2,
    write=lambda config: (
        bert.SETTINGS.write(config)
        | {"hidden_act": "gelu", "type_vocab_size": max(1, config.type_vocab_size)}
        | ({} if config.type_vocab_size else {WITHOUT_SEGMENTS: True})
    ),
    reads=(WITHOUT_SEGMENTS,),
    read=lambda values, _: {"type_vocab_size": 0} if values.get(WITHOUT_SEGMENTS) is True else {},
)


def derived(config: TransformerConfig) -> dict[str, Tensor]:
    return {} if config.type_vocab_size else {SEGMENT: torch.zeros(1, config.embedding_width)}


def without_derived(config: TransformerConfig, weights: dict[str, Tensor]) -> TransformerConfig:
    """Remove the row of zeros. If another library trained it, it is a part of the model and remains."""
    if config.type_vocab_size or SEGMENT not in weights:
        return config
    if weights[SEGMENT].any():
        return replace(config, type_vocab_size=1)
    del weights[SEGMENT]
    return config


FAMILY = Family(
    model_type="roberta",
    title="RoBERTa",
    base="roberta.",
    encoder=bert.FAMILY.encoder,
    heads={
        "masked": {"lm_head.dense": "dense", "lm_head.layer_norm": "norm", "lm_head": ""},
        **TASK_HEADS,
        "text": {"classifier.dense": "pooler", "classifier.out_proj": "out"},
    },
    architectures=architectures("Roberta", "masked", *TASK_SHAPES),
    settings=SETTINGS,
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    positions_after_padding=True,
    derived=derived,
    without_derived=without_derived,
)


def _in_other_languages(model_type: str, title: str, prefix: str) -> Family:
    """Return a family in which only names and defaults differ."""
    fixed = SETTINGS.fixed | {"saved_as": model_type}
    defaults = DEFAULTS | {"vocab_size": 30522}
    settings = replace(SETTINGS, defaults=defaults, fixed=fixed, suits=lambda _: True)
    classes = architectures(prefix, "masked", *TASK_SHAPES)
    return replace(FAMILY, model_type=model_type, title=title, architectures=classes, settings=settings)


CAMEMBERT = _in_other_languages("camembert", "CamemBERT", "Camembert")
XLM_ROBERTA = _in_other_languages("xlm-roberta", "XLM-RoBERTa", "XLMRoberta")
