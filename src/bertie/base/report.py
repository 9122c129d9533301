"""HTML reports: one self-contained page with text, tables and charts, in a light and a dark theme, for any screen width.

    page = Page("Pre-training", "Loss and speed of the run.")
    page.heading("Loss")
    page.line_chart({"train": (steps, losses)}, "step", "loss (nats)", lines={"unigrams": 6.7})
    storage.write_atomic(path, page.html())

A page loads nothing from the network. The same content gives the same bytes. All text is escaped.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertie.base.console import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = Sequence[float]

# The palette of Okabe and Ito, which color-blind readers can distinguish.
SERIES = ("#0072b2", "#d55e00", "#00805f", "#a8517f", "#8a6d00", "#4b5563")
_INK, QUIET, _GRID = "#1f2328", "#5f656d", "#e3e1da"
# The variables of report.css that stand for the colors in a page: each theme has values of its own.
_VARIABLES = {_INK: "ink", QUIET: "quiet", _GRID: "line"} | {color: f"series-{i}" for i, color in enumerate(SERIES)}

Mark = Literal["", "gold", "wrong", "right", "found"]


class TextSpan(NamedTuple):
    """A part of a text in a passage: how it is marked ("" for unmarked), and a short note behind it."""

    text: str
    mark: Mark = ""
    note: str = ""


def _is_number(value: object) -> bool:
    """Return whether a table cell is aligned as a number. Percentages, signed numbers and dashes (missing values) are."""
    return isinstance(value, int | float) or re.fullmatch(r"(< )?[\d.]+ %|[+−-][\d.,]+( %)?|–", str(value)) is not None


def formatted(value: object) -> str:
    """Return a value as the text of a table cell: floats with four significant digits, thousands with separators."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _column(values: Sequence[object]) -> list[str]:
    floats = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max((abs(value) for value in floats), default=1e4)
    if len(floats) < len(values) or not 1e-3 < largest < 1000:
        return [formatted(value) for value in values]
    decimals = 4 - len(f"{largest:.0f}") if largest > 1 else 4
    return [f"{value:.{decimals}f}" for value in floats]


