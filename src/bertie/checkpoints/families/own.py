"""bertie's own format, for encoders that no class of Hugging Face represents: bertie's names throughout."""

from __future__ import annotations

from typing import Any

from bertie import config as configuration
from bertie.checkpoints.families.family import Family, Module
from bertie.model.encoder import EncoderConfig


def from_config(values: dict[str, Any]) -> dict[str, Any]:
    return values["encoder"] if isinstance(values.get("encoder"), dict) else {}


def to_config(config: EncoderConfig) -> dict[str, Any]:
    return {"encoder": configuration.plain(config)}


FAMILY = Family(
    model_type="bertie",
    title="Encoder",
    encoder_config=object,
    base="",
    encoder=(Module("pooler", "pooler"),),
    kept=("encoder.", "heads.", "reading.", "generator."),
    architectures={frozenset(): "BertieModel"},
    to_config=to_config,
    from_config=from_config,
)
