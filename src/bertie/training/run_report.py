"""A run's report.html: what the loss did, what came of it, how it was made."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bertie import config as configuration
from bertie import storage
from bertie.console import percent
from bertie.report import Page
from bertie.tasks.evaluation.folder import PAGE
from bertie.training.run_folder import read_metrics

DEV = "dev"  # of a run that was fine-tuned: its evaluation on the dev examples
HEAD_NAMES = {
    "mlm": "masked words",
    "nsp": "next sentence",
    "classify": "classes",
    "regress": "numbers",
    "choose": "endings",
    "tag": "tags",
    "span": "answers",
    "embed": "pairs",
}


def run_page(run: Path, about: str, lines: dict[str, float]) -> Page:
    """Curves and last scores of a run that has metrics.jsonl. lines: levels to compare the first loss with, name -> nats."""
    made = Page(run.absolute().name, about)
    learning_section(made, run, lines)
    link_to_dev(made, run)
    provenance_section(made, run)
    return made


def learning_section(made: Page, run: Path, lines: dict[str, float], title: str = "Learning") -> None:
    last, kept = read_metrics(run, "eval")[-1], best_evaluation(run)
    kinds = [name.removesuffix("_loss") for name in last if name.endswith("_loss")]
    made.heading(title)
    if kept["step"] < last["step"]:
        made.paragraph(
            f"The held-out loss had been lowest after step {kept['step']:,}, and training ended after step {last['step']:,}: the "
            "weights are those of the lowest."
        )
    for kind in kinds:
        label = f"Loss, {HEAD_NAMES.get(kind, kind)}, {unit(last, kind)}"
        loss_chart(made, run, f"{kind}_loss", label, lines if kind == kinds[0] else {})
    rows = [[f"{HEAD_NAMES.get(kind, kind)}, {unit(last, kind)}", kept[f"{kind}_loss"]] for kind in kinds]
    header = [f"After step {kept['step']:,}, held out", "Loss"]
    if any(f"{kind}_accuracy" in kept for kind in kinds):
        header.append("Guessed right")
        right = [kept.get(f"{kind}_accuracy") for kind in kinds]
        rows = [[*row, "" if share is None else percent(share)] for row, share in zip(rows, right, strict=True)]
    made.table(header, rows)


def unit(record: dict[str, Any], kind: str) -> str:
    """Of a head's loss: what is guessed has a probability; where nothing is, the loss is a distance of numbers."""
    return "nats" if f"{kind}_accuracy" in record else "squared error"


def best_evaluation(run: Path) -> dict[str, Any]:
    """That of the weights which the run kept: with `training.patience` the lowest, and of equals the first; else the last."""
    found = read_metrics(run, "eval")
    training = configuration.read(run / "config.toml").get("training")
    known = [record for record in found if record["loss"] is not None]
    patient = isinstance(training, dict) and training.get("patience")
    return min(known, key=itemgetter("loss")) if patient and known else found[-1]


def provenance_section(made: Page, run: Path, asked: Path | None = None) -> None:
    """Its speed, machine and settings. asked: the run whose settings these are, where it is one of several."""
    steps, last = read_metrics(run, "train"), read_metrics(run, "eval")[-1]
    made.heading("How it was made")
    speed = median(step["tokens_per_second"] for step in steps)
    minutes = steps[-1]["seconds"] / 60
    made.paragraph(
        f"{last['step']:,} steps, {last['tokens']:,} tokens, {minutes:,.1f} minutes; half of the steps ran at {speed:,.0f} "
        f"tokens a second or more. {describe_machine(run)}"
    )
    made.code(((asked or run) / "config.toml").read_text(encoding="utf-8"))


def link_to_dev(made: Page, run: Path) -> None:
    """To the page of the evaluation on the dev examples, where the run has one."""
    if (run / DEV / PAGE).is_file():
        made.link("What it gets right and wrong of the dev examples", f"{DEV}/{PAGE}")


def loss_chart(made: Page, run: Path, name: str, label: str, lines: dict[str, float]) -> None:
    """One measure of metrics.jsonl against the step: on the training text, smoothed, and held out."""
    told = [[record for record in read_metrics(run, split) if record[name] is not None] for split in ("train", "eval")]
    steps, held_out = told  # without steps that were skipped because they came to no number
    smooth = smoothed([step["step"] for step in steps], [step[name] for step in steps])
    curve = ([record["step"] for record in held_out], [record[name] for record in held_out])
    made.line_chart({"in training": smooth, "held out": curve}, "step", label, lines)


def describe_machine(run: Path) -> str:
    """One sentence of the hardware and the versions, as far as they were written down."""
    environment = storage.read_json(run / "environment.json")
    versions = environment.get("versions")
    told = ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else "?"
    threads, cpu, precision = (environment.get(name, "?") for name in ("threads", "cpu", "precision"))
    return f"On {threads} thread{'s' * (threads != 1)} of {cpu}, in {precision}; {told}."


def smoothed(xs: list[float], ys: list[float], points: int = 60) -> tuple[list[float], list[float]]:
    """At most `points` means of neighbouring steps: single steps are too noisy to see."""
    size = max(1, -(-len(xs) // points))
    groups = [slice(i, i + size) for i in range(0, len(xs), size)]
    return [fmean(xs[g]) for g in groups], [fmean(ys[g]) for g in groups]
