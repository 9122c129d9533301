"""Fine-tuning: examples → sequences → encoder and one added layer → a run folder, or a model in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertie import config as configuration
from bertie import console, runtime, storage, streams
from bertie.batches.collate import collate
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import Checkpoint, load_weights, read_checkpoint
from bertie.contracts import MicroBatch, Sequence
from bertie.errors import UsageError, UserError, require_range
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.model.transformer import Encoder, initialise
from bertie.tasks import AnyTask, Task
from bertie.tasks.assessment.folder import evaluation_folder
from bertie.tasks.assessment.folder import write as write_evaluation
from bertie.tasks.contract import Calibrated
from bertie.tasks.data.rows import kept
from bertie.tasks.inference import outputs, reading
from bertie.text.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.loop import Descent, evaluate
from bertie.training.optimizers import Optimizer
from bertie.training.page import DEV
from bertie.training.run import RunFolder
from bertie.training.schedules import Schedule

Examples = str | Path | Iterable[Any]


@dataclass(frozen=True)
class FinetuneTraining:
    epochs: int = 3
    """Passes over the training examples."""
    steps: int = 0
    """Optimizer steps in all; 0: as many as the epochs take."""
    batch_size: int = 32
    """Examples a step."""
    learning_rate: float = 5e-5
    """The highest the schedule reaches."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    row_tokens: int = 8192
    """Most tokens of one forward pass; larger batches are split."""
    precision: runtime.Precision = "auto"
    """auto: bf16 where it is in hardware and faster."""
    eval_every: int = 0
    """Steps between evaluations of the dev loss; 0: only at the end."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: int = 1

    def __post_init__(self) -> None:
        require_range("training", self, "epochs", "batch_size", "row_tokens", "keep_checkpoints", low=1)
        require_range("training", self, "steps", "learning_rate", "eval_every", "checkpoint_every", low=0)
        require_range("training", self, "clip", low=0, above=True)


@dataclass(frozen=True)
class FinetuneConfig:
    task: AnyTask
    optimizer: Optimizer
    schedule: Schedule
    training: FinetuneTraining
    seed: int = 0
    max_length: int = 128
    """Tokens in the longest sequence; longer examples are cut."""
    max_train_examples: int = 0
    """Use a random part of this many training examples (the same for every seed); 0: all."""
    strict: bool = False
    """Refuse files with rows that cannot be read, rather than skip and count those."""
    from_scratch: bool = False
    """Take the checkpoint's size and vocabulary but new weights: the baseline that pre-training has to beat."""
    hidden_dropout_prob: float = 0.1
    """Dropout of the hidden layers and before the added layer, whatever pre-training used."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout of the attention weights, whatever pre-training used."""

    def __post_init__(self) -> None:
        require_range("", self, "seed", "max_train_examples", low=0)
        require_range("", self, "hidden_dropout_prob", "attention_probs_dropout_prob", low=0, high=0.99)


@dataclass(frozen=True, eq=False)
class Finetuned:
    """What fine-tuning made. scores: on the dev examples, fp32; losses: of this call's steps; run: the folder, if any."""

    model: BertModel
    task: Task
    tokenizer: Tokenizer
    scores: dict[str, float]
    losses: list[float]
    run: Path | None


def finetune(
    config: FinetuneConfig | str,
    train: Examples,
    dev: Examples,
    model: str | Path | Checkpoint,
    out: str | Path | None = None,
    *,
    threads: int = 0,
) -> Finetuned:
    """Fine-tune a checkpoint on labelled examples and score the result on others.

    config: a FinetuneConfig, a TOML file or the kind of a task. train, dev: files, or Python values such as
    {"text": …, "text_pair": …, "label": …}, in the forms that the task's reader knows.
    out: the run folder; None keeps everything in memory. A run that was killed resumes when called again; a finished
    one is left alone. Errors: UsageError, UserError.
    """
    if isinstance(config, str):
        config = configuration.load(FinetuneConfig, config, "finetune")
    threads = trainer.run_threads(Path(out), threads) if out else runtime.use_threads(threads)
    checkpoint = model if isinstance(model, Checkpoint) else read_checkpoint(model)
    data = _read(config, train, dev, checkpoint)
    with RunFolder(Path(out), configuration.plain(config), threads) if out else nullcontext() as run:
        return _finetune(config, data, checkpoint, run)


