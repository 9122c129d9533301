"""`bertie plan`: which size to pre-train in a given time, and the held-out loss to expect."""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from bertie.base import config as configuration
from bertie.base import console, runtime
from bertie.base.errors import UsageError, UserError, redacted
from bertie.corpus.remote_shards import ShardCache
from bertie.corpus.shards import Shards, open_shards
from bertie.model.config import TransformerConfig
from bertie.pretraining import scaling
from bertie.pretraining.plan_report import Outlook, reasons, report
from bertie.pretraining.pretrain import Setup, set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.sources import eval_tokens, require_weights
from bertie.pretraining.step_cost import flops_per_step, seconds_per_step, tokens_per_step
from bertie.training.clock import FORWARD_SHARE, parse_duration
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.memory import USABLE_SHARE, is_out_of_memory

RECIPES = ("modern-tiny", "modern-mini", "modern-small", "modern-base", "modern-large")
PREPARED = "modern-small"
"""The recipe whose preparation is timed. That of others takes half to one and a half times as long."""
Device = Literal["auto", "h200", "h100", "a100", "l40s", "rtx-4090", "l4"]


class Gpu(NamedTuple):
    """A GPU in its SXM version, from the maker's data sheet."""

    teraflops: float
    """Dense bf16 operations per second, in 10^12."""
    gigabytes: float
    """Its memory, in 10^9 bytes."""


GPUS = {
    "h200": Gpu(989, 141),
    "h100": Gpu(989, 80),
    "a100": Gpu(312, 80),
    "l40s": Gpu(362, 48),
    "rtx-4090": Gpu(165, 24),
    "l4": Gpu(121, 24),
}
FILL_A_GPU = ("modern-base", "modern-large")
"""Recipes that are planned for a GPU elsewhere. Smaller ones wait for its latency, and have to be timed on it."""
UTILIZATION = 0.3
TIMED = {"cpu": (16, 2048), "cuda": (256, 8192)}
"""Most sequences per step, and tokens per row, of the timed steps. A CPU computes the rows one by one, so that more of them
hardly change its speed. A GPU must be full."""
PATIENCE = 10.0  # seconds: a recipe with longer steps is not timed
MOST_EPOCHS = 100
"""The curve of repeated text is flat beyond: 100 times are worth 16.4 times, and so are 1,000."""


class Cost(NamedTuple):
    """The cost of a token, filler included, with a recipe."""

    operations: float
    seconds: float
    timed: bool
    eval_tokens: int
    """Tokens of an evaluation."""


class LeftOut(Exception):  # noqa: N818
    """Why a recipe is not planned."""


