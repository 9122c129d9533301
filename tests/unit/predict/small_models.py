"""Small models with random weights, and the command line, for several tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.checkpoints.folder import write_model
from bertie.cli import main
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives.heads import build_heads
from bertie.predict.predictor import Predictor
from bertie.tasks.task import build_head
from bertie.tokenizers.tokenizer import Tokenizer


def model_of(config: Any, *purposes: Any, seed: int = 0, scale: float = 0.3) -> Model:
    """A model with the heads of objectives, or with the head of a task."""
    torch.manual_seed(seed)
    encoder = build_encoder(config)
    tasks = [purpose for purpose in purposes if hasattr(purpose, "encode")]
    heads: Any = {task.kind: build_head(task, config, config.hidden_size) for task in tasks}
    model = Model(encoder, heads or build_heads(list(purposes), encoder)).eval()
    initialize_weights(model, scale)
    return model


def saved(folder: Path, model: Model, tokenizer: Tokenizer, task: dict[str, Any] | None = None) -> Predictor:
    """Write a model and load it. task: the content of task.json."""
    write_model(folder, model, tokenizer, task)
    return bertie.load(folder, threads=1)


def changed(path: Path, **values: Any) -> None:
    """Set values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def close(values: Any, expected: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(values, expected, atol=atol)


def run(*argv: object, capsys: pytest.CaptureFixture[str]) -> tuple[list[Any], str]:
    """Call a command with --json. Returns the JSON values that it prints, and the lines for people."""
    assert main([*map(str, argv), "--json"]) == 0
    output = capsys.readouterr()
    return [json.loads(line) for line in output.out.splitlines()], output.err
