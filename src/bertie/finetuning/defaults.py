"""The learning rate and the number of epochs of a fine-tuning that names none: they follow from the size of the encoder."""

from __future__ import annotations

from dataclasses import replace

from bertie.base import console
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.encoder import EncoderConfig
from bertie.tasks import Task

RATES, POST_NORM = {768: 1.0, 384: 2.0, 0: 6.0}, 2.0
"""The factor on the task's learning rate for BERT-base, by the smallest hidden size that has it, and the highest factor of
encoders with post-norm. They are measured for hidden sizes of 384 and 256, with 1,000 examples (docs/how-to/fine-tuning.md);
from 768 on, it is the rate of Devlin et al. (2018)."""
FROZEN_RATE = 1e-2
LEAST_STEPS, MOST_EPOCHS = 300, 20  # few examples need more epochs (Mosbach et al. 2021; docs/how-to/fine-tuning.md)


def default_epochs(task: Task, steps_per_epoch: int) -> int:
    """Return the number of epochs of a fine-tuning that names none."""
    return max(task.base_epochs, min(MOST_EPOCHS, -(-LEAST_STEPS // steps_per_epoch)))


def default_rate(task: Task, size: EncoderConfig) -> float:
    """Return the learning rate of a fine-tuning of all weights that names none."""
    factor = next(factor for smallest, factor in RATES.items() if size.hidden_size >= smallest)
    return float(f"{task.base_learning_rate * (min(factor, POST_NORM) if size.post_norm else factor):.3g}")


def with_defaults(config: FinetuneConfig, size: EncoderConfig, steps_per_epoch: int) -> FinetuneConfig:
    """Return the configuration with a learning rate and a number of epochs, and say those that it did not have.

    Args:
        config: The configuration.
        size: The configuration of the encoder.
        steps_per_epoch: Steps that the training examples give in one epoch.
    """
    training, task, chosen = config.training, config.task, list[str]()
    if not training.epochs:
        epochs = default_epochs(task, steps_per_epoch)
        training = replace(training, epochs=epochs)
        if not training.steps and not config.grid.epochs:
            chosen.append(f"{console.plural(epochs, 'epoch')} (--training.epochs)")
    if not training.learning_rate:
        rate = FROZEN_RATE if config.frozen else default_rate(task, size)
        training = replace(training, learning_rate=rate)
        if not config.grid.learning_rate:
            chosen.append(f"learning rate {training.learning_rate:g} (--training.learning-rate)")
    if chosen:
        about = "a frozen encoder" if config.frozen else f"hidden size {size.hidden_size}"
        console.info(
            f"defaults for {about} and {console.plural(steps_per_epoch, 'step')} per epoch: {', '.join(chosen)}"
        )
    return replace(config, training=training)
