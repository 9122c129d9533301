"""The rules of the house in CONTRIBUTING.md: imports between rooms, import cycles, sizes of files and functions, and more."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertie.base.config import kinds
from bertie.objectives import AnyObjective
from bertie.tasks import AnyTask

SOURCE = Path(__file__).resolve().parents[2] / "src" / "bertie"
TESTS = Path(__file__).resolve().parents[1]
# A room imports only itself and rooms in names before its own.
ROOMS = """
    base files tokenizers corpus batches model checkpoints objectives examples tasks training pretraining finetuning
    predict inspect retrieval serve demo lab commands cli __main__
"""
RANK = {room: rank for rank, room in enumerate(ROOMS.split())}
LIGHT = {"base", "files", "tokenizers", "corpus", "cli"}
BENCHMARKS = SOURCE.parents[1] / "benchmarks"
FILES = sorted(SOURCE.rglob("*.py"))


def module(path: Path) -> str:
    """Return the dotted name below bertie: "base.config"."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def room(path: Path) -> str:
    return module(path).split(".")[0]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def imported(node: ast.AST) -> list[str]:
    """The dotted names that a statement imports. `from a import b` gives a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names of a file's imports."""
    for node in nodes(tree):
        yield from imported(node)


Found = Iterator[tuple[int, str]]  # lines, and what is wrong there


def imports_from_below(own: str, tree: ast.Module) -> Found:
    own = own.split(".")[0]
    if own == "__init__":  # the lazy table of public names
        return
    for node in nodes(tree):
        for name in imported(node):
            parts = name.split(".")
            other = parts[1] if parts[0] == "bertie" and len(parts) > 1 else own
            if other not in ("__version__", own) and RANK[other] >= RANK[own]:
                yield node.lineno, f"{own} imports {name}: it is not above it"


def size(_: str, tree: ast.Module) -> Found:
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60:
            yield node.lineno, f"{node.name} is too long"


def environment_and_pickles(own: str, tree: ast.Module) -> Found:
    """Only runtime.py and threads.py read the environment, and nothing pickles."""
    for node in nodes(tree):
        for name in {"pickle", "random"} & set(imported(node)):
            yield node.lineno, f"imports {name}"
        reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        if reads and own not in ("base.runtime", "base.threads"):
            yield node.lineno, f"reads the environment by {node.attr}"


def numpys_global_generator(own: str, tree: ast.Module) -> Found:
    """Its numbers depend on all earlier draws, so a resumed run would draw other numbers."""
    allowed = {"Generator"} | ({"default_rng", "SeedSequence"} if own == "base.seeding" else set())
    for node in nodes(tree):
        of_random = (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "random"
        )
        if of_random and node.attr not in allowed:
            yield node.lineno, f"np.random.{node.attr}: take a generator of bertie.base.seeding"


def torch_in_light_rooms(own: str, tree: ast.Module) -> Found:
    """Light rooms start without torch."""
    for node in tree.body:
        light = own.split(".")[0] in LIGHT and own != "base.runtime"
        if light and any(name.split(".")[0] == "torch" for name in imported(node)):
            yield node.lineno, "a light room imports torch at the top"


RULES = (imports_from_below, size, environment_and_pickles, numpys_global_generator, torch_in_light_rooms)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)


@each_rule
def test_no_file_breaks_a_rule(rule: Callable[[str, ast.Module], Found]) -> None:
    broken = [f"{path}:{line}: {what}" for path in FILES for line, what in rule(module(path), parsed(path))]
    assert not broken, "\n".join(broken)


@each_rule
def test_a_broken_rule_is_found(rule: Callable[[str, ast.Module], Found]) -> None:
    """Each line from the second on breaks one rule."""
    lines = ["import torch", "from bertie.lab import lab", "import pickle", "os.environ", "np.random.default_rng(0)"]
    tree = ast.parse("\n".join([*lines, "def long():", *["    pass"] * 60]))
    broken = {imports_from_below: [2], size: [6], environment_and_pickles: [3, 4], numpys_global_generator: [5]}
    assert [line for line, _ in rule("corpus.prepare", tree)] == broken.get(rule, [1])


