"""Runs beside each other: curves against tokens and time, last scores, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bertie import config, storage
from bertie.errors import UsageError
from bertie.report import Numbers, Page
from bertie.training.run_folder import flatten, read_metrics
from bertie.training.run_report import HEAD_NAMES, best_evaluation, describe_machine, smoothed, unit

Records = list[dict[str, Any]]


def compare(runs: Sequence[str | Path], out: str | Path = "compare.html") -> dict[str, Any]:
    """Write a page that compares run folders, finished or not.

    Returns {"page", "runs": [{"run", "step", "tokens", "minutes", "tokens_per_second", "eval": the record of the
    weights it kept, or None}],
    "differences": {setting: [its value in each run]}}. Errors: UsageError for fewer than two runs, or what is none.
    """
    folders = [Path(run) for run in runs]
    if Path(out).is_dir():
        raise UsageError(f"--out {out} is a folder: give the page a name")
    if len(folders) < 2:
        raise UsageError("give two runs or more to compare")
    for folder in folders:
        if not (folder / "metrics.jsonl").is_file():
            raise UsageError(f"{folder} is no run: it holds no metrics.jsonl")
    train = [read_metrics(folder, "train") for folder in folders]
    held_out = [read_metrics(folder, "eval") for folder in folders]
    for folder, records in zip(folders, train, strict=True):
        if not records:
            raise UsageError(f"{folder} has not written a step yet")
    settings = [flatten(config.read(folder / "config.toml")) for folder in folders]
    keys = sorted({key for values in settings for key in values})
    differences = {key: [values.get(key) for values in settings] for key in keys}
    differences = {key: values for key, values in differences.items() if any(value != values[0] for value in values)}
    summaries = [_summary(*parts) for parts in zip(folders, train, held_out, strict=True)]
    page = _page(
        _names(folders), train, held_out, summaries, differences, [describe_machine(folder) for folder in folders]
    )
    storage.write_atomic(Path(out), page.html())
    return {"page": str(out), "runs": summaries, "differences": differences}


def _names(folders: list[Path]) -> list[str]:
    """As many of the last parts of each path as tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(path[-count:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


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
    names: list[str],
    train: list[Records],
    held_out: list[Records],
    summaries: list[dict[str, Any]],
    differences: dict[str, list[Any]],
    machines: list[str],
) -> Page:
    made = Page(
        " and ".join(names),
        "Runs beside each other. Held-out text; where a run has evaluated less than twice, training text.",
    )
    measures = [
        name for name in train[0][0] if name.endswith(("_loss", "_accuracy")) and all(name in t[0] for t in train)
    ]
    made.heading("What came of them")
    rows: list[list[Any]] = [
        ["Steps", *(s["step"] for s in summaries)],
        ["Tokens", *(s["tokens"] for s in summaries)],
        ["Minutes", *(f"{s['minutes']:,.1f}" for s in summaries)],
        ["Tokens/s", *(f"{s['tokens_per_second']:,.0f}" for s in summaries)],
    ]
    kept = [(s["eval"] or {}).get("step", "–") for s in summaries]
    if kept != [s["step"] for s in summaries]:
        rows.append(["Held out after step", *kept])
    for measure in measures:
        scores = [(s["eval"] or {}).get(measure) for s in summaries]
        rows.append([_label(measure, train[0][0]), *("–" if score is None else f"{score:.4g}" for score in scores)])
    made.table(["", *names], rows)
    made.heading("Against the text they read")
    for measure in measures:
        curves = _curves(names, train, held_out, "tokens", measure, 1e-6)
        made.line_chart(curves, "million tokens", _label(measure, train[0][0]))
    made.heading("Against time")
    curves = _curves(names, train, held_out, "seconds", measures[0], 1 / 60)
    made.line_chart(curves, "minutes", _label(measures[0], train[0][0]))
    made.heading("How they were made")
    if differences:
        shown = [[key, *("–" if value is None else value for value in values)] for key, values in differences.items()]
        made.table(["Setting", *names], shown)
    else:
        made.paragraph("Every setting is the same.")
    for name, machine in zip(names, machines, strict=True):
        made.paragraph(f"{name}: {machine}")
    return made


def _curves(
    names: list[str], train: list[Records], held_out: list[Records], x: str, y: str, unit: float
) -> dict[str, tuple[Numbers, Numbers]]:
    """Held-out values, or, where there are not two of them, those of training, and then the name says so."""
    curves: dict[str, tuple[Numbers, Numbers]] = {}
    for name, *parts in zip(names, train, held_out, strict=True):
        steps, evals = ([record for record in records if record.get(y) is not None] for records in parts)
        records = evals if len(evals) > 1 else steps
        xs, ys = [record[x] * unit for record in records], [record[y] for record in records]
        curves[name if records is evals else f"{name}, in training"] = (
            (xs, ys) if records is evals else smoothed(xs, ys)
        )
    return curves


def _label(measure: str, record: dict[str, Any]) -> str:
    head, kind = measure.rsplit("_", 1)
    return f"{HEAD_NAMES.get(head, head)}, {unit(record, head) if kind == 'loss' else 'share guessed right'}"
