"""Write docs/reference from the code: the command line, recipe keys, public Python names, the HTTP API, and checkpoints."""

from __future__ import annotations

import importlib
import json
import re
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from bertie.base import config
from bertie.base.config import REQUIRED
from bertie.commands import VERBS, module
from bertie.commands.flags import Argument, Output, variants
from bertie.finetuning.recipe import FinetuneConfig
from bertie.lab.config import LabConfig, LabText
from bertie.pretraining.recipe import PretrainConfig
from bertie.serve.openapi import openapi
from reference_checkpoints import checkpoints
from reference_http import http_api
from reference_markdown import Row, about, cell, code, codes, entries, folded, link, prose
from reference_python import python

FOLDER = Path(__file__).parent / "reference"
GENERATED = "<!-- Written by docs/generate_reference.py from the code. Edit the code, then run `make docs`. -->\n"
GROUPS = {"Pre-training": "pretrain", "Fine-tuning": "finetune", "Lab files": "lab"}
TOP: dict[type, str] = {PretrainConfig: "Pre-training", FinetuneConfig: "Fine-tuning", LabConfig: "Lab files"}
Tables = dict[str, list[type]]
"""The headings on the page of recipes, one for each table, and the kinds that the table may have."""


def pages() -> dict[str, str]:
    """The generated files by name."""
    described, tables = openapi(), recipe_tables()
    written = {
        "command-line.md": command_line(tables),
        "recipes.md": recipes(tables),
        "python.md": python(),
        "http-api.md": http_api(described),
        "checkpoints.md": checkpoints(),
    }
    found = {name: GENERATED + "\n" + text.strip() + "\n" for name, text in written.items()}
    return {**found, "openapi.json": json.dumps(described, indent=1, ensure_ascii=False) + "\n"}


