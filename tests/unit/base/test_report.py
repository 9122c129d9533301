from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG

from bertie.base.report import Page, TextSpan, _legend_columns

EVIL = "<script>alert('x')</script> & \"quotes\" $x_1$"
VOID = {"meta", "link", "br"}
PRINT_SVG = FigureCanvasSVG.print_svg  # before conftest.py replaces it


@pytest.fixture(autouse=True)
def _charts_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", PRINT_SVG)


def everything(text: str = EVIL) -> Page:
    page = Page(text, text)
    page.heading(text)
    page.paragraph(text)
    page.table([text, "n"], [[text, 1], ["b", 0.12345]])
    page.line_chart({text: ([1, 2, 3], [3.0, 2.0, 1.5]), "other": ([2], [2.0])}, text, text, lines={text: 2.5})
    page.score_chart({text: (0.5, 0.1), "one run": (0.25, math.nan)}, text)
    page.mask_predictions(text, {text: 0.75, "b": 0.0312})
    page.code(text)
    return page


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):  # noqa: ARG002
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]):  # noqa: ARG002
        self.tags.append(tag)

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        self.text += data


def read(page: Page) -> Reader:
    reader = Reader()
    reader.feed(page.html())
    reader.close()
    return reader


def test_all_text_is_escaped_and_all_tags_are_closed():
    reader = read(everything())
    assert "script" not in reader.tags
    assert reader.open == []
    # title, h1, intro, h2, paragraph, table twice, both charts, and twice in the mask predictions
    assert reader.text.count("<script>alert('x')</script>") >= 11


def test_a_page_loads_nothing_from_the_network():
    html = everything().html()
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", html)
    assert "url(http" not in html
    assert "@import" not in html


def test_the_same_content_gives_the_same_bytes():
    assert everything().html() == everything().html()


def test_charts_follow_the_theme_and_have_a_description_and_selectable_text():
    page = Page("t")
    page.line_chart({"train": ([1, 2], [3.0, 2.0])}, "step", "loss (nats)", lines={"chance": 2.5})
    [chart] = page.parts
    assert chart.count('role="img"><title>loss (nats) against step: train, chance</title>') == 1
    assert len(re.findall(r"<text[^>]*>chance</text>", chart)) == 1
    assert "DejaVu" not in chart
    assert not re.search("#[0-9a-f]{6}", chart)
    used = set(re.findall(r"var\((--[\w-]+)\)", chart))
    assert used == {"--ink", "--quiet", "--line", "--series-0"}
    _, light, dark = page.html().split(":root {")
    assert all(f"{name}: #" in theme for name in used for theme in (light, dark))


def test_table_cells_are_formatted_and_aligned_by_type():
    page = Page("t")
    page.table(["name", "text", "score"], [["a", "longer than a dozen", 0.123456], ["b", "", 7]])
    (table,) = page.parts
    assert '<th class="word">name</th><th>text</th><th class="number">score</th>' in table
    assert '<td class="word">a</td><td>longer than a dozen</td><td class="number">0.1235</td>' in table
    assert '<td class="number">7</td>' in table


def test_the_name_of_a_baseline_is_in_the_legend_and_hides_no_curve():
    page = Page("Report")
    page.line_chart({"train": ([1, 2], [3.0, 2.0])}, "step", "loss (nats)", lines={"unigram model 2.50": 2.5})
    assert page.html().count("unigram model 2.50</text>") == 1
    assert "#fcfbf8" not in page.parts[0]  # the color of the paper


@pytest.mark.parametrize(
    ("names", "columns"),
    [(["training", "held out", "unigram model 7.02"], 3), (["a" * 19] * 3, 2), (["a" * 30] * 3, 1)],
)
def test_a_legend_has_the_columns_that_fit(names, columns):
    assert _legend_columns(names) == columns


def test_a_score_chart_shows_mean_and_interval():
    page = Page("t")
    page.score_chart({"ours": (0.6123, 0.0214), "once": (0.5, math.nan)}, "accuracy")
    assert "ours\u20030.612 ± 0.021" in page.html()
    assert "once\u20030.500<" in page.html()
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page.html(), flags=re.DOTALL)


