"""Findings of an evaluation. Each says itself as JSON, for scores.json, and draws itself on a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bertie.console import plural
from bertie.report import SERIES, Page, baseline_color
from bertie.tasks.evaluation.passages import Passage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1500  # of one picture
SHOWN = 20  # classes of one matrix


class Finding(Protocol):
    @property
    def name(self) -> str:
        """Its key in scores.json."""
        ...

    def as_json(self) -> Any:
        """As JSON; None where predictions.jsonl says it all."""
        ...

    def draw(self, page: Page) -> None: ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """lines: of each example, what predictions.jsonl says beside the prediction: what is right ("gold"), and the loss.

    losses: float64 [n], how wrong each example is; 0: not at all. loss: what that is, in words. passage: an example for
    people, by its number.
    """

    lines: list[dict[str, Any]]
    losses: np.ndarray
    loss: str
    findings: tuple[Finding, ...]
    passage: Callable[[int], Passage]


@dataclass(frozen=True)
class Table:
    """rows: a name and its numbers, as the header says."""

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
    """counts: int64 [C, C], how often the class of a row was taken for that of a column."""

    labels: list[str]
    counts: np.ndarray
    name: str = "confusion"

    def as_json(self) -> dict[str, dict[str, int]]:
        """Gold → predicted → how often, without zeros."""
        return {
            gold: {self.labels[j]: int(row[j]) for j in np.flatnonzero(row)}
            for gold, row in zip(self.labels, self.counts, strict=True)
        }

    def draw(self, page: Page) -> None:
        page.heading("What was taken for what")
        labels, counts = self._worst()
        few = f" The {SHOWN} of {len(self.labels)} classes with the most mistakes; the others together."
        page.paragraph(
            "A row is a gold class, a column what was predicted; the stronger the colour, the larger its share of the row."
            + few * (len(self.labels) > SHOWN)
        )
        page.matrix(labels, counts.tolist())
        if pairs := self.pairs(10) if len(self.labels) > 2 else []:
            page.table(("gold", "predicted", "times", "share of gold"), pairs)

    def pairs(self, most: int) -> list[tuple[str, str, int, float]]:
        """What is confused most often: gold, predicted, times, share of the gold class."""
        wrong = self.counts * ~np.eye(len(self.labels), dtype=bool)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = [divmod(int(place), len(self.labels)) for place in order if wrong.flat[place]]
        return [
            (self.labels[i], self.labels[j], int(wrong[i, j]), float(wrong[i, j] / self.counts[i].sum()))
            for i, j in places
        ]

    def _worst(self) -> tuple[list[str], np.ndarray]:
        """Of many classes those with the most mistakes, and all others as one more."""
        if len(self.labels) <= SHOWN:
            return self.labels, self.counts
        mistakes = self.counts.sum(0) + self.counts.sum(1) - 2 * self.counts.diagonal()
        kept = np.sort(np.argsort(-mistakes, kind="stable")[:SHOWN])
        place = np.full(len(self.labels), SHOWN)
        place[kept] = np.arange(SHOWN)
        counts = np.zeros((SHOWN + 1, SHOWN + 1), np.int64)
        np.add.at(counts, (place[:, None], place[None, :]), self.counts)
        return [*(self.labels[i] for i in kept), "all others"], counts


@dataclass(frozen=True)
class Histogram:
    """bars: how many, by what."""

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
    """A dot an example, of no more than POINTS, evenly taken. diagonal: both axes are of one measure."""

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
        every = -(-len(self.gold) // POINTS)
        xs, ys = self.gold[::every], self.predicted[::every]

        def draw(axes: Axes, theme: str) -> None:
            if self.diagonal:
                middle = float(np.mean(xs))
                axes.axline((middle, middle), slope=1, color=baseline_color(theme), linewidth=1, linestyle=(0, (4, 3)))
                ends = min(xs.min(), ys.min()), max(xs.max(), ys.max())
                beside = 0.04 * (ends[1] - ends[0]) or 1.0
                axes.set(xlim=(ends[0] - beside, ends[1] + beside), ylim=(ends[0] - beside, ends[1] + beside))
            axes.scatter(xs, ys, s=14, color=SERIES[theme][0], alpha=0.45, linewidths=0)
            axes.grid()
            axes.locator_params(nbins=6)
            axes.set_xlabel(self.x_label)

        page.heading(self.title)
        part = f", every {every}th of {len(self.gold):,}" * (every > 1)
        about = f"{self.y_label} against {self.x_label}: {plural(len(xs), 'example')}"
        page.picture(draw, self.y_label + part, about, height=3.8)


@dataclass(frozen=True)
class Curves:
    """Scores against a setting; chosen: the setting in use, and the first score there."""

    name: str
    title: str
    note: str
    xs: list[float]
    curves: dict[str, list[float]]
    chosen: tuple[float, float]
    x_label: str
    y_label: str

    def as_json(self) -> dict[str, Any]:
        """The setting in use, and which would be best here for each score."""
        best = {name: int(np.argmax(curve)) for name, curve in self.curves.items()}
        found = {name: {"at": self.xs[at], "score": self.curves[name][at]} for name, at in best.items()}
        return {"in_use": self.chosen[0], "best": found}

    def draw(self, page: Page) -> None:
        page.heading(self.title)
        page.paragraph(self.note)
        every = -(-len(self.xs) // 300)
        series = {name: (self.xs[::every], curve[::every]) for name, curve in self.curves.items()}
        x, y = self.chosen
        page.line_chart({**series, "in use": ([x], [y])}, self.x_label, self.y_label)
