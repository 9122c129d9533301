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
    from playwright.sync_api import Page

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


def test_the_map_shows_the_numbers_of_the_table(page: Page, inspection: Path) -> None:
    for measure in ("to_previous", "entropy"):
        page.select_option("#measure", measure)
        cells = page.locator("#map .cell")
        assert cells.count() == 8
        values = table(inspection, "heads")[measure]
        found = [float(cells.nth(i).get_attribute("aria-label").split(": ")[1]) for i in range(8)]  # type: ignore[union-attr]
        np.testing.assert_allclose(found, values, atol=0.006)
    accuracy = table(inspection, "relation_heads")
    page.select_option("#measure", "relation-obl")
    rows = [i for i, name in enumerate(accuracy["relation"]) if name == "obl"]
    best = np.array([accuracy["accuracy"][i] for i in rows]).reshape(2, 8).max(0)
    found = [float(page.locator("#map .cell").nth(i).get_attribute("aria-label").split(": ")[1]) for i in range(8)]  # type: ignore[union-attr]
    np.testing.assert_allclose(found, best, atol=0.006)


def test_a_click_shows_the_head_everywhere(page: Page, inspection: Path) -> None:
    page.locator("#map .cell").nth(6).click()
    assert page.locator("#head-title").inner_text() == "Head 2.3"
    assert page.locator("#lines-title").inner_text() == "Head 2.3"
    assert "head=2.3" in page.url
    row = page.locator("#numbers tr", has_text="to previous").first
    assert float(row.locator("td").nth(1).inner_text()) == pytest.approx(
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
    assert page.locator("#lines .chosen").get_attribute("aria-label") == page.locator("#lines .row").nth(
        1
    ).get_attribute("aria-label")
    page.keyboard.press("ArrowDown")
    assert page.locator("#lines .row.chosen").count() == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == page.locator("#lines .row").nth(
        2
    ).get_attribute("aria-label")


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
    with page.expect_download() as waiting:
        page.locator("figure .export button", has_text="SVG").first.click()
    waiting.value.save_as(tmp_path / "chart.svg")
    assert "mean cosine" in (tmp_path / "chart.svg").read_text() or "layer" in (tmp_path / "chart.svg").read_text()


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
