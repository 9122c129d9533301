"""Write docs/reference from the code: the command line, recipe keys, public Python names, the HTTP API, and checkpoints.

python docs/generate_reference.py            write the pages
python docs/generate_reference.py --check    exit 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bertie
from bertie.base import config
from bertie.base.config import REQUIRED
from bertie.commands import VERBS, module
from bertie.commands.flags import Argument, Output, kind_of, tables, variants
from bertie.lab.config import Axis, Budget, LabConfig, LabTask, LabText, Variant
from bertie.serve.openapi import openapi
from reference_checkpoints import checkpoints
from reference_markdown import cell, code, prose, shown, slug, table, type_name

FOLDER = Path(__file__).parent / "reference"
GENERATED = "<!-- Written by docs/generate_reference.py from the code. Edit the code, then run `make docs`. -->\n"


def pages() -> dict[str, str]:
    """The generated files by name."""
    described = openapi()
    written = {
        "command-line.md": command_line(),
        "recipes.md": recipes(),
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


def command_line() -> str:
    """Every verb: usage, arguments, defaults, help."""
    common = [argument for argument in variants("demo")[""] if argument.group is Output]
    parts = [COMMAND_LINE.format(flags=table(["Flag", "Meaning"], [[code(a.name), cell(a.help)] for a in common]))]
    listed: dict[tuple[str, type], str] = {}
    for verb in VERBS:
        parts += list(verb_section(verb, listed))
    return "\n\n".join(filter(None, parts))


def verb_section(verb: str, listed: dict[tuple[str, type], str]) -> Iterator[str]:
    """One verb. listed: the groups of dotted flags that a verb before it has listed, and which verb that is."""
    every = variants(verb)
    usual = next(iter(every))
    own = [argument for argument in every[usual] if "." not in argument.key and argument.group is not Output]
    yield f"## bertie {verb}"
    yield prose(importlib.import_module(module(verb)).Args)
    words = [
        a.label if a.positional else f"{a.name} {a.name[2:].upper()}"
        for a in own
        if a.positional or a.default is REQUIRED
    ]
    yield f"```console\n$ {' '.join(['bertie', verb, *words, '[OPTIONS]'])}\n```"
    yield flag_table("Argument", own)
    elsewhere: dict[str, dict[str, None]] = {}
    for key, (word, members) in tables(every).items():
        if key in listed:
            elsewhere.setdefault(listed[key], {})[f"`--{key[0]}.…`"] = None
            continue
        listed[key] = verb
        yield f"**`--{key[0]}.…`**{kind_of(key[1])}" + (f", defaults of `{word}`" if word else "")
        yield flag_table("Flag", members)
    for other, names in elsewhere.items():
        yield f"{', '.join(names)}: see [`bertie {other}`](#{slug(f'bertie {other}')})."


def flag_table(title: str, arguments: list[Argument]) -> str:
    rows = [[code(a.label if a.positional else a.name), value_type(a), default(a), cell(a.meaning)] for a in arguments]
    return table([title, "Value", "Default", "Meaning"], rows)


def value_type(argument: Argument) -> str:
    return "" if argument.switch else type_name(argument.item) + " …" * argument.several


def default(argument: Argument) -> str:
    if argument.switch:
        return "off"
    if argument.positional and argument.several:
        return "none"
    value = argument.default
    return code(" ".join(map(str, value))) if isinstance(value, tuple) and value else shown(value)


# Recipes


def recipes() -> str:
    """Every key of the TOML files for pre-training and fine-tuning."""
    parts = [RECIPES]
    described: dict[type, str] = {}
    for title, group in (("Pre-training", "pretrain"), ("Fine-tuning", "finetune")):
        recipe = config.hints(importlib.import_module(module(group)).Args)["recipe"]
        names = ", ".join(code(name) for name in config.shipped(group))
        parts += [f"## {title}", f"Shipped recipes: {names}.", key_table(recipe, title)]
        for field, hint in config.hints(recipe).items():
            if members := classes(hint):
                parts += list(table_section(title, field, hint, members, described))
    parts += ["## Lab files", f"Shipped files: {', '.join(code(name) for name in config.shipped('lab'))}."]
    parts.append(key_table(LabConfig, "Lab"))
    for head, owner in LAB_TABLES.items():
        parts += [f"### Lab: `{head}`", prose(owner), key_table(owner, "Lab")]
    return "\n\n".join(filter(None, parts))


LAB_TABLES = {"[text]": LabText, "[budget]": Budget, "[[tasks]]": LabTask, "[[axes]]": Axis, "[[variants]]": Variant}


def table_section(title: str, key: str, hint: Any, members: list[type], described: dict[type, str]) -> Iterator[str]:
    """One table of a recipe, with each kind that it may have, and the tables inside it. key: its dotted key."""
    head = f"[[{key}]]" if typing.get_origin(hint) is tuple else f"[{key}]"
    heading = f"{title}: `{head}`"
    yield f"### {heading}"
    if all(member in described for member in members):
        yield f"The same table as in [{described[members[0]].partition(':')[0].lower()}](#{slug(described[members[0]])})."
        return
    if len(members) > 1:
        yield f"`kind` is one of {', '.join(code(kind_name(member)) for member in members)}."
    for member in members:
        described[member] = heading
        if len(members) > 1:
            yield f"#### `{head}` of kind `{kind_name(member)}`"
        yield prose(member)
        yield key_table(member, title, f"{key}.")
    for member in members:
        for field, inner in config.hints(member).items():
            if nested := classes(inner):
                yield from table_section(title, f"{key}.{field}", inner, nested, described)


def key_table(owner: type, title: str, prefix: str = "") -> str:
    """The keys of one table. Tables inside it have a section of their own. prefix: the dotted key of the table."""
    hints, docs = config.hints(owner), config.field_docs(owner)
    rows = []
    for field, value in config.defaults(owner).items():
        nested = classes(hints[field])
        if nested:
            name = prefix + field
            head = f"[[{name}]]" if typing.get_origin(hints[field]) is tuple else f"[{name}]"
            kind = f"[{'tables' if head.startswith('[[') else 'table'}](#{slug(f'{title}: {head}')})"
        else:
            kind = type_name(hints[field])
        told = "its defaults" if dataclasses.is_dataclass(value) else shown(value)
        if len(nested) > 1 and dataclasses.is_dataclass(value):
            told = f"kind {code(kind_name(type(value)))}"
        rows.append([code(field), kind, told, cell(docs.get(field, ""))])
    return table(["Key", "Type", "Default", "Meaning"], rows)


def classes(hint: Any) -> list[type]:
    """The dataclasses among a type's members."""
    if dataclasses.is_dataclass(hint):
        return [typing.cast(type, hint)]
    return [member for part in typing.get_args(hint) for member in classes(part)]


