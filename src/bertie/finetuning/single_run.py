"""One fine-tuning run: train encoder and task head on the sequences of the examples, then predict the dev examples."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import numpy as np
from torch import nn

from bertie.base import console, runtime, seeding
from bertie.base.errors import DivergedError, UsageError, UserError
from bertie.batches.loader import Position, Step
from bertie.checkpoints.families import family_of
from bertie.checkpoints.hub import hub_id
from bertie.checkpoints.read import Checkpoint, load_weights
from bertie.finetuning import gpt
from bertie.finetuning.data import TaskData
from bertie.finetuning.micro_batches import DevBatches, MicroBatcher, epoch_of, token_multiple, turns
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.config import ClassifierPooling, TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig, build_encoder, spell_entries, with_dropout
from bertie.model.heads.heads import PooledHead
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.tasks import Task
from bertie.tasks.inference import outputs
from bertie.tasks.task import build_head
from bertie.tasks.task_json import features_from_json, to_task_json
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training import trainer
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.job import TrainingJob
from bertie.training.length import StepCount
from bertie.training.loop import LoopSettings, evaluate
from bertie.training.run_folder import RunFolder, run_precision
from bertie.training.sharing import gather


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The result of one run."""

    task: Task
    """The task, calibrated if a field of it is tuned."""
    predictions: list[Any]
    """Predictions for the dev examples."""
    losses: list[float]
    """Training losses of the steps of this call, without those before an interruption."""
    job: TrainingJob
    """The training job, with the trained model and the calibrated task."""
    steps: int
    """Steps that were trained, fewer than planned if training stopped early."""
    seconds: float
    """Duration of the training, including the time before an interruption."""


def train_run(
    config: FinetuneConfig,
    data: TaskData,
    checkpoint: Checkpoint,
    run: RunFolder | None,
    calibrate_on: np.ndarray,
    last_checkpoint: bool = True,
    ranks: Ranks = SINGLE_PROCESS,
) -> TrainedRun:
    """Train one model, or resume from the run's newest checkpoint.

    Args:
        config: The configuration of one run.
        data: The tokenized examples.
        checkpoint: The checkpoint to start from.
        run: The run folder; None to keep everything in memory.
        calibrate_on: int64, indices of the dev examples for early stopping and `Task.calibrate`.
        last_checkpoint: Whether to write a checkpoint after the last step.
        ranks: The processes that train together. Only rank 0 has a run folder, and predictions.

    Raises:
        UserError: `training.patience` is set, but no dev example has a target.
        DivergedError: The loss or the outputs became NaN or infinite.
    """
    model, started = initialized_model(config, data.task, checkpoint, data.encoder)
    if data.task.unit == "batch":
        head: Any = model.heads[data.task.kind]
        head.gather = ranks.gathered
    data.task.start_with_frequencies(model.heads[data.task.kind], data.train_sequences)
    precision = run_precision(run, config.training.precision, ranks)
    runtime.require_precision(precision, model)
    losses: list[float] = []
    pad_id, multiple = checkpoint.tokenizer.pad_id, token_multiple(precision, model.device)
    batcher = MicroBatcher(config, data.task, pad_id, checkpoint.config.pooled_token, multiple)
    dev = DevBatches(batcher, data, set(calibrate_on.tolist()))
    if config.training.patience and not dev.has_targets():
        raise UserError("training.patience: no dev example has a known gold label, so there is no dev loss to watch")
    job = _job(data, model, checkpoint.tokenizer, precision, dev, ranks)
    job = replace(job, final_checkpoint=last_checkpoint, on_step=lambda record: losses.append(record["loss"]))
    if run is not None:
        steps = console.plural(job.settings.length.parts, "step")
        batch = console.plural(config.training.batch_size, "example")
        shared = f", {ranks.count} ranks" if ranks.count > 1 else ""
        console.info(f"{started}; {steps} of {batch}, learning rate {config.training.learning_rate:g}{shared}")
    ended = trainer.train(job, run)
    task = data.task
    head_outputs = gather(ranks, outputs(model, task, data.dev_sequences[ranks.rank :: ranks.count]))
    if not ranks.first:
        return TrainedRun(task, [], losses, job, ended.step, ended.seconds)
    if not all(np.isfinite(output).all() for output in head_outputs):
        raise DivergedError(f"outputs on the dev examples are NaN or infinite: {trainer.divergence_hint(job)}")
    predictions = task.decode(head_outputs, data.dev_sequences, data.dev)
    if task.tuned:
        task = task.calibrate([predictions[i] for i in calibrate_on], [data.dev[i] for i in calibrate_on])
        predictions = task.decode(head_outputs, data.dev_sequences, data.dev)
    return TrainedRun(task, predictions, losses, replace(job, task=_task_json(config, task)), ended.step, ended.seconds)


