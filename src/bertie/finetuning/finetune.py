"""Fine-tuning: examples → sequences → encoder and one added layer → a run folder, or a model in memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertie import config as configuration
from bertie import console, runtime, storage
from bertie.checkpoints.folder import TASK_FILE, Checkpoint, load_weights, read_checkpoint
from bertie.finetuning.data import Examples, TaskData, load_task_data
from bertie.finetuning.frozen import cache_hidden_states
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.single_run import TrainedRun, build_model, initialized_model, require_layers, train_run
from bertie.finetuning.sweep import (
    Sweep,
    delete_checkpoints,
    expand_grid,
    has_failed,
    read_sweep,
    selection_metric,
    sweep,
)
from bertie.finetuning.sweep_report import sweep_page
from bertie.model.bert import BertModel
from bertie.tasks import Task
from bertie.tasks.evaluation.folder import evaluation_folder
from bertie.tasks.evaluation.folder import write as write_evaluation
from bertie.tasks.inference import predictions
from bertie.tasks.task_json import task_from_json
from bertie.text.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.run_folder import RunFolder, run_threads
from bertie.training.run_report import DEV, run_page


@dataclass(frozen=True, eq=False)
class Finetuned:
    """What fine-tuning made: the best model, where there were several. scores: on the dev examples, fp32; of several runs
    on the half of them that did not choose; losses: of this call's steps; run: the folder, if any; sweep: of several runs,
    what came of each."""

    model: BertModel = field(repr=False)
    task: Task
    tokenizer: Tokenizer = field(repr=False)
    max_length: int
    scores: dict[str, float]
    losses: list[float] = field(repr=False)
    run: Path | None
    sweep: Sweep | None = field(repr=False)

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """As `bertie.load(run).predict`, of a run that is in memory alone, too."""
        examples = self.task.reader.values(inputs)
        return list(predictions(self.model, self.task, self.tokenizer, self.max_length, examples))


def finetune(
    config: FinetuneConfig | str | dict[str, Any],
    train: Examples,
    dev: Examples,
    model: str | Path | Checkpoint,
    out: str | Path | None = None,
    *,
    threads: int = 0,
) -> Finetuned:
    """Fine-tune a checkpoint on labelled examples and score the result on others.

    config: a FinetuneConfig, a TOML file, the kind of a task, or a dict with what a TOML file says: {"extends": "classify",
    "training": {"learning_rate": 3e-4}}. train, dev: files, or Python values such as
    {"text": …, "text_pair": …, "label": …}, in the forms that the task's reader knows.
    out: the run folder; None keeps everything in memory. A run that was killed resumes when called again; a finished
    one is left alone. Errors: UsageError, UserError.
    """
    if not isinstance(config, FinetuneConfig):
        config = configuration.load(FinetuneConfig, config, "finetune")
    threads = run_threads(Path(out), threads) if out else runtime.use_threads(threads)
    checkpoint = model if isinstance(model, Checkpoint) else read_checkpoint(model)
    data = load_task_data(config, train, dev, checkpoint)
    require_layers(config, data.task, checkpoint.config)
    selection_metric(config, data.task, data.dev)  # while nothing is made
    with RunFolder(Path(out), configuration.plain(config), threads) if out else nullcontext() as run:
        if run is not None and run.finished:
            return _finished(config, data, checkpoint, run)
        if run is not None:
            run.require_data(data.fingerprint)
        if config.frozen:
            frozen, _ = initialized_model(config, data.task, checkpoint)
            data = cache_hidden_states(data, frozen, run.path if run else None)
        return (_one if len(expand_grid(config)) == 1 else _several)(config, data, checkpoint, run)


def _one(config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder | None) -> Finetuned:
    [config] = expand_grid(config).values()
    tuned = train_run(config, data, checkpoint, run, np.arange(len(data.dev)))
    scores = tuned.task.score(tuned.predictions, data.dev)
    if has_failed(selection_metric(config, tuned.task, data.dev), scores, tuned.task, data.dev):
        console.warn(_nothing_learned(config, tuned.job.settings.steps))
    if run is not None:
        about = f"{_from(checkpoint)} On {len(data.dev)} dev examples: {_told(scores)}."
        _assess(tuned, data, run)
        _finish(tuned, scores, run, run_page(run.path, about, {}).html(), about)
    path, most = run.path if run else None, config.max_length
    return Finetuned(tuned.model, tuned.task, checkpoint.tokenizer, most, scores, tuned.losses, path, None)


def _nothing_learned(config: FinetuneConfig, steps: int) -> str:
    rate = config.training.learning_rate
    small = "; small models want 3e-4 or more" * (rate < 3e-4)
    return (
        "the dev scores are no better than those of the best constant guess: nothing was learned; try more epochs (it had "
        f"{console.plural(steps, 'step')}), another --training.learning-rate (now {rate:g}{small}), or --restarts"
    )


def _several(config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder | None) -> Finetuned:
    tuned, done = sweep(config, data, checkpoint, run)
    best = done.best
    for each in done.settings:
        if each.sd is not None:
            place = f"rate {each.learning_rate:g}, batch {each.batch_size}, epochs {each.epochs}"
            console.info(f"{place}: mean {done.metric} {each.mean:.4f}, sd {each.sd:.4f} ({len(each.scores)} runs)")
    if done.failed:
        told = ", also the best of them" * best.failed
        console.warn(
            f"{done.failed} of {console.plural(len(done.results), 'run')} collapsed{told}: no better than a constant guess"
        )
    if run is not None:
        about = f"{_from(checkpoint)} The best of {len(done.results)} runs. {_judged(done)}"
        storage.write_json(run.path / "sweep.json", done.to_json())
        _assess(tuned, data, run)
        _finish(tuned, best.report_scores, run, sweep_page(run.path, about, done).html(), about)
        delete_checkpoints(run.path)
    path, most = run.path if run else None, config.max_length
    return Finetuned(tuned.model, tuned.task, checkpoint.tokenizer, most, best.report_scores, tuned.losses, path, done)


def _assess(tuned: TrainedRun, data: TaskData, run: RunFolder) -> None:
    """The folder of an evaluation on all dev examples, beside the model: of a sweep's, also on the half that chose."""
    result = {"scores": tuned.task.score(tuned.predictions, data.dev), "examples": len(data.dev)}
    title = f"{run.path.absolute().name} on all its dev examples"
    with evaluation_folder(run.path / DEV) as folder:
        write_evaluation(folder, title, tuned.task, tuned.predictions, data.dev, result)


def _finish(tuned: TrainedRun, scores: dict[str, float], run: RunFolder, page: str, about: str) -> None:
    run.write_scores(scores)
    trainer.finish(tuned.job, run, page, about)


def _finished(config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder) -> Finetuned:
    run.require_data(data.fingerprint)
    console.info(f"{run.path} is finished: nothing to do")
    made = read_checkpoint(run.path)
    task = task_from_json(made.task, run.path / TASK_FILE)
    model = build_model(config, task, checkpoint.config).to(runtime.device()).eval()
    model.encoder.requires_grad_(not config.frozen)
    load_weights(model, made)
    delete_checkpoints(run.path)  # killed just before
    done = read_sweep(run.path) if len(expand_grid(config)) > 1 else None
    return Finetuned(model, task, checkpoint.tokenizer, config.max_length, run.scores(), [], run.path, done)


def _from(checkpoint: Checkpoint) -> str:
    return f"Fine-tuned from {checkpoint.folder.name}."


def _judged(done: Sweep) -> str:
    half = f"by {done.metric} on one half of the dev examples ({done.best.selection_scores[done.metric]:.4f})"
    return f"Chosen {half}; on the other half: {_told(done.best.report_scores)}."


def _told(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