@dataclass
class Page:
    """A report. Each method adds a part at the end, and `html` returns the page."""

    title: str
    intro: str = ""
    parts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=lambda: [_asset("report.css")])
    scripts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Add a section heading."""
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add preformatted text."""
        self.parts.append(f'<pre class="box" tabindex="0">{escape(text)}</pre>')

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table.

        Columns of numbers, percentages and dashes are aligned right. Floats have four significant digits. In a column of
        floats, all values have the same number of decimals, so that the largest one has four digits. Numbers of 1,000 and
        more have thousands separators.
        """
        columns = [column[1:] for column in zip(header, *rows, strict=True)]
        numeric = [all(map(_is_number, column)) for column in columns]
        narrow = [all(len(str(value)) <= 16 for value in column) for column in columns]
        cells = zip(*map(_column, columns), strict=True)

        def line(cells: Sequence[str], tag: str) -> str:
            classes = [
                ' class="number"' if is_numeric and rows else ' class="word"' * is_narrow
                for is_numeric, is_narrow in zip(numeric, narrow, strict=True)
            ]
            pairs = zip(classes, cells, strict=True)
            return "<tr>" + "".join(f"<{tag}{css}>{escape(text)}</{tag}>" for css, text in pairs) + "</tr>"

        body = "\n".join(line(row, "td") for row in cells)
        head = f"<table class=plain><thead>{line(header, 'th')}</thead>"
        self.parts.append(f'<div class="box" tabindex="0">{head}\n<tbody>{body}</tbody></table></div>')

    def line_chart(
        self,
        series: Mapping[str, tuple[Numbers, Numbers]],
        x_label: str,
        y_label: str,
        lines: Mapping[str, float] | None = None,
        shares: bool = False,
    ) -> None:
        """Add a line chart with the y label as its caption.

        `series` has the curves, name -> (xs, ys). `lines` has the baselines, name -> y, drawn as horizontal lines. The
        names are in a legend above the chart, where they hide no curve. `shares`: the values are shares, 0 to 1, which the
        axis shows in percent.
        """

        def draw(axes: Axes) -> None:
            for (name, (xs, ys)), color in zip(series.items(), itertools.cycle(SERIES)):
                axes.plot(xs, ys, color=color, linewidth=1.8, label=name, marker="o" if len(xs) == 1 else "")
            for name, level in (lines or {}).items():
                axes.axhline(level, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), label=name)
            axes.margins(x=0.02)
            axes.grid(axis="y")
            axes.locator_params(nbins=6)
            if shares:
                axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
            axes.set_xlabel(x_label)
            names = [*series, *(lines or {})]
            if len(names) > 1:
                place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
                axes.legend(ncols=_legend_columns(names), columnspacing=1.6, handlelength=1.8, **place)

        description = f"{y_label} against {x_label}: {', '.join([*series, *(lines or {})])}"
        self.picture(draw, y_label, description, height=3.2)

    def bar_chart(self, bars: Mapping[str, float], x_label: str, caption: str) -> None:
        """Add a bar chart with one bar per name, in the given order."""

        def draw(axes: Axes) -> None:
            axes.bar(range(len(bars)), list(bars.values()), color=SERIES[0], width=0.8)
            stride = -(-len(bars) // 8)  # at most 8 names fit below the axis
            axes.set_xticks(range(0, len(bars), stride), list(bars)[::stride], rotation=30, ha="right")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.grid(axis="y")
            axes.locator_params(axis="y", nbins=5)
            axes.set_xlabel(x_label)

        description = "; ".join(f"{name} {value:,.0f}" for name, value in bars.items())
        self.picture(draw, caption, f"{caption}: {description}", height=3.0)

    def score_chart(
        self, scores: dict[str, tuple[float, float]], label: str, dots: dict[str, list[float]] | None = None
    ) -> None:
        """Add a chart that compares scores: one row per name, with the mean, its confidence interval and the single runs.

        `scores` has name -> (mean, half-width of the 95 % confidence interval, or NaN if there is none); `dots` has name ->
        scores of the single runs. The axis ends at 1, the largest score. Two runs say too little for an interval, which is
        left out.
        """

        def draw(axes: Axes) -> None:
            for row, (name, (mean, half_width)) in enumerate(scores.items()):
                runs = (dots or {}).get(name, [])
                has_interval = not math.isnan(half_width) and len(runs) != 2
                axes.plot(runs, [row] * len(runs), "|", markersize=11, color=QUIET)
                axes.plot(mean, row, "o", markersize=7, color=SERIES[0])
                if has_interval:
                    axes.plot([mean - half_width, mean + half_width], [row, row], linewidth=2.2, color=SERIES[0])
                note = f"{name}\u2003{mean:.3f}" + (
                    f" ± {half_width:.3f}" if has_interval else " (2 runs: no interval)" * (len(runs) == 2)
                )
                position = {"xy": (0, row), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
                axes.annotate(note, xytext=(0, 9), ha="left", va="bottom", fontsize=11, **position)
            axes.margins(x=0.08)
            low, high = axes.get_xlim()
            # The axis spans at least 5 % of the scores, so that tiny differences do not look large.
            margin = max(0.0, 0.05 * max(abs(low), abs(high)) - (high - low)) / 2
            axes.set_xlim(low - margin, min(high + margin, 1.0))
            axes.set_ylim(len(scores) - 0.5, -0.8)
            axes.set_yticks(range(len(scores)), [""] * len(scores))
            axes.grid(axis="y")
            axes.locator_params(axis="x", nbins=6)

        description = "; ".join(f"{name} {mean:.3f}" for name, (mean, _) in scores.items())
        keys = ["bars: 95 % confidence interval of the mean"] * any(
            half == half and len((dots or {}).get(name, [])) != 2 for name, (_, half) in scores.items()
        )
        keys += ["strokes: single runs"] * any((dots or {}).values())
        caption = "; ".join([label, *keys])
        self.picture(draw, caption, f"{label}: {description}", height=0.5 + 0.6 * len(scores))

    def mask_predictions(self, text: str, probabilities: dict[str, float]) -> None:
        """Add a text with a [MASK] and the predictions for it, each with a bar for its probability (0 to 1)."""
        rows = "\n".join(
            f'<div class="guess"><span>{escape(word)}</span><div class="bar"><i style="width:{100 * p:.1f}%"></i></div>'
            f"<span>{percent(p)}</span></div>"
            for word, p in probabilities.items()
        )
        self.parts.append(f'<div class="guesses"><p>{escape(text)}</p>\n{rows}</div>')

    def picture(self, draw: Callable[[Axes], object], caption: str, description: str, height: float) -> None:
        """Add a chart, whose colors follow the theme of the page.

        `draw(axes)` draws on axes of 5.4 by `height` inches, in the colors SERIES and QUIET (for baselines). `description` is
        for readers who cannot see the chart.
        """
        self.parts.append(
            f"<figure><figcaption>{escape(caption)}</figcaption>{_svg(draw, description, height)}</figure>"
        )

    def matrix(self, labels: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
        """Add a confusion matrix. The color of a cell shows its share of the row; the diagonal has its own color.

        The columns are headed by the labels if these are short, otherwise by numbers, which the row headings repeat.
        """
        named = len(labels) * max(map(len, labels)) <= 40
        heads = labels if named else [str(number) for number in range(1, len(labels) + 1)]
        short = [label if len(label) <= 40 else f"{label[:39]}…" for label in labels]
        rows = []
        for number, (label, row) in enumerate(zip(short, counts, strict=True), 1):
            total = max(sum(row), 1)
            name = escape(label)
            name = name if named else f'<span class="numbered"><b>{number}</b><span>{name}</span></span>'
            cells = [
                _shaded(count / total, "accent" if column == number else "bad", formatted(count) if count else "")
                for column, count in enumerate(row, 1)
            ]
            rows.append((name, cells))
        self.parts.append(_shaded_table("many" if len(labels) > 12 else "", heads, rows))

    def heat_map(self, caption: str, names: Sequence[str], values: Sequence[Sequence[float]]) -> None:
        """Add a symmetric table of similarities, 0 to 1, whose color shows them too. NaN is a dash."""
        rows = [
            (
                escape(name),
                ["<td>–</td>" if value != value else _shaded(max(value, 0), "accent", _signed(value)) for value in row],
            )
            for name, row in zip(names, values, strict=True)
        ]
        caption = f"<figcaption>{escape(caption)}</figcaption>"
        self.parts.append(f'<figure class="table">{caption}{_shaded_table("grid", names, rows)}</figure>')

    def legend(self, meanings: dict[str, str]) -> None:
        """Add a legend of the marks in passages, mark -> meaning."""
        if not meanings:
            return
        shown = "".join(f'<span><mark class="{escape(m)}">{escape(text)}</mark></span>' for m, text in meanings.items())
        self.parts.append(f'<p class="marks">{shown}</p>')

    def passage(self, facts: dict[str, str], texts: Sequence[Sequence[TextSpan]]) -> None:
        """Add texts with marked parts, one paragraph each, below a line of facts (name -> value)."""
        facts_line = " ".join(f"<span><i>{escape(name)}</i> {escape(value)}</span>" for name, value in facts.items())
        paragraphs = "".join(f'<p dir="auto">{"".join(map(_part, parts))}</p>' for parts in texts)
        self.parts.append(f'<div class="passage"><p class="facts">{facts_line}</p>{paragraphs}</div>')

    def links(self, files: Mapping[str, str]) -> None:
        """Add a line of links to files, text -> path relative to the page."""
        links = (f'<a href="{escape(path)}">{escape(text)}</a>' for text, path in files.items())
        self.parts.append(f"<p>{' · '.join(links)}</p>")

    def interactive(self, html: str, style: str, script: str) -> None:
        """Add a part that runs a script. The arguments are trusted: escape what comes from users.

        Args:
            html: The part.
            style: Its CSS.
            script: Its JavaScript, which runs at the end of the page, as a module.
        """
        self.parts.append(html)
        self.styles.append(style)
        self.scripts.append(script)

    def fragment(self) -> str:
        """Return the parts, without title and charts, for the output of a cell in a notebook."""
        return "\n".join([f'<div class="bertie"><style>{_asset("notebook.css")}</style>', *self.parts, "</div>"])

    def html(self) -> str:
        """Return the page as HTML."""
        intro = f'<p class="intro">{escape(self.intro)}</p>' if self.intro else ""
        body, style = "\n".join(self.parts), "".join(self.styles)
        scripts = "".join(f'<script type="module">\n{script}</script>\n' for script in self.scripts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{style}</style>\n</head>\n"
            f"<body>\n<main>\n<h1>{escape(self.title)}</h1>\n{intro}\n{body}\n</main>\n{scripts}</body>\n</html>\n"
        )


def _shaded(share: float, color: str, text: str) -> str:
    """Return a cell of a table whose background shows a share."""
    return f'<td style="--share:{share:.3f};--hue:var(--{color})">{text}</td>'


def _shaded_table(kind: str, heads: Sequence[str], rows: list[tuple[str, list[str]]]) -> str:
    """Return a table of shaded cells. rows: for each row, its heading in HTML and its cells."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "\n".join(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>' for name, cells in rows)
    table = f"<thead><tr><th></th>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f'<div class="box" tabindex="0"><table class="{f"matrix {kind}".rstrip()}">{table}</table></div>'


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _asset(name: str) -> str:
    return resources.files("bertie.base").joinpath(name).read_text("utf-8")


