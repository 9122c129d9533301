"""The documentation: links resolve, examples are valid, and the generated reference is up to date."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import shlex
import sys
import tempfile
import tomllib
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bertie
from bertie.base import config
from bertie.base.errors import UsageError
from bertie.batches.layouts import Layout
from bertie.commands import USUAL, VERBS, module
from bertie.commands.finetune import Args as FinetuneArgs
from bertie.commands.flags import variants
from bertie.commands.pretrain import Args as PretrainArgs
from bertie.lab.config import LabConfig, LabText
from bertie.lab.plan import make_plan
from bertie.objectives import AnyObjective
from bertie.training.optimizers import Optimizer
from bertie.training.schedules import Schedule

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(page for folder in ("docs", "dev", "examples") for page in (ROOT / folder).rglob("*.md")),
]
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "log"]  # of this version
GENERATED = [page for page in PAGES if page.parent.name == "reference"]  # their prose is not wrapped
WIDTH = 120
sys.path.append(str(ROOT / "examples"))  # recipes in the text name their classes
RECIPES = {"pretrain": PretrainArgs, "finetune": FinetuneArgs}
EVERYWHERE = {"--help", "--version"}


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    line: int
    """Number of its first line."""
    text: str
    needs: str
    """What it needs that a fresh checkout lacks, from a comment before it: `<!-- needs: a GPU -->`; "": nothing."""


@functools.cache
def parsed(page: Path) -> tuple[list[tuple[int, str]], list[Block]]:
    """Split a page into numbered lines of prose and fenced blocks."""
    lines: list[tuple[int, str]] = []
    fenced: list[Block] = []
    fence: re.Match[str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r"\s*(?:> ?)?(`{3,}|~{3,})\s*([\w-]*)", line)
        if fence is None and found:
            fence, inside = found, []
        elif fence is not None and found and found.group(1) == fence.group(1) and not found.group(2):
            first = number - len(inside)
            before = "".join(line for at, line in lines[-2:] if at >= first - 3)  # at most a blank line is between
            needs = re.fullmatch(r"\s*<!-- needs: (.+) -->", before)
            fenced.append(Block(fence.group(2), first, "\n".join(inside), needs[1] if needs else ""))
            fence = None
        elif fence is not None:
            inside.append(line)
        else:
            lines.append((number, line))
    assert fence is None, f"{page}: a fenced block does not end"
    return lines, fenced


def prose() -> Iterator[tuple[Path, int, str]]:
    """Yield the lines of prose of all pages."""
    return ((page, *line) for page in PAGES for line in parsed(page)[0])


def blocks(*languages: str) -> Iterator[tuple[str, Block]]:
    """Yield the blocks of all pages in one of the languages, and their places."""
    found = ((page, block) for page in PAGES for block in parsed(page)[1] if block.language in languages)
    return ((place(page, block.line), block) for page, block in found)


def place(page: Path, line: int) -> str:
    return f"{page.relative_to(ROOT)}:{line}"


def lists_problems(test: Callable[[], Iterator[str]]) -> Callable[[], None]:
    """Make a test of a function that yields problems. It shows all of them."""

    def check() -> None:
        problems = [*test()]
        assert not problems, "\n".join(problems)

    return check


def missing(path: Path, names: set[str]) -> Iterator[str]:
    yield from (f"{path.relative_to(ROOT)}: {name}" for name in sorted(names))


# Links


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    headings = (re.match(r"#{1,6} (.*)", line) for _, line in parsed(page)[0])
    return {re.sub(r"[^\w\- ]", "", found.group(1).strip().lower()).replace(" ", "-") for found in headings if found}


def links() -> Iterator[tuple[Path, int, str]]:
    for page, number, line in prose():
        for target in re.findall(r'(?:\]\(|src(?:set)?=")([^()\s"]+)[)"]', line):
            yield page, number, target


@lists_problems
def test_links_lead_to_files_and_headings() -> Iterator[str]:
    for page, number, target in links():
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        target_page = (page.parent / path).resolve() if path else page
        if not target_page.exists() or (anchor and anchor not in anchors(target_page)):
            yield f"{place(page, number)}: {target}"


@lists_problems
def test_pages_for_users_stand_without_the_log() -> Iterator[str]:
    """dev/ is for those who change the code. CONTRIBUTING and the page about the design may name it."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if page.name != "design.md" and (
            found := re.search(r"\bdev/(log|decisions)|\.\./(log|decisions)/", page.read_text())
        ):
            yield f"{page.relative_to(ROOT)}: {found[0]}"


