"""bertie tokenizer encode"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie.commands.common import Output, OutputFlags
from bertie.errors import UsageError
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import encode


@dataclass(frozen=True)
class Args:
    """What a tokenizer makes of text: one JSON object a line, with tokens, ids, and where each stands in the text."""

    tokenizer: Positional[Path]
    """Folder of a tokenizer or a model."""
    text: Positional[list[str]]
    """Texts; each argument is one."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    if not args.text:
        raise UsageError("give at least one text, after the tokenizer")
    tokenizer = Tokenizer.load(args.tokenizer)
    found = encode(tokenizer, args.text, max_length=1 << 30)
    for text, sequence in zip(args.text, found, strict=True):
        assert sequence.offsets is not None
        ids = sequence.input_ids.tolist()
        told = {"text": text, "tokens": tokenizer.tokens(ids), "ids": ids, "offsets": sequence.offsets.tolist()}
        print(json.dumps(told, ensure_ascii=False))
    return {"texts": len(found), "tokens": sum(map(len, found))}
