"""Pre-training: shards → rows → corrupted rows → encoder → heads → a run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bertie import config as configuration
from bertie import console, runtime, storage
from bertie.batches.loader import Position
from bertie.checkpoints.folder import MANIFEST, Checkpoint, verify
from bertie.checkpoints.training_state import has_checkpoint
from bertie.contracts import Loss, MicroBatch
from bertie.errors import UsageError, UserError
from bertie.model.config import BertConfig
from bertie.pretraining.compile_layers import compile_if_possible
from bertie.pretraining.feed import Feed, eval_batches
from bertie.pretraining.initial_weights import (
    load_initial_optimizer,
    load_initial_weights,
    new_model,
    read_initial_checkpoint,
)
from bertie.pretraining.memory import USABLE_SHARE, estimate_memory, is_out_of_memory, rows_that_fit
from bertie.pretraining.phases import phase_index
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining, with_vocab_size
from bertie.text.shards import Shards, open_shards
from bertie.training import trainer
from bertie.training.distributed import Ranks, process_group
from bertie.training.job import TrainingJob
from bertie.training.loop import LoopSettings, evaluate
from bertie.training.run_folder import RunFolder, first_difference, read_metrics, run_threads
from bertie.training.run_report import run_page


def pretrain(
    config: PretrainConfig | str | dict[str, Any], data: str | Path, out: str | Path, *, threads: int = 0
) -> dict[str, Any]:
    """Pre-train on shards into the run folder `out`; called again, it resumes, and a finished run is left alone.

    config: a PretrainConfig, a TOML file, the name of a shipped one, or a dict with what such a file says.
    threads: 0 = those of the run, or all there are. Several processes that torchrun started share the work; rank 0 writes.
    Returns {"run", "finished_before", "parameters", "eval": the last evaluation's record}, and {} on the other ranks.
    Errors: UsageError, UserError.
    """
    with process_group() as ranks:
        return _pretrain(set_up(config, Path(data), Path(out), threads, ranks))


def _pretrain(setup: Setup) -> dict[str, Any]:
    out, ranks = setup.out, setup.ranks
    whole = RunFolder(out, configuration.plain(setup.config), setup.threads) if ranks.first else nullcontext()
    with whole as run:
        if ranks.broadcast(run is not None and run.finished):
            return _left_alone(setup, run) if run else {}
        rows = setup.config.training.micro_batch or 1
        try:
            job, rows = setup.job(run)
            console.info(setup.description(job))
            trainer.train(job, run)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(setup.less_memory(rows)) from error
        if run is None:
            return {}
        entropy = setup.shards.eval.unigram_entropy
        lines = {f"entropy of words {entropy:.2f}": entropy} if setup.config.objectives[0].kind == "mlm" else {}
        about = setup.summary_sentence(_last_eval(run))
        trainer.finish(job, run, run_page(run.path, about, lines).html(), about)
        return {"run": str(out), "finished_before": False, "parameters": job.model.size, "eval": _last_eval(run)}


def _left_alone(setup: Setup, run: RunFolder) -> dict[str, Any]:
    run.require_data(setup.fingerprint)
    verify(run.path)
    console.info(f"{run.path} is finished: nothing to do")
    return {"run": str(run.path), "finished_before": True, "eval": _last_eval(run)}


@dataclass(frozen=True, eq=False)
class Setup:
    """A pre-training that can begin: everything is read and fits together, and nothing is written.

    config: with the sizes of the vocabulary and of what it starts from; held: the held-out text of each phase.
    """

    config: PretrainConfig
    shards: Shards
    feed: Feed
    eval_sets: list[list[MicroBatch]]
    initial_checkpoint: Checkpoint | None
    out: Path
    threads: int
    ranks: Ranks

    @property
    def fingerprint(self) -> str:
        """Of the data."""
        return storage.sha256(self.shards.folder / "manifest.json")

    def job(self, run: RunFolder | None) -> tuple[TrainingJob, int]:
        """The model, as new or as it starts, and all that trains it; and the most rows of a forward pass.

        run: keeps what is decided now; None decides for nobody.
        """
        config, settings, ranks = self.config, self.config.training, self.ranks
        asked = settings.precision
        decided = run.precision(asked) if run else runtime.resolve_precision(asked, runtime.device())
        precision: Literal["fp32", "bf16"] = ranks.broadcast(decided)
        model = new_model(config.model, config.objectives, config.seed, settings.attention)
        model.encoder.recompute = settings.activation_checkpointing
        if self.initial_checkpoint is not None:
            console.info(load_initial_weights(self.initial_checkpoint, model))
        elif ranks.first and not has_checkpoint(self.out):
            for objective in config.objectives:
                objective.initialize(model.heads[objective.kind], self.shards.train)
        model.to(runtime.device())
        optimizer = config.optimizer.build(model)
        if self.initial_checkpoint is not None and config.init_optimizer == "kept":
            console.info(load_initial_optimizer(self.initial_checkpoint, model, optimizer, config.optimizer.kind))
        fit = partial(rows_that_fit, model, optimizer, self.feed, precision)
        rows = settings.micro_batch or (run.micro_batch(fit) if run else fit())
        feed = replace(self.feed, micro_batch=ranks.broadcast(rows))
        if settings.compile and model.device.type == "cuda":
            compile_if_possible(model, feed, precision)

        def evaluation(step: int, stopping: Callable[[], bool]) -> dict[str, Loss] | None:
            return evaluate(model, self.eval_sets[phase_index(feed.phases, step)], precision, ranks, stopping)

        weights = {objective.kind: objective.weight for objective in config.objectives}
        job = TrainingJob(
            title="pretrain",
            model=model,
            tokenizer=self.shards.tokenizer,
            task=None,
            optimizer=optimizer,
            schedule=config.schedule,
            settings=LoopSettings(
                settings.steps, settings.learning_rate, settings.max_grad_norm, config.seed, precision, weights
            ),
            stream=feed.steps,
            evaluate=evaluation,
            eval_set=partial(phase_index, feed.phases),
            eval_every=settings.eval_every,
            checkpoint_every=settings.checkpoint_every,
            keep_checkpoints=settings.keep_checkpoints,
            data_fingerprint=self.fingerprint,
            checkpoint_minutes=settings.checkpoint_minutes,
            max_skipped_steps=settings.max_skipped_steps,
            tensorboard=settings.tensorboard,
            out=self.out,
            ranks=ranks,
        )
        return job, feed.micro_batch

    def description(self, job: TrainingJob) -> str:
        """What is about to be trained, in a line."""
        tokens = int(self.shards.train.document_starts[-1])
        starts = [0, *(leg.end_step for leg in self.feed.phases)]
        steps = ", then ".join(
            f"{leg.end_step - start:,} steps of {leg.batch_size} × {leg.layout.max_length} tokens"
            for start, leg in zip(starts, self.feed.phases, strict=False)
        )
        ranks = f"{self.ranks.count} ranks, " if self.ranks.count > 1 else ""
        return (
            f"{job.model.size:,} parameters, {tokens:,} training tokens, {steps}; {job.settings.precision}, {ranks}"
            f"{self.threads} threads, {runtime.device()}; unigram entropy of the training text "
            f"{self.shards.train.unigram_entropy:.2f} nats"
        )

    def less_memory(self, micro_batch: int) -> str:
        """Out of memory with so many rows a forward pass: what to do."""
        config, rows = self.config, []
        for leg in self.feed.phases:
            plan = next(leg.loader(self.feed.shards, self.feed.seed).steps(Position()))
            [micro] = self.feed.micro_batches(plan, range(1), 1)
            taken = estimate_memory(config.model, config.objectives, micro, config.training.activation_checkpointing)
            rows.append((int(USABLE_SHARE * runtime.memory()[1]) - taken.fixed) // taken.activations)
        fit = min(*rows, micro_batch - 1)
        rows_told = console.plural(micro_batch, "row")
        told = f"out of memory with {rows_told} of some {config.training.row_tokens:,} tokens a forward pass"
        if fit > 0:
            return f"{told}: --training.micro-batch {fit} should fit"
        again = "" if config.training.activation_checkpointing else "--training.activation-checkpointing, or "
        return f"{told}: give {again}a smaller model; of a new run, fewer --training.row-tokens"

    def summary_sentence(self, last: dict[str, Any]) -> str:
        """What came of it, in a sentence. last: the last evaluation."""
        scores = ", ".join(f"{name} {last[name]:.4g}" for name in last if name.endswith(("_loss", "_accuracy")))
        return (
            f"Pre-trained for {self.config.training.steps:,} steps ({last['tokens']:,} tokens). On held-out documents: "
            f"{scores} (unigram entropy {self.shards.eval.unigram_entropy:.4g} nats)."
        )


def set_up(config: PretrainConfig | str | dict[str, Any], data: Path, out: Path, threads: int, ranks: Ranks) -> Setup:
    """Read what a pre-training needs. Errors: UsageError, UserError where that does not fit together."""
    if not isinstance(config, PretrainConfig):
        config = configuration.load(PretrainConfig, config, "pretrain")
    _require_same(config, ranks)
    threads = runtime.use_threads(ranks.broadcast(run_threads(out, threads)))
    shards = open_shards(data)
    begun = ranks.broadcast(has_checkpoint(out) or (out / MANIFEST).is_file())
    start = (
        read_initial_checkpoint(config.init_from, shards.tokenizer)
        if config.init_from and ranks.first and not begun
        else None
    )
    config = with_vocab_size(replace(config, model=_size(config, start, out, ranks)), shards.tokenizer)
    _check_attention(config.training)
    most = config.training.max_eval_tokens
    held = [
        eval_batches(config.objectives, leg.layout, shards.eval, shards.tokenizer, most)
        for leg in config.resolved_phases
    ]
    if not begun:
        for leg in config.resolved_phases:  # a corpus that is too small is refused before the folder is made
            next(leg.loader(shards, config.seed).steps(Position()))
    feed = Feed(config.resolved_phases, shards, config.objectives, config.seed, 1, config.training.workers, ranks)
    setup = Setup(config, shards, feed, held, start, out, threads, ranks)
    if ranks.broadcast(setup.fingerprint) != setup.fingerprint:
        raise UsageError(f"{shards.folder}: other shards than those of rank 0; give every machine the same")
    return setup


def _require_same(config: PretrainConfig, ranks: Ranks) -> None:
    """Errors: UsageError where this rank was told something else than rank 0, but for the processes that help it."""
    own = configuration.plain(config)
    if found := first_difference(ranks.broadcast(own), own, ("training.workers",)):
        key, first, here = found
        raise UsageError(f"{key} is {here!r} here and {first!r} at rank 0: start every process with the same command")


def _check_attention(settings: PretrainTraining) -> None:
    target = runtime.device()
    precision = runtime.resolve_precision(settings.precision, target)
    if settings.attention == "varlen" and (target.type, precision) != ("cuda", "bf16"):
        raise UsageError(
            f"training.attention is varlen, which needs a GPU and training.precision bf16; here it is {precision} on "
            f"{target.type}: set training.attention to automatic"
        )
    if settings.attention in ("grouped", "looped") and target.type != "cpu":
        raise UsageError(
            f"training.attention is {settings.attention}, which is for a CPU, and not for {target.type}: set it to automatic"
        )


def _size(config: PretrainConfig, start: Checkpoint | None, out: Path, ranks: Ranks) -> BertConfig:
    """The model's numbers: the recipe's, or those of the checkpoint that it starts from, but for dropout."""
    if not config.init_from:
        return config.model
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    size = start.config if start else config.model
    if ranks.first and start is None:  # the run knows; its start need no longer be there
        size = configuration.build(BertConfig, configuration.read(out / "config.toml")["model"], "model")
    size = replace(size, **{name: getattr(config.model, name) for name in names})
    return configuration.build(BertConfig, ranks.broadcast(configuration.plain(size)), "model")


def _last_eval(run: RunFolder) -> dict[str, Any]:
    records = read_metrics(run.path, "eval")
    if not records:
        raise UserError(f"{run.path / 'metrics.jsonl'} is damaged: it holds no evaluation")
    return records[-1]