def _part(part: TextSpan) -> str:
    text = f'<mark class="{part.mark}">{escape(part.text)}</mark>' if part.mark else escape(part.text)
    return text + (f' <small class="note">{escape(part.note)}</small>' if part.note else "")


def _legend_columns(names: Sequence[str]) -> int:
    """Return how many names fit side by side above a chart: 51 characters, and 5 of them for each line sample."""
    lengths = sorted(map(len, names), reverse=True)
    return next((columns for columns in (3, 2) if sum(lengths[:columns]) + 5 * columns <= 51), 1)


def _svg(draw: Callable[[Axes], object], description: str, height: float) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",  # text remains text: selectable, searchable, in the page's font
        "svg.hashsalt": "bertie",  # makes ids deterministic
        "font.family": "sans-serif",
        "font.size": 11,
        "text.parse_math": False,
        "text.color": _INK,
        "axes.edgecolor": _GRID,
        "axes.labelcolor": QUIET,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "xtick.major.size": 0,
        "xtick.major.pad": 7,  # keeps the first label clear of the lowest label of the y axis
        "ytick.major.size": 0,
        "grid.color": _GRID,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.4, height), layout="constrained", facecolor="none")
        canvas = FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        stream = io.StringIO()
        # Not `savefig`, which draws everything twice.
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    start = rf'<svg viewBox="\1" role="img"><title>{escape(description)}</title>'
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', start, svg)
    svg = re.sub("|".join(_VARIABLES), lambda color: f"var(--{_VARIABLES[color[0]]})", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # all figures have the same group ids, and nothing refers to them
    return re.sub(r" font-family: [^;\"]*;?", "", svg)  # use the fonts of the page
