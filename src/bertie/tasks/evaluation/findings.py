"""Findings of an evaluation. Each converts itself to JSON for scores.json, and draws itself on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertie.base.console import percent, plural
from bertie.base.report import QUIET, SERIES, Page
from bertie.tasks.evaluation.calibration import Calibration
from bertie.tasks.evaluation.passages import Passage
from bertie.tasks.metrics import confusion, precision_recall_f1

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 1500  # dots in a scatter plot
MEASURES = ("precision", "recall", "f1", "count")
MAX_CLASSES = 20  # rows in a drawn confusion matrix


@dataclass(frozen=True)
class Table:
    """A table. Each row is a name and its numbers, in the order of the header."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""

    def as_json(self) -> dict[str, dict[str, Any]]:
        return {row[0]: dict(zip(self.header[1:], row[1:], strict=True)) for row in self.rows}

    def draw(self, page: Page) -> None:
        page.heading(self.title)
        if self.note:
            page.paragraph(self.note)
        page.table([name.replace("_", " ") for name in self.header], self.rows)


@dataclass(frozen=True, eq=False)
class Confusion:
    """A confusion matrix. counts: int64 [C, C], how often the class of a row was predicted as the class of a column."""

    labels: list[str]
    counts: np.ndarray
    name: str = "confusion"

    def as_json(self) -> dict[str, dict[str, int]]:
        """Return the counts as {gold: {predicted: count}}, without zeros."""
        return {
            gold: {self.labels[j]: int(row[j]) for j in np.flatnonzero(row)}
            for gold, row in zip(self.labels, self.counts, strict=True)
        }

    def draw(self, page: Page) -> None:
        page.heading("Confusion matrix")
        labels, counts = self._worst()
        about = "Rows are gold labels, columns are predicted labels. The color shows the share of the row."
        if (count := len(self.labels)) > MAX_CLASSES:
            about += f" Shown are the {MAX_CLASSES} of {count} classes with the most errors; the others are merged."
        page.paragraph(about)
        page.matrix(labels, counts.tolist())
        if pairs := self.pairs(10) if len(self.labels) > 2 else []:
            page.table(("gold", "predicted", "count", "share of gold"), pairs)

    def pairs(self, most: int) -> list[tuple[str, str, int, float]]:
        """Return the most frequent confusions: gold, predicted, count, share of the gold class."""
        wrong = self.counts * ~np.eye(len(self.labels), dtype=bool)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = [divmod(int(place), len(self.labels)) for place in order if wrong.flat[place]]
        return [
            (self.labels[i], self.labels[j], int(wrong[i, j]), float(wrong[i, j] / self.counts[i].sum()))
            for i, j in places
        ]

    def _worst(self) -> tuple[list[str], np.ndarray]:
        """Return at most MAX_CLASSES classes with the most errors, and the others merged into one."""
        if len(self.labels) <= MAX_CLASSES:
            return self.labels, self.counts
        errors = self.counts.sum(0) + self.counts.sum(1) - 2 * self.counts.diagonal()
        shown = np.sort(np.argsort(-errors, kind="stable")[:MAX_CLASSES])
        place = np.full(len(self.labels), MAX_CLASSES)
        place[shown] = np.arange(MAX_CLASSES)
        counts = np.zeros((MAX_CLASSES + 1, MAX_CLASSES + 1), np.int64)
        np.add.at(counts, (place[:, None], place[None, :]), self.counts)
        return [*(self.labels[i] for i in shown), "all others"], counts


@dataclass(frozen=True)
class Histogram:
    """A bar chart of counts, by the label of the bar."""

    name: str
    title: str
    bars: dict[str, int]
    x_label: str
    caption: str

    def as_json(self) -> dict[str, int]:
        return self.bars

    def draw(self, page: Page) -> None:
        page.heading(self.title)
        page.bar_chart(self.bars, self.x_label, self.caption)