# Examples


@lists_problems
def test_python_examples_compile() -> Iterator[str]:
    for where, block in blocks("python"):
        if where.startswith("docs/reference/python.md"):  # signatures
            continue
        try:
            compile(block.text, where, "exec")
        except SyntaxError as error:
            yield f"{where}: {error}"


def load_recipe(values: dict[str, Any]) -> list[str]:
    """Return why a block is no recipe, for pre-training and for fine-tuning, and no lab file; [] if it is one.

    A recipe may have only a few keys. It then extends a shipped recipe.
    """
    refusals = []
    if "axes" in values:
        plan_with_any_files(config.load(LabConfig, values, "lab"))
        return []
    for group, args in RECIPES.items():
        recipe = typing.get_type_hints(args)["recipe"]
        if not set(values) - {"extends"} <= {field.name for field in dataclasses.fields(recipe)}:
            continue
        base = values.get("task", {}).get("kind") or USUAL[group][1]
        try:
            config.load(recipe, {"extends": base, **values}, group)
            return []
        except UsageError as error:
            refusals.append(f"{group}: {error}")
    return refusals


def plan_with_any_files(lab: LabConfig) -> None:
    """Plan a lab whose files need not exist."""
    with tempfile.TemporaryDirectory() as folder:
        text = config.build(LabText, lab.text, "text")
        for name in (*text.inputs, *(file for task in lab.tasks for file in (task.train, task.dev))):
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).touch()
        make_plan(lab, Path(folder))


@lists_problems
def test_toml_examples_load() -> Iterator[str]:
    for where, block in blocks("toml"):
        try:
            yield from (f"{where}: {refusal}" for refusal in load_recipe(tomllib.loads(block.text)))
        except (tomllib.TOMLDecodeError, UsageError) as error:
            yield f"{where}: {error}"


@functools.cache
def flags(verb: str) -> dict[str, set[str]]:
    """Return the flags of a verb, by the first word that they depend on."""
    task = {"--task"} if verb in ("finetune", "score") else set()
    return {
        word: {a.name for a in found if not a.positional} | task | EVERYWHERE for word, found in variants(verb).items()
    }


def usage_error(words: list[str]) -> str | None:
    """Describe what is wrong with the words after `bertie`: an unknown verb or flag; None: nothing."""
    if not words or words[0] in EVERYWHERE or not re.fullmatch(r"[a-z-]+", words[0]):  # VERB, COMMAND, …
        return None
    verb = next((name for name in (" ".join(words[:2]), words[0]) if name in VERBS), None)
    if verb is None:
        half = any(name.startswith(f"{words[0]} ") for name in VERBS)
        return None if half and words[1:] in ([], ["--help"]) else f"no command {' '.join(words[:2])!r}"
    known = flags(verb)
    rest = words[len(verb.split()) :]
    kind = rest[rest.index("--task") + 1] if "--task" in rest[:-1] else rest[0] if rest else ""
    mine = known.get(kind) or set().union(*known.values())
    used = {word.split("=")[0] for word in rest if re.match(r"--[a-z]", word)}
    return f"bertie {verb} has no {', '.join(sorted(used - mine))}" if used - mine else None


def commands(text: str, prompt: bool) -> Iterator[list[str]]:
    """Yield the words after `bertie` of each command in a shell block. prompt: commands start with `$ `."""
    for line in text.replace("\\\n", " ").splitlines():
        if prompt and not line.startswith("$ "):
            continue
        for command in re.split(r"\s(?:\||&&|;|\|\|)\s", line.removeprefix("$ ")):
            words = shlex.split(command, comments=True)
            if "bertie" in words and (words[0] == "bertie" or "-m" in words):
                yield words[words.index("bertie") + 1 :]


@lists_problems
def test_shell_examples_use_commands_and_flags_that_exist() -> Iterator[str]:
    for where, block in blocks("sh", "bash", "shell", "console"):
        for words in commands(block.text, block.language == "console"):
            if error := usage_error(words):
                yield f"{where}: {' '.join(words)}: {error}"


@lists_problems
def test_commands_and_flags_in_the_text_exist() -> Iterator[str]:
    """Check code in backticks: `bertie …`, and flags with a dot, which no other program has."""
    every = {flag for verb in VERBS for found in flags(verb).values() for flag in found}
    for page in CURRENT:
        numbers, lines = zip(*parsed(page)[0], strict=True)
        text = "\n".join(lines)
        for span in re.finditer(r"`([^`]+)`", text):
            words = span[1].split()
            if words[0] == "bertie":
                error = usage_error(words[1:])
            elif re.fullmatch(r"--[a-z0-9-]+(\.[a-z0-9-]+)+(=.*)?", words[0]):
                error = None if words[0].split("=")[0] in every else "no command has this flag"
            else:
                continue
            if error:
                yield f"{place(page, numbers[text.count(chr(10), 0, span.start())])}: {span[1]}: {error}"


