"""The results of a lab as a page (report.html) and as tables in Markdown (results.md)."""

from __future__ import annotations

import math

from bertie.base.console import duration, plural
from bertie.base.report import Page
from bertie.lab.bootstrap import Estimate
from bertie.lab.charts import part_charts
from bertie.lab.config import MEAN, LabConfig
from bertie.lab.results import Results, VariantRow
from bertie.training.run_report import head_name

METHOD = (
    "The first row is the reference. A difference is the mean over the seeds minus the mean of the reference, with a 95 % "
    "interval. It covers the choice of the dev examples, by a bootstrap that resamples them together for both sides, and the "
    "variation between seeds, by Student's t-distribution. With a single seed, it covers the choice of the dev examples only, "
    "not the variation between runs. Losses and accuracies of pre-training have no interval with a single seed."
)
ONE_MODEL = "Each row has a single pre-training: seeds and intervals cover fine-tuning only."
GIVEN = "The last rows are given scores for comparison, not runs of this lab."
FAILED = "A run failed if its scores are no better than a constant prediction's."
HELD_OUT = (
    "Losses and accuracies on held-out documents. They are not comparable between different objectives or vocabularies."
)
HeaderAndRows = tuple[list[str], list[list[str]]]


def report(config: LabConfig, results: Results, machine: str) -> Page:
    """Return the page of a lab.

    Args:
        config: The lab file.
        results: Its results so far.
        machine: Sentences about hardware and versions.
    """
    page = Page(config.title, config.question)
    if results.missing:
        page.paragraph(f"Not finished: {plural(results.missing, 'cell')} of the lab still without a result.")
    names = of_tasks(results) or results.measures
    page.heading("Scores")
    seeds = len(config.seeds)
    shown = f"Mean ± standard deviation over {seeds} seeds." if seeds > 1 else "One seed."
    page.paragraph(" ".join([shown, *_notes(config, results)]))
    page.table(*score_table(config, results, names))
    page.heading("Differences to the first row")
    page.paragraph(METHOD)
    page.table(*difference_table(config, results, names))
    for row in results.rows:
        for error in row.failed:
            page.paragraph(f"Failed: {row.name}: {error}")
    if of_tasks(results):
        page.heading("Tasks")
    in_parts = {part for parts in results.parts.values() for part in parts}
    for task in results.parts.keys() & results.tasks.keys():
        part_charts(page, config, results, task)
    for measure in (name for name in of_tasks(results) if name not in in_parts):
        rows = {row.name: row.measures[measure] for row in results.rows if measure in row.measures}
        scores = {name: (summary.mean.value, _half_width(summary.mean)) for name, summary in rows.items()}
        scores |= {name: (known[measure], math.nan) for name, known in results.baselines.items() if measure in known}
        page.score_chart(scores, label(measure, results), {name: summary.values for name, summary in rows.items()})
    page.heading("Pre-training")
    for part in _held_out(config, results, names):
        if isinstance(part, str):
            page.paragraph(part)
        else:
            page.table(*part)
    _curves(page, results)
    page.table(*cost_table(config, results))
    page.paragraph(machine)
    return page


def markdown(config: LabConfig, results: Results, machine: str) -> str:
    """Return the tables of a lab in Markdown."""
    names = of_tasks(results) or results.measures
    parts = [f"# {config.title}", config.question, "## Scores", _markdown(*score_table(config, results, names))]
    parts += [" ".join(notes)] if (notes := _notes(config, results)) else []
    parts += ["## Differences to the first row", METHOD, _markdown(*difference_table(config, results, names))]
    held_out = _held_out(config, results, names)
    parts += ["## Pre-training", *(part if isinstance(part, str) else _markdown(*part) for part in held_out)]
    return "\n\n".join([*parts, _markdown(*cost_table(config, results)), machine]) + "\n"


def _held_out(config: LabConfig, results: Results, scores: list[str]) -> list[str | HeaderAndRows]:
    """Return paragraphs and tables of the measures of pre-training that are not among the scores."""
    others = [name for name in results.measures if name not in scores]
    if not others:
        return []
    parts: list[str | HeaderAndRows] = [HELD_OUT, score_table(config, results, others)]
    if compared := _compared(results, others):
        parts += ["Differences to the first row:", difference_table(config, results, compared)]
    return parts