@dataclass(frozen=True, eq=False)
class Scatter:
    """A scatter plot with one dot per example, or of evenly spaced examples if there are more than MAX_POINTS.

    diagonal: whether to draw the line x = y, because both axes measure the same.
    """

    name: str
    title: str
    gold: np.ndarray
    predicted: np.ndarray
    x_label: str
    y_label: str
    diagonal: bool

    def as_json(self) -> None:
        return None

    def draw(self, page: Page) -> None:
        every = -(-len(self.gold) // MAX_POINTS)
        xs, ys = self.gold[::every], self.predicted[::every]

        def draw(axes: Axes) -> None:
            if self.diagonal:
                middle = float(np.mean(xs))
                axes.axline((middle, middle), slope=1, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
                ends = min(xs.min(), ys.min()), max(xs.max(), ys.max())
                margin = 0.04 * (ends[1] - ends[0]) or 1.0
                axes.set(xlim=(ends[0] - margin, ends[1] + margin), ylim=(ends[0] - margin, ends[1] + margin))
            axes.scatter(xs, ys, s=14, color=SERIES[0], alpha=0.45, linewidths=0)
            axes.grid()
            axes.locator_params(nbins=6)
            axes.set_xlabel(self.x_label)

        page.heading(self.title)
        sample = f", every {every}th of {len(self.gold):,} examples" * (every > 1)
        about = f"{self.y_label} against {self.x_label}: {plural(len(xs), 'example')}"
        page.picture(draw, self.y_label + sample, about, height=3.8)


@dataclass(frozen=True)
class Curves:
    """Scores as functions of a parameter. chosen: its value in use, and the first score there."""

    name: str
    title: str
    note: str
    xs: list[float]
    curves: dict[str, list[float]]
    chosen: tuple[float, float]
    x_label: str
    y_label: str

    def as_json(self) -> dict[str, Any]:
        """Return the value in use, and the best value and its score for each curve."""
        best = {name: int(np.argmax(curve)) for name, curve in self.curves.items()}
        optima = {name: {"at": self.xs[at], "score": self.curves[name][at]} for name, at in best.items()}
        return {"in_use": self.chosen[0], "best": optima}

    def draw(self, page: Page) -> None:
        page.heading(self.title)
        page.paragraph(self.note)
        every = -(-len(self.xs) // 300)
        series = {name: (self.xs[::every], curve[::every]) for name, curve in self.curves.items()}
        x, y = self.chosen
        page.line_chart({**series, "in use": ([x], [y])}, self.x_label, self.y_label)


Finding = Table | Confusion | Histogram | Scatter | Curves | Calibration
"""A table or chart of an evaluation. `name` is its key in scores.json. `as_json` returns its value there, or None if
predictions.jsonl already has the information. `draw` adds it to the page, with a heading."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The details of an evaluation on n examples."""

    columns: dict[str, list[Any]]
    """Columns that predictions.jsonl adds to each prediction, by name, beside the loss: the gold label ("gold")."""
    losses: np.ndarray
    """float64 or int64 [n]: how wrong each prediction is; 0 if it is correct."""
    loss_description: str
    """A noun phrase that defines the loss."""
    findings: tuple[Finding, ...]
    """Tables and charts, in the order of the page."""
    passage: Callable[[int], Passage]
    """Returns the texts of an example for display, by its index."""

    @property
    def lines(self) -> list[dict[str, Any]]:
        """For each example, what predictions.jsonl adds to the prediction: `columns`, and the loss ("loss")."""
        columns = {**self.columns, "loss": self.losses.tolist()}
        return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def class_findings(gold: list[str], predicted: list[str], labels: Sequence[str], what: str) -> tuple[Table, Confusion]:
    """Return the scores of each class, and the confusion matrix.

    Args:
        gold: The gold labels.
        predicted: The predicted labels.
        labels: All classes, including every one that occurs.
        what: The noun for a class, for headings: "tag".
    """
    counts = confusion(gold, predicted, list(labels))
    correct, of_gold, found = np.diag(counts), counts.sum(1), counts.sum(0)
    measures = (*precision_recall_f1(correct, of_gold, found), of_gold.astype(int))
    columns = [column.tolist() for column in measures]
    label, count = Counter(gold).most_common(1)[0]
    note = f"Baseline: always predicting {label} has an accuracy of {percent(count / len(gold))}."
    table = Table(
        "classes",
        f"By {what}",
        (what, *MEASURES),
        list(zip(labels, *columns, strict=True)),
        note,
    )
    return table, Confusion(list(labels), counts.astype(int))


def member_table(
    name: str,
    title: str,
    header: tuple[str, ...],
    kinds: Sequence[str],
    members_3K: np.ndarray,
    note: str,
    *columns: Sequence[float],
) -> Table:
    """Return the scores of each kind.

    Args:
        name: As of `Table`, with title, header and note.
        kinds: The kinds, one a row.
        members_3K: int64, the numbers of correct, gold and predicted members of each kind: the last two are columns.
        columns: Further columns, after the scores.
    """
    measures = [measure.tolist() for measure in precision_recall_f1(*members_3K)]
    rows = zip(kinds, *measures, *columns, *members_3K[1:].tolist(), strict=True)
    return Table(name, title, header, list(rows), note)
