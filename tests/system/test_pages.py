"""The code on the pages: a newcomer's pages run as they are written. All Python, also of the notebooks, has right types."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import test_notebooks
from tests.unit.test_docs import CURRENT, ROOT, Block, parsed, place

START = sorted((ROOT / "docs" / "start").glob("*.md"))
NEWCOMERS = [
    ROOT / "README.md",
    *START,
    ROOT / "docs" / "tutorial.md",
    ROOT / "examples" / "README.md",
]  # in this order
SHELL = ("sh", "bash", "shell", "console")
NEEDS = {"a download", "a GPU", "Docker", "another terminal"}
"""What a fresh checkout lacks."""
BIN = Path(sys.executable).parent


def command(block: Block) -> list[str]:
    """Return the program that runs a block, with its arguments."""
    if block.language == "python":
        return [sys.executable, "-c", block.text]
    lines = block.text.replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in lines if block.language != "console" or line.startswith("$ ")]
    return ["bash", "-euo", "pipefail", "-c", "\n".join(typed)]


def joined(blocks: list[Block]) -> Iterator[Block]:
    """Yield the blocks that run. Python without an import continues the Python before it, and runs after it."""
    script = ""
    for block in blocks:
        if block.language == "python":
            script = block.text if re.search("^(from|import) ", block.text, re.MULTILINE) else f"{script}\n{block.text}"
            yield Block("python", block.line, script, block.needs)
        elif block.language in SHELL:
            yield block


CODE = [
    pytest.param(block, id=place(page, block.line))
    for page in NEWCOMERS
    for block in joined(parsed(page)[1])
    if not block.needs
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh copy of the files of the repository."""
    without = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("fresh") / "bertie", ignore=without)


def run(words: list[str], folder: Path) -> None:
    """Run a program as a user does who has activated the environment."""
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder / "src")}
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | path
    done = subprocess.run(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("block", CODE)
def test_code_for_newcomers_runs_as_written(block: Block, checkout: Path) -> None:
    run(command(block), checkout)


def test_only_marked_code_is_left_out() -> None:
    """A mark stands before a block, and names what the block needs."""
    marks = [
        place(page, number) for page in CURRENT for number, line in parsed(page)[0] if line.startswith("<!-- needs")
    ]
    marked = [block for page in CURRENT for block in parsed(page)[1] if block.needs]
    assert len(marks) == len(marked), marks
    assert {block.needs for block in marked} <= NEEDS
    assert all(block.language in (*SHELL, "python") for block in marked)


def test_blocks_become_programs() -> None:
    typed = Block("console", 3, "$ bertie demo \\\n    --out x\nreport: x\n$ ls", "")
    assert command(typed)[-1] == "bertie demo      --out x\nls"
    blocks = [Block("python", 1, "import a", ""), typed, Block("text", 7, "x", ""), Block("python", 9, "a.b()", "")]
    assert [block.text for block in joined(blocks)] == ["import a", typed.text, "import a\na.b()"]


@pytest.mark.slow
def test_python_on_the_pages_has_the_types_of_the_library(tmp_path: Path) -> None:
    """Each page becomes a file with its Python on the lines of the page, and each notebook one with its cells."""
    for page in (page for page in CURRENT if page.parent.name != "reference"):  # which has signatures
        lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
        lines[0] = "# pyright: reportMissingImports=false"  # of other programs, whose clients the pages show
        for block in parsed(page)[1]:
            if block.language == "python":
                lines[block.line - 1 :] = [
                    *block.text.splitlines(),
                    *lines[block.line - 1 + len(block.text.splitlines()) :],
                ]
        if any(lines[1:]):
            name = "_".join(page.relative_to(ROOT).with_suffix(".py").parts)
            (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    for notebook in test_notebooks.NOTEBOOKS:
        cells = [cell.source for cell in test_notebooks.read(notebook).cells if cell.cell_type == "code"]
        (tmp_path / f"notebook_{notebook.stem}.py").write_text("\n\n".join(cells), encoding="utf-8")
    done = subprocess.run([BIN / "pyright", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