def test_an_axis_of_scores_ends_at_one_and_two_runs_have_no_interval():
    page = Page("t")
    page.score_chart({"two": (0.833, 0.604)}, "accuracy", {"two": [0.75, 0.916]})
    assert "two\u20030.833 (2 runs: no interval)" in page.html()
    assert "±" not in page.html()
    assert "95 %" not in page.html()
    page.score_chart({"three": (0.95, 0.2)}, "accuracy", {"three": [0.9, 0.95, 1.0]})
    assert "three\u20030.950 ± 0.200" in page.html()
    ticks = [float(text) for text in re.findall(r">(\d\.\d+)</text>", page.html())]
    assert 0.8 < max(ticks) <= 1.0


def test_bars_of_mask_predictions_are_proportional_to_probabilities():
    page = Page("t")
    page.mask_predictions("a [MASK] b", {"x": 0.75, "y": 0.0312})
    assert re.findall(r"width:([\d.]+)%", page.parts[0]) == ["75.0", "3.1"]


def test_all_values_of_a_column_have_the_same_number_of_decimals():
    page = Page("t")
    page.table(["a", "b", "c"], [[0.5, 12.0, 5], [1 / 3, 0.126, 70]])
    found = re.findall(r'class="number">([\d.]+)<', page.parts[0])
    assert found == ["0.5000", "12.00", "5", "0.3333", "0.13", "70"]


def test_signed_numbers_and_percentages_are_aligned_as_numbers():
    page = Page("t")
    page.table(["gain", "share", "interval"], [["+4.1", "3.0 %", "+1 to +7"], ["−1,000.5", "–", "–"]])
    assert page.parts[0].count('<td class="number">') == 4
    assert page.parts[0].count('<td class="word">') == 2


def test_a_matrix_has_numbers_instead_of_long_labels():
    page = Page("t")
    page.matrix(["yes", EVIL[:20]], [[3, 1], [0, 4000]])
    page.matrix(["a" * 60, "b"], [[3, 1], [0, 4]])
    reader = read(page)
    assert "script" not in reader.tags
    assert re.findall(r'scope="col">(.*?)<', page.parts[1]) == ["1", "2"]
    assert f'<span class="numbered"><b>1</b><span>{"a" * 39}…</span></span>' in page.parts[1]
    assert re.findall(r"--share:([\d.]+);--hue:var\(--(\w+)\)", page.parts[0])[:3] == [
        ("0.750", "accent"),
        ("0.250", "bad"),
        ("0.000", "bad"),
    ]
    assert ">4,000</td>" in page.parts[0]


def test_a_heat_map_has_its_numbers_and_the_color_of_the_page():
    page = Page("t")
    page.heat_map(EVIL, ["0", EVIL], [[1.0, -0.25], [math.nan, 0.5]])
    reader = read(page)
    assert "script" not in reader.tags
    assert reader.open == []
    assert re.findall(r"--share:([\d.]+);--hue:var\(--(\w+)\)\">([^<]*)<", page.parts[0]) == [
        ("1.000", "accent", "1.00"),
        ("0.000", "accent", "−0.25"),
        ("0.500", "accent", "0.50"),
    ]
    assert page.parts[0].count("<td>–</td>") == 1


def test_passages_and_their_legend_are_escaped():
    page = Page("t")
    page.legend({"gold": EVIL})
    page.passage({EVIL: EVIL}, [[TextSpan(EVIL), TextSpan(EVIL, "wrong", EVIL)], [TextSpan("b", "gold")]])
    page.links({EVIL: 'a"b.html'})
    reader = read(page)
    assert "script" not in reader.tags
    assert reader.open == []
    assert reader.text.count(EVIL) == 7
    assert 'href="a&quot;b.html"' in page.parts[2]
    page.legend({})
    assert len(page.parts) == 3
