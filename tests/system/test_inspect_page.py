"""inspect.html in a real browser: what it draws, how it is used, and that it needs nothing from outside."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.system.conftest import visited

import bertie
from bertie.inspect.inspect import Inspection

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

EVIL = "</script><script>document.title='evil'</script>"

pytestmark = pytest.mark.usefixtures("window")  # which skips them where Chromium is missing


@pytest.fixture(scope="module")
def inspection(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inspection with every part that the page shows."""
    folder = tmp_path_factory.mktemp("inspection")
    tree = "1\tgo\t_\tX\t_\t_\t2\tobj\t_\t_\n2\tsee\t_\tX\t_\t_\t0\troot\t_\t_\n3\tthe\t_\tX\t_\t_\t4\tdet\t_\t_\n"
    tree += "".join(f"{n}\tgo\t_\tX\t_\t_\t2\tobl\t_\t_\n" for n in range(4, 9)) + "\n"
    (folder / "a.conllu").write_text(30 * tree)
    (folder / "text.txt").write_text(f"{EVIL} the go\n" + "The gat go the gatun, go.\n" * 20)
    given = Inspection(text=folder / "text.txt", treebank=folder / "a.conllu", loss_tokens=64)
    bertie.inspect_model(pretrained, given, folder / "out")
    return folder / "out"


@pytest.fixture
def page(window: Page, inspection: Path) -> Iterator[Page]:
    """The page, without a network."""
    window.context.set_offline(True)
    with visited(window, (inspection / "inspect.html").as_uri(), "file:", "blob:", "data:") as page:
        yield page


def table(inspection: Path, name: str) -> dict[str, list[Any]]:
    return json.loads((inspection / "inspect.json").read_text())["tables"][name]["columns"]


def number(text: str) -> float:
    """A number as the page shows it: a percentage is a share."""
    scale = 0.01 if text.endswith(" %") else 1
    return scale * float(text.removesuffix(" ★").removesuffix(" %").removeprefix("< ").replace("−", "-"))


def labeled(cell: Locator) -> float:
    """The number in the name of a cell: "head 1.1: 5.0 %"."""
    return number(str(cell.get_attribute("aria-label")).split(": ")[1])


def test_the_map_shows_the_numbers_of_the_table(page: Page, inspection: Path) -> None:
    for measure in ("to_previous", "entropy"):
        page.select_option("#measure", measure)
        cells = page.locator("#map .cell")
        assert cells.count() == 8
        values = table(inspection, "heads")[measure]
        np.testing.assert_allclose([labeled(cells.nth(i)) for i in range(8)], values, atol=0.006)
    accuracy = table(inspection, "relation_heads")
    page.select_option("#measure", "relation-obl")
    rows = [i for i, name in enumerate(accuracy["relation"]) if name == "obl"]
    best = np.array([accuracy["accuracy"][i] for i in rows]).reshape(2, 8).max(0)
    found = [labeled(page.locator("#map .cell").nth(i)) for i in range(8)]
    np.testing.assert_allclose(found, best, atol=0.006)


def test_a_click_shows_the_head_everywhere(page: Page, inspection: Path) -> None:
    page.locator("#map .cell").nth(6).click()
    assert page.locator("#head-title").inner_text() == "Head 2.3"
    assert page.locator("#lines-title").inner_text() == "Head 2.3"
    assert "head=2.3" in page.url
    row = page.locator("#numbers tr", has_text="to previous").first
    assert number(row.locator("td").nth(1).inner_text()) == pytest.approx(
        table(inspection, "heads")["to_previous"][6], abs=0.006
    )
    for figure in ("#map", "#plan", "#all-heads"):
        selected = page.locator(f"{figure} .selected")
        assert selected.count() == 1
        assert "head 2.3" in str(selected.get_attribute("aria-label"))
    page.locator("#all-heads .cell").nth(1).click()
    assert page.locator("#head-title").inner_text() == "Head 1.2"
    page.reload()
    assert page.locator("#head-title").inner_text() == "Head 1.2"