def build_model(config: FinetuneConfig, task: Task, size: EncoderConfig, encoder: Encoder | None = None) -> Model:
    """Build the model with a randomly initialized head; with `from_scratch` the encoder is initialized too.

    The initial weights are a pure function of the seed.

    Args:
        config: The configuration of one run.
        task: The fitted task.
        size: The configuration of the checkpoint's encoder; its dropout is replaced.
        encoder: An encoder to share instead of building one.
    """
    size = with_dropout(size, config.hidden_dropout_prob, config.attention_probs_dropout_prob)
    size = _with_pooling_of(task, size)
    reading = features_from_json(_task_json(config, task), task, size, "the configuration")
    width = reading.width if reading else size.hidden_size
    encoder = encoder or build_encoder(size)
    heads = {task.kind: _head(config, task, size, width), **gpt.auxiliary_heads(config, encoder)}
    model = Model(encoder, heads, reading)
    runtime.reseed_torch(config.seed, seeding.WEIGHTS)
    # At any width, the initial logits spread as in BERT-base: with smaller ones, short training learns later (dev/log).
    new = nn.ModuleList([model.heads] if reading is None else [model.heads, reading])
    initialize_weights(new, size.initializer_range * math.sqrt(768 / width), truncation=math.inf)
    if config.from_scratch:  # else the weights are loaded
        initialize_weights(model.encoder, size.initializer_range)
    return model


def _head(config: FinetuneConfig, task: Task, size: EncoderConfig, width: int) -> nn.Module:
    """Return the head of the task. Raises UsageError if it should have a dropout, and cannot."""
    head: Any = build_head(task, size, width)
    if config.head_dropout_prob is not None:
        if not isinstance(getattr(head, "dropout", None), float):
            raise UsageError(f"head_dropout_prob is {config.head_dropout_prob}, and the head has no dropout: remove it")
        head.dropout = config.head_dropout_prob
    return head


def _with_pooling_of(task: Task, size: EncoderConfig) -> EncoderConfig:
    """Return the configuration with the pooling of the task, if the format in which the model is saved has it."""
    if task.text_pooling not in get_args(ClassifierPooling) or not isinstance(size, TransformerConfig):
        return size
    pooled = replace(size, classifier_pooling=cast(ClassifierPooling, task.text_pooling))
    return pooled if family_of(pooled) is family_of(size) else size


def require_layers(config: FinetuneConfig, task: Task, size: EncoderConfig) -> None:
    """Check `training.reinit_layers` and `layers`. Raises UsageError if the model has too few layers for them."""
    reinit, count = config.training.reinit_layers, size.num_hidden_layers
    if reinit > count:
        raise UsageError(f"training.reinit_layers is {reinit}, but the model has {count} layers")
    if reinit and size.shares_layers:
        raise UsageError(f"training.reinit_layers is {reinit}, but the layers of the model share weights: set it to 0")
    features_from_json(_task_json(config, task), task, size, "the configuration")


