"""bertie completion"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any, Literal

import shtab

from bertie import __version__
from bertie.commands import USUAL, VERBS
from bertie.commands.flags import Positional, variants

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Args:
    """Print a completion script for a shell. It completes commands, shipped recipes, flags and their values."""

    shell: Positional[Shell]
    """The shell. Save the script where the shell looks for it: ~/.local/share/bash-completion/completions/bertie for
    bash, _bertie in a folder of $fpath for zsh, ~/.config/fish/completions/bertie.fish for fish."""


def run(args: Args) -> dict[str, Any]:
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
    known = {argument.name: argument for found in every.values() for argument in found}
    for number, argument in enumerate(each for each in known.values() if each.positional):
        words = tuple(every) if argument.name in ("config", "kind") and not number else argument.choices
        added = parser.add_argument(argument.name, nargs="*" if argument.several else None, choices=words or None)
        if not words:
            added.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue] - how shtab is told
    for argument in (each for each in known.values() if not each.positional):
        about = _sentence(argument.help).replace("%", "%%")
        if argument.switch:
            parser.add_argument(argument.name, help=about, action="store_true")
            continue
        added = parser.add_argument(argument.name, help=about, choices=argument.choices or None)
        if not argument.choices:
            added.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue] - how shtab is told
    if usual and usual.name and usual.flag:  # it replaces the first word
        parser.add_argument(usual.flag, help="Kind of the task", choices=tuple(every))


def _sentence(text: str) -> str:
    """Return the first sentence."""
    return re.split(r"\.(?:\s|$)", text)[0]