def _finetune(config: FinetuneConfig, data: _Data, checkpoint: Checkpoint, run: RunFolder | None) -> Finetuned:
    if run is not None and run.finished:
        run.require_data(data.fingerprint)
        console.say(f"{run.path} is finished: nothing to do")
        bert, made = _model(config, data.task, checkpoint.config).to(runtime.device()), read_checkpoint(run.path)
        load_weights(bert, made)
        task = configuration.build(AnyTask, {k: v for k, v in made.task.items() if k != "max_length"}, "task")
        return Finetuned(bert, task, checkpoint.tokenizer, run.scores(), [], run.path)
    bert, started = _started_model(config, data.task, checkpoint)
    if run is not None:
        console.say(started)
    asked = config.training.precision
    precision = run.precision(asked) if run else runtime.resolve_precision(asked, bert.device)
    losses: list[float] = []
    job = _job(config, data, bert, checkpoint.tokenizer, precision, lambda record: losses.append(record["loss"]))
    trainer.train(job, run)
    task, predictions = _calibrated(config, data, bert)
    scores = task.score(predictions, data.dev)
    if run is not None:
        told = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        run.write_scores(scores)
        with evaluation_folder(run.path / DEV) as folder:
            title, result = (
                f"{run.path.absolute().name} on its dev examples",
                {"scores": scores, "examples": len(data.dev)},
            )
            write_evaluation(folder, title, task, predictions, data.dev, result)
        job = replace(job, task=_purpose(config, task))
        trainer.finish(job, run, f"Fine-tuned from {checkpoint.folder.name}. On {len(data.dev)} dev examples: {told}.")
    return Finetuned(bert, task, checkpoint.tokenizer, scores, losses, run.path if run else None)


def _calibrated(config: FinetuneConfig, data: _Data, bert: BertModel) -> tuple[Task, list[Any]]:
    """The task with what it found out on the dev examples, and its predictions of them."""
    task, said = data.task, outputs(bert, data.task, data.dev_sequences)
    predictions = task.decode(said, data.dev_sequences, data.dev)
    if isinstance(task, Calibrated):
        task = task.calibrate(predictions, data.dev)
        predictions = task.decode(said, data.dev_sequences, data.dev)
    labels = {getattr(prediction, "label", i) for i, prediction in enumerate(predictions)}
    if len(labels) == 1 < len({example.label for example in data.dev}):
        console.warn(
            f"every dev example is taken for {min(labels)!r}: nothing was learned; try another "
            f"--training.learning-rate (now {config.training.learning_rate:g}; small models want 3e-4 or more) or more epochs"
        )
    return task, predictions


def _purpose(config: FinetuneConfig, task: Task) -> dict[str, Any]:
    """What task.json says."""
    return {**configuration.plain(task), "max_length": config.max_length}


@dataclass(frozen=True, eq=False)
class _Data:
    task: Task
    dev: list[Any]
    train_sequences: list[Sequence]
    dev_sequences: list[Sequence]
    start: Path

    @cached_property
    def fingerprint(self) -> str:
        """Of all that training starts from: the examples as the model reads them, and the model's weights."""
        head = [storage.sha256(self.start / "model.safetensors"), len(self.train_sequences), self.task.labels]
        digest = hashlib.sha256(repr(head).encode())
        for sequence in [*self.train_sequences, *self.dev_sequences]:
            digest.update(f"{len(sequence)} ".encode() + _bytes(sequence.target) + sequence.input_ids.tobytes())
        return digest.hexdigest()


def _bytes(target: Any) -> bytes:
    if isinstance(target, tuple):
        return b" ".join(map(_bytes, target))
    return target.tobytes() if isinstance(target, np.ndarray) else repr(target).encode()


def _read(config: FinetuneConfig, train: Examples, dev: Examples, checkpoint: Checkpoint) -> _Data:
    most = checkpoint.config.max_position_embeddings
    if not 4 <= config.max_length <= most:
        raise UsageError(f"max_length is {config.max_length}: the model reads 4 to {most} tokens")
    train_examples, dev_examples = _examples(train, config), _examples(dev, config)
    if 0 < config.max_train_examples < len(train_examples):
        chosen = streams.generator(0, streams.SUBSET).permutation(len(train_examples))[: config.max_train_examples]
        train_examples = [train_examples[i] for i in sorted(chosen)]
    task = config.task.fit(train_examples)
    task.check(dev_examples)
    encoded = [task.encode(part, checkpoint.tokenizer, config.max_length) for part in (train_examples, dev_examples)]
    alone = [getattr(part[0], "text_pair", None) is None for part in (train_examples, dev_examples)]
    if alone[0] != alone[1]:
        raise UserError(f"one text in some, two in others: {train_examples[0].source}, {dev_examples[0].source}")
    learned = task.training(encoded[0])
    for name, examples, sequences in zip(("training", "dev"), (train_examples, dev_examples), encoded, strict=True):
        if short := len({sequence.example for sequence in sequences if sequence.lost}):
            console.warn(
                f"{short:,} of {len(examples):,} {name} examples are cut to fit into {config.max_length} tokens"
            )
    if left_out := len(train_examples) - len({sequence.example for sequence in learned}):
        console.warn(
            f"{left_out:,} of {len(train_examples):,} training examples are left out: their answer is not in them"
        )
    if not learned:
        raise UserError("there is nothing to train on")
    return _Data(task, dev_examples, learned, encoded[1], start=checkpoint.folder)


