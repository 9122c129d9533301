"""bertie tokenizer train"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Output, OutputFlags, Reading, ReadingFlags
from bertie.text.vocabulary import train_tokenizer


@dataclass(frozen=True)
class Args:
    """Train a WordPiece vocabulary. The same text gives the same bytes on every run and machine."""

    text: Positional[list[Path]]
    """.txt or .jsonl files, plain, .gz or .xz, or folders of them."""
    out: Path
    """Folder to make: vocab.txt, tokenizer.json, tokenizer_config.json."""
    vocab_size: int = 30_000
    """Entries, special tokens included."""
    cased: bool = False
    """Keep case and accents."""
    alphabet_limit: int = 1000
    """Characters to keep, the most frequent; words with others become [UNK]."""
    min_frequency: int = 2
    """Pieces seen less often together are not merged."""
    reading: ReadingFlags = Reading()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    reading = asdict(args.reading)
    sizes = {"vocab_size": args.vocab_size, "alphabet_limit": args.alphabet_limit, "min_frequency": args.min_frequency}
    tokenizer = train_tokenizer(args.text, args.out, lowercase=not args.cased, **sizes, **reading)
    console.say(f"{tokenizer.size:,} entries in {args.out}")
    return {"tokenizer": str(args.out), "size": tokenizer.size, "fingerprint": tokenizer.fingerprint}
