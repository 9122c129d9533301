"""bertie tokenizer decode"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base.errors import UsageError
from bertie.commands.flags import JsonResult, Positional
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Turn token ids into text."""

    tokenizer: Positional[Path]
    """Folder of a tokenizer or of a model."""
    ids: Positional[list[int]]
    """Token ids."""


def run(args: Args) -> JsonResult:
    if not args.ids:
        raise UsageError("bertie tokenizer decode needs IDS: give at least one id after the tokenizer")
    tokenizer = Tokenizer.load(args.tokenizer)
    text = tokenizer.decode(args.ids)
    print(text)
    return {"text": text, "tokens": tokenizer.tokens(args.ids)}
