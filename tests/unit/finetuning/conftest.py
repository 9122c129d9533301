"""A small checkpoint to fine-tune, and examples that a small model can learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.predict.small_models import model_of

from bertie.checkpoints.folder import write_model
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def start(tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    write_model(folder, model_of(tiny_config, MaskedLM(), NextSentence(), scale=0.1), small_tokenizer)
    return folder


@pytest.fixture(scope="session")
def rows(small_texts: list[str]) -> list[dict[str, str]]:
    """60 examples; the first word determines the label."""
    words = {"yes": "and", "no": "in"}
    labels = [("yes", "no")[i % 2] for i in range(60)]
    return [
        {"text": f"{words[label]} {text[: 10 + i % 40]}", "label": label}
        for i, (label, text) in enumerate(zip(labels, small_texts, strict=False))
    ]
