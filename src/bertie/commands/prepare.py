"""bertie prepare"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Output, OutputFlags, Reading, ReadingFlags
from bertie.text.prepare import prepare
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Turn text into token shards, with some documents held out for evaluation."""

    text: Positional[list[Path]]
    """.txt or .jsonl files, plain, .gz or .xz, or folders of them."""
    tokenizer: Path
    """Folder of `bertie tokenizer train`, or any with a BERT's vocab.txt or tokenizer.json."""
    out: Path
    """Folder to make."""
    eval_share: float = 0.01
    """Share of the documents to hold out, 0 to 1; equal documents stay on one side."""
    language: str = "en"
    """Language of the text, for sentence splitting (a two-letter code)."""
    reading: ReadingFlags = Reading()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    reading = asdict(args.reading)
    tokenizer = Tokenizer.load(args.tokenizer)
    manifest = prepare(args.text, tokenizer, args.out, eval_share=args.eval_share, language=args.language, **reading)
    for name, counts in manifest["splits"].items():
        console.say(f"{name}: {counts['documents']:,} documents, {counts['tokens']:,} tokens")
    return {"shards": str(args.out), "splits": manifest["splits"]}
