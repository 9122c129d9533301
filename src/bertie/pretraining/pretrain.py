"""Pre-training, from a recipe and token shards to a finished run folder.

`set_up` reads and checks everything, `Setup.job` builds the model and the training job, `trainer.train` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertie.base import config as configuration
from bertie.base import console, runtime
from bertie.base.contracts import MicroBatch
from bertie.base.errors import UserError
from bertie.base.notebook import NotebookDict
from bertie.batches.sections import require_sections
from bertie.checkpoints.find import list_checkpoints, weights_fingerprint
from bertie.checkpoints.folder import MANIFEST
from bertie.checkpoints.hub import hub_id
from bertie.checkpoints.model_card import About, CardResults
from bertie.checkpoints.read import Checkpoint, verify
from bertie.corpus.remote_shards import ShardCache
from bertie.corpus.shards import Shards, open_shards
from bertie.model.encoder import spell_entries
from bertie.model.model import Model
from bertie.pretraining import sources
from bertie.pretraining.compile_layers import compile_if_possible
from bertie.pretraining.directions import write_directions
from bertie.pretraining.feed import Feed
from bertie.pretraining.growth import become_identity
from bertie.pretraining.initial_weights import (
    counted_weights,
    load_initial_optimizer,
    load_initial_weights,
    model_size,
    new_model,
    read_initial_checkpoint,
    read_teacher,
)
from bertie.pretraining.long_documents import held_out_layout, require_long_documents
from bertie.pretraining.recipe import PretrainConfig, require_attention, with_languages, with_vocab_size
from bertie.pretraining.repetition import warn_of_overfitting
from bertie.pretraining.start_up import StartUp
from bertie.training import trainer
from bertie.training.distributed import Ranks, process_group
from bertie.training.job import TrainingJob
from bertie.training.length import Length
from bertie.training.loop import LoopSettings
from bertie.training.memory import USABLE_SHARE, MemoryEstimate, estimate_memory, is_out_of_memory, rows_that_fit
from bertie.training.run_folder import (
    REPORT,
    RunFolder,
    require_newest_on_rank_0,
    require_same_settings,
    run_precision,
    run_threads,
)
from bertie.training.run_report import best_evaluation, run_page


def pretrain(
    config: PretrainConfig | str | dict[str, Any],
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    threads: int = 0,
    cache: ShardCache = ShardCache(),
) -> dict[str, Any]:
    """Pre-train a BERT model on token shards.

    The same call again resumes an interrupted run, and does nothing if the run is finished. Processes started by
    torchrun train together, with data parallelism; rank 0 writes the run folder.

    Args:
        config: A PretrainConfig, the path of a TOML file, the name of a shipped one ("mini"), or a dict with the
            content of such a file.
        data: Token shards, as written by `prepare`: the folder, or the URL of its copy in an object store. Or several
            folders with one tokenizer, whose rows take turns by `weights` of the configuration.
        out: The run folder to create or resume.
        threads: Number of CPU threads; 0: the number that the run began with, or all threads for a new run.
        cache: Where to keep shards of an object store.

    Returns:
        {"run": path of the run folder, "finished_before": whether it was finished already, "parameters": number of
        weights (only if it was not finished), "eval": the record of the last evaluation (with patience: of the best
        one), as in metrics.jsonl}. On ranks
        other than 0: {}.

    Raises:
        UsageError: If the configuration is invalid, or does not fit the shards, the machine or an existing run folder.
        UserError: If files are damaged, memory or disk space is exhausted, or the training diverges.
        KeyboardInterrupt: After SIGINT or SIGTERM, as soon as a checkpoint is saved.
    """
    return NotebookDict(pretrain_since(StartUp(), config, data, out, threads, cache), Path(out) / REPORT)


def pretrain_since(
    start_up: StartUp,
    config: PretrainConfig | str | dict[str, Any],
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    threads: int,
    cache: ShardCache,
) -> dict[str, Any]:
    """Pre-train as `pretrain` does. start_up: the clock of this process, which has begun."""
    begun = time.monotonic()
    with process_group() as ranks:
        return _pretrain(set_up(config, data, Path(out), threads, ranks, cache, start_up), begun)


def _pretrain(setup: Setup, begun: float) -> dict[str, Any]:
    out, ranks = setup.out, setup.ranks
    folder = RunFolder(out, configuration.plain(setup.config), setup.threads) if ranks.first else nullcontext()
    with folder as run:
        finished = ranks.broadcast(run is not None and run.finished)
        if run:
            run.require_same("data", setup.shards.fingerprint)
        if finished:
            return _finished_result(run) if run else {}
        if run and setup.shards.cache:
            run.decide_once("shards", lambda: setup.shards.place)
        start = setup.initial_checkpoint
        base = hub_id(start.folder) if start else ""
        if run:  # a resumed run no longer reads its initial checkpoint
            base = run.decide_once("base_model", lambda: base) if base else run.environment.get("base_model", "")
        rows = setup.config.training.micro_batch or 1
        try:
            job, rows = setup.job(run, begun)
            console.info(setup.description(job))
            setup.shards.unknown_share.warn(setup.shards.place)
            if not setup.config.budget:
                sources.warn_of_plan(setup.feed.phases, setup.shards)
            counters = trainer.train(job, run)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(setup.out_of_memory_advice(rows)) from error
        if run is None:
            return {}
        baseline = setup.shards.unigram_loss
        warn_of_overfitting(run.path, setup.epochs(counters.tokens), baseline)
        lines = {f"unigram model {baseline:.2f}": baseline} if setup.config.objectives[0].traits.predicts_text else {}
        last = best_evaluation(run.path)
        about = setup.about(base, last)
        write_directions(run.path, job.model, job.tokenizer, setup.config.objectives, about)
        add_sources = partial(sources.sources_section, run=run.path, shards=setup.shards)
        page = run_page(run.path, about.text, lines, add_sources)
        trainer.finish(job, run, page.html(), about)
        return {"run": str(out), "finished_before": False, "parameters": job.model.size, "eval": last}


def _finished_result(run: RunFolder) -> dict[str, Any]:
    """Verify a finished run, and return its result."""
    verify(run.path)
    console.info(f"{run.path} is finished: nothing to do")
    return {"run": str(run.path), "finished_before": True, "eval": best_evaluation(run.path)}


@dataclass(frozen=True, eq=False)
class Setup:
    """A pre-training that is ready to begin: all inputs are read and checked, and nothing is written yet."""

    config: PretrainConfig
    """The recipe, with the vocabulary size of the shards and the model size of `init_from`."""
    shards: Shards
    feed: Feed
    eval_sets: list[sources.EvalSet]
    """The evaluation set of each phase."""
    initial_checkpoint: Checkpoint | None
    """The checkpoint of `init_from`; None on ranks other than 0, and for a run that has checkpoints of its own."""
    teacher: Checkpoint | None
    """The teacher of a distillation; None in other pre-trainings, and for a finished run."""
    out: Path
    threads: int
    ranks: Ranks
    start_up: StartUp

    def job(self, run: RunFolder | None, begun: float | None = None) -> tuple[TrainingJob, int]:
        """Build the model with its initial weights, the optimizer and the training job.

        Args:
            run: The run folder, which saves the choices of precision and micro-batch for later calls; or None to choose
                for this call only.
            begun: When the run began, in seconds of `time.monotonic`: its budget counts from then on. None: now.

        Returns:
            The job, and the number of rows per forward pass.
        """
        config, settings, ranks = self.config, self.config.training, self.ranks
        precision = run_precision(run, settings.precision, ranks)
        if run is not None and self.teacher is not None:
            run.require_same("teacher", weights_fingerprint(self.teacher.files))
        length = config.length(ranks, time.monotonic() if begun is None else begun)
        model, optimizer, feed = self._ready_to_train(run, precision, length)
        weights = {objective.kind: objective.weight for objective in config.objectives}
        shares = any(objective.share < 1 for objective in config.objectives)
        grows = any(phase.layers for phase in feed.phases)
        rate, norm = settings.learning_rate, settings.max_grad_norm
        job = TrainingJob(
            title="pretrain",
            model=model,
            tokenizer=self.shards.tokenizer,
            task=None,
            optimizer=optimizer,
            schedule=config.schedule,
            settings=LoopSettings(length, rate, norm, config.seed, precision, weights, not shares, grows),
            stream=feed.steps,
            evaluate=lambda step, stop: sources.evaluate_sources(
                model, self.eval_sets[feed.phase_of(step)], precision, ranks, stop
            ),
            eval_set=feed.phase_of,
            eval_tokens=max(map(sources.eval_tokens, self.eval_sets)),
            eval_every=settings.eval_every,
            checkpoint_every=settings.checkpoint_every,
            keep_checkpoints=settings.keep_checkpoints,
            data_fingerprint=self.shards.fingerprint,
            checkpoint_minutes=settings.checkpoint_minutes or config.minutes_between_checkpoints,
            max_skipped_steps=settings.max_skipped_steps,
            patience=settings.patience,
            trackers=settings.trackers,
            out=self.out,
            ranks=ranks,
            on_step=partial(self.start_up.end_with_step, run),
        )
        return job, feed.micro_batch

    def _ready_to_train(
        self, run: RunFolder | None, precision: runtime.Resolved, length: Length
    ) -> tuple[Model, torch.optim.Optimizer, Feed]:
        """Build model and optimizer, find the rows per forward pass, compile the layers, and set the initial weights.

        What the weights are counted from is counted meanwhile, by threads of rank 0, whose weights the others receive.
        """
        config, settings, device = self.config, self.config.training, runtime.device()
        model = self._random_model()
        counts = self.initial_checkpoint is None and self.ranks.first and not list_checkpoints(self.out)
        with counted_weights(config.objectives if counts else (), model, self.shards) as set_weights:
            runtime.require_precision(precision, model.to(device))
            optimizer = self._optimizer(model)
            self.start_up.end("model")
            several = (phase for phase in self.feed.phases if phase.shape.rows > 1)
            samples = (partial(self.feed.first_rows, self.feed.first_step(phase)) for phase in several)
            measure = partial(rows_that_fit, model, optimizer, samples, precision, self.ranks)
            rows = settings.micro_batch or (run.decide_once("micro_batch", measure) if run else measure())
            feed = replace(self.feed, micro_batch=self.ranks.broadcast(rows), length=length)
            self.start_up.end("micro-batch")
            if settings.compile and device.type == "cuda":
                compile_if_possible(model, feed, precision)
            self.start_up.end("compilation")
            if counts:
                model.cpu()
                set_weights()
                if first := self.feed.phases[0].layers:
                    become_identity(model.encoder, first)
                model.to(device)
            self.start_up.end("initial weights")
        # Only now: the passes above are no training, and saved weights may not be loaded yet.
        for objective in config.objectives:
            objective.hold(model, self.shards.tokenizer, optimizer)
        return model, optimizer, feed

    def _random_model(self) -> Model:
        """Build the model, on the CPU, with random weights or the weights of `init_from`."""
        config, settings = self.config, self.config.training
        model = new_model(config.model, config.objectives, config.seed, settings.attention, self.teacher)
        spell_entries(model.encoder, self.shards.tokenizer)
        model.recompute_layers(settings.activation_checkpointing)
        if self.initial_checkpoint is not None:
            console.info(load_initial_weights(self.initial_checkpoint, model))
        return model

    def _optimizer(self, model: Model) -> torch.optim.Optimizer:
        """Build the optimizer of a model, with its initial state."""
        config = self.config
        optimizer = config.optimizer.build(model, embedding_lr_scale=config.training.embedding_lr_scale)
        if self.initial_checkpoint is not None and config.init_optimizer == "keep":
            console.info(load_initial_optimizer(self.initial_checkpoint, model, optimizer, config.optimizer.kind))
        return optimizer

    def description(self, job: TrainingJob) -> str:
        """Describe in one line what is about to be trained."""
        tokens = int(self.shards.train.document_starts[-1])
        steps = ", then ".join(
            f"{self.feed.length.describe(phase.steps)} of {phase.batch_size} × {phase.layout.max_length} tokens"
            for phase in self.feed.phases
        )
        ranks = f"{self.ranks.count} ranks, " * (self.ranks.count > 1)
        return (
            f"{job.model.size:,} parameters, {tokens:,} training tokens, {steps}; {job.settings.precision}, {ranks}"
            f"{console.plural(self.threads, 'thread')}, {runtime.device()}; a unigram model of the training text "
            f"has a held-out loss of {self.shards.unigram_loss:.2f} nats; {self.shards.unknown_share}"
        )

    @property
    def total_tokens(self) -> int:
        """The tokens of all steps of the run, filler included."""
        return sum(phase.steps * phase.tokens for phase in self.feed.phases)

    def epochs(self, tokens: float) -> float:
        """Return how often the training text has this number of tokens."""
        return tokens / int(self.shards.train.document_starts[-1])

    def memory_estimate(self, micro: MicroBatch) -> MemoryEstimate:
        """Estimate the memory of training on micro-batches of one shape."""
        config = self.config
        build = partial(new_model, objectives=config.objectives, seed=0, teacher=self.teacher)
        return estimate_memory(build, config.model, micro, config.training.activation_checkpointing)

    def out_of_memory_advice(self, micro_batch: int) -> str:
        """Return an error message, with settings to try, after `micro_batch` rows per forward pass did not fit."""
        fitting = micro_batch - 1
        for phase in self.feed.phases:
            estimate = self.memory_estimate(self.feed.first_rows(self.feed.first_step(phase), 1))
            usable = int(USABLE_SHARE * runtime.memory()[1]) - estimate.fixed
            fitting = min(fitting, usable // estimate.activations)
        problem = f"out of memory with {console.plural(micro_batch, 'row')} per forward pass"
        if fitting > 0:
            return f"{problem}: --training.micro-batch {fitting} should fit"
        recompute = "--training.activation-checkpointing, " * (not self.config.training.activation_checkpointing)
        return f"{problem}: try {recompute}a smaller model, or a lower --training.row-tokens"

    def about(self, base_model: str, last: dict[str, Any]) -> About:
        """Return what the report and the model card say. base_model: hub id, if any. last: the last evaluation."""
        scores = {name: last[name] for name in last if name.endswith(("_loss", "_accuracy"))}
        longest = max(phase.layout.max_length for phase in self.feed.phases)
        shown = ", ".join(f"{name} {score:.4g}" for name, score in scores.items())
        text = (
            f"Pre-trained for {console.plural(last['step'], 'step')} ({last['tokens']:,} tokens) on sequences of up to "
            f"{longest:,} tokens. On held-out documents: {shown} (a unigram model of the training text with add-one "
            f"smoothing: {self.shards.unigram_loss:.4g} nats)."
        )
        results = CardResults(scores, f"held-out documents of {Path(self.shards.place).absolute().name}")
        return About(text, self.config.card, base_model, "finetune", results)


def set_up(
    config: PretrainConfig | str | dict[str, Any],
    data: str | Path | Sequence[str | Path] | Shards,
    out: Path,
    threads: int,
    ranks: Ranks,
    cache: ShardCache = ShardCache(),
    start_up: StartUp | None = None,
) -> Setup:
    """Read and check everything that a pre-training needs, without writing anything.

    Args:
        config: As for `pretrain`.
        data: Token shards, or the folder or URL that has them.
        out: The run folder, which may be missing.
        threads: As for `pretrain`.
        ranks: The processes that train together.
        cache: As for `pretrain`.
        start_up: The clock of the start; None: one that begins now.

    Raises:
        UsageError: If the configuration is invalid, or does not fit the shards, the machine or the other ranks.
        UserError: If files are damaged, or if the corpus is too small for one step.
    """
    start_up = start_up or StartUp()
    if not isinstance(config, PretrainConfig):
        config = configuration.load(PretrainConfig, config, "pretrain")
    require_same_settings(configuration.plain(config), ranks, ("training.workers",))
    threads = runtime.use_threads(ranks.broadcast(run_threads(out, threads)))
    require_newest_on_rank_0(out, ranks)
    shards = data if isinstance(data, Shards) else open_shards(data, cache)
    ranks.require_same({"SHA-256 of the shards' manifest": shards.fingerprint}, "give every machine the same shards")
    shards.require_room(config.training.shuffle_tokens)
    start_up.end("shards")
    finished = ranks.broadcast((out / MANIFEST).is_file())
    begun = ranks.broadcast(bool(list_checkpoints(out))) or finished
    reads_start = config.init_from and ranks.first and not begun
    start = read_initial_checkpoint(config.init_from, shards.tokenizer, config.init_layers) if reads_start else None
    config = with_vocab_size(replace(config, model=model_size(config, start, out, ranks)), shards.tokenizer)
    config, shards = with_languages(config, shards)
    require_attention(config.training)
    teacher = None if finished else read_teacher(config, shards.tokenizer)
    sources.require_weights(config.resolved_phases, shards)
    eval_sets = [
        sources.eval_set(config, held_out_layout(config.model, phase.layout, shards.eval), shards)
        for phase in config.resolved_phases
    ]
    require_long_documents(config.model, shards.train)
    for phase in config.resolved_phases:
        require_sections(shards.train.shard_starts, config.training.shuffle_tokens, phase.tokens)
    settings, length = config.training, config.length(ranks)
    feed = Feed(config.resolved_phases, shards, config.objectives, config.seed, 1, settings.workers, ranks, length)
    if not begun:
        for phase in feed.phases:  # refuses a corpus that is too small before the run folder is created
            feed.first_step(phase)
    start_up.end("batches")
    return Setup(config, shards, feed, eval_sets, start, teacher, out, threads, ranks, start_up)
