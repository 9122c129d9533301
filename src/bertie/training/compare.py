"""`bertie runs compare`: curves against tokens and time, last scores, and differing settings of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bertie.base import config, storage
from bertie.base.errors import UsageError
from bertie.base.report import Numbers, Page
from bertie.training.run_folder import flatten, read_metrics, short_names
from bertie.training.run_report import best_evaluation, describe_machine, head_name, smoothed, unit

Records = list[dict[str, Any]]


class _Run(NamedTuple):
    name: str
    train: Records
    held_out: Records


_HTML = b"<!doctype html>"


def compare(runs: Sequence[str | Path], out: str | Path = "compare.html") -> dict[str, Any]:
    """Write an HTML page that compares runs, finished or not.

    Args:
        runs: Two run folders or more, of pre-training or of single fine-tuning runs.
        out: The page to write.

    Returns:
        {"page": path of the page,
        "runs": [{"run": folder, "step", "tokens", "minutes", "tokens_per_second": median over the steps,
        "eval": the held-out record of the saved weights, or None before the first evaluation}],
        "differences": {dotted key of a setting: [its value in each run]}}.

    Raises:
        UsageError: For fewer than two runs, a folder that is not a run or has no training step yet, the same run twice,
            runs that have no loss in common, or an `out` that exists and is not an HTML page.
        UserError: If metrics.jsonl of a run is damaged.
    """
    folders = [Path(run) for run in runs]
    _require_page(Path(out))
    if len(folders) < 2:
        raise UsageError("give two or more runs to compare")
    for folder in folders:
        if not (folder / "metrics.jsonl").is_file():
            raise UsageError(f"{folder} is not a run: it contains no metrics.jsonl")
    train, held_out = ([read_metrics(folder, split) for folder in folders] for split in ("train", "eval"))
    if [] in train:
        raise UsageError(f"{folders[train.index([])]} contains no training step yet: wait until it has logged one")
    measures = _common_measures(folders, [records[0] for records in train])
    settings = [flatten(config.read(folder / "config.toml")) for folder in folders]
    keys = sorted({key for values in settings for key in values})
    differences = {key: [values.get(key) for values in settings] for key in keys}
    differences = {key: values for key, values in differences.items() if any(value != values[0] for value in values)}
    summaries = [_summary(*parts) for parts in zip(folders, train, held_out, strict=True)]
    machines = [describe_machine(folder) for folder in folders]
    page = _page(list(map(_Run, short_names(folders), train, held_out)), measures, summaries, differences, machines)
    storage.write_atomic(Path(out), page.html())
    return {"page": str(out), "runs": summaries, "differences": differences}


def _require_page(out: Path) -> None:
    """Raise a UsageError if `out` exists and is no HTML page, such as a text file, which must not be lost."""
    if out.exists() and (not out.is_file() or not out.read_bytes()[: len(_HTML)].lower() == _HTML):
        raise UsageError(f"{out} already exists and is not an HTML page: choose another --out")


def _common_measures(folders: list[Path], records: Records) -> list[str]:
    """Return the losses and accuracies that all runs have, in the order of the first run."""
    common = first = [name for name in records[0] if name.endswith(("_loss", "_accuracy"))]
    for folder, record in zip(folders, records, strict=True):
        common = [name for name in common if name in record]
        if not common:
            raise UsageError(f"{folder} has no loss in common with the others ({', '.join(first)}): remove it")
    return common


def _summary(folder: Path, train: Records, held_out: Records) -> dict[str, Any]:
    last = train[-1]
    return {
        "run": str(folder),
        "step": last["step"],
        "tokens": last["tokens"],
        "minutes": last["seconds"] / 60,
        "tokens_per_second": median(record["tokens_per_second"] for record in train),
        "eval": best_evaluation(folder) if held_out else None,
    }


def _page(
    runs: list[_Run],
    measures: list[str],
    summaries: list[dict[str, Any]],
    differences: dict[str, list[Any]],
    machines: list[str],
) -> Page:
    names, first = [run.name for run in runs], runs[0].train[0]
    page = Page(
        " and ".join(names),
        "Held-out losses of the runs. A run with fewer than two evaluations has a curve of its training losses.",
    )
    page.heading("Results")
    rows: list[list[Any]] = [
        ["Steps", *(s["step"] for s in summaries)],
        ["Tokens", *(s["tokens"] for s in summaries)],
        ["Minutes", *(f"{s['minutes']:,.1f}" for s in summaries)],
        ["Tokens/s", *(f"{s['tokens_per_second']:,.0f}" for s in summaries)],
    ]
    evaluated = [(s["eval"] or {}).get("step", "–") for s in summaries]
    if evaluated != [s["step"] for s in summaries]:
        rows.append(["Evaluated after step", *evaluated])
    for measure in measures:
        scores = [(s["eval"] or {}).get(measure) for s in summaries]
        rows.append([_label(measure, first), *("–" if score is None else f"{score:.4g}" for score in scores)])
    page.table(["", *names], rows)
    page.heading("By training tokens")
    for measure in measures:
        page.line_chart(_curves(runs, "tokens", measure, 1e-6), "million tokens", _label(measure, first))
    page.heading("By time")
    page.line_chart(_curves(runs, "seconds", measures[0], 1 / 60), "minutes", _label(measures[0], first))
    page.heading("Settings and machines")
    if differences:
        shown = [[key, *("–" if value is None else value for value in values)] for key, values in differences.items()]
        page.table(["Setting", *names], shown)
    else:
        page.paragraph("All settings are the same.")
    for name, machine in zip(names, machines, strict=True):
        page.paragraph(f"{name}: {machine}")
    return page


def _curves(runs: list[_Run], x: str, y: str, x_scale: float) -> dict[str, tuple[Numbers, Numbers]]:
    """Return a curve for each run: held-out values, or smoothed training values if there are fewer than two."""
    curves: dict[str, tuple[Numbers, Numbers]] = {}
    for name, *splits in runs:
        steps, evaluations = ([record for record in records if record.get(y) is not None] for records in splits)
        records = evaluations if len(evaluations) > 1 else steps
        xs, ys = [record[x] * x_scale for record in records], [record[y] for record in records]
        if records is evaluations:
            curves[name] = xs, ys
        else:
            curves[f"{name}, training"] = smoothed(xs, ys)
    return curves


def _label(measure: str, record: dict[str, Any]) -> str:
    head, kind = measure.rsplit("_", 1)
    return f"{head_name(head)}, {unit(record, head) if kind == 'loss' else 'accuracy'}"
