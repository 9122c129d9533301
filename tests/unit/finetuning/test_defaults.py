"""The learning rate and the epochs that follow from the model and the number of examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bertie.base import config as configuration
from bertie.finetuning.defaults import with_defaults
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.model.config import TransformerConfig


@pytest.mark.parametrize(
    ("recipe", "width", "per_epoch", "rate", "epochs"),
    [
        ("classify", 768, 1000, 5e-5, 3),
        ("classify", 1024, 99, 5e-5, 4),
        ("classify", 384, 1000, 1e-4, 3),
        ("tag", 256, 29, 1e-3, 11),
        ("span", 128, 7, 1e-3, 20),
        ("choose", 768, 1000, 2e-5, 3),
        ("embed", 384, 1000, 4e-5, 1),
        ("gpt-classify", 768, 7, 6.25e-5, 3),  # published values stay
        ({"extends": "classify", "frozen": True}, 256, 100, 1e-2, 3),
        ({"extends": "classify", "training": {"learning_rate": 2e-5, "epochs": 2}}, 256, 7, 2e-5, 2),
    ],
)
def test_defaults(recipe: Any, width: int, per_epoch: int, rate: float, epochs: int) -> None:
    size = TransformerConfig(
        vocab_size=100, hidden_size=width, num_hidden_layers=2, intermediate_size=64, num_attention_heads=8
    )
    config = configuration.load(FinetuneConfig, recipe, "finetune")
    found = with_defaults(config, size, per_epoch).training
    assert (found.learning_rate, found.epochs) == (pytest.approx(rate), epochs)


def test_defaults_are_said_once_and_only_where_they_matter(capsys: pytest.CaptureFixture[str]) -> None:
    size = TransformerConfig(
        vocab_size=100, hidden_size=256, num_hidden_layers=2, intermediate_size=64, num_attention_heads=8
    )
    config = configuration.load(FinetuneConfig, "classify", "finetune")
    chosen = with_defaults(config, size, 29)
    said = " ".join(capsys.readouterr().err.split())
    assert "hidden size 256 and 29 steps per epoch: 11 epochs (--training.epochs), learning rate 0.001 (--t" in said
    assert with_defaults(chosen, size, 29) == chosen
    with_defaults(replace(config, grid=GridSearch((1e-4,), epochs=(2,))), size, 29)
    assert not capsys.readouterr().err
