"""The report.html of several fine-tunings: every run, every setting, and how the best one learned."""

from __future__ import annotations

import math
from pathlib import Path

from bertie.console import plural
from bertie.finetuning.sweep import Sweep
from bertie.report import Page
from bertie.tasks.metrics import mean_and_interval
from bertie.training.run_report import learning_section, link_to_dev, provenance_section


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
        [[s.learning_rate, s.batch_size, s.epochs, s.runs, s.failed, _known(s.mean), _known(s.sd)] for s in settings],
    )
    made.paragraph("Collapsed: no better than saying the same of every example, or the loss was no number any more.")
    made.heading("Runs")
    rows = [
        [
            ", ".join(["best"] * (o is best) + ["failed"] * o.failed),
            *(o.learning_rate, o.batch_size, o.epochs, o.seed),
            *(_known(part.get(metric)) for part in (o.scores, o.selection_scores, o.report_scores)),
        ]
        for o in done.results
    ]
    made.table(["", "Rate", "Batch", "Epochs", "Seed", metric, "Half that chose", "Other half"], rows)
    link_to_dev(made, run)
    learning_section(made, run / "cells" / best.name, {}, "How the best one learned")
    made.paragraph("Held out is the half of the dev examples that chose.")
    provenance_section(made, run / "cells" / best.name, run)
    return made


def _named(learning_rate: float, batch_size: int, epochs: int) -> str:
    return f"rate {learning_rate:g}, batch {batch_size}, {plural(epochs, 'epoch')}"


def _interval(scores: list[float]) -> tuple[float, float]:
    """Mean and half-width; of two runs it is wider than anything that can be scored, so there it is nan."""
    mean, _, half = mean_and_interval(scores)
    return mean, half if len(scores) > 2 else math.nan


def _known(value: float | None) -> float | str:
    return "–" if value is None else round(value, 4)
