"""bertie's own format, for encoders that no class of Hugging Face represents: bertie's names throughout."""

from __future__ import annotations

from typing import Any

from bertie.base import config as configuration
from bertie.checkpoints.families.family import Family, Module
from bertie.model.encoder import EncoderConfig


class OwnSettings:
    """All settings by bertie's names, in one key."""

    known = None  # no other program writes this format
    without_effect = ()

    @property
    def training_only(self) -> dict[str, float | None]:
        return {}

    def fits(self, config: EncoderConfig) -> bool:  # noqa: ARG002
        return True

    def to_config(self, config: EncoderConfig) -> dict[str, Any]:
        return {"encoder": configuration.plain(config)}

    def from_config(self, values: dict[str, Any]) -> dict[str, Any]:
        return values["encoder"] if isinstance(values.get("encoder"), dict) else {}


FAMILY = Family(
    model_type="bertie",
    title="Encoder",
    base="",
    encoder=(Module("pooler", "pooler"),),
    kept=("encoder.", "heads.", "reading.", "generator."),
    architectures={frozenset(): "BertieModel"},
    settings=OwnSettings(),
    in_transformers=False,
)
