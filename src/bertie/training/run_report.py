"""The report.html of a run: loss curves, last scores, settings and machine."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bertie.base import config as configuration
from bertie.base import storage
from bertie.base.console import percent
from bertie.base.report import Page
from bertie.objectives import AnyObjective
from bertie.tasks import AnyTask
from bertie.tasks.evaluation.folder import PAGE
from bertie.training.run_folder import ENVIRONMENT, read_metrics

DEV, TEST = "dev", "test"  # subfolders of a fine-tuning run: the evaluations on the dev set and on the test set


def head_name(kind: str) -> str:
    """Return the name of an objective or a task, for people."""
    known = configuration.kinds(AnyObjective) | configuration.kinds(AnyTask)
    return known[kind]().facts.name if kind in known else kind


def run_page(run: Path, about: str, lines: dict[str, float], middle: Callable[[Page], object] = lambda _: None) -> Page:
    """Create the report of a run.

    Args:
        run: A run folder with at least one training step and one evaluation in metrics.jsonl.
        about: A sentence below the title.
        lines: Horizontal lines in the chart of the first loss: label -> nats.
        middle: Adds what stands before the settings.
    """
    page = Page(run.absolute().name, about)
    learning_section(page, run, lines)
    link_to_dev(page, run)
    middle(page)
    provenance_section(page, run)
    return page


def learning_section(page: Page, run: Path, lines: dict[str, float], title: str = "Training") -> None:
    """Add loss curves, and the held-out losses of the saved weights.

    Args:
        page: The page to extend.
        run: The run folder.
        lines: Horizontal lines in the chart of the first loss: label -> nats.
        title: Heading of the section.
    """
    last, best = read_metrics(run, "eval")[-1], best_evaluation(run)
    kinds = [name.removesuffix("_loss") for name in last if name.endswith("_loss")]
    page.heading(title)
    if best["step"] < last["step"]:
        page.paragraph(
            f"The held-out loss was lowest after step {best['step']:,}, and training ended after step "
            f"{last['step']:,}. The model has the weights of step {best['step']:,}."
        )
    for kind in kinds:
        label = f"Loss, {head_name(kind)}, {unit(last, kind)}"
        loss_chart(page, run, f"{kind}_loss", label, lines if kind == kinds[0] else {})
    rows = [[f"{head_name(kind)}, {unit(last, kind)}", best[f"{kind}_loss"]] for kind in kinds]
    header = [f"After step {best['step']:,}, held out", "Loss"]
    if any(f"{kind}_accuracy" in best for kind in kinds):
        header.append("Accuracy")
        accuracies = [best.get(f"{kind}_accuracy") for kind in kinds]
        rows = [[*row, "" if value is None else percent(value)] for row, value in zip(rows, accuracies, strict=True)]
    page.table(header, rows)


def unit(record: dict[str, Any], kind: str) -> str:
    """Return the unit of a head's loss: nats if the head predicts probabilities, else squared error, or what a user's own has."""
    shipped = head_name(kind) != kind
    return "nats" if f"{kind}_accuracy" in record else "squared error" if shipped else "in its own unit"


def best_evaluation(run: Path) -> dict[str, Any]:
    """Return the evaluation of the weights that the run ended with.

    With `training.patience`, that is the evaluation with the lowest loss (of equal ones, the first); else the last one.
    """
    evaluations = read_metrics(run, "eval")
    finite = [record for record in evaluations if record["loss"] is not None]
    patience = configuration.read(run / "config.toml").get("training", {}).get("patience")
    return min(finite, key=itemgetter("loss")) if patience and finite else evaluations[-1]


def provenance_section(page: Page, run: Path, settings_from: Path | None = None) -> None:
    """Add speed, machine and settings.

    Args:
        page: The page to extend.
        run: The run folder.
        settings_from: The folder whose config.toml is shown, if the run is one of a sweep; None: `run`.
    """
    steps, last = read_metrics(run, "train"), read_metrics(run, "eval")[-1]
    page.heading("Settings and machine")
    speed = median(step["tokens_per_second"] for step in steps)
    minutes = steps[-1]["seconds"] / 60
    page.paragraph(
        f"{last['step']:,} steps, {last['tokens']:,} tokens, {minutes:,.1f} minutes; median speed of a step: "
        f"{speed:,.0f} tokens per second. {describe_machine(run)}"
    )
    page.code(((settings_from or run) / "config.toml").read_text(encoding="utf-8"))


def link_to_dev(page: Page, run: Path) -> None:
    """Add links to the evaluations on the dev set and the test set, as far as the run has them."""
    names = [name for name in (DEV, TEST) if (run / name / PAGE).is_file()]
    if names:
        page.links({f"Evaluation on the {name} set: correct and wrong predictions": f"{name}/{PAGE}" for name in names})


def loss_chart(page: Page, run: Path, name: str, label: str, lines: dict[str, float]) -> None:
    """Add a chart of one loss against the step: the training loss, smoothed, and the held-out loss.

    Args:
        page: The page to extend.
        run: The run folder.
        name: Key of the loss in metrics.jsonl.
        label: Label of the vertical axis.
        lines: Horizontal lines: label -> loss.
    """
    # A skipped step has no finite loss.
    train, held_out = (
        [record for record in read_metrics(run, split) if record[name] is not None] for split in ("train", "eval")
    )
    train_curve = smoothed([record["step"] for record in train], [record[name] for record in train])
    held_out_curve = ([record["step"] for record in held_out], [record[name] for record in held_out])
    page.line_chart({"training": train_curve, "held out": held_out_curve}, "step", label, lines)


def describe_machine(run: Path) -> str:
    """Describe hardware, precision and versions of a run in one sentence, with "?" for what is not recorded."""
    environment = storage.read_json(run / ENVIRONMENT)
    versions = ", ".join(f"{name} {number}" for name, number in environment.get("versions", {}).items()) or "?"
    threads, cpu, precision = (environment.get(name, "?") for name in ("threads", "cpu", "precision"))
    place = f"on {threads} thread{'s' * (threads != 1)} of {cpu}, in {precision}"
    if accelerator := environment.get("accelerator"):
        place = f"on {accelerator} with {place.removeprefix('on ')}"
    ranks = environment.get("ranks", [1])  # in a resumed run, there may be several numbers
    if ranks != [1]:
        place = f"{', then '.join(map(str, ranks))} process{'es' * (ranks[-1:] != [1])}, each {place}"
    return f"{place[0].upper()}{place[1:]}; {versions}."


def smoothed(xs: list[float], ys: list[float], points: int = 60) -> tuple[list[float], list[float]]:
    """Average neighboring steps, so that at most `points` points remain. Single steps are too noisy to plot."""
    size = max(1, -(-len(xs) // points))
    groups = [slice(i, i + size) for i in range(0, len(xs), size)]
    return [fmean(xs[g]) for g in groups], [fmean(ys[g]) for g in groups]
