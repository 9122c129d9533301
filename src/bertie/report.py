"""Pages with pictures: one self-contained HTML file, light or dark as the reader's system is, on any width of screen.

    page = Page("Pre-training", "What the run did.")
    page.heading("Loss")
    page.line_chart({"train": (steps, losses)}, "step", "loss (nats)", lines={"unigrams": 6.7})
    storage.write_atomic(path, page.html())

Nothing is fetched from anywhere. The same content gives the same bytes. All text that comes in is escaped.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertie.console import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = Sequence[float]

# The colours of Okabe and Ito, told apart by colour-blind readers too; lightened for the dark page.
SERIES = {
    "light": ("#0072b2", "#d55e00", "#00805f", "#a8517f", "#8a6d00", "#4b5563"),
    "dark": ("#5db4e8", "#f0894d", "#3ecf9f", "#e09ac0", "#e3c04f", "#aab2bf"),
}
_PAPER = {"light": "#fcfbf8", "dark": "#17191c"}
_INK = {"light": ("#1f2328", "#6b7076", "#e3e1da"), "dark": ("#e8e6e1", "#9b9fa6", "#34373d")}  # text, quiet, grid

_STYLE = """
:root { color-scheme: light dark; --paper: #fcfbf8; --ink: #1f2328; --quiet: #5f656d; --line: #e3e1da; --tint: #f3f1eb;
  --accent: #0072b2; --bad: #d55e00; --good: #00805f; }
@media (prefers-color-scheme: dark) { :root { --paper: #17191c; --ink: #e8e6e1; --quiet: #a0a4ab; --line: #34373d;
  --tint: #1f2226; --accent: #5db4e8; --bad: #f0894d; --good: #3ecf9f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 17px/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, Cambria, serif; }
main { max-width: 46rem; margin: 0 auto; padding: clamp(1.5rem, 5vw, 4rem) clamp(1rem, 4vw, 2rem) 5rem; }
h1 { font-size: clamp(1.7rem, 5vw, 2.3rem); line-height: 1.15; letter-spacing: -0.015em; margin: 0 0 0.6rem;
  text-wrap: balance; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 0.6rem; padding-top: 1.2rem; border-top: 1px solid var(--line);
  text-wrap: balance; }
p { margin: 0 0 1rem; max-width: 40rem; overflow-wrap: anywhere; text-wrap: pretty; }
.intro { color: var(--quiet); font-size: 1.1rem; }
figure { margin: 1.4rem 0 1.8rem; }
figure svg { display: block; width: 100%; max-width: 37rem; height: auto; }
figure.dark { display: none; }
@media (prefers-color-scheme: dark) { figure.light { display: none; } figure.dark { display: block; } }
@media print { figure.light { display: block; } figure.dark { display: none; } }
.box { overflow-x: auto; margin: 1.2rem 0 1.8rem; }
figure, table, .guesses { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  font-size: 0.85rem; line-height: 1.4; }
table { border-collapse: collapse; min-width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.45rem 1.4rem 0.45rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 500; white-space: nowrap; border-bottom-color: var(--quiet); }
th.number, td.number { text-align: right; white-space: nowrap; }
td.word { white-space: nowrap; }
td:not(.number, .word) { min-width: 8.5rem; overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
pre { background: var(--tint); padding: 0.9rem 1.1rem; font-size: 0.8rem; line-height: 1.45; }
figcaption { color: var(--quiet); margin-bottom: 0.5rem; }
.guesses { margin: 1.2rem 0 2rem; }
.guesses p { font-family: Charter, "Bitstream Charter", Georgia, serif; font-size: 1.05rem; margin-bottom: 0.5rem; }
.guess { display: grid; grid-template-columns: minmax(5rem, 9rem) 1fr 3.6rem; gap: 0.8rem; align-items: center;
  padding: 0.12rem 0; }
.guess span:first-child { text-align: right; overflow-wrap: anywhere; }
.guess span:last-child { color: var(--quiet); font-variant-numeric: tabular-nums; }
.bar { background: var(--tint); border-radius: 2px; height: 0.85rem; }
.bar i { display: block; height: 100%; background: var(--accent); border-radius: 2px; }
a { color: var(--accent); }
.matrix { min-width: 0; border-collapse: separate; border-spacing: 2px; }
.matrix th, .matrix td { border: 0; padding: 0.3rem 0.45rem; vertical-align: middle; }
.matrix td { min-width: 2.4rem; text-align: right; white-space: nowrap; border-radius: 2px;
  background: color-mix(in srgb, var(--hue) calc(var(--share) * 55%), var(--tint)); }
.matrix thead th { text-align: right; }
.matrix tbody th { position: sticky; left: 0; background: var(--paper); color: var(--ink); font-weight: 400;
  white-space: normal; overflow-wrap: break-word; min-width: 6rem; max-width: 13rem; line-height: 1.25; }
.box:has(> .matrix) { margin-right: min(0px, (46rem - 100vw) / 2 + 1rem); }
.matrix.many td, .matrix.many th { padding: 0.3rem 0.25rem; }
.matrix.many td { min-width: 1.7rem; }
.matrix b { color: var(--quiet); font-weight: 500; display: inline-block; min-width: 1.5em; }
.passage { border-left: 3px solid var(--line); padding: 0.1rem 0 0.1rem 1rem; margin: 0 0 1.4rem; }
.passage p { margin-bottom: 0.35rem; line-height: 1.5; }
.facts, .marks, .note { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 0.85rem; }
.facts span { margin-right: 1.2rem; display: inline-block; }
.facts i, .note { color: var(--quiet); font-style: normal; }
.note { margin: 0 0.15rem 0 0.3rem; }
.marks span { margin-right: 1rem; }
mark { color: inherit; padding: 0.05em 0.15em; border-radius: 2px; border-bottom: 2px solid var(--hue);
  background: color-mix(in srgb, var(--hue) 16%, transparent); }
.gold { --hue: var(--good); }
.wrong { --hue: var(--bad); border-bottom-style: dashed; }
.right { --hue: var(--accent); border-bottom-style: double; }
"""


Mark = Literal["", "gold", "wrong", "right"]


class TextSpan(NamedTuple):
    """Of a text: what is marked, as what, with a short note behind it."""

    text: str
    mark: Mark = ""
    note: str = ""


def baseline_color(theme: str) -> str:
    """The colour of what is there to compare with."""
    return _INK[theme][1]


def _is_number(value: object) -> bool:
    """Shares and what is missing too."""
    return isinstance(value, int | float) or re.fullmatch(r"[\d.]+ %|–", str(value)) is not None


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _column(values: Sequence[object]) -> list[str]:
    floats = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max((abs(value) for value in floats), default=1e4)
    if len(floats) < len(values) or not 1e-3 < largest < 1000:
        return [_cell(value) for value in values]
    decimals = 4 - len(f"{largest:.0f}") if largest > 1 else 4
    return [f"{value:.{decimals}f}" for value in floats]


@dataclass
class Page:
    """Sections are added in order; `html()` gives the whole page."""

    title: str
    intro: str = ""
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        self.parts.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        self.parts.append(f'<pre class="box" tabindex="0">{escape(text)}</pre>')

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Floats are shown with four digits, large numbers with commas; columns of numbers, shares and dashes go flush right.

        Columns of floats only have as many decimals everywhere as give their largest four digits.
        """
        columns = [column[1:] for column in zip(header, *rows, strict=True)]
        numeric = [all(map(_is_number, column)) for column in columns]
        slim = [all(len(str(value)) <= 16 for value in column) for column in columns]
        cells = zip(*map(_column, columns), strict=True)

        def line(cells: Sequence[str], tag: str) -> str:
            sides = [
                ' class="number"' if right and rows else ' class="word"' * low
                for right, low in zip(numeric, slim, strict=True)
            ]
            pairs = zip(sides, cells, strict=True)
            return "<tr>" + "".join(f"<{tag}{side}>{escape(text)}</{tag}>" for side, text in pairs) + "</tr>"

        body = "\n".join(line(row, "td") for row in cells)
        head = f"<thead>{line(header, 'th')}</thead>"
        self.parts.append(f'<div class="box" tabindex="0"><table>{head}\n<tbody>{body}</tbody></table></div>')

    def line_chart(
        self,
        series: dict[str, tuple[Numbers, Numbers]],
        x_label: str,
        y_label: str,
        lines: dict[str, float] | None = None,
    ) -> None:
        """Curves, name -> (xs, ys); `lines` are levels to compare with, name -> y, drawn across and named."""

        def draw(axes: Axes, theme: str) -> None:
            for (name, (xs, ys)), colour in zip(series.items(), _colours(theme, len(series)), strict=True):
                axes.plot(xs, ys, color=colour, linewidth=1.8, label=name, marker="o" if len(xs) == 1 else "")
            for name, level in (lines or {}).items():
                axes.axhline(level, color=baseline_color(theme), linewidth=1, linestyle=(0, (4, 3)))
                place = {"xy": (1, level), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
                behind = {
                    "facecolor": _PAPER[theme],
                    "edgecolor": "none",
                    "pad": 1,
                }  # a curve that runs there is covered
                axes.annotate(
                    name,
                    xytext=(0, 4),
                    ha="right",
                    va="bottom",
                    color=baseline_color(theme),
                    fontsize=10,
                    bbox=behind,
                    **place,
                )
            axes.margins(x=0.02)
            axes.grid(axis="y")
            axes.locator_params(nbins=6)
            axes.set_xlabel(x_label)
            if len(series) > 1:
                columns = 3 if max(map(len, series)) < 20 else 1
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handlelength=1.4)

        about = f"{y_label} against {x_label}: {', '.join([*series, *(lines or {})])}"
        self.picture(draw, y_label, about, height=3.2)

    def bar_chart(self, bars: Mapping[str, float], x_label: str, caption: str) -> None:
        """A bar for each name, in order."""

        def draw(axes: Axes, theme: str) -> None:
            axes.bar(range(len(bars)), list(bars.values()), color=SERIES[theme][0], width=0.8)
            every = -(-len(bars) // 8)  # names that have room beside each other
            axes.set_xticks(range(0, len(bars), every), list(bars)[::every], rotation=30, ha="right")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.grid(axis="y")
            axes.locator_params(axis="y", nbins=5)
            axes.set_xlabel(x_label)

        about = "; ".join(f"{name} {value:,.0f}" for name, value in bars.items())
        self.picture(draw, caption, f"{caption}: {about}", height=3.0)

    def score_chart(
        self, scores: dict[str, tuple[float, float]], label: str, dots: dict[str, list[float]] | None = None
    ) -> None:
        """Scores to compare, name -> (mean, half-width of its 95 % interval; nan for none): a dot and a bar a row.

        dots: name -> the single values behind the mean.
        """

        def draw(axes: Axes, theme: str) -> None:
            for row, (name, (mean, half)) in enumerate(scores.items()):
                known = half == half  # not nan
                singles = (dots or {}).get(name, [])
                axes.plot(singles, [row] * len(singles), "|", markersize=11, color=_INK[theme][1])
                axes.plot(mean, row, "o", markersize=7, color=SERIES[theme][0])
                if known:
                    axes.plot([mean - half, mean + half], [row, row], linewidth=2.2, color=SERIES[theme][0])
                note = f"{name}\u2003{mean:.3f}" + (f" ± {half:.3f}" if known else "")
                place = {"xy": (0, row), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
                axes.annotate(note, xytext=(0, 9), ha="left", va="bottom", fontsize=11, **place)
            axes.margins(x=0.08)
            low, high = axes.get_xlim()
            around = (
                max(0.0, 0.05 * max(abs(low), abs(high)) - (high - low)) / 2
            )  # else a hair's breadth fills the picture
            axes.set_xlim(low - around, high + around)
            axes.set_ylim(len(scores) - 0.5, -0.8)
            axes.set_yticks(range(len(scores)), [""] * len(scores))
            axes.grid(axis="y")
            axes.locator_params(axis="x", nbins=6)

        about = "; ".join(f"{name} {mean:.3f}" for name, (mean, _) in scores.items())
        keys = ["bars: 95 % interval of the mean"] * any(half == half for _, half in scores.values())
        keys += ["strokes: single runs"] * any((dots or {}).values())
        caption = "; ".join([label, *keys])
        self.picture(draw, caption, f"{label}: {about}", height=0.5 + 0.6 * len(scores))

    def guesses(self, text: str, probabilities: dict[str, float]) -> None:
        """A text with a gap, and what a model would put there: a bar for each word's probability, from 0 to 1."""
        rows = "\n".join(
            f'<div class="guess"><span>{escape(word)}</span><div class="bar"><i style="width:{100 * p:.1f}%"></i></div>'
            f"<span>{percent(p)}</span></div>"
            for word, p in probabilities.items()
        )
        self.parts.append(f'<div class="guesses"><p>{escape(text)}</p>\n{rows}</div>')

    def picture(self, draw: Callable[[Axes, str], None], caption: str, about: str, height: float) -> None:
        """In light and in dark; the page shows one. `draw(axes, theme)` fills axes 5.4 by `height` inches."""
        self.parts.append(_figure(draw, caption, about, height))

    def matrix(self, labels: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
        """A square of counts, coloured by their share of the row, the diagonal in a colour of its own.

        Columns have the labels' names where those are short, else their numbers, which the rows name.
        """
        named = len(labels) * max(map(len, labels)) <= 40
        heads = labels if named else [str(number) for number in range(1, len(labels) + 1)]
        short = [label if len(label) <= 40 else f"{label[:39]}…" for label in labels]
        lines = []
        for number, (label, row) in enumerate(zip(short, counts, strict=True), 1):
            total = max(sum(row), 1)
            cells = [
                f'<td style="--share:{count / total:.3f};--hue:var(--{"accent" if column == number else "bad"})">'
                f"{_cell(count) if count else ''}</td>"
                for column, count in enumerate(row, 1)
            ]
            prefix = "" if named else f"<b>{number}</b>"
            lines.append(f'<tr><th scope="row">{prefix}{escape(label)}</th>{"".join(cells)}</tr>')
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
        body = "\n".join(lines)
        narrow = " many" if len(labels) > 12 else ""
        table = f'<table class="matrix{narrow}"><thead><tr><th></th>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
        self.parts.append(f'<div class="box" tabindex="0">{table}</div>')

    def marks(self, meanings: dict[str, str]) -> None:
        """What the marks of passages mean, by the name of the mark."""
        if not meanings:
            return
        shown = "".join(f'<span><mark class="{escape(m)}">{escape(text)}</mark></span>' for m, text in meanings.items())
        self.parts.append(f'<p class="marks">{shown}</p>')

    def passage(self, facts: dict[str, str], texts: Sequence[Sequence[TextSpan]]) -> None:
        """Something to read, with marks in it, under a line of what is to be said of it."""
        told = " ".join(f"<span><i>{escape(name)}</i> {escape(value)}</span>" for name, value in facts.items())
        read = "".join(f'<p dir="auto">{"".join(map(_part, parts))}</p>' for parts in texts)
        self.parts.append(f'<div class="passage"><p class="facts">{told}</p>{read}</div>')

    def link(self, text: str, path: str) -> None:
        """To a file beside the page, or below."""
        self.parts.append(f'<p><a href="{escape(path)}">{escape(text)}</a></p>')

    def html(self) -> str:
        intro = f'<p class="intro">{escape(self.intro)}</p>' if self.intro else ""
        body = "\n".join(self.parts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n<main>\n<h1>{escape(self.title)}</h1>\n{intro}\n{body}\n</main>\n</body>\n</html>\n"
        )


def _part(part: TextSpan) -> str:
    text = f'<mark class="{part.mark}">{escape(part.text)}</mark>' if part.mark else escape(part.text)
    return text + (f'<span class="note">{escape(part.note)}</span>' if part.note else "")


def _colours(theme: str, count: int) -> list[str]:
    palette = SERIES[theme]
    return [palette[index % len(palette)] for index in range(count)]


def _figure(draw: Any, caption: str, about: str, height: float) -> str:
    """As HTML."""
    return "\n".join(
        f'<figure class="{theme}"><figcaption>{escape(caption)}</figcaption>{_svg(draw, theme, about, height)}</figure>'
        for theme in ("light", "dark")
    )


def _svg(draw: Any, theme: str, about: str, height: float) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    ink, faint, grid = _INK[theme]
    style: Any = {
        "svg.fonttype": "none",  # text stays text: selectable, searchable, in the reader's own font
        "svg.hashsalt": theme,  # ids that are the same in every run and differ between the two pictures
        "font.family": "sans-serif",
        "font.size": 11,
        "text.parse_math": False,
        "text.color": ink,
        "axes.edgecolor": grid,
        "axes.labelcolor": faint,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "xtick.color": faint,
        "ytick.color": faint,
        "xtick.major.size": 0,
        "xtick.major.pad": 7,  # else the first one touches the lowest of the other axis
        "ytick.major.size": 0,
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.4, height), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot(), theme)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img"><title>{escape(about)}</title>', svg
    )
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # every figure has the same names for them, and nothing refers to them
    return re.sub(r" font-family: [^;\"]*;?", "", svg)  # the page's fonts, not those of the machine that drew it
