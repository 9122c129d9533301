"""bertie tokenizer inspect"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import ExecutorFlags, ExecutorOptions, Output, OutputFlags, ReaderFlags, ReaderOptions
from bertie.errors import UsageError, UserError
from bertie.text import coverage
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import count_words


@dataclass(frozen=True)
class Args:
    """Say what a vocabulary holds and how it fits a text; of two, side by side."""

    tokenizers: Positional[list[Path]]
    """One or two folders of tokenizers or models."""
    text: tuple[str, ...] = ()
    """Text to measure on: files, folders, patterns, URLs, hf:DATASET; left out, only the entries are told."""
    reading: ReaderFlags = ReaderOptions()
    work: ExecutorFlags = ExecutorOptions()
    output: OutputFlags = Output()


ROWS = {  # what is told, and how it is written
    "entries": ("entries", ",d"),
    "of them continue a word (##)": ("continuing", ",d"),
    "of them occur in the text": ("used", ",d"),
    "words of the text": ("words", ",d"),
    "pieces a word": ("pieces_per_word", ".4f"),
    "words kept whole": ("whole", ".2%"),
    "words unknown, [UNK]": ("unknown", ".4%"),
}


def run(args: Args) -> dict[str, Any]:
    if not 1 <= len(args.tokenizers) <= 2:
        raise UsageError(f"{len(args.tokenizers)} tokenizers: give one, or two to compare")
    loaded = [Tokenizer.load(folder) for folder in args.tokenizers]
    counts = [_counts(args, loaded[0])]
    if len(loaded) == 2:  # text is read again only where they see it differently
        seen = [(tokenizer.normalization, tokenizer.user_tokens) for tokenizer in loaded]
        counts.append(counts[0] if seen[0] == seen[1] else _counts(args, loaded[1]))
    told = [_told(*of_one) for of_one in zip(args.tokenizers, loaded, counts, strict=True)]
    names = [entry["tokenizer"] for entry in told]
    _say("", names)
    for row, (key, shape) in ROWS.items():
        if key in told[0]:
            _say(row, [format(entry[key], shape) for entry in told])
    for entry in told:
        console.info(f"longest of {entry['tokenizer']}: {' '.join(entry['longest'])}")
    apart = []
    if len(loaded) == 2 and args.text and loaded[0].rules == loaded[1].rules:
        apart = coverage.compare_tokenizers(loaded[0], loaded[1], counts[0])
        if apart:
            console.info("words that they cut differently, by what it costs:")
        for word, *pieces in apart:
            _say(word, [f"{count} pieces" for count in pieces])
    return {"tokenizers": told, "apart": [{"word": word, "pieces": pieces} for word, *pieces in apart]}


def _counts(args: Args, tokenizer: Tokenizer) -> Counter[str]:
    if not args.text:
        return Counter()
    flags = {"reading": args.reading, "executor": args.work.build()}
    counts = count_words(args.text, tokenizer.normalization, tokenizer.user_tokens, **flags).counts
    if not counts:
        raise UserError("the text holds no words: there is nothing to measure on")
    return counts


def _told(folder: Path, tokenizer: Tokenizer, counts: Counter[str]) -> dict[str, Any]:
    told = {
        "tokenizer": str(folder),
        "entries": tokenizer.size,
        "continuing": int((~tokenizer.word_starts_table).sum()),
        "longest": coverage.longest_entries(tokenizer),
    }
    return {**told, **asdict(coverage.measure_coverage(tokenizer, counts))} if counts else told


def _say(row: str, cells: list[str]) -> None:
    console.info(f"{row:30}" + "".join(f"  {cell:>20}" for cell in cells))
