"""The cost of a step of a pre-training: tokens, operations, seconds."""

from __future__ import annotations

import statistics
import time
from itertools import islice, pairwise

from bertie.batches.loader import Position
from bertie.model.flops import model_flops
from bertie.model.initialization import no_weights
from bertie.model.transformer import use_layers
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.pretrain import Setup
from bertie.pretraining.recipe import PretrainConfig
from bertie.training.loop import train_steps

TIMED_STEPS = 8
LONG_STEP = 2.0  # seconds: three such steps are enough


def tokens_per_step(config: PretrainConfig) -> float:
    """Return the mean number of tokens of a step, filler included, over the phases of the run."""
    phases = config.resolved_phases
    return sum(phase.steps * phase.tokens for phase in phases) / phases[-1].end_step


def flops_per_step(setup: Setup) -> float:
    """Return the floating-point operations of a step, from the first rows of every phase, averaged over the run.

    A generator and a teacher count as they do in training.
    """
    phases = setup.feed.phases
    return sum(phase.steps * flops for phase, flops in zip(phases, _flops(setup), strict=True)) / phases[-1].end_step


def _flops(setup: Setup) -> list[float]:
    """Return the floating-point operations of a step of each phase."""
    config, feed, flops = setup.config, setup.feed, list[float]()
    with no_weights():
        model = new_model(config.model, config.objectives, config.seed, teacher=setup.teacher)
    for phase in feed.phases:
        use_layers(model.encoder, phase.layers)
        flops.append(phase.shape.rows * model_flops(model, feed.first_rows(feed.first_step(phase), 1)))
    return flops


def seconds_per_step(setup: Setup) -> float:
    """Return the mean seconds of a step: the median of a few of the first phase, and for the others by their operations."""
    job, _ = setup.job(None)
    job.model.train()
    stream = job.stream(0, Position())
    times = [time.monotonic()]
    for result in islice(train_steps(job.model, stream, job.optimizer, job.schedule, job.settings), TIMED_STEPS):
        result.grad_norm.item()  # on a GPU, waits for the step
        times.append(time.monotonic())
        if len(times) > 3 and times[-1] - times[-2] > LONG_STEP:
            break
    spent = [after - before for before, after in pairwise(times)]
    return statistics.median(spent[1:] or spent) * flops_per_step(setup) / _flops(setup)[0]
