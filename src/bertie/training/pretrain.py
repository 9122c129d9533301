"""Pre-training: shards → rows → corrupted rows → encoder → heads → a run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bertie import config as configuration
from bertie import console, runtime, storage
from bertie.batches.layouts import Layout
from bertie.batches.loader import Position
from bertie.checkpoints.folder import MANIFEST, Checkpoint
from bertie.checkpoints.state import has_state
from bertie.contracts import Loss, MicroBatch
from bertie.errors import UsageError, UserError, require_range
from bertie.model.config import BertConfig
from bertie.objectives import Objective
from bertie.text.shards import Shards, open_shards
from bertie.text.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.distributed import Ranks, together
from bertie.training.feed import Feed, held_out
from bertie.training.initial import begin_from, keep_optimizer, new_model, read_start
from bertie.training.loop import Descent, evaluate
from bertie.training.memory import rows_that_fit
from bertie.training.optimizers import Optimizer
from bertie.training.phases import Leg, Phase, leg_of, legs
from bertie.training.run import RunFolder, read_metrics
from bertie.training.schedules import Schedule


@dataclass(frozen=True)
class Training:
    steps: int
    """Optimizer steps in all."""
    batch_size: int
    """Sequences of full length whose tokens make up one step."""
    learning_rate: float
    """The highest the schedule reaches."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    row_tokens: int = 4096
    """Tokens of a row; a step is as many rows as its batch needs, and ranks and forward passes share them out."""
    micro_batch: int = 0
    """Rows of one forward pass; 0: on a GPU as many as its memory has room for, elsewhere 1."""
    precision: runtime.Precision = "auto"
    """auto: bf16 where it is in hardware and faster."""
    eval_every: int = 500
    """Steps between evaluations on held-out documents; 0: only at the end."""
    eval_tokens: int = 131072
    """Most tokens of held-out text to evaluate on."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    checkpoint_minutes: float = 0.0
    """Minutes after which a checkpoint is written even so; 0: by steps alone."""
    keep_checkpoints: int = 2
    """The newest, beside the best one (by the evaluation before it)."""
    bad_steps: int = 10
    """Steps in a row without a finite loss and gradient (each is skipped) after which the run stops."""
    workers: int = 0
    """Processes that prepare steps ahead; 0: none."""

    def __post_init__(self) -> None:
        require_range("training", self, "steps", "batch_size", "row_tokens", "eval_tokens", "keep_checkpoints", low=1)
        require_range("training", self, "learning_rate", "eval_every", "checkpoint_every", "checkpoint_minutes", low=0)
        require_range("training", self, "micro_batch", low=0)
        require_range("training", self, "workers", low=0, high=64)
        require_range("training", self, "bad_steps", low=1)
        require_range("training", self, "clip", low=0, above=True)


@dataclass(frozen=True)
class PretrainConfig:
    model: BertConfig
    layout: Layout
    objectives: tuple[Objective, ...]
    optimizer: Optimizer
    schedule: Schedule
    training: Training
    phases: tuple[Phase, ...] = ()
    """Parts of the run with other lengths and batches; none: the layout's and training's throughout."""
    seed: int = 0
    init_from: str = ""
    """A run, checkpoint folder or hub id whose weights, in whose size, training goes on from; none: new weights."""
    init_optimizer: Literal["fresh", "kept"] = "fresh"
    """kept: with the state of that checkpoint's optimizer too."""

    def __post_init__(self) -> None:
        require_range("", self, "seed", low=0)

    @property
    def way(self) -> list[Leg]:
        """The phases, worked out. Errors: UsageError."""
        settings = self.training
        return legs(self.phases, self.layout, settings.batch_size, settings.row_tokens, settings.steps)