@dataclass(frozen=True, eq=False)
class Target:
    """The device, the text and the time of a plan."""

    device: str
    gpu: Gpu | None
    """A GPU elsewhere; None: this machine, where steps are timed."""
    utilization: float
    threads: int
    memory: float
    """Memory for a training, in bytes; infinite if unknown."""
    shards: Shards
    seconds: float
    """Time for the run, after its preparation."""

    weights: tuple[float, ...] = ()
    """How often a row is of each of several data sets; (): each has the same number of epochs."""

    @property
    def text(self) -> int:
        """Tokens of the training text."""
        return self.shards.tokens

    def of_sources(self, tokens: float) -> list[tuple[float, int]]:
        """Return how many of the tokens of a run each data set gives, and how many it has."""
        sizes = [part.tokens for part in self.shards.by_name.values()]
        weights = self.weights or sizes
        return [(tokens * weight / sum(weights), size) for weight, size in zip(weights, sizes, strict=True)]

    def useful(self, tokens: float) -> float:
        """Return how many new tokens those of a run are worth, see `scaling.useful_tokens`."""
        return sum(scaling.useful_tokens(*each) for each in self.of_sources(tokens))

    def sizes(self) -> tuple[int, int]:
        """Return the sequences of a timed step, at most half the text, and the tokens of a row."""
        batch_size, row_tokens = TIMED["cuda" if self.gpu else runtime.device().type]
        return min(batch_size, self.text // 256), row_tokens


def plan(
    data: str | Path | Sequence[str | Path],
    budget: str,
    *,
    weights: tuple[float, ...] = (),
    device: Device = "auto",
    utilization: float = 0.0,
    threads: int = 0,
    cache: ShardCache = ShardCache(),
) -> dict[str, Any]:
    """Estimate what the modern recipes reach in a given time, and recommend one.

    On this machine, the speed of each recipe is measured with a few steps. For a GPU elsewhere, it is the peak rate of
    the GPU times `utilization`. The time for reading the shards, initial weights and evaluations is subtracted; the
    time for checkpoints is not. The losses lie on the curve of `scaling`. They belong to the Simple English Wikipedia
    with 30,000 vocabulary entries and BERT's masks: another text has other losses.

    Args:
        data: Token shards, as written by `prepare`, or several of them.
        budget: Time for the pre-training, such as "24h", "90m" or "30s".
        weights: How often a row is of each of several data sets, as in the recipe.
        device: "auto": this machine. Otherwise, the name of a GPU elsewhere.
        utilization: Part of the peak rate of a GPU elsewhere that the training is assumed to reach, up to 1; 0: 0.3.
        threads: Number of CPU threads of this machine; 0: all.
        cache: Where to keep shards of an object store.

    Returns:
        {"device", "text_tokens": in the training text, "preparation_seconds": before the first step, "outlooks": [`Outlook`
        as a dict], "left_out": {recipe: reason}, "recommended": a recipe, "command": the command that runs it}.

    Raises:
        UsageError: An argument is out of range or has no effect, or the curve covers no recipe for the time.
        UserError: The shards are damaged or too small.
    """
    seconds, gpu, begun = parse_duration(budget, "budget"), _gpu(device, utilization, threads), time.monotonic()
    memory = USABLE_SHARE * (1e9 * gpu.gigabytes if gpu else runtime.memory()[0] or math.inf)
    name, shards = device if gpu else runtime.device().type, open_shards(data, cache)
    target = Target(name, gpu, utilization or UTILIZATION, threads, memory, shards, seconds, weights)
    _require_text(target)
    console.info("timing the preparation of a run")
    preparation = _prepare(target, begun)
    _compare(preparation, seconds)
    target = replace(target, seconds=seconds - preparation)
    outlooks, left_out = _outlooks(target)
    best = _best(outlooks, left_out, budget)
    command = _command(best, target, [data] if isinstance(data, str | Path) else data, budget, cache)
    report(outlooks, left_out, best, shards, f"{budget} on {target.device}")
    choice = "has the lowest loss" if len(outlooks) > 1 else "is the only recipe that can be estimated"
    console.result(f"\n{best.recipe} {choice}. Train it with:\n\n  {command}")
    return {
        "device": target.device,
        "text_tokens": target.text,
        "preparation_seconds": preparation,
        "outlooks": [asdict(outlook) for outlook in outlooks],
        "left_out": left_out,
        "recommended": best.recipe,
        "command": command,
    }


def _best(outlooks: list[Outlook], left_out: dict[str, str], budget: str) -> Outlook:
    """Return the outlook with the lowest loss. Raise UsageError if there is none."""
    if not outlooks:
        why = "; ".join(reasons(left_out))
        raise UsageError(f"budget {budget} allows no plan ({why}): change the time, the device or the text")
    return min(outlooks, key=lambda outlook: outlook.loss)


def _gpu(device: Device, utilization: float, threads: int) -> Gpu | None:
    """Return the GPU elsewhere. Raise UsageError for an argument that is out of range or has no effect."""
    gpu = GPUS.get(device)
    if gpu is None and utilization:
        raise UsageError("--utilization is for a GPU elsewhere: remove it, or give --device")
    if gpu is not None and threads:
        raise UsageError(f"--threads is for this machine, and the plan for {device}: remove one of them")
    if not 0 <= utilization <= 1:
        raise UsageError(f"--utilization {utilization:g}: give a number above 0, at most 1")
    if gpu is not None:
        console.info(
            f"The speed assumes {console.percent(utilization or UTILIZATION)} of the peak rate of the GPU (--utilization). "
            f"Recipes smaller than {FILL_A_GPU[0]} do not fill a GPU: run the plan on it to see them."
        )
    return gpu


def _require_text(target: Target) -> None:
    """Raise UserError if no number of epochs is worth as much as the shortest run that was measured; UsageError for weights."""
    recipe = replace(configuration.load(PretrainConfig, PREPARED, "pretrain"), weights=target.weights)
    require_weights(recipe.resolved_phases, target.shards)
    fewest = math.ceil(scaling.measured_tokens()[0] / scaling.useful_tokens(MOST_EPOCHS, 1))
    if target.text < fewest:
        raise UserError(f"{target.shards.place} has {target.text:,} training tokens: give at least {fewest:,}")


def _prepare(target: Target, begun: float) -> float:
    """Return the seconds before the first step of a run: reading the shards, initial weights, on a GPU compilation."""
    recipe = configuration.load(PretrainConfig, PREPARED, "pretrain")
    with console.silenced():
        _set_up(recipe, target).job(None)
    return time.monotonic() - begun


def _set_up(recipe: PretrainConfig, target: Target) -> Setup:
    with tempfile.TemporaryDirectory() as empty:  # so that no run folder of the user is read
        return set_up(recipe, target.shards, Path(empty) / "run", target.threads, SINGLE_PROCESS)


def _outlooks(target: Target) -> tuple[list[Outlook], dict[str, str]]:
    """Return what each recipe reaches, and why others are left out."""
    outlooks, left_out, costs = list[Outlook](), dict[str, str](), list[Cost]()
    for name in FILL_A_GPU if target.gpu else RECIPES:
        try:
            most = target.sizes()[0]
            outlook = _reach(name, most, target, costs)
            if outlook.timed and outlook.batch_size < most:
                outlook = _reach(name, outlook.batch_size, target, costs)  # smaller steps are slower
            outlooks.append(outlook)
        except LeftOut as reason:
            left_out[name] = str(reason)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            left_out[name] = "runs out of memory"
    return outlooks, left_out


def _reach(name: str, batch_size: int, target: Target, costs: list[Cost]) -> Outlook:
    """Return what a recipe reaches. Its cost, from steps of so many sequences, joins `costs`. Raises LeftOut."""
    costs.append(_cost(name, batch_size, target, costs))
    return _outlook(name, costs[-1], target)


def _compare(preparation: float, seconds: float) -> None:
    """Warn if a tenth of a budget passes before the first step. Raise UsageError if all of it does."""
    share = f"the preparation takes {console.duration(preparation)} of {console.duration(seconds)}"
    if preparation >= seconds:
        raise UsageError(f"{share}: give more time")
    if 10 * preparation > seconds:
        console.warn(share)


def _recipe(name: str, batch_size: int, target: Target) -> PretrainConfig:
    """Return the recipe with steps to time, and random weights: counting words would take longer than the steps."""
    sizes = {"batch_size": batch_size, "row_tokens": target.sizes()[1]}
    recipe = configuration.load(PretrainConfig, {"extends": name, "training": sizes}, "pretrain")
    objectives = tuple(
        replace(objective, initialization="random") if hasattr(objective, "initialization") else objective
        for objective in recipe.objectives
    )
    return replace(recipe, objectives=objectives)


def _cost(name: str, batch_size: int, target: Target, costs: list[Cost]) -> Cost:
    """Measure or compute the cost of a token. Raises LeftOut if the recipe cannot be trained.

    Args:
        name: The recipe.
        batch_size: Sequences of a step.
        target: The device and the text.
        costs: Those of smaller recipes. Long steps are not timed: they take as long as the operations of the last one.
    """
    recipe = _recipe(name, batch_size, target)
    if target.gpu is None:
        console.info(f"timing {name}")
    torch.cuda.empty_cache()  # of the last recipe, so that micro-batches are as large as in a run alone
    with console.silenced():
        setup = _set_up(recipe, target)
        needed = _memory(setup, target)
        if needed > target.memory:
            raise LeftOut(f"needs about {needed / 1e9:.2g} GB of memory, {target.memory / 1e9:.2g} GB are usable")
        tokens, operations = tokens_per_step(recipe), flops_per_step(setup)
        rate = 1e12 * target.gpu.teraflops * target.utilization if target.gpu else None
        seconds = operations / (rate or (costs[-1].operations / costs[-1].seconds if costs else math.inf))
        timed = rate is None and seconds < PATIENCE
        if timed:
            seconds = seconds_per_step(setup)
    return Cost(operations / tokens, seconds / tokens, timed, eval_tokens(setup.eval_sets[0]))


def _memory(setup: Setup, target: Target) -> float:
    """Return the bytes that a training needs at least, with one row per forward pass."""
    estimate = setup.memory_estimate(setup.feed.first_rows(setup.feed.first_step(setup.feed.phases[0]), 1))
    half = target.gpu or runtime.resolve_precision("auto", runtime.device()) == "bf16"
    return estimate.fixed + estimate.activations / (2 if half else 1)


def _outlook(name: str, cost: Cost, target: Target) -> Outlook:
    """Return what a recipe reaches. Raises LeftOut if the curve says nothing about such a run."""
    recipe = configuration.load(PretrainConfig, name, "pretrain")
    assert isinstance(recipe.model, TransformerConfig)
    useful = target.useful(target.seconds / cost.seconds)
    batch_size = scaling.batch_size(max(useful, 1), recipe.layout.max_length)
    step, evaluation = batch_size * recipe.layout.max_length, FORWARD_SHARE * cost.eval_tokens
    share = 1 + evaluation / (recipe.training.eval_every * step)  # and one more after the last step
    tokens = max(target.seconds / cost.seconds - evaluation, 0) / share
    epochs, steps, useful = (
        max(n / size for n, size in target.of_sources(tokens)),
        int(tokens / step),
        target.useful(tokens),
    )
    if epochs > MOST_EPOCHS:
        raise LeftOut(f"would read the text {epochs:,.0f} times and learns little after {MOST_EPOCHS} times")
    if useful < (shortest := scaling.measured_tokens()[0]):
        raise LeftOut(f"fewer than {shortest:,} tokens, the shortest run that was measured")
    parameters = scaling.layer_parameters(recipe.model)
    expected = scaling.expected_loss(parameters, useful)
    return Outlook(name, parameters, 1 / cost.seconds, cost.timed, tokens, epochs, batch_size, steps, *expected)


def _command(best: Outlook, target: Target, data: Sequence[str | Path], budget: str, cache: ShardCache) -> str:
    budget, row_tokens = "".join(budget.split()), target.sizes()[1]
    words = ["bertie", "pretrain", best.recipe, *(word for each in data for word in ("--data", redacted(str(each))))]
    words += ["--out", f"runs/{best.recipe}-{budget}"]
    words += ["--weights", *(f"{weight:g}" for weight in target.weights)] if target.weights else []
    words += ["--budget", budget, "--training.batch-size", str(best.batch_size)]
    if row_tokens != configuration.load(PretrainConfig, best.recipe, "pretrain").training.row_tokens:
        words += ["--training.row-tokens", str(row_tokens)]
    flags = {"--threads": target.threads, "--cache": cache.cache, "--cache-gb": cache.cache_gb}
    return shlex.join(words + [word for flag, value in flags.items() if value for word in (flag, str(value))])
