"""The notebooks of examples/notebooks: what is stored in them, and, as slow tests, whether they run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from bertie.demo.main import demo

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def problems_of(path: Path) -> Iterator[str]:
    """Yield what is wrong with a stored notebook."""
    notebook, text = read(path), path.read_text(encoding="utf-8")
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in cells] != [*range(1, len(cells) + 1)]:
        yield "its cells were not run once, from top to bottom"
    outputs = [output for cell in cells for output in cell.outputs]
    if not outputs or any(output.output_type == "error" for output in outputs):
        yield "no outputs, or an error"
    if len(text) > 300_000:
        yield f"{len(text):,} characters: shorten its outputs"
    if found := re.search(r"/(?:home|root|tmp|Users|work)/[\w.-]+", json.dumps(outputs)):
        yield f"a path of the machine that ran it: {found.group()}"
    start = notebook.cells[0].source
    yield from (
        f"its first cell does not say: {need}" for need in ("You need", "pip install", "Colab") if need not in start
    )
    for cell in notebook.cells:
        for target in re.findall(r"\]\(([^()\s:#]+)", cell.source if cell.cell_type == "markdown" else ""):
            if not (path.parent / target).is_file():
                yield f"no file {target}"


@each_notebook
def test_a_stored_notebook_is_valid_small_and_complete(path: Path) -> None:
    assert [*problems_of(path)] == []


def test_problems_of_a_notebook_are_found(tmp_path: Path) -> None:
    make = nbformat.v4
    failed = make.new_code_cell("1", outputs=[make.new_output("error", ename="E", evalue="/home/me", traceback=[])])
    notebook = make.new_notebook(cells=[make.new_markdown_cell("[a](none.md)"), failed])
    nbformat.write(notebook, tmp_path / "a.ipynb")
    assert len([*problems_of(tmp_path / "a.ipynb")]) == 7


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the notebooks need: the data of the examples, and a demo, here a short one."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples" / "data", folder / "examples" / "data")
    demo(folder / "runs" / "demo", scale=0.05)
    return folder


@pytest.fixture
def hub(minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the Hugging Face Hub that has all-MiniLM-L6-v2, without a network."""
    repository = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2"
    shutil.copytree(minilm, repository / "snapshots" / "0")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
@each_notebook
def test_a_notebook_runs_in_a_clone(path: Path, clone: Path) -> None:
    (clone / "examples" / "notebooks").mkdir(exist_ok=True)
    notebook = read(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [cell.id for cell in cells if cell.outputs]
    resources = {"metadata": {"path": str(clone / "examples" / "notebooks")}}
    NotebookClient(notebook, timeout=1800, resources=resources).execute()
    assert [cell.id for cell in cells if cell.id in shown and not cell.outputs] == []
