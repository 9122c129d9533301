"""One fine-tuning: encoder and one added layer, trained on the sequences of the examples, and what it then predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from bertie import console, runtime, seeding
from bertie.batches.collate import collate, filler
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import Checkpoint, load_weights
from bertie.contracts import MicroBatch, Sequence
from bertie.errors import DivergedError, UsageError, UserError
from bertie.finetuning.data import TaskData
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.model.transformer import Encoder, initialize_weights
from bertie.tasks import Task
from bertie.tasks.inference import gather_hidden_states, head_index, outputs
from bertie.tasks.task import Calibratable
from bertie.tasks.task_json import features_from_json, to_task_json
from bertie.text.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.loop import LoopSettings, evaluate
from bertie.training.run_folder import RunFolder


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """predictions: of the dev examples; losses: of this call's steps; job: what was trained, with the task as it is now;
    seconds: of training, with those before it was stopped."""

    task: Task
    predictions: list[Any]
    losses: list[float]
    job: trainer.TrainingJob
    seconds: float

    @property
    def model(self) -> BertModel:
        return self.job.model


def train_run(
    config: FinetuneConfig,
    data: TaskData,
    checkpoint: Checkpoint,
    run: RunFolder | None,
    calibrate_on: np.ndarray,
    last_checkpoint: bool = True,
) -> TrainedRun:
    """Train, from the run's newest checkpoint if it has one. calibrate_on: int64, the dev examples to find things out on: when
    to stop, and what `calibrate` asks."""
    model, started = initialized_model(config, data.task, checkpoint, data.encoder)
    if run is not None:
        console.info(started)
    asked = config.training.precision
    precision = run.precision(asked) if run else runtime.resolve_precision(asked, model.device)
    losses: list[float] = []
    passes = _Passes(config, data.task, checkpoint.tokenizer.pad_id, _lengths(precision, model.device))
    held = _HeldOut(passes, data, set(calibrate_on.tolist()))
    if config.training.patience and not held.known():
        raise UserError(
            "training.patience: nothing is known of what is right of the dev examples, so there is no loss to watch"
        )
    job = _job(config, data, model, checkpoint.tokenizer, precision, held, lambda record: losses.append(record["loss"]))
    job = replace(job, final_checkpoint=last_checkpoint)
    ended = trainer.train(job, run)
    task, said = data.task, outputs(model, data.task, data.dev_sequences)
    if not all(np.isfinite(each).all() for each in said):
        raise DivergedError(f"what is said of the dev examples is no number: {trainer.divergence_hint(job)}")
    predictions = task.decode(said, data.dev_sequences, data.dev)
    if isinstance(task, Calibratable):
        task = task.calibrate([predictions[i] for i in calibrate_on], [data.dev[i] for i in calibrate_on])
        predictions = task.decode(said, data.dev_sequences, data.dev)
    return TrainedRun(task, predictions, losses, replace(job, task=_purpose(config, task)), ended.seconds)


def build_model(config: FinetuneConfig, task: Task, size: BertConfig, encoder: Encoder | None = None) -> BertModel:
    """New weights, a pure function of the seed: of everything from scratch, else of the added layer. encoder: one to share."""
    dropout = {name: getattr(config, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    size = replace(size, **dropout)
    reading = features_from_json(_purpose(config, task), size, "the configuration")
    width = reading.width if reading else size.hidden_size
    head = task.head(size, width)
    model = BertModel(encoder or Encoder(size), {task.kind: head}, reading)
    runtime.reseed_torch(config.seed, seeding.WEIGHTS)
    # BERT-base's spread, carried to other widths: where the first logits are closer, a short training learns later (LOG.md).
    initialize_weights(model.heads, size.initializer_range * math.sqrt(768 / width), cut=math.inf)
    if reading is not None and reading.lstm is not None:
        reading.lstm.reset_parameters()  # its usual start: uniform within 1 / √size
    if config.from_scratch:  # else it is loaded
        initialize_weights(model.encoder, size.initializer_range)
    return model


def require_layers(config: FinetuneConfig, task: Task, size: BertConfig) -> None:
    """Errors: UsageError where the model has fewer layers than the configuration speaks of."""
    fresh, there = config.training.reinit_layers, size.num_hidden_layers
    if fresh > there:
        raise UsageError(f"training.reinit_layers is {fresh}, and the model has {there} layers")
    features_from_json(_purpose(config, task), size, "the configuration")


def _purpose(config: FinetuneConfig, task: Task) -> dict[str, Any]:
    """What task.json says."""
    return to_task_json(task, config.max_length, config.layers, config.lstm_hidden_size)


def initialized_model(
    config: FinetuneConfig, task: Task, checkpoint: Checkpoint, encoder: Encoder | None = None
) -> tuple[BertModel, str]:
    """The model to train, on its device, and a line that says what it starts from. encoder: the checkpoint's, frozen, which
    is not built again."""
    model, fresh = build_model(config, task, checkpoint.config, encoder), config.training.reinit_layers
    layers = model.encoder.layers
    model.encoder.requires_grad_(not config.frozen)
    if config.from_scratch:
        return model.to(runtime.device()), f"new weights in the size of {checkpoint.folder}"
    loaded = load_weights(model, checkpoint.without_heads())
    runtime.reseed_torch(config.seed, seeding.WEIGHTS, 1)
    above = [head.pooler for head in model.heads.values() if isinstance(head, PooledHead) and fresh]
    initialize_weights(nn.ModuleList([*layers[len(layers) - fresh :], *above]), checkpoint.config.initializer_range)
    dropped = f"; its {' and '.join(sorted(checkpoint.heads))} head is dropped" if checkpoint.heads else ""
    new = [*loaded.initialized]
    if fresh:
        new += [f"the upper {console.plural(fresh, 'layer')}", *["the pooler" for _ in above]]
    made = f"; new: {', '.join(new)}" if new else ""
    return model.to(runtime.device()), f"starting from {checkpoint.folder}{dropped}{made}"


def _job(
    config: FinetuneConfig,
    data: TaskData,
    model: BertModel,
    tokenizer: Tokenizer,
    precision: Literal["fp32", "bf16"],
    held: _HeldOut,
    on_step: Callable[[dict[str, Any]], None],
) -> trainer.TrainingJob:
    settings, task = config.training, data.task
    units = _units(task, data.train_sequences)
    alone = task.unit == "batch" and len(units) % settings.batch_size == 1  # tells nothing; in each epoch another one
    per_epoch = -(-(len(units) - alone) // settings.batch_size)
    steps = settings.steps or settings.epochs * per_epoch

    def stream(_: int, position: Position) -> Generator[Step]:
        while True:
            order = seeding.generator(config.seed, seeding.EXAMPLES, position.epoch).permutation(len(units))
            for step in range(position.step, per_epoch):
                chosen = [units[i] for i in order[step * settings.batch_size : (step + 1) * settings.batch_size]]
                last = step + 1 == per_epoch
                after = Position(position.epoch + 1, 0) if last else Position(position.epoch, step + 1)
                yield Step(held.passes.of(chosen), Position(position.epoch, step), after)
            position = Position(position.epoch + 1, 0)

    return trainer.TrainingJob(
        title="finetune",
        model=model,
        tokenizer=tokenizer,
        task=_purpose(config, task),
        optimizer=config.optimizer.build(model, settings.layer_decay),
        schedule=config.schedule,
        settings=LoopSettings(
            steps, settings.learning_rate, settings.max_grad_norm, config.seed, precision, {task.kind: 1.0}
        ),
        stream=stream,
        evaluate=lambda _, stopping: evaluate(model, held, precision, stopping=stopping),
        eval_set=lambda _: 0,
        eval_every=settings.eval_every,
        patience=settings.patience,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        data_fingerprint=data.fingerprint,
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


def _lengths(precision: Literal["fp32", "bf16"], device: torch.device) -> int:
    """What the tokens of a pass are filled up to a multiple of.

    On a CPU, oneDNN compiles bf16 products for every new shape, on processors with AMX 10 ms each: with as many tokens as
    there happen to be, a step of a small BERT spent a fifth of its time on that, and its memory grew (LOG.md).
    """
    return 64 if precision == "bf16" and device.type == "cpu" else 1


@dataclass(frozen=True, eq=False)
class _Passes:
    """A step's sequences as micro-batches, each a multiple of `multiple` tokens, and of rows that the head reads."""

    config: FinetuneConfig
    task: Task
    pad_id: int
    multiple: int

    def of(self, units: list[list[Sequence]]) -> list[MicroBatch]:
        return [self.one(part) for part in self.parts(units)]

    def parts(self, units: list[list[Sequence]]) -> list[list[Sequence]]:
        """Of no more tokens than a forward pass may have, where the units allow it."""
        room = max(1, self.config.training.row_tokens // self.config.max_length)
        together: list[list[Sequence]] = [[]]
        for unit in units:
            if together[-1] and len(together[-1]) + len(unit) > room and self.task.unit != "batch":
                together.append([])
            together[-1] += unit
        return together

    def one(self, sequences: list[Sequence]) -> MicroBatch:
        states, limit = gather_hidden_states(sequences), self.config.max_length
        multiple = self.multiple if states is None else 1  # what is known is not computed
        gap = -sum(map(len, sequences)) % multiple
        batch = collate(sequences + filler(gap, self.pad_id, limit), limit)
        index, _ = head_index(self.task, sequences)
        micro = MicroBatch.of(batch, {self.task.kind: self.task.targets(batch, sequences, index)}, multiple)
        return replace(micro, hidden_states=states)


class _HeldOut:
    """Dev examples, in the micro-batches that their loss is of: each is made when it is asked for, since of a frozen encoder
    it holds states."""

    def __init__(self, passes: _Passes, data: TaskData, examples: set[int]):
        self.passes = passes
        chosen = [sequence for sequence in data.dev_sequences if sequence.example in examples]
        units, size = _units(data.task, data.task.training_sequences(chosen)), passes.config.training.batch_size
        steps = [units[i : i + size] for i in range(0, len(units), size)]
        if data.task.unit == "batch" and len(steps) > 1 and len(steps[-1]) == 1:
            steps[-2:] = [steps[-2] + steps[-1]]  # alone, it would be its own only choice
        self.parts = [part for step in steps for part in passes.parts(step)]

    def __len__(self) -> int:
        return len(self.parts)

    def known(self) -> bool:
        """Whether there is a target."""
        return any(
            float(target.weight.sum()) > 0 for i in range(len(self)) for target in self[i : i + 1][0].targets.values()
        )

    def __getitem__(self, index: slice) -> list[MicroBatch]:
        return [self.passes.one(part) for part in self.parts[index]]
