"""The notebooks of examples/notebooks: what is stored in them, their code, and, as slow tests, whether they run."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import bertie

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> str:
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")


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


def wrong_calls(source: str) -> Iterator[str]:
    """Yield the calls of bertie that do not fit its functions, and of methods of what these return."""
    types: dict[str, Any] = {"bertie": bertie}

    def value(node: ast.expr) -> Any:
        """Return the function or the type that an expression stands for; None: unknown."""
        match node:
            case ast.Name(id=name):
                return types.get(name)
            case ast.Attribute(value=owner, attr=name):
                return getattr(value(owner), name) if value(owner) is not None else None
            case ast.Call(func=func) if callable(function := value(func)):
                if inspect.isclass(function):
                    return function
                returned = typing.get_type_hints(function).get("return")
                return returned if inspect.isclass(returned) and returned.__module__.startswith("bertie") else None
        return None

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            types[node.targets[0].id] = value(node.value)
        if isinstance(node, ast.Call):
            try:
                if (function := value(node.func)) is not None:
                    own = [None] * inspect.isfunction(function) * ("." in function.__qualname__)  # self
                    keywords = {word.arg: None for word in node.keywords if word.arg}
                    inspect.signature(function).bind(*own, *node.args, **keywords)
            except (AttributeError, TypeError) as error:
                yield f"{ast.unparse(node)}: {error}"


@each_notebook
def test_calls_in_a_notebook_fit_the_functions(path: Path) -> None:
    assert [*wrong_calls(code(path))] == []


def test_wrong_calls_are_found() -> None:
    source = (
        'model = bertie.load("a")\nmodel.predict(["b"])\nmodel.predict(["b"], top_k=3)\nmodel.guess()\nbertie.lode("a")'
    )
    assert [call.partition(":")[0] for call in wrong_calls(source)] == [
        "model.predict(['b'], top_k=3)",
        "model.guess()",
        "bertie.lode('a')",
    ]
    assert [*wrong_calls('bertie.finetune("tag", "a", out="b")')] != []


@pytest.mark.slow
def test_code_of_the_notebooks_has_no_wrong_types(tmp_path: Path) -> None:
    for path in NOTEBOOKS:  # without the values of cells that are shown
        (tmp_path / f"{path.stem.replace('-', '_')}.py").write_text(code(path), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the notebooks need: the data of the examples, and a demo, here a short one."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples" / "data", folder / "examples" / "data")
    bertie.demo(folder / "runs" / "demo", scale=0.05)
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
