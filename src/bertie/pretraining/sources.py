"""Pre-training on several data sets: whether their weights fit, their held-out losses, and how often each was read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertie.base import runtime
from bertie.base.console import percent
from bertie.base.contracts import Loss, MicroBatch
from bertie.base.errors import UsageError, join_names
from bertie.base.report import Page
from bertie.batches.layouts import Layout
from bertie.corpus.shards import Shards
from bertie.model.model import Model
from bertie.pretraining.eval_set import eval_batches
from bertie.pretraining.phases import ResolvedPhase
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.repetition import warn_of_repetition
from bertie.training.distributed import Ranks
from bertie.training.loop import evaluate
from bertie.training.records import SOURCE
from bertie.training.run_folder import read_metrics
from bertie.training.run_report import best_evaluation

EvalSet = dict[str, list[MicroBatch]]
"""The held-out micro-batches of each data set, by its name."""


def require_weights(phases: list[ResolvedPhase], shards: Shards) -> None:
    """Raise UsageError if a phase has other weights than one for each data set, or a data set fills no step."""
    for phase in phases:
        if phase.weights and len(phase.weights) != max(len(shards.parts), 1):
            sets = join_names(shards.by_name) if shards.parts else shards.place
            raise UsageError(f"weights {phase.weights}: give one for each data set: {sets}")
        for (name, part), weight in zip(shards.by_name.items(), phase.weights, strict=False):
            if weight and part.tokens < phase.tokens:
                raise UsageError(f"{name} has {part.tokens:,} tokens, fewer than a step's {phase.tokens:,}: add text")


def eval_set(config: PretrainConfig, layout: Layout, shards: Shards) -> EvalSet:
    """Build the evaluation set, with as many tokens of each data set."""
    most = config.training.max_eval_tokens // max(len(shards.parts), 1)
    return {
        name: eval_batches(config.objectives, layout, part.eval, shards.tokenizer, most)
        for name, part in shards.by_name.items()
    }


def eval_tokens(sets: EvalSet) -> int:
    """Return the number of tokens of an evaluation set."""
    return sum(micro.tokens for batches in sets.values() for micro in batches)


def planned_epochs(phases: list[ResolvedPhase], shards: Shards) -> dict[str, float]:
    """Return how often the steps of a run read each data set, by its name."""
    sizes = np.array([part.tokens for part in shards.by_name.values()])
    read = np.zeros(len(sizes))
    for phase in phases:
        weights = np.array(phase.weights or sizes)
        read += phase.steps * phase.tokens * weights / weights.sum()
    return dict(zip(shards.by_name, (read / sizes).tolist(), strict=True))


def evaluate_sources(
    model: Model, sets: EvalSet, precision: runtime.Resolved, ranks: Ranks, should_stop: Callable[[], bool]
) -> dict[str, Loss] | None:
    """Return the losses by head as `evaluate` does: over all data sets and, if there are several, of each."""
    losses, sums = dict[str, Loss](), dict[str, Loss]()
    for name, batches in sets.items():
        found = evaluate(model, batches, precision, ranks, should_stop)
        if found is None:
            return None
        for head, loss in found.items():
            before = sums.get(head)
            sums[head] = loss if before is None else Loss(*(getattr(before, k) + v for k, v in vars(loss).items()))
            losses[f"{head}{SOURCE}{name}"] = loss
    return sums | losses if len(sets) > 1 else sums


def warn_of_plan(phases: list[ResolvedPhase], shards: Shards) -> None:
    """Warn if the steps of a run read a data set too often."""
    for name, epochs in planned_epochs(phases, shards).items():
        warn_of_repetition(epochs, name)


def sources_section(page: Page, run: Path, shards: Shards) -> None:
    """Add how often each of several data sets was read, and its held-out losses. Warns of one that was read too often."""
    if not shards.parts:
        return
    evaluations, best = read_metrics(run, "eval"), best_evaluation(run)
    losses = {name: next(key for key in best if key.endswith(f"_loss{SOURCE}{name}")) for name in shards.by_name}
    page.heading("Data sets")
    rows = list[tuple[object, ...]]()
    for (name, epochs), part in zip(epochs_of_run(run, shards).items(), shards.parts, strict=True):
        accuracy = best.get(losses[name].replace("_loss", "_accuracy"))
        rows.append((name, part.tokens, epochs, best[losses[name]], "–" if accuracy is None else percent(accuracy)))
        warn_of_repetition(epochs, name)
    page.table(("data set", "tokens", "epochs", "loss", "accuracy"), rows)
    steps = [record["step"] for record in evaluations]
    curves = {name: (steps, [record[key] for record in evaluations]) for name, key in losses.items()}
    page.line_chart(curves, "step", "held-out loss, nats")


def epochs_of_run(run: Path, shards: Shards) -> dict[str, float]:
    """Return how often a run has read each data set, by its name."""
    sizes, before = np.array([part.tokens for part in shards.by_name.values()]), 0
    read = np.zeros(len(sizes))
    for step in read_metrics(run, "train"):
        shares = np.array(step.get("source_tokens", sizes))
        read += (step["tokens"] - before) * shares / shares.sum()
        before = step["tokens"]
    return dict(zip(shards.by_name, (read / sizes).tolist(), strict=True))
