"""Text for the system tests: three files of short documents, each with its own words."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PATIENCE = 300_000  # milliseconds that a busy machine may take

SMALL = (
    "--model.hidden-size 16 --model.num-attention-heads 2 --model.intermediate-size 32 --layout.max-length 32 "
    "--training.batch-size 4 --training.row-tokens 128 --training.steps 2 --training.max-eval-tokens 200 --threads 1"
)
"""Flags of a pre-training that takes a second."""

COMMON = "the a of and to in is that it was for on with as at by this from"
OWN = {
    "sea": "ship wave harbour sail captain storm island tide anchor fish deck wind coast boat",
    "law": "court judge contract clause party appeal claim statute verdict witness duty order right trial",
    "code": "function value list object module string error file class method index loop key test",
}


def names_setting(flag: str) -> str:
    """Return how a message about a value out of range begins, after the setting's table: `max_length is`."""
    return flag.rpartition(".")[2].replace("-", "_") + " is "


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number, (name, words) in enumerate(OWN.items()):
        rng = np.random.default_rng(number)

        def sentence(words: str = words, rng: np.random.Generator = rng) -> str:
            sources = ((words if rng.random() < 0.5 else COMMON).split() for _ in range(rng.integers(6, 14)))
            chosen = [str(rng.choice(source)) for source in sources]
            return " ".join(chosen).capitalize() + "."

        documents = [" ".join(sentence() for _ in range(rng.integers(4, 9))) for _ in range(120)]
        (folder / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """refuse(argv, code, *words): the command exits with `code` and prints one line with the words to stderr.

    Nothing is on stdout, and nothing is left in `tmp_path` that was not there before. Returns the line.
    """
    from bertie.cli import main

    monkeypatch.setattr("bertie.base.runtime.cpu_quota", lambda: 1)

    def files() -> set[Path]:
        return set(tmp_path.rglob("*"))

    def refuse(argv: list[str], code: int, *words: str) -> str:
        before = files()
        capsys.readouterr()
        assert main(argv) == code
        said = capsys.readouterr()
        *others, line = said.err.splitlines()
        assert line.startswith("bertie: "), said.err
        assert not any(other.startswith("bertie: ") for other in others)
        for word in words:
            assert word in line
        assert len(line) < 1000
        assert said.out == ""
        assert files() == before
        return line

    return refuse


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    """A window of Chromium, for all tests of a page: each new one costs a second of processor time."""
    names = ("chromium-headless-shell", "chromium", "google-chrome")  # the first one needs less processor time
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("needs Chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(accept_downloads=True, permissions=["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE)
        yield context.new_page()
        browser.close()


@contextmanager
def visited(window: Page, address: str, *allowed: str, refused: bool = False) -> Iterator[Page]:
    """Load a page. Errors and warnings of its scripts, and requests to other places, fail the test.

    Args:
        window: The window. Nothing is left of what it showed before.
        address: The address of the page.
        allowed: How the addresses of requests may begin.
        refused: Whether the server refuses requests in this test, which the console reports.
    """
    errors: list[str] = []
    listeners: dict[Any, Callable[[Any], None]] = {
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda message: errors.append(message.text) if message.type in ("error", "warning") else None,
        "request": lambda request: None if request.url.startswith(allowed) else errors.append(request.url),
    }
    window.goto("about:blank")
    window.set_viewport_size({"width": 1280, "height": 900})
    window.emulate_media(color_scheme="light")
    for event, listener in listeners.items():
        window.on(event, listener)
    try:
        window.goto(address)
        yield window
    finally:
        window.unroute_all()
        for event, listener in listeners.items():
            window.remove_listener(event, listener)
    assert [error for error in errors if not (refused and "Failed to load resource" in error)] == []