def _examples(source: Examples, config: FinetuneConfig) -> list[Any]:
    reader = config.task.reader
    if isinstance(source, str | Path):
        return kept(reader.read(Path(source)), str(source), config.strict)
    return kept(reader.values(source), "the examples")


def _model(config: FinetuneConfig, task: Task, size: BertConfig) -> BertModel:
    """New weights, a pure function of the seed: of everything from scratch, else of the added layer."""
    dropout = {name: getattr(config, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    size = replace(size, **dropout)
    model = BertModel(Encoder(size), {task.kind: task.head(size)})
    runtime.reseed_torch(config.seed, streams.WEIGHTS)
    initialise(model.heads, size.initializer_range)
    if config.from_scratch:  # else it is loaded
        initialise(model.encoder, size.initializer_range)
    return model


def _started_model(config: FinetuneConfig, task: Task, checkpoint: Checkpoint) -> tuple[BertModel, str]:
    """The model to train, on its device, and a line that says what it starts from."""
    model = _model(config, task, checkpoint.config)
    if config.from_scratch:
        return model.to(runtime.device()), f"new weights in the size of {checkpoint.folder}"
    loaded = load_weights(model, checkpoint.without_heads())
    dropped = f"; its {' and '.join(sorted(checkpoint.heads))} head is dropped" if checkpoint.heads else ""
    new = ", ".join(loaded.fresh)
    return model.to(runtime.device()), f"starting from {checkpoint.folder}{dropped}; new: {new}"


def _job(
    config: FinetuneConfig,
    data: _Data,
    model: BertModel,
    tokenizer: Tokenizer,
    precision: Literal["fp32", "bf16"],
    on_step: Callable[[dict[str, Any]], None],
) -> trainer.Job:
    settings, task = config.training, data.task
    units = _units(task, data.train_sequences)
    per_epoch = -(-len(units) // settings.batch_size)
    steps = settings.steps or settings.epochs * per_epoch
    room = max(1, settings.row_tokens // config.max_length)

    def stream(_: int, position: Position) -> Generator[Step]:
        while True:
            order = streams.generator(config.seed, streams.EXAMPLES, position.epoch).permutation(len(units))
            for step in range(position.step, per_epoch):
                chosen = [units[i] for i in order[step * settings.batch_size : (step + 1) * settings.batch_size]]
                last = step + 1 == per_epoch
                after = Position(position.epoch + 1, 0) if last else Position(position.epoch, step + 1)
                yield Step(_split(task, chosen, config.max_length, room), Position(position.epoch, step), after)
            position = Position(position.epoch + 1, 0)

    dev = _units(task, task.training(data.dev_sequences))
    steps_of_dev = [dev[i : i + settings.batch_size] for i in range(0, len(dev), settings.batch_size)]
    held = [micro for chosen in steps_of_dev for micro in _split(task, chosen, config.max_length, room)]
    return trainer.Job(
        title="finetune",
        model=model,
        tokenizer=tokenizer,
        task=_purpose(config, task),
        optimizer=config.optimizer.build(model),
        schedule=config.schedule,
        descent=Descent(steps, settings.learning_rate, settings.clip, config.seed, precision, {task.kind: 1.0}),
        stream=stream,
        evaluate=lambda _, stopping: evaluate(model, held, precision, stopping=stopping),
        held=lambda _: 0,
        eval_every=settings.eval_every,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        data=data.fingerprint,
        on_step=on_step,
    )


def _units(task: Task, sequences: list[Sequence]) -> list[list[Sequence]]:
    """What is shuffled and counted: sequences, or all of an example together."""
    if task.unit == "sequence":
        return [[sequence] for sequence in sequences]
    grouped: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        grouped.setdefault(sequence.example, []).append(sequence)
    return list(grouped.values())


def _split(task: Task, units: list[list[Sequence]], max_length: int, room: int) -> list[MicroBatch]:
    """A step's forward passes, of at most `room` sequences each where the units allow it."""
    together: list[list[Sequence]] = [[]]
    for unit in units:
        if together[-1] and len(together[-1]) + len(unit) > room and task.unit != "batch":
            together.append([])
        together[-1] += unit
    return [_micro_batch(task, sequences, max_length) for sequences in together]


def _micro_batch(task: Task, sequences: list[Sequence], max_length: int) -> MicroBatch:
    batch = collate(sequences, max_length)
    index, _ = reading(task, sequences)
    return MicroBatch.of(batch, {task.kind: task.targets(batch, sequences, index)})