def tables_within(owner: type) -> Iterator[type]:
    """A dataclass, and all dataclasses among the types of its fields and of theirs."""
    yield owner
    for hint in config.hints(owner).values():
        for member in classes(hint):
            yield from tables_within(member)


def kind_name(owner: type) -> str:
    return typing.get_args(config.hints(owner)["kind"])[0]


# The Python API


def python() -> str:
    """Directives for mkdocstrings, which reads signatures and docstrings from the sources."""
    homes = bertie._HOMES  # bertie.demo itself may be the subpackage of that name
    public = {name: getattr(importlib.import_module(home), name) for name, home in homes.items()}
    paths = {name: f"{homes[name]}.{name}" if _is_module(name) else f"bertie.{name}" for name in public}
    classes = [name for name, value in public.items() if isinstance(value, type)]
    errors = [name for name in classes if issubclass(public[name], Exception)]
    parts = [PYTHON, "## Functions", *(f"::: {path}" for name, path in paths.items() if name not in classes)]
    parts += ["## Classes", *(f"::: {paths[name]}" for name in classes if name not in errors)]
    parts += ["## Errors", *(f"::: {paths[name]}" for name in errors), "## Configuration", CONFIGURATION]
    seen: dict[type, None] = {}
    for group in ("pretrain", "finetune"):
        recipe = config.hints(importlib.import_module(module(group)).Args)["recipe"]
        seen |= dict.fromkeys(tables_within(recipe))
    for owner in seen:
        members = ", ".join(field.name for field in dataclasses.fields(owner))  # type: ignore[arg-type]
        parts.append(f"::: {owner.__module__}.{owner.__qualname__}\n    options:\n      members: [{members}]")
    return "\n\n".join(parts)


def _is_module(name: str) -> bool:
    return importlib.util.find_spec(f"bertie.{name}") is not None


# The HTTP API