def test_wrong_usage_is_found() -> None:
    assert usage_error(["pretrain", "mini", "--training.steps", "3"]) is None
    assert usage_error(["finetune", "--task", "span", "--task.n-best-size", "3"]) is None
    assert (
        usage_error(["finetune", "--task", "tag", "--task.n-best-size", "3"])
        == "bertie finetune has no --task.n-best-size"
    )
    assert usage_error(["pretend"]) == "no command 'pretend'"
    assert list(commands("$ a | bertie predict x\nbertie y", prompt=True)) == [["predict", "x"]]
    assert list(commands("torchrun -m bertie pretrain \\\n mini  # no", prompt=False)) == [["pretrain", "mini"]]
    assert load_recipe({"extends": "mini", "training": {"steps": 3}}) == []
    assert len(load_recipe({"training": {"stepz": 3}})) == 2


# Names of the code
#
# The tests check paths (`model/model.py`), files (`heads.py`), dotted names (`bertie.load`), members of a class or a file in
# docstrings (`Batch.ragged`, `truncation.encode`), and constants in the guides (`CASES`). They do not check other words in
# backticks, such as `encode`, nor whether what the text says of a name is true. The log and the changelog describe earlier
# versions.

SOURCE = ROOT / "src" / "bertie"
CODE = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)
ELSEWHERE = {"run_glue.py", "run_mlm.py", "run_squad.py", "run_qa.py", "utils_qa.py"}  # of transformers and of Google
PLACEHOLDERS = {"NAME"}
GUIDES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "explanation").glob("*.md"))]


@functools.cache
def python_files() -> set[str]:
    folders = (SOURCE, *(ROOT / name for name in ("tests", "benchmarks", "docs", "examples", "packaging")))
    return {path.name for folder in folders for path in folder.rglob("*.py")}


def missing_files(text: str, beside: Path) -> set[str]:
    """Return the Python files that a text names and that do not exist. A path counts from `beside`, or from a usual folder."""
    missing = set()
    for name in set(re.findall(r"(?<![\w/.<-])((?:\w+/)*\w+\.py)\b", text)):
        known = name in python_files() | ELSEWHERE or Path(name).stem in PLACEHOLDERS
        if not known and not any((at / name).is_file() for at in (beside, SOURCE, ROOT, ROOT / "tests", ROOT / "docs")):
            missing.add(name)
    return missing


