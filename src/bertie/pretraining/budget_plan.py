"""`bertie plan`: which size to pre-train in a given time, and the held-out loss to expect."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertie import config as configuration
from bertie import console, runtime
from bertie.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining import scaling
from bertie.pretraining.pretrain import MANY_EPOCHS, set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.step_cost import flops_per_step, seconds_per_step, tokens_per_step
from bertie.training.distributed import SINGLE_PROCESS

RECIPES = ("modern-tiny", "modern-mini", "modern-small", "modern-base", "modern-large")
Device = Literal["auto", "cpu", "cuda", "h200", "h100", "a100", "l40s", "rtx-4090", "l4"]
TERAFLOPS = {"h200": 989, "h100": 989, "a100": 312, "l40s": 362, "rtx-4090": 165, "l4": 121}
"""Dense bf16 products per second, from the makers' data sheets (SXM versions)."""
FILL_A_GPU = ("modern-base", "modern-large")
"""Recipes that are planned for a GPU elsewhere. Smaller ones wait for its latency, and have to be timed on it."""
TIMED = {"cpu": (16, 2048), "cuda": (256, 8192)}
"""Sequences per step and tokens per row of the timed steps. On a CPU, the speed hardly depends on them; a GPU must be full."""
PATIENCE = 10.0  # seconds: a recipe with longer steps is not timed
FEWEST_STEPS = 20
MOST_HOURS = 366 * 24


@dataclass(frozen=True)
class Outlook:
    """What a recipe would reach in the time."""

    recipe: str
    parameters: int
    tokens_per_second: float
    timed: bool
    """Whether steps were timed. Otherwise, the speed follows from the number of operations."""
    tokens: float
    epochs: float
    batch_size: int
    """Sequences per step."""
    steps: int
    loss: float
    """Expected held-out masked-LM loss in nats, with BERT's masks."""
    low: float
    """Lower end of the interval that holds the loss with a probability of 80 %."""
    high: float


class Cost(NamedTuple):
    """What a recipe needs for a token, filler included."""

    operations: float
    seconds: float
    timed: bool


def plan(
    data: str | Path, hours: float, *, device: Device = "auto", utilization: float = 0.3, threads: int = 0
) -> dict[str, Any]:
    """Estimate what the modern recipes reach in a given time, and recommend one.

    On this machine, the speed of each recipe is measured with a few steps. For a GPU elsewhere, it is the peak rate of the
    GPU times `utilization`. The losses lie on the curve of `scaling`. They are those of the Simple English Wikipedia with
    30,000 vocabulary entries: another text has other losses, but we expect the same order of the recipes.

    Args:
        data: Token shards, as written by `prepare`.
        hours: Duration of the pre-training.
        device: "cpu" or "cuda" of this machine, or the name of a GPU elsewhere. "auto": what `pretrain` would use here.
        utilization: Part of the peak rate of a GPU elsewhere that the training is assumed to reach, 0 to 1.
        threads: Number of CPU threads; 0: all.

    Returns:
        {"device", "text_tokens": in the training text, "outlooks": [`Outlook` as a dict], "recommended": a recipe,
        "command": the command that runs it}.

    Raises:
        UsageError: An argument is out of range, this machine has no such device, or the time is too short.
        UserError: The shards are damaged.
    """
    if not 0 < hours <= MOST_HOURS:
        raise UsageError(f"--hours {hours:g}: give a number above 0, at most {MOST_HOURS:,}")
    if not 0 < utilization <= 1:
        raise UsageError(f"--utilization {utilization:g}: give a number above 0, at most 1")
    here = runtime.device().type
    if device in ("cpu", "cuda") and device != here:
        raise UsageError(f"--device {device}: bertie would train on {here} here; leave --device out, or name a GPU")
    target = here if device == "auto" else device
    rate = TERAFLOPS[target] * 1e12 * utilization if target in TERAFLOPS else None
    outlooks, costs, text = list[Outlook](), list[Cost](), 0
    for name in RECIPES if rate is None else FILL_A_GPU:
        recipe = _recipe(name)
        cost, text = _cost(recipe, Path(data), rate, costs, threads)
        costs.append(cost)
        outlooks.append(_outlook(name, recipe, cost, 3600 * hours, text))
    outlooks = [each for each in outlooks if each.steps >= FEWEST_STEPS]
    if not outlooks:
        raise UsageError(f"--hours {hours:g}: too short for {FEWEST_STEPS} steps of any recipe; give more time")
    best = min(outlooks, key=lambda each: each.loss)
    command = _command(best, data, hours)
    _report(outlooks, best, target, hours, text)
    if rate is not None:
        console.info(
            f"The speed assumes {100 * utilization:g} % of the peak rate of the GPU (--utilization). It is not measured."
        )
    console.info(f"\n  {command}")
    return {
        "device": target,
        "text_tokens": text,
        "outlooks": [asdict(each) for each in outlooks],
        "recommended": best.recipe,
        "command": command,
    }


