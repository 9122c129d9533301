"""Refuse a lab with a cell that cannot run, before the first step starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from bertie import config as configuration
from bertie import console
from bertie.errors import UsageError, UserError
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.single_run import build_model, require_layers
from bertie.finetuning.sweep import selection_metric
from bertie.lab.plan import Cell, Plan
from bertie.lab.steps import FinetuneStep, GloveStep, PretrainStep, ShardsStep
from bertie.model.encoder import EncoderConfig
from bertie.model.static import StaticConfig
from bertie.pretraining.glove import GloveConfig
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig
from bertie.tasks import AnyTask
from bertie.tasks.data.rows import valid_examples

Read = Callable[[str, AnyTask], list[Any]]


def check(plan: Plan) -> None:
    """Check every cell without training: build its models without memory for weights, and read its examples.

    Raises:
        UserError: A cell cannot run. The message names it. It is a UsageError if the settings are the reason.
    """
    done: set[str] = set()
    read: Read = lru_cache(maxsize=None)(_read)
    for cell in plan.cells:
        try:
            size = _model_size(plan, cell)
            for name in sorted(set(cell.tasks.values()) - done):
                step = plan.steps[name]
                assert isinstance(step, FinetuneStep)
                _check_finetuning(step, size, read)
                done.add(name)
        except UserError as error:
            raise type(error)(f"{cell.name}: {error}") from error


def _model_size(plan: Plan, cell: Cell) -> EncoderConfig:
    """Build the model of a cell, and return the configuration of its encoder."""
    step = plan.steps[cell.model]
    assert isinstance(step, PretrainStep | GloveStep)
    shards = plan.steps[step.shards]
    assert isinstance(shards, ShardsStep)
    entries = shards.text.vocab_size
    if isinstance(step, GloveStep):
        glove = configuration.build(GloveConfig, step.settings, "")
        return StaticConfig(glove.hidden_size, vocab_size=entries)
    recipe = configuration.build(PretrainConfig, step.recipe, "")
    if recipe.model.vocab_size not in (0, entries):
        raise UsageError(
            f"model.vocab_size is {recipe.model.vocab_size}, and text.vocab_size is {entries}: omit model.vocab_size"
        )
    size = replace(recipe.model, vocab_size=entries)
    with torch.device("meta"):
        new_model(size, recipe.objectives, recipe.seed)
    return size


def _check_finetuning(step: FinetuneStep, size: EncoderConfig, read: Read) -> None:
    recipe = configuration.build(FinetuneConfig, step.recipe, "")
    if recipe.max_length > size.max_position_embeddings:
        raise UsageError(
            f"max_length of fine-tuning is {recipe.max_length}, and the model reads at most "
            f"{size.max_position_embeddings} tokens: lower max_length, or raise model.max_position_embeddings"
        )
    task = recipe.task.fit(read(step.train, recipe.task))
    dev = read(step.dev, recipe.task)
    task.validate(dev)
    selection_metric(recipe, task, dev)
    require_layers(recipe, task, size)
    with torch.device("meta"):
        build_model(recipe, task, size)


def _read(path: str, task: AnyTask) -> list[Any]:
    with console.silenced():
        return valid_examples(task.reader.read(Path(path)), path)
