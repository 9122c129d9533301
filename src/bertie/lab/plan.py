"""From a lab file to its cells and steps. What several cells need in common is one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import product
from pathlib import Path

from bertie.base import config as configuration
from bertie.base import storage
from bertie.base.errors import UsageError, naming
from bertie.checkpoints.find import find_model_folder, weights_files
from bertie.files import sources
from bertie.files.sources import Source
from bertie.finetuning.recipe import FinetuneConfig
from bertie.lab.config import Budget, LabConfig, LabTask, LabText, TomlTable, Variant
from bertie.lab.steps import (
    FinetuneStep,
    GloveStep,
    LabStep,
    MeasureStep,
    PretrainStep,
    ShardsStep,
    VocabularyStep,
    step_id,
    with_steps,
)
from bertie.pretraining.glove import GloveConfig
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.pretraining.step_cost import tokens_per_step

FILE = "plan.json"
Combination = tuple[Variant, ...]
"""A variant of each axis."""


@dataclass(frozen=True)
class Cell:
    """One combination of variants with one seed."""

    variants: tuple[str, ...]
    """The name of the variant of each axis."""
    seed: int
    """The random seed."""
    model: str
    """The step that trains the model."""
    checkpoint: int
    """The checkpoint that is fine-tuned, by its number of steps; 0: the final model."""
    tasks: dict[str, str]
    """The fine-tuning step of each task."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that train and fine-tune."""
        return (self.model, *self.tasks.values())

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{', '.join(self.variants)}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All cells of a lab and the steps that they need."""

    cells: tuple[Cell, ...]
    steps: dict[str, LabStep]
    """The steps by id, each after those that it needs."""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The combinations of variants, in order. Each has one cell per seed."""
        return list(dict.fromkeys(cell.variants for cell in self.cells))

    def describe(self, name: str) -> str:
        """Return what a step does, for people: "pre-training of BERT, seed 0". Other cells may use the step, too."""
        for cell in self.cells:
            training = "GloVe" if isinstance(self.steps[cell.model], GloveStep) else "pre-training"
            for what, step in {training: cell.model, **cell.tasks}.items():
                if step == name:
                    return f"{what} of {cell.name} ({name})"
        return name


def make_plan(config: LabConfig, data: Path) -> Plan:
    """Plan a lab.

    Args:
        config: The lab file.
        data: The folder to which the paths in it are relative.

    Raises:
        UsageError: The settings of a cell are wrong, or a file is missing. The message names the cell.
    """
    cells: list[Cell] = []
    steps: dict[str, LabStep] = {}
    find, hash_file = cache(sources.find), cache(_content_hash)
    combinations = list(product(*(axis.variants for axis in config.axes)))
    # All seeds of a model use its checkpoints, so that a seed added later does not repeat them.
    kept = {_pretraining_key(config, variants) for variants in combinations if _checkpoint(variants)}
    for variants, seed in product(combinations, config.seeds):
        with naming(f"variant {', '.join(variant.name for variant in variants)}"):
            keep = _pretraining_key(config, variants) in kept
            pretrain_seed = seed if config.pretrain_seed is None else config.pretrain_seed
            cells.append(_Cell(config, data, variants, seed, pretrain_seed, keep, find, hash_file, steps).plan())
    return Plan(tuple(cells), steps)


def _pretraining_key(config: LabConfig, variants: Combination) -> str:
    """Return everything that decides a pre-training, except for the seed."""
    merged = [_merged(config, variants, name) for name in ("text", "pretrain")]
    return repr((merged, _budget(config, variants), [variant.glove for variant in variants]))


def _merged(config: LabConfig, variants: Combination, table: str) -> TomlTable:
    return reduce(configuration.merge, (getattr(variant, table) for variant in variants), getattr(config, table))


def _budget(config: LabConfig, variants: Combination) -> Budget | None:
    """Return the budget with what the variants change. None: the recipe's own number of steps."""
    base = configuration.plain(config.budget) if config.budget else {}
    merged = reduce(configuration.merge, (variant.budget for variant in variants), base)
    return configuration.build(Budget, merged, "budget") if merged else None


def _checkpoint(variants: Combination) -> int:
    """Return the checkpoint that the variants name; 0: none does."""
    named = [variant.checkpoint for variant in variants if variant.checkpoint]
    if len(named) > 1:
        raise UsageError("two variants name a checkpoint: set checkpoint in only one axis")
    return named[0] if named else 0


