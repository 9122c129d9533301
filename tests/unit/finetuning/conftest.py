"""A small checkpoint to fine-tune, and examples that a small model can learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertie.checkpoints.folder import write_model
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def start(tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    encoder = build_encoder(tiny_config)
    model = Model(encoder, build_heads((MaskedLM(), NextSentence()), encoder))
    initialize_weights(model, 0.1)
    write_model(folder, model, small_tokenizer)
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


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None: ...
