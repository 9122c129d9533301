"""The page of minimal pairs: accuracy by group, and the pairs that the model gets most wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertie.base.console import percent
from bertie.base.report import QUIET, SERIES, Page, TextSpan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"field": "Accuracy by field", "linguistics_term": "Accuracy by term", "UID": "Accuracy by phenomenon"}
MAX_DRAWN = 20  # groups of a chart; more are only in the table


def page(result: dict[str, Any], worst: list[dict[str, Any]]) -> str:
    """Return report.html.

    Args:
        result: What `minimal_pairs` returns.
        worst: Lines of pairs.jsonl: the wrong pairs with the largest differences.
    """
    total, *groups = result["groups"]
    report = Page(
        f"Minimal pairs: {result['model']}",
        f"{result['pairs']:,} pairs of sentences, compared by their {result['score']}, in {result['seconds']:,.1f} s.",
    )
    report.paragraph(
        "A pair is correct if the acceptable sentence has the higher score; equal scores are wrong. A model that guesses is "
        "right in 50 % of the pairs. The intervals are 95 % confidence intervals (Wilson 1927) for independent pairs."
    )
    header = ("all pairs", "correct", "accuracy", "95 % interval", "ties")
    report.table(header, [_row({**total, "name": total["pairs"]})])
    for kind, title in TITLES.items():
        ordered = sorted((group for group in groups if group["kind"] == kind), key=lambda group: group["accuracy"])
        if not ordered:
            continue
        report.heading(title)
        if 1 < len(ordered) <= MAX_DRAWN:
            _chart(report, sorted(ordered, key=lambda group: group["name"]))
        header = (kind.replace("_", " "), "pairs", "correct", "accuracy", "95 % interval", "ties")
        report.table(header, [(group["name"], group["pairs"], *_row(group)[1:]) for group in ordered])
    report.heading("Largest errors")
    if not worst:
        report.paragraph("All pairs are correct.")
        return report.html()
    report.paragraph("The wrong pairs with the largest differences. All pairs are in pairs.jsonl.")
    report.legend({"gold": "acceptable", "wrong": "preferred by the model"})
    for line in worst:
        facts = {"phenomenon": line.get("UID", ""), "difference": f"{line['bad'] - line['good']:.2f} nats"}
        texts = [
            [TextSpan(line["sentence_good"], "gold", f"{line['good']:.2f}")],
            [TextSpan(line["sentence_bad"], "wrong", f"{line['bad']:.2f}")],
        ]
        report.passage({**facts, "source": line["source"]}, texts)
    return report.html()


def _row(group: dict[str, Any]) -> tuple[Any, ...]:
    interval = f"{percent(group['low'])} to {percent(group['high'])}"
    return group["name"], group["correct"], percent(group["accuracy"]), interval, group["ties"]


def _chart(report: Page, groups: list[dict[str, Any]]) -> None:
    """Add a chart with one row per group: accuracy and interval."""

    def draw(axes: Axes) -> None:
        color = SERIES[0]
        for row, group in enumerate(groups):
            axes.plot([100 * group["low"], 100 * group["high"]], [row, row], linewidth=2.2, color=color)
            axes.plot(100 * group["accuracy"], row, "o", markersize=7, color=color)
        axes.axvline(50, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(groups)), [group["name"].replace("_", " ") for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(-4, 104)  # room for the dots at both ends
        axes.grid(axis="x")

    description = "; ".join(f"{group['name']} {percent(group['accuracy'])}" for group in groups)
    caption = "Accuracy (%) with 95 % confidence interval; dashed line: guessing"
    report.picture(draw, caption, f"Accuracy: {description}", height=0.6 + 0.32 * len(groups))