def pretrain(config: PretrainConfig | str, data: str | Path, out: str | Path, *, threads: int = 0) -> dict[str, Any]:
    """Pre-train on shards into the run folder `out`; called again, it resumes, and a finished run is left alone.

    config: a PretrainConfig, a TOML file or the name of a shipped one. threads: 0 = those of the run, or all there are.
    Several processes that torchrun started share the work; rank 0 writes. Returns {"run", "finished_before",
    "parameters", "eval": the last evaluation's record}, and {} on the other ranks. Errors: UsageError, UserError.
    """
    if isinstance(config, str):
        config = configuration.load(PretrainConfig, config, "pretrain")
    with together() as ranks:
        return _pretrain(config, Path(data), Path(out), threads, ranks)


def _pretrain(config: PretrainConfig, data: Path, out: Path, threads: int, ranks: Ranks) -> dict[str, Any]:
    threads = runtime.use_threads(ranks.share(trainer.run_threads(out, threads)))
    shards = open_shards(data)
    begun = ranks.share(has_state(out) or (out / MANIFEST).is_file())
    start = read_start(config.init_from, shards.tokenizer) if config.init_from and ranks.first and not begun else None
    config = replace(config, model=_size(config, start, out, ranks))
    config = replace(config, model=_fitting(config, shards.tokenizer))
    held = [
        held_out(config.objectives, leg.layout, shards.eval, shards.tokenizer, config.training.eval_tokens)
        for leg in config.way
    ]
    if not (out / "config.toml").is_file():
        for leg in config.way:  # a corpus that is too small is refused before the folder is made
            next(leg.loader(shards, config.seed).steps(Position()))
    feed = Feed(config.way, shards, config.objectives, config.seed, 1, config.training.workers, ranks)
    _require_same(shards, ranks)
    with RunFolder(out, configuration.plain(config), threads) if ranks.first else nullcontext() as run:
        if ranks.share(run is not None and run.finished):
            return _left_alone(out, shards, run)
        job = _job(config, feed, held, start, run, out)
        console.say(_opening(config, shards, job, threads))
        trainer.train(job, run)
        if run is None:
            return {}
        entropy = shards.eval.unigram_entropy
        lines = {f"entropy of words {entropy:.2f}": entropy} if config.objectives[0].kind == "mlm" else {}
        trainer.finish(job, run, _about(config, shards, _last_eval(run)), lines)
        return {"run": str(out), "finished_before": False, "parameters": job.model.size, "eval": _last_eval(run)}


def _size(config: PretrainConfig, start: Checkpoint | None, out: Path, ranks: Ranks) -> BertConfig:
    """The model's numbers: the recipe's, or those of the checkpoint that it starts from, but for dropout."""
    if not config.init_from:
        return config.model
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    size = start.config if start else config.model
    if ranks.first and start is None:  # the run knows; its start need no longer be there
        size = configuration.build(BertConfig, configuration.read(out / "config.toml")["model"], "model")
    size = replace(size, **{name: getattr(config.model, name) for name in names})
    return configuration.build(BertConfig, ranks.share(configuration.plain(size)), "model")


def _left_alone(out: Path, shards: Shards, run: RunFolder | None) -> dict[str, Any]:
    if run is None:
        return {}
    run.require_data(_fingerprint(shards))
    console.say(f"{out} is finished: nothing to do")
    return {"run": str(out), "finished_before": True, "eval": _last_eval(run)}


def _require_same(shards: Shards, ranks: Ranks) -> None:
    """Errors: UsageError where this rank was given other shards than the first."""
    if ranks.share(_fingerprint(shards)) != _fingerprint(shards):
        raise UsageError(f"{shards.folder}: other shards than those of rank 0; give every machine the same")


