"""The documentation site builds without warnings and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.system.conftest import visited

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the package mkdocs-material")
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--site-dir", str(out)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//", text), page
        assert not re.findall(r"<link[^>]*\shref=\"?(?:https?:)?//", text), page


def test_the_images_of_every_page_exist(site: Path) -> None:
    found = 0
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:img|source)\b[^>]*>", page.read_text(encoding="utf-8")):
            for target in re.findall(r'\b(?:src|srcset)="([^"]+)"', tag):
                found += 1
                assert (page.parent / target).is_file(), f"{page.relative_to(site)}: {target}"
    assert found > 3


def test_tables_on_a_phone_keep_names_whole_and_show_that_they_scroll(site: Path, window: Page) -> None:
    with visited(window, (site / "how-to" / "serve.html").as_uri(), "file:", "data:", "blob:") as page:
        page.set_viewport_size({"width": 400, "height": 800})
        name = page.locator("td code", has_text="/v1/embeddings").first
        assert name.evaluate("name => name.getClientRects().length") == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        style = page.locator(".md-typeset__scrollwrap").first.evaluate(
            "box => getComputedStyle(box).backgroundAttachment"
        )
        assert style.split(", ") == ["local", "local", "scroll", "scroll"]
