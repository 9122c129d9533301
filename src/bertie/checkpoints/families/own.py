"""bertie's own format, for encoders that no class of Hugging Face represents: bertie's names throughout."""

from __future__ import annotations

from bertie.base import config as configuration
from bertie.checkpoints.families.family import Family
from bertie.checkpoints.families.settings import Settings

FAMILY = Family(
    model_type="bertie",
    title="Encoder",
    base="",
    encoder={"pooler": "pooler"},
    kept=("encoder.", "heads.", "reading.", "generator."),
    architectures={frozenset(): "BertieModel"},
    settings=Settings(
        keys={},
        fits_all=True,
        reads=("encoder",),
        write=lambda config: {"encoder": configuration.plain(config)},
        read=lambda values, _: values["encoder"] if isinstance(values.get("encoder"), dict) else {},
    ),
    in_transformers=False,
)
