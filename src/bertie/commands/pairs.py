"""bertie pairs"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.corpus.readers import ReaderOptions
from bertie.retrieval.own_text import PairOptions, own_pairs
from bertie.retrieval.passages import WHOLE_FILES
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Make pairs for `bertie finetune embed` from nothing but text: headings, held-out sentences and salient words as queries."""

    text: Positional[list[str]]
    """Files that `bertie prepare` reads, folders of them, or a folder as BEIR's, with corpus.jsonl."""
    tokenizer: Path
    """The model to train, or its tokenizer, which counts the tokens of passages."""
    out: Path
    """Output: X.jsonl."""
    options: Flat[PairOptions] = PairOptions()
    reading: Flat[ReaderOptions] = WHOLE_FILES


def run(args: Args) -> JsonResult:
    return own_pairs(args.text, Tokenizer.load(args.tokenizer), args.out, args.options, reader=args.reading)
