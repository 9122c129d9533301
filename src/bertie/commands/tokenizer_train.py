"""bertie tokenizer train"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from bertie import console, storage
from bertie.commands.common import ExecutorFlags, ExecutorOptions, Output, OutputFlags, ReaderFlags, ReaderOptions
from bertie.text.tokenizer import NormalizerOptions
from bertie.text.vocabulary import REPORT, train_tokenizer
from bertie.text.word_counts import MAX_UNIQUE_WORDS


@dataclass(frozen=True)
class Args:
    """Train a WordPiece vocabulary. The same text gives the same bytes on every run and machine."""

    text: Positional[list[str]]
    """.txt, .jsonl, .csv, .tsv or .parquet files, also .gz, .bz2, .xz or .zst; folders, patterns, URLs, hf:DATASET."""
    out: Path
    """Folder to make: vocab.txt, tokenizer.json, tokenizer_config.json; vocabulary.json says how it fits the text."""
    vocab_size: int = 30_000
    """Entries, special tokens included."""
    criterion: Literal["frequency", "likelihood"] = "frequency"
    """Which pieces to join next: those that stand together most often, or that make the text likeliest."""
    cased: bool = False
    """Keep case and accents."""
    keep_accents: Literal["strip", "keep"] | None = None
    """Left out: strip them unless --cased."""
    whole_chinese: bool = False
    """Do not make a word of every CJK character."""
    alphabet_limit: int = 1000
    """Characters to keep, the most frequent; words with others become [UNK]."""
    min_frequency: int = 2
    """Pieces seen less often together are not joined."""
    user_tokens: tuple[str, ...] = ()
    """Strings to keep whole wherever they stand, such as <url>."""
    unused: int = 0
    """Entries [unused0], [unused1] … to reserve."""
    max_unique_words: int = MAX_UNIQUE_WORDS
    """Different words to count; when there are more, the rarest are forgotten. 2,000,000 take some 1.5 GB."""
    reading: ReaderFlags = ReaderOptions()
    work: ExecutorFlags = ExecutorOptions()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    strip = {"strip": True, "keep": False, None: None}[args.keep_accents]
    names = ("vocab_size", "criterion", "alphabet_limit", "min_frequency", "user_tokens", "unused", "max_unique_words")
    tokenizer = train_tokenizer(
        args.text,
        args.out,
        rules=NormalizerOptions(not args.cased, strip, not args.whole_chinese),
        reading=args.reading,
        executor=args.work.build(),
        **{name: getattr(args, name) for name in names},
    )
    return report_tokenizer(args.out, tokenizer.size, tokenizer.fingerprint)


def report_tokenizer(out: Path, size: int, fingerprint: str) -> dict[str, Any]:
    """Say where a tokenizer lies now."""
    console.info(f"{size:,} entries in {out}")
    report = storage.read_json(out / REPORT)
    return {"tokenizer": str(out), "size": size, "fingerprint": fingerprint, "fit": report["fit"]}
