"""Fine-tuning: labeled examples and a checkpoint become a run folder, or a model in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import config as configuration
from bertie.base import console, runtime, storage
from bertie.base.errors import UsageError
from bertie.base.notebook import NotebookDict, NotebookList
from bertie.checkpoints.find import TASK_FILE
from bertie.checkpoints.hub import hub_id
from bertie.checkpoints.model_card import About, CardResults
from bertie.checkpoints.read import Checkpoint, load_weights, read_checkpoint
from bertie.checkpoints.sentence_transformers_reader import dropped_by_training
from bertie.finetuning.data import Examples, TaskData, files_of, load_task_data
from bertie.finetuning.defaults import with_defaults
from bertie.finetuning.frozen import cache_hidden_states
from bertie.finetuning.micro_batches import turns
from bertie.finetuning.recipe import FinetuneConfig, read_recipe
from bertie.finetuning.single_run import (
    TrainedRun,
    build_model,
    initialized_model,
    require_layers,
    train_run,
)
from bertie.finetuning.sweep import (
    Sweep,
    constant_score,
    delete_checkpoints,
    expand_grid,
    has_failed,
    read_sweep,
    selection_metric,
    split_dev,
    sweep,
)
from bertie.finetuning.sweep_report import sweep_page
from bertie.model.encoder import with_language
from bertie.model.model import Model
from bertie.tasks import Task
from bertie.tasks.evaluation.folder import SCORES, evaluation_folder
from bertie.tasks.evaluation.folder import write as write_evaluation
from bertie.tasks.inference import predictions
from bertie.tasks.task_json import task_from_json
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.run_folder import (
    REPORT,
    TRAINED_ON,
    RunFolder,
    require_newest_on_rank_0,
    require_same_settings,
    run_threads,
)
from bertie.training.run_report import DEV, TEST, run_page

PARTS = "data"  # subfolder of a run with the parts of its training file, if some are held out


@dataclass(frozen=True, eq=False)
class Finetuned:
    """A fine-tuned model; the best one, if the configuration describes several runs."""

    model: Model = field(repr=False)
    """The model, in eval mode."""
    task: Task
    """The task, as the training examples define it."""
    tokenizer: Tokenizer = field(repr=False)
    """The checkpoint's tokenizer."""
    max_length: int
    """Most tokens of a sequence."""
    scores: dict[str, float]
    """Scores on the dev examples, computed in fp32; on the report half of them for several runs, and for a task that is
    `scored_apart`."""
    test_scores: dict[str, float] | None
    """Scores on the test examples; None if there are none."""
    failed: bool
    """Whether the scores are those of a constant prediction: see `sweep.has_failed`."""
    losses: list[float] = field(repr=False)
    """Training losses of the steps of this call, without those before an interruption."""
    run: Path | None
    """The run folder; None if everything is in memory."""
    sweep: Sweep | None = field(repr=False)
    """The results of all runs, if there were several."""

    def predict_stream(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Yield one prediction per example of the task, lazily, as `inference.predictions` does."""
        return predictions(self.model, self.task, self.tokenizer, self.max_length, examples)

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Predict, as `bertie.load(run).predict` does, also for a model without a run folder.

        Args:
            inputs: Examples as Python values, such as texts, pairs or dicts. Labels are optional.

        Returns:
            One prediction per input.

        Raises:
            UserError: An input is not an example of the task.
            UsageError: An input has the wrong form.
        """
        examples = list(self.task.reader.values(inputs))
        return NotebookList(self.predict_stream(examples), (example.texts for example in examples))

    def _repr_html_(self) -> str:
        return NotebookDict({DEV: self.scores, TEST: self.test_scores}, self.run and self.run / REPORT)._repr_html_()


def finetune(
    config: FinetuneConfig | Task | str | dict[str, Any],
    train: Examples,
    model: str | Path | Checkpoint,
    out: str | Path | None = None,
    *,
    dev: Examples | None = None,
    test: Examples | None = None,
    threads: int = 0,
) -> Finetuned:
    """Fine-tune a checkpoint on labeled examples and score the result on dev examples.

    A run that was interrupted resumes when you call this function again with the same arguments. A finished run is read
    back without training.

    Args:
        config: A `FinetuneConfig`, a TOML file, the kind of a task such as "classify", or a dict with the content of a
            TOML file: {"extends": "classify", "training": {"learning_rate": 3e-4}}. For a task of your own, the task,
            or the name of its class, "my_package:MyTask".
        train: The training examples: a file, or Python values such as {"text": …, "text_pair": …, "label": …}. The
            task's reader determines the formats. Or a list of files: if the loss compares the texts of a batch, each is a data
            set with batches of its own, which take turns by `weights` of the configuration.
        model: The checkpoint to start from: a run, a checkpoint folder, a hub id, or a `Checkpoint` in memory.
        out: The run folder; None to keep everything in memory. Its folder `data` has the parts of the training examples, if some
            are held out.
        dev: The dev examples, in the same formats; None: a part of the training examples, `dev_share` of the configuration.
        test: The test examples, which are scored once, after training; None: `test_share` of the training examples.
        threads: Number of processor threads; 0 for those that the run was started with, or all that the process may
            use.

    Returns:
        The fine-tuned model and its scores.

    Raises:
        UserError: The examples, the checkpoint or the run folder cannot be used, or training diverged.
        UsageError: The configuration is wrong, or `out` holds a run with other data or another configuration.
    """
    tuned = finetune_on_ranks(SINGLE_PROCESS, config, train, model, out, dev, test, threads)
    assert tuned is not None
    return tuned


def finetune_on_ranks(
    ranks: Ranks,
    config: FinetuneConfig | Task | str | dict[str, Any],
    train: Examples,
    model: str | Path | Checkpoint,
    out: str | Path | None = None,
    dev: Examples | None = None,
    test: Examples | None = None,
    threads: int = 0,
) -> Finetuned | None:
    """Fine-tune as `finetune` does, on several ranks, which share the examples of each step. Only rank 0 writes `out`.

    Args: Besides the ranks, as for `finetune`, the same on all ranks.

    Returns:
        The fine-tuned model on rank 0, None on the others.

    Raises:
        UserError: As `finetune`, or another rank has ended.
        UsageError: As `finetune`, or the ranks have other arguments, or they cannot share the work.
    """
    config = read_recipe(config)
    require_same_settings(configuration.plain(config), ranks, ())
    if out:
        require_newest_on_rank_0(Path(out), ranks)
    threads = run_threads(Path(out), threads) if out else runtime.use_threads(threads)
    threads = runtime.use_threads(ranks.broadcast(threads))
    checkpoint = model if isinstance(model, Checkpoint) else read_checkpoint(model)
    checkpoint = replace(checkpoint, config=with_language(checkpoint.config, config.language))
    checkpoint.warn_of_training()
    data = load_task_data(config, train, dev, checkpoint, test)
    checkpoint = data.checkpoint
    config = with_defaults(config, checkpoint.config, sum(turns(config, data)))
    if config.training.trackers and out is None:
        raise UsageError("training.trackers needs a run folder: give out")
    require_layers(config, data.task, checkpoint.config)
    _warn_of_lost_modules(data, checkpoint)
    selection_metric(config, data.task, data.dev)  # raises before the run folder is created
    _require_shareable(config, data, ranks)
    folder = RunFolder(Path(out), configuration.plain(config), threads) if out and ranks.first else nullcontext()
    with folder as run:
        if ranks.broadcast(run is not None and run.finished):
            return _finished(config, data, checkpoint, run) if run else None
        if run is not None:
            run.require_same("data", data.fingerprint)
            data.split.write(run.path / PARTS)
            for path in map(str, map(Path.absolute, files_of(train))):
                if path not in run.environment.get(TRAINED_ON, []):
                    run.append(TRAINED_ON, path)
        return _trained(config, data, checkpoint, run, dev, ranks)


def _trained(
    config: FinetuneConfig,
    data: TaskData,
    checkpoint: Checkpoint,
    run: RunFolder | None,
    dev: Examples | None,
    ranks: Ranks,
) -> Finetuned | None:
    """Train, score and write the results. dev: the dev examples as they were given."""
    if config.frozen:
        frozen, _ = initialized_model(config, data.task, checkpoint)
        data = cache_hidden_states(data, frozen, run.path if run else None)
    if len(expand_grid(config)) == 1:
        tuned, scores, sentences, done = _one(config, data, checkpoint, run, ranks)
    else:
        tuned, scores, sentences, done = _several(config, data, checkpoint, run)
    if not ranks.first:
        return None
    failed, path = _has_failed(config, tuned.task, data, scores, done), run.path if run else None
    parts = (tuned.job.model, tuned.task, checkpoint.tokenizer, config.max_length, NotebookDict(scores))
    result, test = Finetuned(*parts, None, failed, tuned.losses, path, done), data.split.test
    predicted = list(result.predict_stream(test))
    if test:
        on_test = NotebookDict(tuned.task.score(predicted, test))
        result = replace(result, test_scores=on_test)
        sentences += f" On {len(test):,} test examples: {console.scores(on_test)}."
    if run is not None:
        about = _about(config, data.task, checkpoint, dev, sentences, scores)
        _finish(run, about, tuned, data, predicted, scores, done)
    return result


def _require_shareable(config: FinetuneConfig, data: TaskData, ranks: Ranks) -> None:
    """Raise UsageError if several ranks cannot share the work, or have other data."""
    if ranks.count == 1:
        return
    alone = f"runs in one process, but torchrun has started {ranks.count}: start it without torchrun"
    if len(expand_grid(config)) > 1:
        raise UsageError(f"fine-tuning with restarts or a grid {alone}, or give one run")
    ranks.require_same({"SHA-256 of the model and the examples": data.fingerprint}, "give all ranks the same")


def _one(
    config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder | None, ranks: Ranks
) -> tuple[TrainedRun, dict[str, float], str, None]:
    """Fine-tune once. Return the run, its scores, and a sentence about them; on ranks other than 0 the run only."""
    [config] = expand_grid(config).values()
    apart = data.task.scored_apart
    selection, report = split_dev(data.dev) if apart else [np.arange(len(data.dev))] * 2
    tuned = train_run(config, data, checkpoint, run, selection, ranks=ranks)
    if not ranks.first:
        return tuned, {}, "", None
    dev = [data.dev[i] for i in report]
    scores = tuned.task.score([tuned.predictions[i] for i in report], dev)
    if _has_failed(config, tuned.task, data, scores, None):
        console.warn(
            "the run failed: its dev scores are no better than a constant prediction's; try more epochs (now "
            f"{console.plural(tuned.steps, 'step')}), another --training.learning-rate (now "
            f"{config.training.learning_rate:g}), or --restarts"
        )
    elif "mse" in scores and scores["mse"] > (of_mean := constant_score("mse", tuned.task, dev)):
        console.warn(
            f"the mean squared error, {scores['mse']:.4g}, is above that of always predicting the mean, {of_mean:.4g}: "
            "its ranking may be useful, its numbers are not; try more epochs or another --training.learning-rate"
        )
    of = f"{len(dev)} of {len(data.dev)}, those that did not tune it, of the" if apart else str(len(dev))
    return tuned, scores, f"On {of} dev examples: {console.scores(scores)}.", None


def _has_failed(
    config: FinetuneConfig, task: Task, data: TaskData, scores: dict[str, float], done: Sweep | None
) -> bool:
    """Return whether the run, or the best of several, is no better than a constant prediction."""
    if done is not None:
        return done.best.failed
    dev = [data.dev[i] for i in split_dev(data.dev)[1]] if task.scored_apart else data.dev
    return has_failed(selection_metric(config, task, data.dev), scores, task, dev)


def _several(
    config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder | None
) -> tuple[TrainedRun, dict[str, float], str, Sweep]:
    """Fine-tune with every setting and seed. Return the best run, its scores, sentences about them, and all results."""
    tuned, done = sweep(config, data, checkpoint, run)
    best = done.best
    for runs in done.settings:
        if runs.sd is not None:
            score = f"{done.metric} {runs.mean:.4f} ± {runs.sd:.4f}"
            console.info(f"{runs.name}: {score} (mean ± sd, {len(runs.scores)} runs)")
    if done.failed:
        also_best = ", including the best one" * best.failed
        total = console.plural(len(done.results), "run")
        console.warn(f"{done.failed} of {total} failed{also_best}: no better than a constant prediction")
    half = f"on the selection half of the dev examples ({best.selection_scores[done.metric]:.4f})"
    selected = f"Selected by {done.metric} {half}; on the report half: {console.scores(best.report_scores)}."
    return tuned, best.report_scores, f"The best of {len(done.results)} runs. {selected}", done


def _about(
    config: FinetuneConfig,
    task: Task,
    checkpoint: Checkpoint,
    dev: Examples | None,
    sentences: str,
    scores: dict[str, float],
) -> About:
    """Return what the report and the model card say. sentences: about the scores."""
    base, name = hub_id(checkpoint.folder), Path(dev).name if isinstance(dev, str | Path) else "dev examples"
    if len(expand_grid(config)) > 1 or task.scored_apart:
        name += ", the half that did not select the run"
    length = f"Its sequences had up to {config.max_length:,} tokens: give other programs the same length."
    text = f"Fine-tuned from {base or checkpoint.folder.name}. {length} {sentences}"
    base, results = "" if config.from_scratch else base, CardResults(scores, name)
    return About(text, config.card, base, "finetune", results)


def _finish(
    run: RunFolder,
    about: About,
    tuned: TrainedRun,
    data: TaskData,
    on_test: list[Any],
    scores: dict[str, float],
    done: Sweep | None,
) -> None:
    """Write the results, with an evaluation on all dev examples: for several runs, including the selection half."""
    if done is not None:
        storage.write_json(run.path / "sweep.json", done.to_json())
    for name, predicted, examples in ((DEV, tuned.predictions, data.dev), (TEST, on_test, data.split.test)):
        if examples:
            result = {"scores": tuned.task.score(predicted, examples), "examples": len(examples)}
            title = f"{run.path.absolute().name} on all its {name} examples"
            with evaluation_folder(run.path / name) as folder:
                write_evaluation(folder, title, tuned.task, predicted, examples, result)
    storage.write_json(run.path / SCORES, scores)
    page = run_page(run.path, about.text, {}) if done is None else sweep_page(run.path, about.text, done)
    trainer.finish(tuned.job, run, page.html(), about)
    delete_checkpoints(run.path)


def _warn_of_lost_modules(data: TaskData, checkpoint: Checkpoint) -> None:
    """Warn of modules of sentence-transformers that the fine-tuned model will lack."""
    if data.task.facts.shape == "vectors":
        head: Any = data.task.head(checkpoint.config, checkpoint.config.hidden_size)
        if lost := dropped_by_training(checkpoint.folder, head.pooling):
            console.warn(f"{checkpoint.folder}: {lost} isn't carried over")


def _finished(config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder) -> Finetuned:
    """Read a finished run back."""
    run.require_same("data", data.fingerprint)
    console.info(f"{run.path} is finished: nothing to do")
    saved = read_checkpoint(run.path)
    task = task_from_json(saved.task, run.path / TASK_FILE)
    model = build_model(config, task, checkpoint.config).to(runtime.device()).eval()
    model.encoder.requires_grad_(not config.frozen)
    load_weights(model, saved)
    delete_checkpoints(run.path)  # if the process was killed just before it did this
    done = read_sweep(run.path) if len(expand_grid(config)) > 1 else None
    scores = NotebookDict(storage.read_json(run.path / SCORES))
    on_test = NotebookDict(storage.read_json(run.path / TEST / SCORES)["scores"]) if data.split.test else None
    failed = _has_failed(config, task, data, scores, done)
    return Finetuned(model, task, checkpoint.tokenizer, config.max_length, scores, on_test, failed, [], run.path, done)