def out_of_date() -> list[Path]:
    """The pages whose files differ from the code."""
    wanted = {FOLDER / name: text for name, text in pages().items()}
    return [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


# The command line


def command_line(tables: Tables) -> str:
    """Every verb: usage, arguments, defaults, help. What several verbs have stands once."""
    every = {verb: [a for listing in variants(verb).values() for a in listing] for verb in VERBS}
    groups: dict[type, dict[str, dict[str, Argument]]] = {}
    for verb, arguments in every.items():
        for argument in arguments:
            groups.setdefault(argument.group, {}).setdefault(verb, {}).setdefault(argument.name, argument)
    shared = {group: [*next(iter(verbs.values())).values()] for group, verbs in groups.items() if len(verbs) > 1}
    shared = {group: members for group, members in shared.items() if not is_key(members[0])}
    parts = [COMMAND_LINE.format(flags=flags(shared.pop(Output)))]
    for verb, arguments in every.items():
        parts += verb_section(verb, [a for a in arguments if a.group is not Output], shared, tables)
    parts.append("## Shared flags")
    for group, members in shared.items():
        parts += [f"### {title(group)}", prose(group), flags(members)]
    parts.append(RECIPE_FLAGS)
    for heading, kinds in tables.items():
        names = dict.fromkeys(a for kind in kinds for found in groups.get(kind, {}).values() for a in found if "." in a)
        if names:
            parts.append(f"{link(code(table_flag(next(iter(names)))), heading, 'recipes.md')}: {codes(names)}")
    return "\n\n".join(filter(None, parts))


def is_key(argument: Argument) -> bool:
    """Return whether an argument is a key of a recipe."""
    return "." in argument.name or argument.group in TOP


def is_needed(argument: Argument) -> bool:
    return argument.positional or argument.default is REQUIRED


def table_flag(name: str) -> str:
    return f"{name.rpartition('.')[0]}.…"


def title(group: type) -> str:
    return re.sub("(?<=[a-z])([A-Z])", r" \1", group.__name__).capitalize()


def verb_section(
    verb: str, arguments: list[Argument], shared: dict[type, list[Argument]], tables: Tables
) -> Iterator[str]:
    """One verb. shared: the groups of flags that several verbs have."""
    own, elsewhere = dict[str, Argument](), dict[str, dict[str, None]]()
    for argument in arguments:
        name, group = argument.name, argument.group
        if "." in name:
            flag = link(code(table_flag(name)), heading_of(group, tables), "recipes.md")
            elsewhere.setdefault("tables of the recipe", {})[flag] = None
        elif group in TOP:
            elsewhere.setdefault(link("recipe", TOP[group], "recipes.md"), {})[code(name)] = None
        elif group in shared:
            elsewhere.setdefault(link(title(group).lower(), title(group)), {})[code(name)] = None
        else:
            own.setdefault(name, argument)
    needed = [a.label if a.positional else f"{a.name} {a.name[2:].upper()}" for a in own.values() if is_needed(a)]
    yield f"## bertie {verb}"
    yield prose(importlib.import_module(module(verb)).Args)
    yield f"```console\n$ {' '.join(['bertie', verb, *needed, '[OPTIONS]'])}\n```"
    yield flags(own.values())
    if elsewhere:
        yield "Also:\n\n" + "\n".join(f"- {place}: {', '.join(names)}" for place, names in elsewhere.items())


def flags(arguments: Iterable[Argument]) -> str:
    return entries(
        (
            code(argument.label.split()[0]),
            ""
            if argument.switch
            else about(argument.item, None if argument.positional else argument.default) + " …" * argument.several,
            cell(argument.meaning),
        )
        for argument in arguments
    )


# Recipes


def recipe_tables() -> Tables:
    """Every table that a recipe may have. A table of several recipes stands below the first of them."""
    found: Tables = {}

    def walk(heading: str, name: str, key: str, members: list[type]) -> None:
        if any(member in known for known in found.values() for member in members):
            return
        found[heading] = members
        for field, hint in (pair for member in members for pair in config.hints(member).items()):
            inner = f"{key}.{field}".lstrip(".")
            if nested := classes(hint):
                walk(f"{name}: `{f'[[{inner}]]' if is_array(hint) else f'[{inner}]'}`", name, inner, nested)

    for top, name in TOP.items():
        walk(name, name, "", [top])
    found["Lab files: `[text]`"] = [LabText]  # typed as any table, since the variants change it
    return found


def recipes(tables: Tables) -> str:
    """Every key of the TOML files, and what each shipped recipe sets."""
    parts = [RECIPES_PAGE]
    for heading, members in tables.items():
        rows = {kind_name(member): key_rows(member, tables) for member in members}
        own, shared = folded(rows)
        parts.append(f"{'##' if heading in GROUPS else '###'} {heading}")
        if len(members) > 1:
            parts += [f"`kind` is one of {codes(rows)}.{' Keys of several kinds:' * bool(shared)}", entries(shared)]
        for member, (kind, mine) in zip(members, own.items(), strict=True):
            if len(members) > 1:
                parts.append(f"#### {heading.partition(': ')[2]} of kind `{kind}`")
            path = f"In Python: {code(f'{member.__module__}.{member.__name__}')}."
            parts += [prose(member) if heading not in GROUPS else "", path, entries(mine)]
            if also := [name for name, *_ in (row for row in rows[kind] if row in shared)]:
                parts.append(f"Also: {', '.join(also)}.")
    parts += [SHIPPED, *map(shipped, GROUPS)]
    return "\n\n".join(filter(None, parts))


def shipped(heading: str) -> str:
    """The recipes in the package, each below the first one that it extends, with what its file changes."""
    group, head = GROUPS[heading], f"### Shipped: {heading.lower()}\n\n"
    if group == "lab":
        return head + f"{codes(config.shipped(group))}, which the pages of [the labs](../labs.md) explain."
    below: dict[str, dict[str, str]] = {}
    for path in sorted((folder := config.SHIPPED / group).rglob("*.toml")):
        values, name = config.read(path), path.relative_to(folder).with_suffix("").as_posix()
        extended = values.pop("extends", [])
        parents = [parent.removesuffix(".toml") for parent in ([extended] if isinstance(extended, str) else extended)]
        purpose = "\n".join(takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").split("\n")))
        also = f" (with {codes(parents[1:])})" * bool(parents[1:])
        below.setdefault((parents or [""])[0], {})[name] = (
            f"- **{code(name)}**{also}: {cell(purpose.replace('# ', ''))}<br>{'<br>'.join(settings(values))}"
        )

    def tree(parent: str, indent: str) -> Iterator[str]:
        for name, line in sorted(below.get(parent, {}).items(), key=lambda item: item[0] not in below):
            yield indent + line
            yield from tree(name, indent + "    ")

    return head + "\n".join(tree("", ""))


def settings(values: dict[str, Any], table: str = "") -> Iterator[str]:
    """Yield the values of a TOML file, a line for each table: `[model] hidden_size=256, …`."""
    lists = {key: value if isinstance(value, list) else [value] for key, value in values.items()}
    tables = {key: items for key, items in lists.items() if items and isinstance(items[0], dict)}
    if own := [f"{key}={config.shown(value)}" for key, value in values.items() if key not in tables]:
        yield code(f"[{table}] " * bool(table) + ", ".join(own))
    for key, items in tables.items():
        for item in items:
            yield from settings(item, f"{table}.{key}".lstrip("."))


def key_rows(owner: type, tables: Tables) -> list[Row]:
    """The keys of one table. Tables inside it have a section of their own."""
    docs, defaults, rows = config.field_docs(owner), config.defaults(owner), []
    for field, hint in config.hints(owner).items():
        if nested := classes(hint):
            values = link("tables" if is_array(hint) else "table", heading_of(nested[0], tables))
        else:
            values = about(hint, defaults[field])
        if field != "kind":
            rows.append((code(field), values, cell(docs.get(field, ""))))
    return rows


def heading_of(kind: type, tables: Tables) -> str:
    return next(heading for heading, members in tables.items() if kind in members)


def is_array(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def classes(hint: Any) -> list[type]:
    """The dataclasses among a type's members."""
    if is_dataclass(hint):
        return [typing.cast(type, hint)]
    return [member for part in typing.get_args(hint) for member in classes(part)]


def kind_name(owner: type) -> str:
    hint = config.hints(owner).get("kind")
    return typing.get_args(hint)[0] if hint else ""


COMMAND_LINE = """# Command line

`bertie --help` lists the commands, and `bertie COMMAND --help` lists the flags of one command. With the name of a recipe
or a fine-tuned run, `--help` shows its values as defaults: `bertie pretrain mini --help`. `bertie --version` prints the
version.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted. Results go to stdout, messages to stderr, and with
`--json` also the results as text.

Parentheses have the values of a flag, with the default in bold, or else its default, or its type. "…" stands for further
values: `--grid.learning-rate 1e-5 3e-5`. A flag without parentheses is a switch: giving it turns it on. Flags that several
commands have are at the end: [shared flags](#shared-flags) and [flags of recipes](#flags-of-recipes). Every command has:

{flags}"""

RECIPE_FLAGS = """## Flags of recipes

A key of a recipe is a flag, too: `batch_size` in `[training]` is `--training.batch-size`. A key that is true by default is
turned off by `no-`: `--training.no-shuffle`. The links lead to the meanings and the defaults. The kind of a table decides
which keys it has: `bertie pretrain mini --help` lists those of one recipe."""

SHIPPED = """## Shipped recipes

Each stands below the one that it extends, with what it changes. `bertie pretrain NAME --help` and `bertie finetune NAME
--help` show all values."""

RECIPES_PAGE = """# Recipe keys

`bertie pretrain`, `bertie finetune` and `bertie lab` read a TOML file, or the name of a shipped one. A recipe can extend
another recipe. It then contains only the differences:

```toml
extends = "mini"  # a shipped recipe, or a file relative to this one

[training]
steps = 10_000
```

A table is merged with the inherited table, key by key. If its `kind` differs, it replaces the inherited table. An array
replaces the inherited array. If the items of the array are tables with a `kind`, each item is merged with the inherited
item of the same kind. `extends = ["mini", "mine.toml"]` merges several recipes from left to right: a later one, with
everything that it inherits, overrides.

Most keys are also flags: `steps` in `[training]` is `--training.steps`. Flags override the recipe. A list in parentheses
has the values of a key, with the default in bold; otherwise, parentheses have the default, or the type. The [shipped
recipes](#shipped-recipes) are at the end."""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
