"""Parse the arguments of a verb, and print its help. The help of each flag is the docstring below its field."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import shutil
import textwrap
from typing import Any, get_origin

from bertie.base import config
from bertie.base.config import REQUIRED
from bertie.base.errors import UsageError, did_you_mean
from bertie.commands import USUAL, module
from bertie.commands.flags import Argument, arguments, is_kind, kind_of, listed, tables, variants

INDENT = 30  # columns of the names of the flags in the help
NUMBERS: dict[Any, str] = {int: "an integer", float: "a number"}
Changes = dict[tuple[str | int, ...], Any]


def parse(verb: str, argv: list[str]) -> Any:
    """Parse the arguments after a verb.

    Returns:
        An instance of the verb's `Args`. None: the arguments ask for `--help`, which is now on stdout.

    Raises:
        UsageError: An argument is unknown, missing or malformed.
    """
    command, usual = importlib.import_module(module(verb)), USUAL.get(verb)
    word, argv = _first_word(verb, argv)
    if _asks_for_help(argv):
        print(help_text(verb, word or ""))
        return None
    if usual and usual.name and word is None:
        example = f", such as {usual.word}" * bool(usual.word)
        raise UsageError(f"bertie {verb} needs {usual.name} as its first argument{example}")
    overrides = command.defaults(usual.word if word is None else word) if usual else {}
    known = arguments(verb, overrides)
    try:
        parsed = _values(known, argv)
        needed = [a for a in known if a.default is REQUIRED and not (a.several and a.positional)]
        if lacks := [a.label for a in needed if a.path not in parsed]:
            raise UsageError(f"bertie {verb} needs {', '.join(lacks)}")
    except UsageError as error:
        raise UsageError(f"{error} (see bertie {verb} --help)") from error
    empty = {a.path[0]: get_origin(a.type)() for a in known if a.several and a.default is REQUIRED}
    values = config.defaults(command.Args) | overrides | empty
    return command.Args(**_replaced(values, {path: value for path, value in parsed.items() if path[0] in values}))


def _first_word(verb: str, argv: list[str]) -> tuple[str | None, list[str]]:
    """Return the word on which the flags depend, or None, and the arguments with this word in first place."""
    usual = USUAL.get(verb)
    if usual is None:
        return None, argv
    flag = usual.flag
    argv = [part for word in argv for part in (word.split("=", 1) if flag and word.startswith(f"{flag}=") else [word])]
    if flag and flag in argv[:-1]:
        at = argv.index(flag)
        return argv[at + 1], [argv[at + 1], *argv[:at], *argv[at + 2 :]] if usual.name else argv
    return (argv[0] if usual.name and argv and not _is_flag(argv[0]) else None), argv


def _values(known: list[Argument], argv: list[str]) -> Changes:
    """Convert the arguments to values, by the paths of their fields. Raises UsageError."""
    flags = {argument.name: argument for argument in known if not argument.positional}
    values: Changes = {}
    free: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":  # what follows are no flags
            free += rest
            break
        if not _is_flag(word):
            free.append(word)
            continue
        name, equals, value = word.partition("=")
        argument = flags.get(name.replace("_", "-"))
        if argument is None:
            same = [repr(flag) for flag in flags if flag.rpartition(".")[2] == name.removeprefix("--")]
            hint = f": did you mean {' or '.join(same)}?" if same else did_you_mean(name, flags)
            raise UsageError(f"unknown argument {name}{hint}")
        words = [value] if equals else []
        while not equals and not argument.switch and rest and not _is_flag(rest[0]) and (argument.several or not words):
            words.append(rest.pop(0))
        if argument.switch and equals:
            raise UsageError(f"{name} takes no value, found {value!r}")
        if not argument.switch and not words and (not argument.several or argument.default is REQUIRED):
            raise UsageError(f"{argument.label} needs a value")
        value = argument.default is not True if argument.switch else _converted(argument, words)
        again = argument.several and argument.default is REQUIRED and argument.path in values  # no default to replace
        values[argument.path] = values[argument.path] + value if again else value
    for argument in known:
        if argument.positional and free:
            words, free = (free, []) if argument.several else (free[:1], free[1:])
            values[argument.path] = _converted(argument, words)
    if free:
        lacks = [a.label for a in known if a.default is REQUIRED and not a.positional and a.path not in values]
        raise UsageError(f"unexpected {free[0]!r}" + f": missing {', '.join(lacks)}" * bool(lacks))
    return values


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag: not a text that begins with a dash, and not a negative number."""
    return re.match(r"--[A-Za-z][^\s=]*(=|$)|-[A-Za-z]$|--$", word) is not None


