"""Parse the arguments of a verb with tyro. The help of each flag is the docstring below its field."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
import sys
import typing
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from bertie.commands.flags import HIDDEN, MARKERS, REQUIRED, field_default, field_docs, holds_tables, unwrap, value_name
from bertie.errors import UsageError

CONFIG = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff, tyro.conf.SuppressFixed)
NOT_SHOWN = ("", "None", "''", "False", "True")  # defaults of switches, and of values that are not set


def _choices(found: re.Match[str]) -> str:
    """Say which values are possible. tyro lists them in no order, and None among those of an optional argument."""
    given, argument, listed = found.groups()
    names = sorted(set(re.findall(r"'([^']*)'", listed)) - {"None"})
    near = difflib.get_close_matches(given.strip("'"), names, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return f"{argument}: expected {', '.join(map(repr, names))}, found {given}{hint}"


PHRASES = (  # of tyro, and what bertie says instead
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: ", r"\1: expected an integer, found "),
    (r"Error parsing (\S+): could not convert string to float: ", r"\1: expected a number, found "),
    (r"invalid choice ('.*') for argument '(\S+)'. Expected one of \((.*?),?\)\s*\.?", _choices),
    (r"Error parsing (\S+): Could not find valid parse for arguments: ", r"\1: cannot parse "),
    (r"Unrecognized options: (\S+?),? ", r"unknown argument \1 "),
    (r"Unrecognized options: ", r"unknown argument "),
)


def parse(verb: str, args_type: type, argv: list[str], default: Any) -> Any:
    """Parse the arguments after a verb.

    Args:
        verb: The verb, for the usage line and for error messages.
        args_type: The verb's `Args` dataclass.
        argv: The arguments after the verb.
        default: An instance of `args_type` whose values are the defaults; None: the defaults of the dataclass.

    Returns:
        An instance of `args_type`.

    Raises:
        UsageError: An argument is unknown, missing or malformed.
        SystemExit: The arguments ask for `--help`, which is now on stdout.
    """
    errors = io.StringIO()
    # In `bertie finetune span --help`, tyro has already taken the first word and leaves it out of the usage line.
    recipe = [argv[0]] if default is not None and {"-h", "--help"} & set(argv) and argv[0][0] != "-" else []
    stdout = contextlib.redirect_stdout(sys.stdout or io.StringIO())
    try:
        with _registry(HIDDEN.get(verb, set())), contextlib.redirect_stderr(errors), stdout:
            return tyro.cli(
                args_type, args=argv, default=default, config=CONFIG, prog=" ".join(["bertie", verb, *recipe])
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        message = _one_line(errors.getvalue())
        hint = "set a kind in a TOML file that extends this recipe; " if ".kind" in message else ""
        raise UsageError(f"{message} ({hint}see bertie {verb} --help)") from stop


def _registry(hidden: set[str]) -> ConstructorRegistry:
    """tyro's rule for dataclasses, with bertie's help texts, value names and defaults."""
    registry = ConstructorRegistry()

    @registry.struct_rule
    def describe_fields(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not dataclasses.is_dataclass(info.type):
            return None
        hints, docs = typing.get_type_hints(info.type, include_extras=True), field_docs(info.type)
        fields = []
        for field in dataclasses.fields(info.type):
            default = _default(field, info.default)
            hint: Any = hints[field.name]
            if not holds_tables(unwrap(hint)[0]):
                hint = Annotated[hint, _presentation(field.name, hint, docs.get(field.name, ""), default)]
            if f"{info.type.__name__}.{field.name}" in hidden:
                hint = Annotated[hint, tyro.conf.Suppress]
            fields.append(StructFieldSpec(name=field.name, type=hint, default=default))
        return StructConstructorSpec(instantiate=info.type, fields=tuple(fields))

    return registry


def _default(field: dataclasses.Field[Any], instance: Any) -> Any:
    if instance is tyro.MISSING:
        return tyro.MISSING
    if dataclasses.is_dataclass(instance) and hasattr(instance, field.name):
        return getattr(instance, field.name)
    default = field_default(field)
    return tyro.constructors.MISSING_NONPROP if default is REQUIRED else default


def _presentation(name: str, hint: Any, doc: str, default: Any) -> Any:
    """How the help shows a flag or a positional argument."""
    bare, extras = unwrap(hint)
    switch = bare is bool
    if switch and default is True:
        doc = f"Turn off: {doc}"
    if name == "kind" and not doc:
        doc = "Only a TOML file can change it."
    return tyro.conf.arg(
        help=doc or None,
        metavar=None if switch else value_name(bare, name if MARKERS["positional"] in extras else ""),
        help_behavior_hint=lambda label: "" if label in NOT_SHOWN else f"(default: {label})",
    )


def _one_line(message: str) -> str:
    """Turn a framed error message of tyro into one line, without its hints and help texts."""
    lines = [re.sub(r"[│╭╮╰╯─]+|-{5,}", "", line).rstrip() for line in message.splitlines()[1:]]
    paragraphs = re.split(r"\n{2,}", "\n".join(lines))
    parts = []
    for paragraph in paragraphs:
        text = paragraph.strip()
        # Under these two, each argument is indented, and its help deeper.
        head, *names = [line.strip() for line in paragraph.strip("\n").splitlines() if not line.startswith(" " * 9)]
        if head.startswith("Missing from"):
            parts.append(f"{head.removeprefix('Missing from ').rstrip(':')} lacks {', '.join(names)}")
        elif head.startswith("Perhaps you meant"):
            parts.append(f"did you mean {' or '.join(name.split()[0] for name in names if name.startswith('-'))}?")
        elif text and not text.startswith(("For full helptext", "Argument helptext")):
            parts.append(" ".join(text.split()))
    line = "; ".join(parts)
    for pattern, replacement in PHRASES:
        line = re.sub(pattern, replacement, line)
    return line