def test_lines_have_the_attention_of_the_table(page: Page, inspection: Path) -> None:
    page.select_option("#sentence", "0")
    page.locator("#map .cell").nth(5).click()
    with (inspection / "tables" / "sentence_attention.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if (row["sentence"], row["layer"], row["head"]) == ("1", "2", "2")]
    weights = [round(255 * float(row["attention"])) / 255 for row in rows]
    opacities = page.locator("#lines .ray").evaluate_all("lines => lines.map((line) => Number(line.style.opacity))")
    np.testing.assert_allclose(sorted(opacities), sorted(w for w in weights if w >= 0.02), atol=0.006)
    size = page.locator("#lines .row").count()
    page.locator("#lines .row").nth(3).hover()
    alone = page.locator("#lines .ray").evaluate_all("lines => lines.map((line) => Number(line.style.opacity))")
    expected = [w for w, row in zip(weights, rows, strict=True) if row["from"] == "4" and w >= 0.02]
    np.testing.assert_allclose(sorted(alone), sorted(expected), atol=0.006)
    assert 0 < len(alone) <= size
    page.uncheck("#special")
    assert page.locator("#lines .ray").count() <= len(opacities) - 2


def test_the_arcs_of_the_treebank_are_drawn(page: Page) -> None:
    page.select_option("#measure", "relation-obl")
    assert page.locator("#lines .gold-arc").count() == 5
    assert "obl in the treebank" in page.locator("#arcs").inner_text()


def test_the_page_works_by_keyboard(page: Page) -> None:
    page.locator("#map .cell").nth(0).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#head-title").inner_text() == "Head 2.2"
    page.keyboard.press("End")  # the focus is still on the map
    page.keyboard.press("Space")
    assert page.locator("#head-title").inner_text() == "Head 2.4"
    assert page.locator("#map [tabindex='0']").count() == 1
    page.locator("#lines [tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    labels = [page.locator("#lines .row").nth(i).get_attribute("aria-label") for i in range(3)]
    assert page.locator("#lines .chosen").get_attribute("aria-label") == labels[1]
    page.keyboard.press("ArrowDown")
    assert page.locator("#lines .row.chosen").count() == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == labels[2]


@pytest.mark.parametrize("figure", ["map", "distances", "plan", "lines", "all-heads"])
def test_every_picture_is_saved(page: Page, tmp_path: Path, figure: str) -> None:
    buttons = page.locator(f"#{figure} .export button")
    for number, label in enumerate(buttons.all_inner_texts()):
        with page.expect_download() as waiting:
            buttons.nth(number).click()
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        assert path.suffix == f".{label.lower()}"
        content = path.read_bytes()
        if label == "PNG":
            assert content.startswith(b"\x89PNG")
            assert len(content) > 2000
        elif label == "SVG":
            root = ET.fromstring(content)
            styles = [element.get("style") or "" for element in root.iter()]
            assert len(styles) > 20
            assert "var(" not in content.decode()
            assert "color-mix" not in content.decode()
        else:
            assert len(list(csv.reader(content.decode().splitlines()))) > 5


def test_charts_are_saved_too(page: Page, tmp_path: Path) -> None:
    chart = page.locator("main > figure", has_text="mean cosine")
    with page.expect_download() as waiting:
        chart.locator(".export button", has_text="SVG").click()
    waiting.value.save_as(tmp_path / "chart.svg")
    content = (tmp_path / "chart.svg").read_text()
    assert "same word" in content
    assert "var(" not in content


def test_shares_are_percentages_everywhere(page: Page) -> None:
    """The same number is on the map, in the table beside it, and in the sentence: never 75 % and 0.75."""
    for measure, unit in (("to_previous", True), ("relation-obl", True), ("importance", False), ("entropy", False)):
        page.select_option("#measure", measure)
        names = [str(page.locator("#map .cell").nth(i).get_attribute("aria-label")) for i in range(8)]
        assert [name.endswith(" %") for name in names] == [unit] * 8, measure
        assert ("In percent." in page.locator("#meaning").inner_text()) == unit, measure
    rows = page.locator("#numbers tr", has_text="to previous")
    assert all(cell.endswith(" %") for cell in rows.locator("td.number").all_inner_texts())
    assert page.locator("#distances .label").first.inner_html().endswith(" %")
    page.locator("#lines .row").nth(2).hover()
    assert all(each.endswith(" %") for each in page.locator("#lines .weight").all_text_contents())
    assert "0.1 is" not in page.locator("main").inner_text()


def overlaps(boxes: list[dict[str, float]]) -> int:
    """How many pairs of rectangles cover each other by more than half a pixel."""
    return sum(
        min(a["right"], b["right"]) - max(a["left"], b["left"]) > 0.5
        and min(a["bottom"], b["bottom"]) - max(a["top"], b["top"]) > 0.5
        for i, a in enumerate(boxes)
        for b in boxes[:i]
    )


RECTANGLES = "found => found.map((each) => each.getBoundingClientRect().toJSON())"


@pytest.mark.parametrize("width", [400, 1400])
def test_similar_heads_can_be_told_apart(page: Page, inspection: Path, width: int) -> None:
    """Also if all heads are at one place, as those of a model whose heads are alike, and in more clusters than colors."""
    page.set_viewport_size({"width": width, "height": 800})
    assert page.locator("#plan .cell text").all_text_contents() == [f"{i}.{j}" for i in (1, 2) for j in (1, 2, 3, 4)]
    clusters = table(inspection, "clusters")
    legend = [
        f"cluster {c}: {n} head{'s' * (n != 1)}" for c, n in zip(*map(clusters.get, ("cluster", "heads")), strict=True)
    ]
    assert page.locator("#clusters span").all_inner_texts() == legend
    script = """() => {
        const element = document.querySelector('#data');
        const data = JSON.parse(element.textContent);
        const all = [...Array(96).keys()];
        Object.assign(data, { layers: 8, heads: 12, measures: data.measures.slice(0, 1), distances: null, sentences: [] });
        data.measures[0].values = all.map(() => 0.5);
        const [same, cluster] = [all.map(() => 0), all.map((place) => 1 + (place % 8))];
        const first = all.map(() => 1);
        data.plan = { x: same, y: all.map((place) => place % 2), cluster, nearest_layer: first, nearest_head: first };
        return JSON.stringify(data);
    }"""
    content = (inspection / "inspect.html").read_text()
    before, data, after = content.partition('<script type="application/json" id="data">')
    crowded = inspection.parent / "crowded.html"
    rest = after[after.index("</script>") :]
    crowded.write_text(before + data + page.evaluate(script) + rest)
    page.goto(crowded.as_uri())
    boxes = page.locator("#plan .cell rect").evaluate_all(RECTANGLES)
    assert len(boxes) == 96
    assert overlaps(boxes) == 0
    styles = "found => found.map((each) => { const s = getComputedStyle(each); return s.stroke + s.strokeDasharray; })"
    assert len(set(page.locator("#plan .cell:not(.selected) rect").evaluate_all(styles))) == 8


def test_the_similarity_of_layers_has_the_colors_of_the_page(page: Page, inspection: Path) -> None:
    assert page.locator("image, img").count() == 0  # matplotlib draws other heat maps as images
    cka = table(inspection, "cka")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        rows = page.locator("figure.table tbody tr")
        shown = [number(cell) for cell in rows.locator("td").all_inner_texts()]
        np.testing.assert_allclose(shown, cka["cka_debiased"], atol=0.006)
        accent = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--accent')")
        hue = "cell => getComputedStyle(cell).getPropertyValue('--hue')"
        assert rows.locator("td").first.evaluate(hue) == accent


def test_unknown_words_are_those_of_the_user(window: Page, pretrained: Path, tmp_path: Path) -> None:
    text = "The gat ☃ go\n(Ünïcode) 😀."
    bertie.inspect_model(pretrained, Inspection(sentences=(text,)), tmp_path / "out")
    with visited(window, (tmp_path / "out" / "inspect.html").as_uri(), "file:") as page:
        assert page.locator("#sentence option").inner_text() == "The gat ☃ go (Ünïcode) 😀."
        rows = page.locator("#lines .row")
        shown = rows.locator("text").all_text_contents()
        assert {"☃", "😀"} <= set(shown)
        assert "[UNK]" not in shown
        assert rows.nth(shown.index("☃")).locator("title").text_content() == "☃ ([UNK])"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1300])
def test_the_page_fits_its_window(page: Page, width: int, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) > 3 * 128
    assert light == (scheme == "light")


def test_texts_are_no_code(window: Page, pretrained: Path, tmp_path: Path) -> None:
    bertie.inspect_model(pretrained, Inspection(sentences=(EVIL,)), tmp_path / "out")
    with visited(window, (tmp_path / "out" / "inspect.html").as_uri(), "file:") as page:
        assert page.title().startswith("Inside ")
        assert page.locator("#lines .row").count() > 4