def _recipe(name: str) -> PretrainConfig:
    """Return the recipe with steps to time, and random weights: counting words would take longer than the steps."""
    batch_size, row_tokens = TIMED[runtime.device().type]
    sizes = {"batch_size": batch_size, "row_tokens": row_tokens}
    recipe = configuration.load(PretrainConfig, {"extends": name, "training": sizes}, "pretrain")
    objectives = tuple(
        replace(each, initialization="random") if isinstance(each, MaskedLM) else each for each in recipe.objectives
    )
    return replace(recipe, objectives=objectives)


def _cost(recipe: PretrainConfig, data: Path, rate: float | None, costs: list[Cost], threads: int) -> tuple[Cost, int]:
    """Measure or compute the cost of a token. Also return the tokens of the training text.

    Args:
        recipe: The recipe, with steps to time.
        data: The shards.
        rate: Operations per second; None: time the steps. Long ones take as long as the operations of the last recipe.
        costs: Those of the smaller recipes.
        threads: Number of CPU threads; 0: all.
    """
    with console.silenced():
        setup = set_up(recipe, data, data / "plan", threads, SINGLE_PROCESS)
        tokens, operations = tokens_per_step(recipe), flops_per_step(setup)
        seconds = operations / (rate or (costs[-1].operations / costs[-1].seconds if costs else math.inf))
        timed = rate is None and seconds < PATIENCE
        if timed:
            seconds = seconds_per_step(setup)
    return Cost(operations / tokens, seconds / tokens, timed), int(setup.shards.train.document_starts[-1])


def _outlook(name: str, recipe: PretrainConfig, cost: Cost, seconds: float, text: int) -> Outlook:
    """Return what a recipe reaches. `text`: tokens of the training text."""
    assert isinstance(recipe.model, TransformerConfig)
    tokens, length = seconds / cost.seconds, recipe.layout.max_length
    useful = scaling.useful_tokens(tokens, text)
    batch_size = scaling.batch_size(useful, length)
    parameters = scaling.layer_parameters(recipe.model)
    expected = scaling.expected_loss(parameters, useful)
    steps = int(tokens / (batch_size * length))
    return Outlook(name, parameters, 1 / cost.seconds, cost.timed, tokens, tokens / text, batch_size, steps, *expected)


def _report(outlooks: list[Outlook], best: Outlook, device: str, hours: float, text: int) -> None:
    console.info(
        f"{console.duration(3600 * hours)} on {device}, {text:,} tokens of text\n\n"
        "recipe         weights in layers   tokens/s        tokens   epochs   batch   held-out loss (80 % interval)"
    )
    for each in outlooks:
        mark, about = ("→" if each is best else " "), ("" if each.timed else "~")
        console.info(
            f"{mark} {each.recipe:<14}{each.parameters / 1e6:>13.1f} M {about + format(each.tokens_per_second, ',.0f'):>10} "
            f"{each.tokens:>13,.0f} {_count(each.epochs):>8} {each.batch_size:>7,}   "
            f"{each.loss:.2f} ({each.low:.2f} to {each.high:.2f})"
        )
    console.info("\nLosses are those of the Simple English Wikipedia with 30,000 vocabulary entries, in nats.")
    _, longest = scaling.measured_tokens()
    if best.tokens > longest:
        console.info(
            f"Runs of up to {longest:,} tokens were measured. Beyond, the curve leads to BERT's published losses."
        )
    if best.epochs > MANY_EPOCHS:
        console.warn(
            f"{best.recipe} would read the text {best.epochs:,.0f} times. More than {MANY_EPOCHS} times teaches little: "
            "add text, or save time"
        )


def _count(epochs: float) -> str:
    return f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.2g}"


def _command(best: Outlook, data: str | Path, hours: float) -> str:
    budget = f"{hours:g}h" if hours >= 1 else f"{60 * hours:g}m"
    folder = f"--data {shlex.quote(str(data))} --out runs/{best.recipe}"
    return f"bertie pretrain {best.recipe} {folder} --budget {budget} --training.batch-size {best.batch_size}"
