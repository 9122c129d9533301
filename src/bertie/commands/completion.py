"""bertie completion"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any, Literal

import shtab

from bertie import __version__
from bertie.commands import USUAL, VERBS
from bertie.commands.flags import JsonResult, Positional, variants

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Args:
    """Print a completion script for a shell. It completes commands, shipped recipes, flags and their values."""

    shell: Positional[Shell]
    """The shell. Save the script where the shell looks for it: ~/.local/share/bash-completion/completions/bertie for
    bash, _bertie in a folder of $fpath for zsh, ~/.config/fish/completions/bertie.fish for fish."""


def run(args: Args) -> JsonResult:
    print(script(args.shell))
    return {"shell": args.shell, "verbs": len(VERBS)}


def script(shell: Shell) -> str:
    """Return the completion script for a shell. The script calls no Python, so completion is instant."""
    root = argparse.ArgumentParser("bertie")
    root.add_argument("--version", action="version", version=__version__)
    groups = {"": root.add_subparsers()}
    for name, summary in VERBS.items():
        group, _, last = name.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help=f"{group} …").add_subparsers()
        _add_flags(name, groups[group].add_parser(last, help=_sentence(summary)))
    return shtab.complete(root, shell)


def _add_flags(verb: str, parser: argparse.ArgumentParser) -> None:
    """Add the first argument and the flags of all variants of a verb."""
    every, usual = variants(verb), USUAL.get(verb)
    known = {argument.name: argument for arguments in every.values() for argument in arguments}
    for number, argument in enumerate(sorted(known.values(), key=lambda argument: not argument.positional)):
        about: dict[str, Any] = {} if argument.positional else {"help": _sentence(argument.help).replace("%", "%%")}
        if argument.switch:
            parser.add_argument(argument.name, action="store_true", **about)
            continue
        names_variant = argument.name in ("config", "kind") and not number
        words = tuple(every) if names_variant else argument.choices
        several = "*" if argument.positional and argument.several else None
        added = parser.add_argument(argument.name, nargs=several, choices=words or None, **about)
        if not words:
            added.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue] - how shtab is told
    if usual and usual.name and usual.flag:  # it replaces the first word
        parser.add_argument(usual.flag, help="Kind of the task", choices=tuple(every))


def _sentence(text: str) -> str:
    """Return the first sentence."""
    return re.split(r"\.(?:\s|$)", text)[0]