def _task_json(config: FinetuneConfig, task: Task) -> dict[str, Any]:
    """Return the content of task.json."""
    return to_task_json(task, config.max_length, config.layers, config.lstm_hidden_size)


def initialized_model(
    config: FinetuneConfig, task: Task, checkpoint: Checkpoint, encoder: Encoder | None = None
) -> tuple[Model, str]:
    """Return the model to train, on its device, and a sentence about its initial weights.

    Args:
        config: The configuration of one run.
        task: The fitted task.
        checkpoint: The checkpoint to start from.
        encoder: The frozen encoder of the checkpoint, if it was built already.
    """
    model, reinit = build_model(config, task, checkpoint.config, encoder), config.training.reinit_layers
    place = hub_id(checkpoint.folder) or checkpoint.folder
    top = list(model.encoder.layers)[len(model.encoder.layers) - reinit :]
    model.encoder.requires_grad_(not config.frozen)
    if config.from_scratch:
        spell_entries(model.encoder, checkpoint.tokenizer)
        return model.to(runtime.device()), f"random initial weights, with the size of {place}"
    loaded = load_weights(model, checkpoint.without_heads())
    runtime.reseed_torch(config.seed, seeding.WEIGHTS, 1)
    pooled = [head.pooler for head in model.heads.values() if isinstance(head, PooledHead) and reinit]
    poolers = [pooler for pooler in pooled if pooler is not None]
    initialize_weights(nn.ModuleList([*top, *poolers]), checkpoint.config.initializer_range)
    heads = f"{' and '.join(sorted(checkpoint.heads))} head{'s' * (len(checkpoint.heads) > 1)}"
    dropped = f"; dropped its {heads}" if checkpoint.heads else ""
    dropped += " and its generator" if checkpoint.generator else ""
    random = [*loaded.initialized]
    if reinit:
        random += [f"the top {console.plural(reinit, 'layer')}", *["the pooler" for _ in poolers]]
    initialized = f"; randomly initialized: {', '.join(random)}" if random else ""
    return model.to(runtime.device()), f"starting from {place}{dropped}{initialized}"


def _job(
    data: TaskData, model: Model, tokenizer: Tokenizer, precision: runtime.Resolved, dev: DevBatches, ranks: Ranks
) -> TrainingJob:
    config, task = dev.batcher.config, data.task
    settings = config.training
    units, per_epoch = data.units, sum(turns(config, data))
    heads = {task.kind: 1.0, **gpt.auxiliary_weights(config)}
    length = StepCount(settings.steps or settings.epochs * per_epoch)
    loop = LoopSettings(length, settings.learning_rate, settings.max_grad_norm, config.seed, precision, heads)

    def stream(_: int, position: Position) -> Generator[Step]:
        while True:
            rng = seeding.generator(config.seed, seeding.EXAMPLES, position.epoch)
            steps, draws = epoch_of(config, data, rng), rng.random(len(units))
            for step in range(position.step, per_epoch):
                chosen = [task.drawn(units[i], float(draws[i])) for i in steps[step]]
                last = step + 1 == per_epoch
                after = Position(position.epoch + 1, 0) if last else Position(position.epoch, step + 1)
                yield dev.batcher.step(chosen, Position(position.epoch, step), after, ranks)
            position = Position(position.epoch + 1, 0)

    return TrainingJob(
        title="finetune",
        model=model,
        tokenizer=tokenizer,
        task=_task_json(config, task),
        optimizer=config.optimizer.build(model, settings.layer_decay),
        schedule=config.schedule,
        settings=loop,
        stream=stream,
        evaluate=lambda _, stopping: evaluate(model, dev, precision, ranks, stopping),
        eval_set=lambda _: 0,
        eval_every=settings.eval_every or per_epoch * (settings.patience > 0),
        patience=settings.patience,
        checkpoint_every=settings.checkpoint_every,
        keep_checkpoints=settings.keep_checkpoints,
        data_fingerprint=data.fingerprint,
        trackers=settings.trackers,
        ranks=ranks,
    )
