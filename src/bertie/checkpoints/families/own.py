"""bertie's own format, for encoders that no class of Hugging Face represents: bertie's names throughout."""

from __future__ import annotations

from typing import Any

from bertie.base import config as configuration
from bertie.checkpoints.families.family import Family
from bertie.checkpoints.families.settings import Settings


class OwnSettings(Settings):
    """All settings by bertie's names, in one key."""

    def fits(self, config: Any) -> bool:  # noqa: ARG002
        return True


FAMILY = Family(
    model_type="bertie",
    title="Encoder",
    base="",
    encoder={"pooler": "pooler"},
    kept=("encoder.", "heads.", "reading.", "generator."),
    architectures={frozenset(): "BertieModel"},
    settings=OwnSettings(
        keys={},
        reads=("encoder",),
        write=lambda config: {"encoder": configuration.plain(config)},
        read=lambda values, _: values["encoder"] if isinstance(values.get("encoder"), dict) else {},
    ),
    in_transformers=False,
)
