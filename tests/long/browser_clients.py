"""Serve a small model, and ask it with OpenAI's client on a web page of another origin. Not run by pytest.

    python tests/long/browser_clients.py [--environment FOLDER]

The environment gets the npm package openai, 20 MB, unless it is there. A web server of this program has the page, and Chromium
opens it. Fails if an answer differs from bertie's by more than 1e-5, if the client does not show the message of an error, if the
page cannot read the headers of the server, or if a page of an origin that was not allowed can use it. Ends without a test, and
says why, if there is no Chromium, no playwright, no npm or no network.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from environments import npm_problem

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
from hub_models import build
from hub_table import HUB_MODELS
from tests.system.test_serve import process

import bertie

PACKAGE = "openai@7.59.0"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
KEY = "sk-of-a-page"
TEXTS = ["the cat sat on the mat", "a dog in the garden", "Füße 😀"]
LIMIT = 1e-5
SIDE = "browser_clients_side.mjs"


def install(environment: Path) -> str:
    """Return why there can be no test; empty if there can."""
    if not any(map(shutil.which, BROWSERS)):
        return "Chromium is not installed"
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed"
    return npm_problem(environment, PACKAGE)


class Files(SimpleHTTPRequestHandler):
    """The files of a folder, as a web server that knows today's types has them."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def website(folder: Path) -> Iterator[str]:
    """Serve the files of a folder until the end of the block. Yields the origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def asked(origin: str, job: dict[str, Any]) -> dict[str, Any]:
    """Open a page of an origin, and return what its client finds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{origin}/index.html")
        found = page.evaluate(f"async (job) => (await import('/{SIDE}')).ask(job)", job)
        browser.close()
    return found


def problems(found: dict[str, Any], wanted: np.ndarray, log: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what was checked, and what is wrong with it; empty if nothing is."""
    for name in ("base64", "float", "token ids"):
        vectors = np.array(found[name])
        same = vectors.shape == wanted.shape and np.abs(vectors - wanted).max() <= LIMIT
        yield f"embeddings, {name}", "" if same else f"{vectors.shape}, {str(vectors)[:80]}"
    for name, status, message in (
        ("unknown model", 404, "no model has this name"),
        ("wrong input", 422, "input: there is no text"),
        ("wrong key", 401, "give a valid key"),
    ):
        error = found[name]
        right = error["status"] == status and message in error["message"]
        yield f"error, {name}", "" if right else str(error)
    ids = {event["id"] for event in log if event["event"] == "request"}
    for name in ("request id", "request id of an error"):
        yield name, "" if found[name] in ids else f"{found[name]!r} is none of the log"
    yield "Server-Timing", "" if "compute;dur=" in str(found["timing"]) else str(found["timing"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "bertie-browser-clients")
    environment = parser.parse_args().environment.resolve()
    if reason := install(environment):
        print(f"skipped: {reason}")
        return
    with tempfile.TemporaryDirectory() as place:
        model, site, keys = (Path(place) / name for name in ("model", "site", "keys"))
        model.mkdir()
        build(next(each for each in HUB_MODELS if each.name == MODEL), model)
        site.mkdir()
        (site / "openai").symlink_to(environment / "node_modules" / "openai")
        (site / "index.html").write_text('<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">')
        shutil.copy(Path(__file__).parent / SIDE, site)
        keys.write_text(f"{KEY}\n")
        wanted = bertie.load(model, threads=1).embed(TEXTS)
        with website(site) as origin, website(site) as other:
            options = ("--cors", origin, "--api-keys", str(keys))
            with process(f"vectors={model}", *options) as server:
                job = {"url": f"http://127.0.0.1:{server.port}/v1", "key": KEY, "texts": TEXTS, "model": "vectors"}
                found, refused = asked(origin, job), asked(other, job | {"only": "base64"})
        checked = list(problems(found, wanted, server.events))
    outcome = str(refused["error"]["message"])
    checked.append(("a page of another origin is refused", "" if outcome == "Connection error." else str(refused)))
    for name, problem in checked:
        print(f"{'differs' if problem else 'passes'}  {name}{f': {problem}' if problem else ''}")
    sys.exit(any(problem for _, problem in checked))


if __name__ == "__main__":
    main()