def _asks_for_help(argv: list[str]) -> bool:
    return bool({"-h", "--help"} & set(argv[: argv.index("--")] if "--" in argv else argv))


def _converted(argument: Argument, words: list[str]) -> Any:
    if argument.several:
        return get_origin(argument.type)(_converted_word(argument, word) for word in words)
    return None if argument.optional and words == ["None"] else _converted_word(argument, words[0])


def _converted_word(argument: Argument, word: str) -> Any:
    if argument.choices:
        if word in argument.choices:
            return word
        remedy = did_you_mean(word, argument.choices)
        if is_kind(argument):
            remedy = ": set a kind in a TOML file that extends this recipe"
        expected = ", ".join(map(repr, argument.choices))
        raise UsageError(f"{argument.name}: expected {expected}, found {config.shown(word)}{remedy}")
    if argument.table:
        is_table = word.startswith("{")
        value = config.parse(f"value = {word}", f"{argument.name} {word}")["value"] if is_table else word
        return config.build(argument.type, value, argument.name)
    try:
        return argument.item(word)
    except ValueError as error:
        raise UsageError(f"{argument.name}: expected {NUMBERS[argument.item]}, found {config.shown(word)}") from error


def _replaced(value: Any, changes: Changes) -> Any:
    """Return a dataclass, tuple or dict with other values at some paths."""
    parts: dict[Any, Changes] = {}
    for (first, *rest), new in changes.items():
        parts.setdefault(first, {})[tuple(rest)] = new
    old = dict(enumerate(value)) if isinstance(value, tuple) else value if isinstance(value, dict) else vars(value)
    new = {name: inner[()] if () in inner else _replaced(old[name], inner) for name, inner in parts.items()}
    if isinstance(value, tuple):
        return tuple((old | new).values())
    return old | new if isinstance(value, dict) else dataclasses.replace(value, **new)


def help_text(verb: str, word: str) -> str:
    """Return the help of a verb. word: its first word, whose values are the defaults; "": any."""
    command = importlib.import_module(module(verb))
    every = {word: listed(verb, command.defaults(word))} if word else variants(verb)
    plain = [argument for argument in next(iter(every.values())) if "." not in argument.key]
    width = shutil.get_terminal_size().columns
    words = ["usage: bertie", verb, *(a.label for a in plain if a.positional or a.default is REQUIRED), "[OPTIONS]"]
    blocks = [textwrap.fill(" ".join(words), width, subsequent_indent=" " * 8, break_on_hyphens=False)]
    blocks += [textwrap.fill(part, width) for part in inspect.cleandoc(command.Args.__doc__).split("\n\n")]
    blocks.append("\n".join(_entry(argument, width) for argument in plain))
    for (key, owner), (name, members) in tables(every).items():
        defaults = f" (defaults of {name})" * (name != word and f"`{name}`" not in kind_of(owner))
        blocks.append(
            "\n".join([f"--{key}.…{kind_of(owner)}{defaults}:", *(_entry(argument, width) for argument in members)])
        )
    return "\n\n".join(blocks)


def _entry(argument: Argument, width: int) -> str:
    """Return the lines of the help on an argument."""
    text = argument.meaning
    if argument.choices and argument.choices[0] not in argument.label:
        text += f" One of {', '.join(argument.choices)}."
    if not argument.switch and argument.default not in (REQUIRED, None, "", (), []):
        value = argument.default
        text += f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
    head, indent = f"  {argument.label}", " " * INDENT
    if len(head) < INDENT - 1:
        return textwrap.fill(text, width, initial_indent=head.ljust(INDENT), subsequent_indent=indent) or head
    return f"{head}\n{textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)}".rstrip()
