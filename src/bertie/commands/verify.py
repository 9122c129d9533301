"""bertie verify"""

from __future__ import annotations

from dataclasses import dataclass

from bertie.base import console
from bertie.base.errors import UserError
from bertie.commands.flags import JsonResult, Positional
from bertie.predict.convert.verify import Library, verify


@dataclass(frozen=True)
class Args:
    """Describe a model folder, and what bertie and other libraries do with it. Exit code 1 if something is wrong."""

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id."""
    against: Library | None = None
    """Library that also loads the folder, to compare tokens, vectors and predictions."""


def run(args: Args) -> JsonResult:
    verdict = verify(args.run, args.against)
    for line in verdict.lines():
        console.result(line)
    if verdict.problem:
        raise UserError(verdict.problem, result=verdict.to_json())
    console.result(f"nothing is wrong with {verdict.folder}")
    return verdict.to_json()
