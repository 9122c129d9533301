"""Pre-training: shards → rows → corrupted rows → encoder → heads → a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie import config as configuration
from bertie import console, runtime, storage, streams
from bertie.batches.collate import collate
from bertie.batches.layouts import Layout, PairsEpoch
from bertie.batches.loader import Position, Step
from bertie.checkpoints.state import has_state
from bertie.contracts import Batch, MicroBatch, Sequence, Targets
from bertie.errors import UsageError, UserError, require_range
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.model.transformer import Encoder, initialise
from bertie.objectives import Objective
from bertie.text.shards import Corpus, Shards, open_shards
from bertie.text.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.loop import Descent, evaluate
from bertie.training.optimizers import Optimizer
from bertie.training.phases import Leg, Phase, leg_of, legs, walk
from bertie.training.run import RunFolder, read_metrics
from bertie.training.schedules import Schedule

EVAL_ROW = 4096  # tokens that are masked and read together when evaluating, whatever a row of training holds


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
    """Tokens of one forward pass; a step is as many of these rows as its batch needs."""
    precision: runtime.Precision = "auto"
    """auto: bf16 where it is in hardware and faster."""
    eval_every: int = 500
    """Steps between evaluations on held-out documents; 0: only at the end."""
    eval_tokens: int = 131072
    """Most tokens of held-out text to evaluate on."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        require_range("training", self, "steps", "batch_size", "row_tokens", "eval_tokens", "keep_checkpoints", low=1)
        require_range("training", self, "learning_rate", "eval_every", "checkpoint_every", low=0)
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
    Returns {"run", "finished_before", "parameters", "eval": the last evaluation's record}. Errors: UsageError, UserError.
    """
    if isinstance(config, str):
        config = configuration.load(PretrainConfig, config, "pretrain")
    threads = trainer.run_threads(Path(out), threads)
    shards = open_shards(Path(data))
    config = replace(config, model=_fitting(config, shards.tokenizer))
    held = [held_out(config, leg.layout, shards.eval, shards.tokenizer) for leg in config.way]
    if not (Path(out) / "config.toml").is_file():
        for leg in config.way:  # a corpus that is too small is refused before the folder is made
            next(leg.loader(shards, config.seed).steps(Position()))
    with RunFolder(Path(out), configuration.plain(config), threads) as run:
        if run.finished:
            run.require_data(_fingerprint(shards))
            console.say(f"{out} is finished: nothing to do")
            return {"run": str(out), "finished_before": True, "eval": _last_eval(run)}
        job = _job(config, shards, held, run)
        console.say(_opening(config, shards, job, threads))
        trainer.train(job, run)
        entropy = shards.eval.unigram_entropy
        lines = {f"entropy of words {entropy:.2f}": entropy} if config.objectives[0].kind == "mlm" else {}
        trainer.finish(job, run, _about(config, shards, _last_eval(run)), lines)
        return {"run": str(out), "finished_before": False, "parameters": job.model.size, "eval": _last_eval(run)}


def new_model(config: BertConfig, objectives: tuple[Objective, ...], seed: int) -> BertModel:
    """An encoder and the objectives' heads with BERT's initial weights, a pure function of the seed."""
    encoder = Encoder(config)
    model = BertModel(encoder, {objective.kind: objective.head(config, encoder) for objective in objectives})
    runtime.reseed_torch(seed, streams.WEIGHTS)
    initialise(model, config.initializer_range)
    return model


def label(batch: Batch, objectives: tuple[Objective, ...], tokenizer: Tokenizer, seed: int, *stream: int) -> MicroBatch:
    """Let every objective corrupt the batch and say what it wants predicted: a pure function of the seed and stream."""
    targets: dict[str, Targets] = {}
    for number, objective in enumerate(objectives):
        batch, targets[objective.kind] = objective.label(batch, tokenizer, streams.generator(seed, *stream, number))
    return MicroBatch.of(batch, targets)


def held_out(config: PretrainConfig, layout: Layout, corpus: Corpus, tokenizer: Tokenizer) -> list[MicroBatch]:
    """Held-out documents, laid out and masked once and for all: the same for every step, run, seed and resume.

    Errors: UserError where they are too short for a single sequence.
    """
    groups: list[list[Sequence]] = [[]]
    tokens = 0
    for sequence in _first(layout.epoch(corpus, tokenizer, 0, 0), config.training.eval_tokens):
        if groups[-1] and tokens + len(sequence) > EVAL_ROW:
            groups.append([])
            tokens = 0
        groups[-1].append(sequence)
        tokens += len(sequence)
    if not groups[0]:
        raise UserError("the held-out documents are all of a single token: prepare more text")
    batches = [collate(group, layout.max_length) for group in groups]
    return [label(batch, config.objectives, tokenizer, 0, streams.EVAL_LABELS, i) for i, batch in enumerate(batches)]


def _first(epoch: PairsEpoch, tokens: int) -> Iterator[Sequence]:
    """Sequences of an epoch, at least one, while they have no more than `tokens` together."""
    read = 0
    for window in range(epoch.windows):
        for span in epoch.window(window):
            if read and read + len(span) > tokens:
                return
            read += len(span)
            yield epoch.sequence(span)


def _job(config: PretrainConfig, shards: Shards, held: list[list[MicroBatch]], run: RunFolder) -> trainer.Job:
    settings, way = config.training, config.way
    precision = run.precision(settings.precision)
    model = new_model(config.model, config.objectives, config.seed)
    if not has_state(run.path):
        for objective in config.objectives:
            objective.start(model.heads[objective.kind], shards.train)
    model.to(runtime.device())

    def stream(first: int, position: Position) -> Iterator[Step[MicroBatch]]:
        for step in walk(way, shards, config.seed, first, position):
            at = (streams.LABELS, step.position.epoch, step.position.step)
            work = [
                label(batch, config.objectives, shards.tokenizer, config.seed, *at, row)
                for row, batch in enumerate(step.batches)
            ]
            yield Step(work, step.position, step.after)

    weights = {objective.kind: objective.weight for objective in config.objectives}
    return trainer.Job(
        title="pretrain",
        model=model,
        tokenizer=shards.tokenizer,
        labels=(),
        optimizer=config.optimizer.build(model),
        schedule=config.schedule,
        descent=Descent(settings.steps, settings.learning_rate, settings.clip, config.seed, precision, weights),
        stream=stream,
        evaluate=lambda step: evaluate(model, held[leg_of(way, step)], precision),
        eval_every=settings.eval_every,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        data=_fingerprint(shards),
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