def of_tasks(results: Results) -> list[str]:
    """Return the measures of the tasks. The others are losses and accuracies of pre-training."""
    return [name for name in results.measures if name in results.tasks or name == MEAN]


def score_table(config: LabConfig, results: Results, names: list[str]) -> HeaderAndRows:
    """Return header and rows of the scores of some measures."""
    header = [*(axis.name for axis in config.axes), *(label(name, results) for name in names)]
    rows = [[*row.variants, *(_score(row, name) for name in names)] for row in results.rows]
    others = [""] * (len(config.axes) - 1)
    for name, scores in results.baselines.items():
        if any(measure in scores for measure in names):
            shown = (f"{scores[measure]:.3f}" if measure in scores else "–" for measure in names)
            rows.append([name, *others, *shown])
    return header, rows


def _compared(results: Results, names: list[str]) -> list[str]:
    """Return the measures in which a row can be compared with the first one."""
    return [name for name in names if any(_difference(row, name) for row in results.rows)]


def difference_table(config: LabConfig, results: Results, names: list[str]) -> HeaderAndRows:
    """Return header and rows of the differences to the first row. A star marks intervals without 0."""
    shown = _compared(results, names)
    header = [*(axis.name for axis in config.axes), *(label(name, results) for name in shown)]
    rows = [[*row.variants, *(_shown_difference(_difference(row, name)) for name in shown)] for row in results.rows[1:]]
    return header, rows


def cost_table(config: LabConfig, results: Results) -> HeaderAndRows:
    """Return header and rows of the sizes and costs of the models."""
    header = [*(axis.name for axis in config.axes), "Parameters", "Million tokens", "Duration"]
    rows = []
    for row in results.rows:
        parameters = None if row.parameters is None else f"{row.parameters:,}"
        tokens = None if row.tokens is None else f"{row.tokens / 1e6:.3g}"
        minutes = None if row.minutes is None else duration(60 * row.minutes)
        rows.append([*row.variants, *(cell or "–" for cell in (parameters, tokens, minutes))])
    return header, rows


def label(measure: str, results: Results) -> str:
    """Return the heading of a measure: "SST-2, accuracy" or "masked LM, loss (nats)"."""
    if measure in results.tasks:
        return f"{measure}, {results.tasks[measure].replace('_', ' ')}"
    if measure == MEAN:
        return MEAN
    head, kind = measure.rsplit("_", 1)
    return f"{head_name(head)}, {'loss (nats)' if kind == 'loss' else kind}"


def _score(row: VariantRow, name: str) -> str:
    measured = row.measures.get(name)
    if measured is None:
        return "–"
    text = f"{measured.mean.value:.3f}" + (f" ± {measured.sd:.3f}" if measured.sd is not None else "")
    return text + f" ({measured.no_better} failed)" * (measured.no_better > 0)


def _notes(config: LabConfig, results: Results) -> list[str]:
    """Return sentences about the table of scores: on what they cover, and on "(1 failed)", if it occurs there."""
    failed = any(measured.no_better for row in results.rows for measured in row.measures.values())
    notes = {GIVEN: bool(results.baselines), ONE_MODEL: config.pretrain_seed is not None, FAILED: failed}
    return [note for note, applies in notes.items() if applies]


def _difference(row: VariantRow, name: str) -> Estimate | None:
    measured = row.measures.get(name)
    return measured.difference if measured else None


def _shown_difference(difference: Estimate | None) -> str:
    if difference is None:
        return "–"
    interval = "" if difference.low is None else f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"{difference.value:+.3f}{interval}" + " *" * difference.significant


def _half_width(estimate: Estimate) -> float:
    return math.nan if estimate.low is None or estimate.high is None else (estimate.high - estimate.low) / 2


def _curves(page: Page, results: Results) -> None:
    """Add a chart for each held-out loss that a row has at several steps."""
    for name in dict.fromkeys(name for row in results.rows for name in row.curves):
        curves = {row.name: row.curves[name] for row in results.rows if len(row.curves.get(name, ([],))[0]) > 1}
        distinct = {str(curve): (title, curve) for title, curve in reversed(curves.items())}
        if distinct:
            page.line_chart(dict(reversed(distinct.values())), "million tokens", f"{label(name, results)}, first seed")


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