@dataclass(frozen=True, eq=False)
class _Cell:
    """A cell that is being planned. It adds its steps to `steps`."""

    config: LabConfig
    data: Path
    variants: Combination
    seed: int
    pretrain_seed: int
    keep_checkpoints: bool
    find: Callable[[tuple[str, ...]], list[Source]]
    """`sources.find`, which reports once what it does not read."""
    hash_file: Callable[[Path], str]
    """`_content_hash`, which reads each file once."""
    steps: dict[str, LabStep]

    def plan(self) -> Cell:
        shards = self._shards()
        model, checkpoint = self._model(shards), _checkpoint(self.variants)
        tasks = {task.name: self._finetuning(task, model, checkpoint) for task in self.config.tasks}
        return Cell(tuple(variant.name for variant in self.variants), self.seed, model, checkpoint, tasks)

    def _add(self, step: LabStep) -> str:
        name = step_id(step)
        self.steps.setdefault(name, step)
        return name

    def _shards(self) -> str:
        text = configuration.build(LabText, _merged(self.config, self.variants, "text"), "text")
        text = replace(text, inputs=tuple(_located(self.data, name) for name in text.inputs))
        with naming("text.inputs, relative to --data"):
            files = tuple(f"{file.path} {self._stamp(file)}" for file in self.find(text.inputs))
        vocabulary = self._add(VocabularyStep(text, files))
        return self._add(ShardsStep(text, vocabulary))

    def _model(self, shards: str) -> str:
        settings = [variant.glove for variant in self.variants if variant.glove is not None]
        if len(settings) > 1:
            raise UsageError("two variants have glove: let only one axis have it")
        if settings:
            if _checkpoint(self.variants):
                raise UsageError("glove has no checkpoints, and the variant has checkpoint: remove one of them")
            glove = configuration.build(GloveConfig, settings[0] | {"seed": self.pretrain_seed}, "glove")
            return self._add(GloveStep(glove, shards))
        with naming("pretrain"):
            recipe = configuration.load(PretrainConfig, _merged(self.config, self.variants, "pretrain"), "pretrain")
        if recipe.budget:
            raise UsageError('pretrain.budget follows the clock: give the lab a [budget] with unit = "seconds" instead')
        budget, measure, models = _budget(self.config, self.variants), "", self._model_states(recipe)
        if budget and budget.unit in ("flops", "seconds"):
            measure = self._add(MeasureStep(replace(recipe, seed=0), budget, shards, models))
        elif budget:
            per_step = tokens_per_step(recipe) if budget.unit == "tokens" else 1
            recipe = with_steps(recipe, round(budget.amount / per_step))
        if checkpoint := _checkpoint(self.variants):
            _require_checkpoint(checkpoint, recipe.training, bool(measure))
        recipe = replace(recipe, seed=self.pretrain_seed)
        return self._add(PretrainStep(recipe, shards, self.keep_checkpoints, measure, models))

    def _finetuning(self, task: LabTask, model: str, checkpoint: int) -> str:
        changes = [variant.finetune for variant in self.variants]
        changes += [variant.tasks[task.name] for variant in self.variants if task.name in variant.tasks]
        merged = reduce(configuration.merge, changes, task.finetune)
        with naming(f"finetune of {task.name}"):
            recipe = configuration.load(FinetuneConfig, merged, "finetune")
        if recipe.grid.learning_rate or recipe.grid.batch_size or recipe.grid.epochs or recipe.restarts > 1:
            raise UsageError(f"{task.name}: a lab has an axis instead of grid and restarts: remove them")
        train, dev = (_located(self.data, name) for name in (task.train, task.dev))
        with naming(f"task {task.name}"):
            files = tuple(self.hash_file(Path(path)) for path in (train, dev))
        return self._add(FinetuneStep(replace(recipe, seed=self.seed), train, dev, files, model, checkpoint))

    def _stamp(self, source: Source) -> str:
        """Return what changes with the content of a text. One elsewhere has the stamp of its server."""
        path = Path(source.path)
        return self.hash_file(path) if path.is_file() else f"{source.size} {source.stamp}"

    def _model_states(self, recipe: PretrainConfig) -> tuple[str, ...]:
        """Return the states of the weights that a recipe begins with or imitates. Models of the hub have none."""
        teachers = [getattr(objective, "teacher", "") for objective in recipe.objectives]
        named = [Path(name) for name in (recipe.init_from, *teachers) if name]
        here = [path for path in named if path.exists() or Path(f"{path}.index").is_file()]
        weights = [shard for path in here for shard in weights_files(find_model_folder(path).absolute())]
        return tuple(f"{path} {self.hash_file(path)}" for path in weights)


def _require_checkpoint(checkpoint: int, training: PretrainTraining, measured: bool) -> None:
    """Raise UsageError if a run will not have a checkpoint."""
    if measured:
        raise UsageError("checkpoint counts steps, which this budget does not fix: set budget.unit to steps or tokens")
    every, last = training.checkpoint_every or training.steps, training.steps
    if checkpoint > last or (checkpoint != last and checkpoint % every):
        raise UsageError(
            f"checkpoint is {checkpoint}, and a run of {last} steps has one after every {every}: choose one of those, or "
            "change training.checkpoint_every"
        )
    needed, kept = -(-last // every), training.keep_checkpoints
    if kept < needed:
        raise UsageError(
            f"training.keep_checkpoints is {kept}, and the run writes {needed} checkpoints: set it to {needed}"
        )


def _located(data: Path, name: str) -> str:
    """Return an input with its folder. URLs and data sets of the hub have none."""
    return name if ":" in name else str((data / name).absolute())


def _content_hash(path: Path) -> str:
    """Return the SHA-256 of a file. Its time of modification would not do: a copy of the data would run all steps again."""
    if not path.is_file():
        raise UsageError(f"no such file: {path}: check --data, the folder that holds the data of the lab")
    return storage.sha256(path)


def save_plan(plan: Plan, path: Path) -> None:
    """Write plan.json, from which the processes of the steps read what to do."""
    cells = [configuration.plain(cell) for cell in plan.cells]
    steps = {name: configuration.plain(step, defaults=False) for name, step in plan.steps.items()}
    storage.write_json(path, {"cells": cells, "steps": steps})


def read_step(path: Path, name: str) -> LabStep:
    """Read a step of plan.json."""
    return configuration.build(LabStep, storage.read_json(path)["steps"][name], name)