def _job(
    config: PretrainConfig,
    feed: Feed,
    held: list[list[MicroBatch]],
    start: Checkpoint | None,
    run: RunFolder | None,
    out: Path,
) -> trainer.Job:
    settings, shards, ranks = config.training, feed.shards, feed.ranks
    precision: Literal["fp32", "bf16"] = ranks.share(run.precision(settings.precision) if run else "fp32")
    model = new_model(config.model, config.objectives, config.seed)
    if start is not None:
        console.say(begin_from(start, model))
    elif run is not None and not has_state(run.path):
        for objective in config.objectives:
            objective.start(model.heads[objective.kind], shards.train)
    model.to(runtime.device())
    optimizer = config.optimizer.build(model)
    if start is not None and config.init_optimizer == "kept":
        console.say(keep_optimizer(start, model, optimizer, config.optimizer.kind))
    asked = settings.micro_batch
    rows = run.once("micro_batch", lambda: asked or rows_that_fit(model, feed, precision)) if run else 0
    feed = replace(feed, micro_batch=ranks.share(rows))

    def evaluation(step: int, stopping: Callable[[], bool]) -> dict[str, Loss] | None:
        return evaluate(model, held[leg_of(feed.way, step)], precision, ranks, stopping)

    weights = {objective.kind: objective.weight for objective in config.objectives}
    return trainer.Job(
        title="pretrain",
        model=model,
        tokenizer=shards.tokenizer,
        labels=(),
        optimizer=optimizer,
        schedule=config.schedule,
        descent=Descent(settings.steps, settings.learning_rate, settings.clip, config.seed, precision, weights),
        stream=feed.steps,
        evaluate=evaluation,
        eval_every=settings.eval_every,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        data=_fingerprint(shards),
        checkpoint_minutes=settings.checkpoint_minutes,
        bad_steps=settings.bad_steps,
        out=out,
        ranks=ranks,
    )


def _fingerprint(shards: Shards) -> str:
    return storage.sha256(shards.folder / "manifest.json")


def _fitting(config: PretrainConfig, tokenizer: Tokenizer) -> BertConfig:
    """The model's configuration with the tokenizer's vocabulary. Errors: UsageError where they contradict."""
    model = config.model
    if model.vocab_size not in (0, tokenizer.size):
        raise UsageError(
            f"model.vocab_size is {model.vocab_size} and the shards' vocabulary has {tokenizer.size} entries: "
            "leave it out, or prepare the text with that vocabulary"
        )
    longest = max(leg.layout.max_length for leg in config.way)
    if longest > model.max_position_embeddings:
        where = "layout.max_length" if longest == config.layout.max_length else "phases: max_length"
        raise UsageError(
            f"{where} {longest} is more than model.max_position_embeddings {model.max_position_embeddings}"
        )
    if model.type_vocab_size < 2:
        raise UsageError(f"model.type_vocab_size is {model.type_vocab_size}: pairs of texts need 2")
    kinds = [objective.kind for objective in config.objectives]
    if not kinds or len(set(kinds)) < len(kinds):
        raise UsageError(f"objectives is {kinds}: give one or more, each of another kind")
    return replace(model, vocab_size=tokenizer.size)


def _opening(config: PretrainConfig, shards: Shards, job: trainer.Job, threads: int) -> str:
    tokens = int(shards.train.document_starts[-1])
    starts = [0, *(leg.until for leg in config.way)]
    steps = ", then ".join(
        f"{leg.until - start:,} steps of {leg.batch_size} × {leg.layout.max_length} tokens"
        for start, leg in zip(starts, config.way, strict=False)
    )
    return (
        f"{job.model.size:,} parameters, {tokens:,} training tokens, {steps}; {job.descent.precision}, {threads} threads, "
        f"{runtime.device()}; unigram entropy of the training text {shards.train.unigram_entropy:.2f} nats"
    )


def _last_eval(run: RunFolder) -> dict[str, Any]:
    records = read_metrics(run.path, "eval")
    if not records:
        raise UserError(f"{run.path / 'metrics.jsonl'} is damaged: it holds no evaluation")
    return records[-1]


def _about(config: PretrainConfig, shards: Shards, last: dict[str, Any]) -> str:
    scores = ", ".join(f"{name} {last[name]:.4g}" for name in last if name.endswith(("_loss", "_accuracy")))
    return (
        f"Pre-trained for {config.training.steps:,} steps ({last['tokens']:,} tokens). On held-out documents: {scores} "
        f"(unigram entropy {shards.eval.unigram_entropy:.4g} nats)."
    )
