"""The chart of a task with parts: the scores of each part, for the variants of the first axis side by side."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from bertie.base.report import QUIET, SERIES, Page
from bertie.lab.config import LabConfig
from bertie.lab.results import MeasureSummary, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = 45  # characters that fit side by side below a chart
DASHES = ((0, (4, 3)), (0, (1, 2)), (0, (6, 2, 1, 2)))


def part_charts(page: Page, config: LabConfig, results: Results, task: str) -> None:
    """Add a chart for each combination of the variants of all axes but the first.

    The variants of the first axis stand side by side, and each part has a color, with its 95 % intervals. Dashed lines are the
    means of the given scores over the parts.
    """
    first, parts = config.axes[0], results.parts[task]
    names = [variant.name for variant in first.variants]
    for others in dict.fromkeys(row.variants[1:] for row in results.rows):
        rows = {row.variants[0]: row.measures for row in results.rows if row.variants[1:] == others}
        lines = {
            part.removeprefix(f"{task}: "): {name: rows[name][part] for name in names if part in rows[name]}
            for part in parts
        }
        levels = {
            name: sum(scores[part] for part in parts) / len(parts)
            for name, scores in results.baselines.items()
            if all(part in scores for part in parts)
        }
        caption = ", ".join([f"{task}, {results.tasks[task].replace('_', ' ')}", *others])
        _part_chart(page, lines, names, levels, first.name, f"{caption}; bars: 95 % confidence intervals")


def _part_chart(
    page: Page,
    lines: dict[str, dict[str, MeasureSummary]],
    names: list[str],
    levels: dict[str, float],
    x_label: str,
    caption: str,
) -> None:
    def draw(axes: Axes) -> None:
        for number, ((part, measured), color) in enumerate(zip(lines.items(), itertools.cycle(SERIES), strict=False)):
            shift = 0.14 * (number - (len(lines) - 1) / 2)  # so that intervals stand side by side
            xs = [names.index(name) + shift for name in measured]
            axes.plot(xs, [each.mean.value for each in measured.values()], "o", color=color, markersize=5, label=part)
            for x, each in zip(xs, measured.values(), strict=True):
                if each.mean.low is not None and each.mean.high is not None:
                    axes.plot([x, x], [each.mean.low, each.mean.high], color=color, linewidth=1.5)
        for (name, level), style in zip(levels.items(), itertools.cycle(DASHES), strict=False):
            axes.axhline(level, color=QUIET, linewidth=1, linestyle=style, label=name)
        axes.set_xticks(range(len(names)), names)
        if sum(map(len, names)) > LABELS:
            axes.tick_params(axis="x", rotation=40)
        axes.grid(axis="y")
        axes.locator_params(axis="y", nbins=6)
        axes.set_xlabel(x_label)
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
        axes.legend(ncols=3, columnspacing=1.6, handlelength=1.8, **place)

    scores = [
        f"{part}: " + ", ".join(f"{name} {each.mean.value:.3f}" for name, each in measured.items())
        for part, measured in lines.items()
    ]
    page.picture(draw, caption, f"{caption}: {'; '.join(scores)}", height=4.2)
