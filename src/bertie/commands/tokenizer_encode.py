"""bertie tokenizer encode"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bertie.base.errors import UsageError
from bertie.commands.flags import JsonResult, Positional
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import encode


@dataclass(frozen=True)
class Args:
    """Turn text into token ids. Prints one JSON object per text: tokens, ids, and offsets in characters."""

    tokenizer: Positional[Path]
    """Folder of a tokenizer or of a model."""
    text: Positional[list[str]]
    """Texts; each argument is one text."""


def run(args: Args) -> JsonResult:
    if not args.text:
        raise UsageError("bertie tokenizer encode needs TEXT: give at least one text after the tokenizer")
    tokenizer = Tokenizer.load(args.tokenizer)
    sequences = encode(tokenizer, args.text, max_length=1 << 30)
    for text, sequence in zip(args.text, sequences, strict=True):
        assert sequence.offsets is not None
        ids = sequence.input_ids.tolist()
        line = {"text": text, "tokens": tokenizer.tokens(ids), "ids": ids, "offsets": sequence.offsets.tolist()}
        print(json.dumps(line, ensure_ascii=False))
    return {"texts": len(sequences), "tokens": sum(map(len, sequences))}
