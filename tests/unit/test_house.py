"""The rules of the house: data flows one way, files and functions stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "bertie"
# A room imports only rooms above it, and itself.
ROOMS = (
    ("errors", "contracts"),
    ("console", "storage", "streams", "config", "threads"),
    ("runtime", "report"),
    ("text",),
    ("batches",),
    ("model",),
    ("checkpoints",),
    ("objectives",),
    ("tasks",),
    ("training",),
    ("predict",),
    ("demo",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
LIGHT = ("threads", "errors", "contracts", "console", "storage", "streams", "config", "report", "cli", "text")
FILES = sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, only_at_top: bool = False) -> Iterator[str]:
    """Dotted names of what a file imports, `from a import b` as a.b."""
    for node in ast.iter_child_nodes(tree) if only_at_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_above_it(path: Path) -> None:
    if path == SOURCE / "__init__.py":  # the lazy table of public names
        return
    own = RANK[room(path)]
    for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
        parts = name.split(".")
        if parts[0] == "bertie" and len(parts) > 1 and parts[1] != "__version__":
            other = parts[1]
            allowed = other == room(path) or RANK[other] < own
            assert allowed, f"{room(path)} imports {name}: it is not above it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, "look for the missing room"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_runtime_reads_the_environment_and_nothing_pickles(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {"pickle", "random"} & set(imports(tree))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if room(path) not in ("runtime", "threads"):
        assert not {"environ", "getenv"} & attributes


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_draws_from_a_generator_that_all_share(path: Path) -> None:
    """What it gave would depend on who drew before: a resumed run would draw something else."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "random":
            allowed = {"Generator"} | ({"default_rng", "SeedSequence"} if room(path) == "streams" else set())
            assert node.attr in allowed, f"np.random.{node.attr}: take a generator of streams"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_light_rooms_start_without_torch(path: Path) -> None:
    if room(path) in LIGHT:
        names = {name.split(".")[0] for name in imports(ast.parse(path.read_text(encoding="utf-8")), only_at_top=True)}
        assert "torch" not in names


def test_every_room_has_its_place() -> None:
    found = {room(path) for path in FILES} - {"__init__"}
    assert found == set(RANK)
