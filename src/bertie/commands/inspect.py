"""bertie inspect"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.inspect.inspect import PAGE, Inspection, inspect_model


@dataclass(frozen=True)
class Args:
    """Look inside a Transformer: what its heads attend to, and what its layers know."""

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output folder: inspect.html (the report), inspect.json (the numbers) and tables/ (.parquet and .csv). Replaces an
    earlier inspection."""
    inspection: Flat[Inspection] = Inspection()
    language: str = ""
    """Language of the texts, for a model with language embeddings; empty: the language of fine-tuning, or else the first one."""


def run(args: Args) -> JsonResult:
    result = inspect_model(args.run, args.inspection, args.out, language=args.language)
    for line in result["summary"]:
        console.result(line)
    console.info(f"report: {args.out / PAGE}")
    return result
