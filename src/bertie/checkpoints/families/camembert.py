"""CamemBERT checkpoints (Martin et al. 2020): RoBERTa in French. Only names and defaults differ."""

from __future__ import annotations

from dataclasses import replace

from bertie.checkpoints.families import roberta
from bertie.checkpoints.families.family import TASK_SHAPES, architectures

FAMILY = replace(
    roberta.FAMILY,
    model_type="camembert",
    title="CamemBERT",
    architectures=architectures("Camembert", "masked", *TASK_SHAPES),
    settings=replace(
        roberta.SETTINGS,
        defaults=roberta.DEFAULTS | {"vocab_size": 30522},
        fixed=roberta.SETTINGS.fixed | {"saved_as": "camembert"},
        suits=lambda _: True,
    ),
)