def http_api(described: dict[str, Any]) -> str:
    """Every endpoint, with the fields of its messages."""
    schemas = described["components"]["schemas"]
    parts, used = [HTTP_API], dict[str, None]()
    rows = [
        [f"`{method.upper()} {path}`", operation["description"]]
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    parts.append(table(["Endpoint", "What it does"], rows))
    sections: dict[tuple[Any, ...], list[str]] = {}  # a path with and without the base of its dialect: one section
    for path, methods in described["paths"].items():
        for operation in methods.values():
            if "requestBody" in operation:
                names = [_schema_names(operation["requestBody"]), _schema_names(operation["responses"]["200"])]
                sections.setdefault((operation["description"], *names), []).append(path)
    for (description, requests, responses), paths in sections.items():
        asked, answered = ([field_table(schemas[name]) for name in names] for names in (requests, responses))
        parts += [f"## {', '.join(paths)}", description, *asked, *(["The response:"] if answered else []), *answered]
        used |= dict.fromkeys((*requests, *responses))
    parts.append("## Other messages")
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schemas)))
    for name in sorted(named | schemas.keys() - used.keys()):
        parts += [f"### {name}", schemas[name].get("description", ""), field_table(schemas[name])]
    parts.append("## Statuses")
    errors = described["paths"]["/v1/embeddings"]["post"]["responses"]
    parts.append(table(["Status", "Meaning"], [[code(status), errors[status]["description"]] for status in errors]))
    return "\n\n".join(filter(None, parts))


def _schema_names(body: dict[str, Any]) -> tuple[str, ...]:
    """Return the messages in the schema of a body. A response of any form has none."""
    found = re.findall(r'"\$ref": "[^"]*/(\w+)"', json.dumps(body["content"]["application/json"]["schema"]))
    return tuple(dict.fromkeys(found))


def field_table(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        [code(name), json_type(field), "required" if name in required else default_of(field), cell(meaning_of(field))]
        for name, field in schema["properties"].items()
    ]
    return table(["Field", "Type", "Default", "Meaning"], rows)


def json_type(field: dict[str, Any]) -> str:
    """A type of JSON in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{slug(name)})"
    if "enum" in field:
        return ", ".join(code(str(value)) for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(map(json_type, field["anyOf"]))
    if field.get("type") == "array":
        return f"array of {json_type(field['items'])}"
    return field.get("type", "any")


def default_of(field: dict[str, Any]) -> str:
    value = field.get("default")
    return "none" if value in (None, "") else code(json.dumps(value).strip('"'))


def meaning_of(field: dict[str, Any]) -> str:
    inner = next((part["description"] for part in field.get("anyOf", ()) if "description" in part), "")
    return field.get("description", inner)


COMMAND_LINE = """# Command line

`bertie --help` lists the commands, and `bertie COMMAND --help` lists the flags of one command. With the name of a recipe
or a fine-tuned run, `--help` shows its values as defaults: `bertie pretrain mini --help`. `bertie --version` prints the
version.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted. Results go to stdout, messages to stderr, and with
`--json` also the results as text.

A flag whose value ends in "…" takes several values: `--grid.learning-rate 1e-5 3e-5`. A flag without a value in the
tables is a switch: giving it turns it on. A default of "none" means that the flag is not set.

Every command has these flags:

{flags}"""

RECIPES = """# Recipe keys

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

Most keys are also flags: `steps` in `[training]` is `--training.steps`. Flags override the recipe."""

PYTHON = """# Python API

`import bertie` loads nothing else. bertie imports each name when you first use it. The built site shows signatures and
docstrings here (`make docs`); `help(bertie.load)` shows them in Python."""

HTTP_API = """# HTTP API

`bertie serve` offers these endpoints. [Serve](../how-to/serve.md) explains them, and [openapi.json](openapi.json), which
the server has at `/openapi.json`, describes them for programs. Bodies are JSON, and unknown fields are refused.

Every answer has the headers `X-Request-Id` and `Server-Timing`: the milliseconds of the stages `tokenize`, `queue` and
`compute`, and the `total`."""

CONFIGURATION = """Recipes are frozen dataclasses. [Recipe keys](recipes.md) describes the same fields as TOML keys. Functions
that take a recipe also accept the name of a shipped recipe, the path of a TOML file, or a dictionary."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    if parser.parse_args().check:
        stale = out_of_date()
        for path in stale:
            print(f"{path}: out of date, run python docs/generate_reference.py", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
