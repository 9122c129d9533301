"""The learning rate and the epochs that follow from the model and the number of examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bertie.base import config as configuration
from bertie.finetuning.defaults import with_defaults
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.model.config import TransformerConfig

SIZE = TransformerConfig(
    vocab_size=100, hidden_size=256, num_hidden_layers=2, intermediate_size=64, num_attention_heads=8
)


@pytest.mark.parametrize(
    ("recipe", "width", "norm_position", "per_epoch", "rate", "epochs"),
    [
        ("classify", 768, "post", 1000, 5e-5, 3),
        ("classify", 1024, "modern", 99, 5e-5, 4),
        ("classify", 384, "modern", 1000, 1e-4, 3),
        ("tag", 256, "modern", 29, 3e-4, 11),
        ("span", 128, "post", 7, 1e-4, 20),
        ("choose", 768, "post", 1000, 2e-5, 3),
        ("embed", 384, "post", 1000, 4e-5, 1),
        ("gpt-classify", 768, "post", 7, 6.25e-5, 3),  # published values stay
        ({"extends": "classify", "frozen": True}, 256, "pre", 100, 1e-2, 3),
        ({"extends": "classify", "training": {"learning_rate": 2e-5, "epochs": 2}}, 256, "pre", 7, 2e-5, 2),
    ],
)
def test_defaults(recipe: Any, width: int, norm_position: Any, per_epoch: int, rate: float, epochs: int) -> None:
    size = replace(SIZE, hidden_size=width, norm_position=norm_position)
    config = configuration.load(FinetuneConfig, recipe, "finetune")
    found = with_defaults(config, size, per_epoch).training
    assert (found.learning_rate, found.epochs) == (pytest.approx(rate), epochs)


def test_defaults_are_said_once_and_only_where_they_matter(capsys: pytest.CaptureFixture[str]) -> None:
    config = configuration.load(FinetuneConfig, "classify", "finetune")
    chosen = with_defaults(config, SIZE, 29)
    said = " ".join(capsys.readouterr().err.split())
    assert "hidden size 256 and 29 steps per epoch: 11 epochs (--training.epochs), learning rate 0.0001 (--t" in said
    assert with_defaults(chosen, SIZE, 29) == chosen
    with_defaults(replace(config, grid=GridSearch((1e-4,), epochs=(2,))), SIZE, 29)
    assert not capsys.readouterr().err