def is_importable(dotted: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(lambda at, name: getattr(at, name, None), parts[count:], found) is not None
    return False


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def names_in(path: Path) -> set[str]:
    """Return every name that a file defines, imports or uses."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
    return found


@functools.cache
def owners() -> dict[str, set[str]]:
    """Return the names that belong to each class and to each file of bertie, by its name."""
    found: dict[str, set[str]] = {}
    for path in CODE:
        found.setdefault(path.stem, set()).update(names_in(path))
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                own |= {name.id for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
                own |= {name.attr for name in ast.walk(node) if isinstance(name, ast.Attribute)}
                own |= set().union(*(found.get(base.id, ()) for base in node.bases if isinstance(base, ast.Name)))
                found.setdefault(node.name, set()).update(own)
    return found


def missing_members(text: str) -> set[str]:
    """Return the names `OWNER.member` in backticks whose owner is a class or a file of bertie that lacks the member."""
    found = {pair for pair in re.findall(r"`(\w+)\.(\w+)", text) if pair[1] != "py" and pair[0] in owners()}
    every = set().union(*owners().values()) if found else set()
    return {
        f"{owner}.{name}" for owner, name in found if name not in (owners()[owner] if owner[0].isupper() else every)
    }


def docstrings(path: Path) -> str:
    nodes = ast.walk(tree(path))
    texts = (node.value.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str))


@lists_problems
def test_files_and_names_in_the_pages_exist() -> Iterator[str]:
    for page in CURRENT:
        text = page.read_text(encoding="utf-8")
        dotted = set(re.findall(r"(?<![\w/.])bertie(?:\.[a-zA-Z]\w*)+", text)) - {"bertie.fish"}
        names = missing_files(text, page.parent) | {name for name in dotted if not is_importable(name)}
        yield from missing(page, names)


@lists_problems
def test_constants_in_the_guides_exist() -> Iterator[str]:
    named = {page: {*re.findall(r"`([A-Z][A-Z_]{3,})`", page.read_text(encoding="utf-8"))} for page in GUIDES}
    spelled = re.compile("|".join(set().union(*named.values())))
    files = (path for path in (*CODE, *(ROOT / "tests").rglob("*.py")) if spelled.search(path.read_text("utf-8")))
    code = set().union(*map(names_in, files))
    for page in GUIDES:
        yield from missing(page, named[page] - code)


@lists_problems
def test_files_and_names_in_docstrings_exist() -> Iterator[str]:
    for path in CODE:
        text = docstrings(path)
        yield from missing(path, missing_files(text, path.parent) | missing_members(text))


@lists_problems
def test_a_room_names_all_of_its_files() -> Iterator[str]:
    """The table VERBS names the files of the commands."""
    for room in ROOMS:
        text = ast.get_docstring(tree(room)) or ""
        named = set(re.findall(r"\b(\w+)\.py\b", text)) | {
            module(verb).rpartition(".")[2] for verb in VERBS if room.parent.name == "commands"
        }
        files = {path.stem for path in room.parent.glob("*.py")} - {"__init__"}
        folders = {path.parent.name for path in room.parent.glob("*/__init__.py")}
        yield from missing(room, (files - named) | {name for name in folders if f"{name}/" not in text})


def test_the_guide_to_recipes_names_all_kinds() -> None:
    rows = re.findall(
        r"^\| `\[+(\w+)\]+` \| (.*) \|$", (ROOT / "docs/how-to/pre-training.md").read_text(), re.MULTILINE
    )
    tables = {"optimizer": Optimizer, "schedule": Schedule, "layout": Layout, "objectives": AnyObjective}
    assert {name: set(re.findall(r"`(\w+)`", kinds)) for name, kinds in rows} == {
        name: {*config.kinds(union)} for name, union in tables.items()
    }


def test_missing_names_are_found() -> None:
    text = "`model/heads/heads.py`, heads.py, `model/none.py`, none.py, tasks/NAME.py"
    assert missing_files(text, ROOT) == {"model/none.py", "none.py"}
    assert is_importable("bertie.tokenizers.tokenizer.Tokenizer.load")
    assert not is_importable("bertie.corpus.none")
    assert not is_importable("bertie.tokenizers.tokenizer.Tokenizer.none")
    assert missing_members("`Tokenizer.load`, `Tokenizer.none`, `truncation.encode`, `truncation.encodes()`") == {
        "Tokenizer.none",
        "truncation.encodes",
    }


# Form


@lists_problems
def test_prose_is_wrapped() -> Iterator[str]:
    for page, number, line in prose():
        without_links = re.sub(r"\]\([^)]*\)", "]", line)
        table = line.lstrip("> ").startswith(("|", "<picture"))
        if page not in GENERATED and len(without_links) > WIDTH and not table:
            yield f"{place(page, number)}: {len(without_links)} characters"


# The reference


def generator() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return importlib.import_module("generate_reference")


def test_reference_is_up_to_date() -> None:
    assert generator().out_of_date() == [], "run python docs/generate_reference.py"


def test_reference_has_every_key_and_every_flag() -> None:
    written = generator().pages()
    for verb in VERBS:
        for found in variants(verb).values():
            for argument in found:
                # A switch that is on in one recipe and off in another is listed as in the usual recipe.
                names = {argument.name}
                if argument.switch:
                    names |= {argument.name.replace(".no-", "."), re.sub(r"\.([^.]*)$", r".no-\1", argument.name)}
                listed = any(f"`{name}`" in written["command-line.md"] for name in names)
                assert argument.positional or listed, argument.name
                key = argument.key.rpartition(".")[2]
                assert "." not in argument.key or f"- `{key}`" in written["recipes.md"], argument.key


def test_reference_has_every_public_name_with_its_signature_and_docstring() -> None:
    page = generator().pages()["python.md"]
    for name in set(bertie.__all__) - {"__version__"}:
        section = re.search(rf"^### {name}\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
        value = getattr(importlib.import_module(bertie._HOMES[name]), name)
        assert section, name
        assert (inspect.getdoc(value) or "?").split()[0] in section[1].split(), f"{name} has no docstring"
        if inspect.isfunction(value):
            assert f"```python\nbertie.{name}(" in section[1]
            assert {
                argument for argument in inspect.signature(value).parameters if f"{argument}: " not in section[1]
            } == set()
