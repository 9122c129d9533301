"""What a step of a pre-training costs: tokens, operations, seconds."""

from __future__ import annotations

import statistics
import time
from itertools import islice, pairwise

import torch

from bertie.batches.loader import Position
from bertie.model.flops import model_flops
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.pretrain import Setup
from bertie.pretraining.recipe import PretrainConfig
from bertie.training.loop import train_steps

TIMED_STEPS = 8
LONG_STEP = 2.0  # seconds: three such steps are enough


def tokens_per_step(config: PretrainConfig) -> float:
    """Return the mean number of tokens of a step, filler included, over the phases of the run."""
    phases = config.resolved_phases
    ends = [0, *(phase.end_step for phase in phases)]
    tokens = sum(
        (end - start) * phase.shape.rows * phase.shape.row_tokens
        for phase, (start, end) in zip(phases, pairwise(ends), strict=True)
    )
    return tokens / ends[-1]


def flops_per_step(setup: Setup) -> float:
    """Return the floating-point operations of a step, from the first rows of every phase, averaged over the run.

    A generator and a teacher count as they do in training.
    """
    config, total, before = setup.config, 0.0, 0
    with torch.device("meta"):  # without memory for the weights
        model = new_model(config.model, config.objectives, config.seed, teacher=setup.teacher)
    for phase in setup.feed.phases:
        micro = setup.feed.first_rows(setup.feed.first_step(phase), 1)
        total += (phase.end_step - before) * phase.shape.rows * model_flops(model, micro)
        before = phase.end_step
    return total / before


def seconds_per_step(setup: Setup) -> float:
    """Return the seconds of a step of the first phase: the median of a few, after the first one."""
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
    return statistics.median(spent[1:] or spent)
