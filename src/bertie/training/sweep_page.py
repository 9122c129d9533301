"""The report.html of several fine-tunings: every run, every setting, and how the best one learned."""

from __future__ import annotations

import math
from pathlib import Path

from bertie.console import many
from bertie.report import Page
from bertie.tasks.metrics import mean_and_interval
from bertie.training.page import learning, link_to_dev, making
from bertie.training.sweep import Sweep


def sweep_page(run: Path, about: str, done: Sweep) -> Page:
    """run: the folder with cells/NAME of each run."""
    made = Page(run.absolute().name, about)
    metric, settings, best = done.metric, done.settings, done.best
    made.heading("Settings")
    means = {_named(s.learning_rate, s.batch_size, s.epochs): s.scores for s in settings if s.scores}
    bars = {name: (mean, half) for name, scores in means.items() for mean, half in [_interval(scores)]}
    made.score_chart(bars, f"{metric} on all dev examples", dots=means)
    header = ["Learning rate", "Batch", "Epochs", "Runs", "Collapsed", "Mean", "Standard deviation"]
    made.table(
        header,
        [
            [s.learning_rate, s.batch_size, s.epochs, s.runs, s.collapsed, _known(s.mean), _known(s.sd)]
            for s in settings
        ],
    )
    made.paragraph("Collapsed: no better than saying the same of every example, or the loss was no number any more.")
    made.heading("Runs")
    rows = [
        [
            ", ".join(["best"] * (o is best) + ["collapsed"] * o.collapsed),
            *(o.learning_rate, o.batch_size, o.epochs, o.seed),
            *(_known(part.get(metric)) for part in (o.scores, o.chosen_on, o.reported_on)),
        ]
        for o in done.outcomes
    ]
    made.table(["", "Rate", "Batch", "Epochs", "Seed", metric, "Half that chose", "Other half"], rows)
    link_to_dev(made, run)
    learning(made, run / "cells" / best.name, {}, "How the best one learned")
    made.paragraph("Held out is the half of the dev examples that chose.")
    making(made, run / "cells" / best.name, run)
    return made


def _named(learning_rate: float, batch_size: int, epochs: int) -> str:
    return f"rate {learning_rate:g}, batch {batch_size}, {many(epochs, 'epoch')}"


def _interval(scores: list[float]) -> tuple[float, float]:
    """Mean and half-width; of two runs it is wider than anything that can be scored, so there it is nan."""
    mean, _, half = mean_and_interval(scores)
    return mean, half if len(scores) > 2 else math.nan


def _known(value: float | None) -> float | str:
    return "–" if value is None else round(value, 4)
