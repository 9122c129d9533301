"""bertie's own format, for encoders that no class of Hugging Face represents: bertie's names throughout."""

from __future__ import annotations

from typing import Any

from bertie import config as configuration
from bertie.checkpoints.families.family import Family, Module
from bertie.model.encoder import EncoderConfig

PARTS = ("attention.qkv", "attention.out", "attention_norm", "up", "down", "norm")
EMBEDDINGS = ("word", "position", "segment", "norm", "project")


def from_config(values: dict[str, Any]) -> dict[str, Any]:
    return values["encoder"] if isinstance(values.get("encoder"), dict) else {}


def to_config(config: EncoderConfig) -> dict[str, Any]:
    return {"encoder": configuration.plain(config)}


FAMILY = Family(
    model_type="bertie",
    base="",
    encoder=(
        *(Module(name, name) for name in (f"encoder.embeddings.{part}" for part in EMBEDDINGS)),
        *(Module(name, name) for name in (f"encoder.layers.{{n}}.{part}" for part in PARTS)),
        Module("encoder.final_norm", "encoder.final_norm"),
        Module("pooler", "pooler"),
    ),
    architectures={frozenset(): "BertieModel"},
    fits=lambda config: True,  # noqa: ARG005
    to_config=to_config,
    from_config=from_config,
)
