"""XLM-RoBERTa checkpoints (Conneau et al. 2020): RoBERTa in many languages. Only names and defaults differ."""

from __future__ import annotations

from dataclasses import replace

from bertie.checkpoints.families import roberta
from bertie.checkpoints.families.family import TASK_SHAPES, architectures

FAMILY = replace(
    roberta.FAMILY,
    model_type="xlm-roberta",
    title="XLM-RoBERTa",
    architectures=architectures("XLMRoberta", "masked", *TASK_SHAPES),
    settings=replace(
        roberta.SETTINGS,
        defaults=roberta.DEFAULTS | {"vocab_size": 30522},
        fixed=roberta.SETTINGS.fixed | {"saved_as": "xlm-roberta"},
        suits=lambda _: True,
    ),
)
