"""`bertie lab --dry-run`: the cells of a lab, and how long they would take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from bertie.base import console
from bertie.base.errors import UserError
from bertie.corpus.shards import open_shards
from bertie.finetuning.defaults import default_epochs
from bertie.finetuning.recipe import FinetuneConfig
from bertie.lab.launchers import Launcher
from bertie.lab.schedule import StepScheduler
from bertie.lab.steps import SHARDS, FinetuneStep, GloveStep, MeasureStep, PretrainStep, ShardsStep
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.step_cost import flops_per_step, seconds_per_step, tokens_per_step
from bertie.tasks.scoring import labeled_examples
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import SINGLE_PROCESS

SAMPLE = 200  # examples whose tokens are counted
SCORING = 0.34  # cost of a token in a forward pass alone, relative to training


class Speed(NamedTuple):
    """The cost of a pre-training."""

    seconds: float
    """All its steps."""
    tokens_per_second: float


def dry_run(schedule: StepScheduler, launcher: Launcher) -> dict[str, Any]:
    """Prepare the text, time a few training steps of each model, and print the cells and the estimated time.

    Evaluations and GloVe vectors are not part of the estimate. Fine-tuning is estimated from its number of tokens and the
    speed of pre-training.

    Returns:
        {"steps": number of unfinished steps, "hours": of all of them, if `workers` of them run at a time, but not less
        than its longest cell}.
    """
    plan = schedule.plan
    schedule.run(launcher, {name for name, step in plan.steps.items() if isinstance(step, ShardsStep)})
    if schedule.failed:
        raise UserError(next(iter(schedule.failed.values())))
    speeds: dict[str, Speed] = {}
    seconds = {}
    for cell in plan.cells:
        step = plan.steps[cell.model]
        key = repr(replace(step, recipe=replace(step.recipe, seed=0))) if isinstance(step, PretrainStep) else ""
        if isinstance(step, PretrainStep) and key not in speeds:
            console.info(f"timing {', '.join(cell.variants)}")
            speeds[key] = _speed(schedule, step)
        speed = speeds.get(key, next(iter(speeds.values()), Speed(0.0, 1e4)))
        seconds[cell.model] = speed.seconds if key else 0.0
        for name in cell.tasks.values():
            seconds[name] = _finetuning_seconds(schedule, name, speed)
    todo = {name: value for name, value in seconds.items() if not schedule.finished(name)}
    longest = 0.0  # a fine-tuning waits for its model
    for cell in plan.cells:
        tasks = [seconds[name] for name in cell.tasks.values()]
        tuning = f"about {console.duration(sum(tasks))} of fine-tuning"
        if isinstance(plan.steps[cell.model], GloveStep):
            console.result(f"{cell.name}: vectors not estimated, {tuning}")
        else:
            console.result(f"{cell.name}: {console.duration(seconds[cell.model])} of pre-training, {tuning}")
        waiting = [todo[name] for name in cell.tasks.values() if name in todo]
        longest = max(longest, todo.get(cell.model, 0.0) + max(waiting, default=0.0))
    expected = max(sum(todo.values()) / launcher.slots, longest)
    console.result(
        f"{console.plural(len(plan.cells), 'cell')}, {console.plural(len(todo), 'step')} to do: about "
        f"{console.duration(expected)} with {launcher.slots} at a time"
    )
    return {"steps": len(todo), "hours": expected / 3600}


def _speed(schedule: StepScheduler, step: PretrainStep) -> Speed:
    """Time the first steps of a pre-training."""
    recipe, folder = step.recipe, schedule.steps / step.shards / SHARDS
    with console.silenced():
        setup = set_up(recipe, folder, schedule.steps / "dry-run", schedule.threads, SINGLE_PROCESS)
        cost = seconds_per_step(setup)
    measure = schedule.plan.steps.get(step.measure)
    steps = float(recipe.training.steps)
    if isinstance(measure, MeasureStep):
        per_step = flops_per_step(setup) if measure.budget.unit == "flops" else cost
        steps = measure.budget.amount / per_step
    return Speed(steps * cost, tokens_per_step(recipe) / cost)


def _finetuning_seconds(schedule: StepScheduler, name: str, speed: Speed) -> float:
    step = schedule.plan.steps[name]
    assert isinstance(step, FinetuneStep)
    model = schedule.plan.steps[step.model]
    assert isinstance(model, PretrainStep | GloveStep)
    recipe = step.recipe
    tokenizer = open_shards(schedule.steps / model.shards / SHARDS).tokenizer
    settings, (examples, tokens) = recipe.training, _length(step.train, recipe, tokenizer)
    used = min(recipe.max_train_examples or examples, examples)
    epochs = settings.epochs or default_epochs(recipe.task, -(-used // settings.batch_size))
    seen = settings.steps * settings.batch_size or epochs * used
    dev_examples, dev_tokens = _length(step.dev, recipe, tokenizer)
    return (seen * tokens + dev_examples * dev_tokens * SCORING) / speed.tokens_per_second


def _length(path: str, recipe: FinetuneConfig, tokenizer: Tokenizer) -> tuple[int, float]:
    """Return the number of examples, and their tokens on average."""
    with console.silenced():
        examples = labeled_examples(recipe.task.reader, path)
        sample = recipe.task.fit(examples).encode(examples[:SAMPLE], tokenizer, recipe.max_length)
    return len(examples), sum(map(len, sample)) / len(examples[:SAMPLE])
