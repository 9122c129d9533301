"""Refuse a lab with a cell that cannot run, before the first step starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError, UserError, naming
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus import readers
from bertie.corpus.readers import ReaderOptions
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.single_run import build_model, require_layers
from bertie.finetuning.sweep import selection_metric
from bertie.lab.plan import Plan
from bertie.lab.steps import FinetuneStep, GloveStep, PretrainStep, ShardsStep
from bertie.model.encoder import EncoderConfig, with_language
from bertie.model.encoders.static import StaticConfig
from bertie.model.initialization import no_weights
from bertie.pretraining.glove import GloveConfig
from bertie.pretraining.initial_weights import new_model, read_teacher
from bertie.pretraining.recipe import PretrainConfig
from bertie.tasks import AnyTask
from bertie.tasks.scoring import labeled_examples

Read = Callable[[str, AnyTask], list[Any]]
Fit = Callable[[str, str, FinetuneConfig], AnyTask]


def check(plan: Plan) -> None:
    """Check every cell without training: build its models without memory for weights, and read its text and examples.

    Raises:
        UserError: A cell cannot run. The message names it. It is a UsageError if the settings are the reason.
    """
    fit: Fit = cache(partial(_fit, cache(_read)))
    require_text, model_size = cache(_require_text), cache(_model_size)
    check_finetuning = cache(partial(_check_finetuning, fit))
    for cell in plan.cells:
        with naming(cell.name):
            step = plan.steps[cell.model]
            assert isinstance(step, PretrainStep | GloveStep)
            shards = plan.steps[step.shards]
            assert isinstance(shards, ShardsStep)
            require_text(shards.text.inputs, shards.text.text_field)
            settings = step.settings if isinstance(step, GloveStep) else replace(step.recipe, seed=0)
            size = model_size(settings, shards.text.vocab_size)
            for name in cell.tasks.values():
                step = plan.steps[name]
                assert isinstance(step, FinetuneStep)
                check_finetuning(step.train, step.dev, replace(step.recipe, seed=0), size)


def _require_text(inputs: tuple[str, ...], text_field: str) -> None:
    """Raise UserError if no document can be read, for example because the text is in another field."""
    with console.silenced():
        if next(readers.read(inputs, ReaderOptions(text_field=text_field)), None) is None:
            raise UserError(f"{', '.join(inputs)}: the text is empty: correct text.inputs")


def _model_size(recipe: PretrainConfig | GloveConfig, entries: int) -> EncoderConfig:
    """Build the model of a recipe, and return the configuration of its encoder."""
    if isinstance(recipe, GloveConfig):
        return StaticConfig(recipe.hidden_size, vocab_size=entries)
    if recipe.layout.kind == "translations":
        raise UsageError(
            'layout.kind "translations" needs several languages, and a lab prepares text in one: change it'
        )
    if recipe.init_from:
        recipe = _continued(recipe, entries)
    if (teacher := read_teacher(recipe, None)) and teacher.tokenizer.size != entries:
        raise UsageError(_other_vocabulary("objectives.distil.teacher", teacher.tokenizer.size, entries))
    if recipe.model.vocab_size not in (0, entries):
        sizes = f"model.vocab_size is {recipe.model.vocab_size}, and text.vocab_size is {entries}"
        raise UsageError(f"{sizes}: omit model.vocab_size")
    size = replace(recipe.model, vocab_size=entries)
    with no_weights():
        new_model(size, recipe.objectives, recipe.seed)
    return size


def _continued(recipe: PretrainConfig, entries: int) -> PretrainConfig:
    """Return the recipe with the model of the checkpoint that it continues from, without its vocabulary."""
    with naming("init_from"):
        checkpoint = read_checkpoint(recipe.init_from)
    if checkpoint.tokenizer.size > entries:
        raise UsageError(_other_vocabulary("init_from", checkpoint.tokenizer.size, entries))
    return replace(recipe, model=replace(checkpoint.config, vocab_size=0))


def _other_vocabulary(key: str, size: int, entries: int) -> str:
    problem = f"{key} has a vocabulary of {size:,} entries, and text.vocab_size is {entries:,}"
    return f"{problem}: take a model that was trained with the vocabulary of this text"


def _check_finetuning(fit: Fit, train: str, dev: str, recipe: FinetuneConfig, size: EncoderConfig) -> None:
    task = fit(train, dev, recipe)
    with_language(size, recipe.language)
    if recipe.max_length > size.max_position_embeddings:
        raise UsageError(
            f"max_length of fine-tuning is {recipe.max_length}, but the model reads at most "
            f"{size.max_position_embeddings} tokens: lower max_length, or raise model.max_position_embeddings"
        )
    require_layers(recipe, task, size)
    with no_weights():
        build_model(recipe, task, size)


def _fit(read: Read, train: str, dev: str, recipe: FinetuneConfig) -> AnyTask:
    """Return the task of a recipe with the labels of the examples, which are checked."""
    task = recipe.task.fit(read(train, recipe.task))
    examples = read(dev, recipe.task)
    task.validate(examples)
    selection_metric(recipe, task, examples)
    return task


def _read(path: str, task: AnyTask) -> list[Any]:
    with console.silenced():
        return labeled_examples(task.reader, path)
