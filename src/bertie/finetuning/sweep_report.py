"""report.html of several runs: the settings, the runs, and the training of the best run."""

from __future__ import annotations

from pathlib import Path

from bertie.base.report import Page
from bertie.finetuning.sweep import Sweep
from bertie.tasks.metrics import mean_and_interval
from bertie.training.run_report import learning_section, link_to_dev, provenance_section


def sweep_page(run: Path, about: str, done: Sweep) -> Page:
    """Return the page.

    Args:
        run: The run folder, with a folder cells/NAME for each run.
        about: The introduction.
        done: The results of all runs.
    """
    page = Page(run.absolute().name, about)
    metric, settings, best = done.metric, done.settings, done.best
    page.heading("Settings")
    scores_by_setting = {s.name: s.scores for s in settings if s.scores}
    intervals = {name: mean_and_interval(scores) for name, scores in scores_by_setting.items()}
    page.score_chart(intervals, f"{metric} on all dev examples", dots=scores_by_setting)
    header = ["Learning rate", "Batch size", "Epochs", "Runs", "Failed runs", "Mean", "Standard deviation"]
    rows = [[s.learning_rate, s.batch_size, s.epochs, s.runs, s.failed, _cell(s.mean), _cell(s.sd)] for s in settings]
    page.table(header, rows)
    page.paragraph(
        "A failed run is no better than a constant prediction, or its loss became NaN or infinite. "
        "Mean and standard deviation are over all runs with finite losses."
    )
    page.heading("Runs")
    rows = [
        [
            ", ".join(["best"] * (result is best) + ["failed"] * result.failed),
            *(_cell(part.get(metric)) for part in (result.scores, result.selection_scores, result.report_scores)),
            *(result.learning_rate, result.batch_size, result.epochs, result.seed),
        ]
        for result in done.results
    ]
    header = ["", f"{metric}, all", "Selection half", "Report half", "Learning rate", "Batch size", "Epochs", "Seed"]
    page.table(header, rows)
    page.paragraph(
        f"The best run has the best {metric} on the selection half of the dev examples. Its scores are reported on the "
        "other half, the report half, because selection biases the scores on the half that it uses."
    )
    link_to_dev(page, run)
    learning_section(page, run / "cells" / best.name, {}, "Training of the best run")
    page.paragraph("The held-out loss is computed on the selection half of the dev examples.")
    provenance_section(page, run / "cells" / best.name, run)
    return page


def _cell(value: float | None) -> float | str:
    return "–" if value is None else round(value, 4)
