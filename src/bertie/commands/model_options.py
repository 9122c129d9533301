"""The flags of verbs that load a model to compute with. In a file of their own, because engines take long to import."""

from __future__ import annotations

from dataclasses import dataclass

from bertie.predict.engines.files import EngineName


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded."""

    language: str = ""
    """Language of the texts, for a model with language embeddings; empty: the language of fine-tuning, or else the first one."""
    engine: EngineName | None = None
    """Engine that computes the encoder; by default the engine that a converted model was made for, or else plain."""