def test_no_file_has_marks_of_a_conflict() -> None:
    root, begins = Path(__file__).parents[2], "<" * 7 + " "
    folders = [
        root / name for name in ("src", "tests", "docs", "dev", "examples", "benchmarks", "recipes", "packaging")
    ]
    paths = [*root.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    texts = [
        path for path in paths if path.suffix in (".py", ".md", ".yml", ".yaml", ".toml", ".txt", ".in", ".js", ".css")
    ]
    assert root / "mkdocs.yml" in texts
    assert not [path for path in texts if any(line.startswith(begins) for line in path.read_text().splitlines())]


# Folders of kinds: one file each.
FOLDERS_OF_KINDS = {"checkpoints/families", "commands", "tasks"}


def test_folders_stay_small() -> None:
    files = Counter(str(path.parent.relative_to(SOURCE)) for path in FILES if path.stem != "__init__")
    assert {folder for folder, count in files.items() if count > 25} <= FOLDERS_OF_KINDS


def test_files_stay_small() -> None:
    long = [
        f"{path}: {lines} lines: look for the missing room"
        for path in FILES
        if (lines := path.read_bytes().count(b"\n")) > 400
    ]
    assert not long, "\n".join(long)


def imported_files(path: Path, root: Path, package: str) -> set[Path]:
    """Return the files below `root` that a file imports. `package`: dotted name of that folder, "" for scripts."""
    found = set()
    for name in imports(parsed(path)):
        parts = name.removeprefix(f"{package}.").split(".") if name.startswith(package) else []
        while parts:
            for target in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
                if target.is_file() and target != path:
                    found.add(target)
            if found & {root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")}:
                break
            parts.pop()
    return found


def import_cycle(graph: dict[Path, set[Path]]) -> list[Path]:
    """Return a cycle in an import graph, or [] if there is none."""
    done: set[Path] = set()

    def visit(path: Path, stack: list[Path]) -> list[Path]:
        if path in stack:
            return stack[stack.index(path) :]
        if path in done:
            return []
        for other in sorted(graph[path]):
            if cycle := visit(other, [*stack, path]):
                return cycle
        done.add(path)
        return []

    return next((cycle for path in sorted(graph) if (cycle := visit(path, []))), [])


@pytest.mark.parametrize(("root", "package"), [(SOURCE, "bertie"), (BENCHMARKS, "")], ids=["src", "benchmarks"])
def test_there_are_no_import_cycles(root: Path, package: str) -> None:
    """Imports for type checking count. The lazy table of public names in bertie/__init__.py does not."""
    files = [path for path in root.rglob("*.py") if path != SOURCE / "__init__.py"]
    assert import_cycle({path: imported_files(path, root, package) & set(files) for path in files}) == []


def test_import_cycles_are_found() -> None:
    a, b, c = Path("a"), Path("b"), Path("c")
    assert import_cycle({a: {b}, b: {c}, c: {b}}) == [b, c]
    assert import_cycle({a: {b, c}, b: {c}, c: set()}) == []


def test_every_room_is_listed() -> None:
    found = {room(path) for path in FILES} - {"__init__"}
    assert found == set(RANK)


# Distinctions of kinds outside the room that owns them, each with its reason. Other rooms ask the kind instead.
NAMED = {
    "tasks": {
        "finetuning/glue_tasks.py": "the tasks of GLUE",
        "serve/dialects/infinity.py": "names of Infinity",
        "serve/dialects/vllm.py": "names of vLLM",
    },
    "objectives": {
        "inspect/heads/importance.py": "the head of a causal model has no weights, so its folder does not name it",
        "predict/token_model.py": "the head of a causal model, as above",
        "examples/conll.py": "lines that are skipped, no objective",
        "tasks/task_json.py": "the same in earlier files",
    },
}
UNIONS = {"tasks": AnyTask, "objectives": AnyObjective}


def names_of_kinds(path: Path, owned: Collection[Any]) -> set[str]:
    """Return the kinds that a file distinguishes: by a comparison with the name, a table of names, or the class."""
    constants, classes = {kind.kind for kind in owned}, {kind.__name__ for kind in owned}
    found = set()
    for node in nodes(parsed(path)):
        compared = list(ast.walk(node)) if isinstance(node, ast.Compare | ast.MatchValue) else []
        table = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        for values, least in ((compared, 1), (table, 2)):
            used = {value.value for value in values if isinstance(value, ast.Constant)} & constants
            found |= used if len(used) >= least else set()
        names = {node.id} if isinstance(node, ast.Name) else {node.attr} if isinstance(node, ast.Attribute) else set()
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else names
        found |= names & classes
    return found


@pytest.mark.parametrize("owner", UNIONS)
def test_a_kind_owns_its_facts(owner: str) -> None:
    """Other rooms neither compare with its name nor distinguish its class."""
    others = [path for path in FILES if room(path) != owner]
    found = {str(path.relative_to(SOURCE)): names_of_kinds(path, kinds(UNIONS[owner]).values()) for path in others}
    assert {name for name, names in found.items() if names} == set(NAMED[owner]), found


# Public types whose name another room has, too, until they are renamed. The list may only shrink.
REPEATED_TYPES = {"Document", "Example", "Table"}


def public_types(tree: ast.Module) -> set[str]:
    """Return the names of public classes and type aliases at the top of a file. Constants are in capitals."""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {name.id for name in targets if isinstance(name, ast.Name) and re.match("[A-Z].*[a-z]", name.id)}
    return {name for name in names if not name.startswith("_")}


def test_every_public_type_has_a_name_of_its_own() -> None:
    """`Args` is what every command calls its arguments, as every command calls its function `run`."""
    files: dict[str, list[str]] = {}
    for path in FILES:
        for name in public_types(parsed(path)) - {"Args"}:
            files.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in files.items() if len(found) > 1}.keys() == REPEATED_TYPES


def test_public_types_are_found() -> None:
    tree = ast.parse(
        "class A: ...\nclass _B: ...\nAny1 = int | str\nLIMIT = 3\nT = TypeVar('T')\nKeys: type = str\nx = 1"
    )
    assert public_types(tree) == {"A", "Any1", "Keys"}


def skip_reasons() -> Iterator[str]:
    """What the tests say when they skip; "" where one says nothing."""
    for path in sorted(TESTS.rglob("*.py")):
        for call in nodes(parsed(path)) if "skip" in path.read_text(encoding="utf-8") else []:
            name = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""
            if isinstance(call, ast.Call) and name in ("skip", "skipif", "importorskip"):
                given = [word.value for word in call.keywords if word.arg == "reason"]
                found = [*given, *call.args[:1]] if name == "skip" else given
                yield str(ast.literal_eval(found[0])) if found else ""


def test_a_test_that_skips_names_a_need_that_is_documented() -> None:
    guide = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    needs = {line.split("|")[1].strip() for line in guide.splitlines() if line.startswith("| needs ")}
    assert set(skip_reasons()) == needs


def test_no_class_is_a_subclass_of_ours() -> None:
    """Protocols say what a caller needs, dataclasses hold values. Errors, and messages of the server, are the exceptions."""
    classes = {node.name: node for path in FILES for node in parsed(path).body if isinstance(node, ast.ClassDef)}

    def bases(node: ast.ClassDef) -> set[str]:
        return {name.id for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name)}

    free = {name for name, node in classes.items() if name.endswith("Error") or "Protocol" in bases(node)}
    broken = [
        f"{path}:{node.lineno}: {node.name} is a subclass of {', '.join(ours)}"
        for path in FILES
        if room(path) != "serve"
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and (ours := bases(node) & set(classes) - free - {"EncoderFacts", "Sequence"})
    ]
    assert not broken, "\n".join(broken)
