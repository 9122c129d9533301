"""bertie tokenizer decode"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie.commands.common import Output, OutputFlags
from bertie.errors import UsageError
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Ids to text."""

    tokenizer: Positional[Path]
    """Folder of a tokenizer or a model."""
    ids: Positional[list[int]]
    """Ids, in order."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    if not args.ids:
        raise UsageError("give at least one id, after the tokenizer")
    tokenizer = Tokenizer.load(args.tokenizer)
    text = tokenizer.decode(args.ids)
    if not args.output.json:
        print(text)
    return {"text": text, "tokens": tokenizer.tokens(args.ids)}
