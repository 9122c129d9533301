"""bertie tokenizer inspect"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.commands.common import ExecutorOptions
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.corpus import coverage
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.vocabulary import count_words
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Show the entries of a vocabulary and how it covers a text. With two vocabularies, compare them side by side."""

    tokenizers: Positional[list[Path]]
    """Folders of one or two tokenizers or models."""
    text: tuple[str, ...] = ()
    """Text to measure the coverage on: files, folders, patterns, URLs, hf:DATASET; by default no coverage."""
    reading: Flat[ReaderOptions] = ReaderOptions()
    work: Flat[ExecutorOptions] = ExecutorOptions()


ROWS = {  # title of a row: key and form of the value
    "entries": ("entries", "{:,d}".format),
    "entries inside words": ("continuing", "{:,d}".format),
    "entries used in the text": ("used", "{:,d}".format),
    "words in the text": ("words", "{:,d}".format),
    "pieces per word": ("pieces_per_word", "{:.4f}".format),
    "words kept whole": ("whole", console.percent),
    "words with [UNK]": ("unknown", console.percent),
    "characters in [UNK]": ("unknown_characters", console.percent),
}


def run(args: Args) -> JsonResult:
    if not 1 <= len(args.tokenizers) <= 2:
        raise UsageError(f"got {len(args.tokenizers)} tokenizers: give one, or two to compare")
    loaded = [Tokenizer.load(folder) for folder in args.tokenizers]
    counts = [_counts(args, loaded[0])]
    if len(loaded) == 2:  # read the text again only if they normalize it differently
        rules = [(tokenizer.normalization, tokenizer.user_tokens) for tokenizer in loaded]
        counts.append(counts[0] if rules[0] == rules[1] else _counts(args, loaded[1]))
    summaries = [_summary(*inputs) for inputs in zip(args.tokenizers, loaded, counts, strict=True)]
    _print_row("", [summary["tokenizer"] for summary in summaries])
    for row, (key, form) in ROWS.items():
        if key in summaries[0]:
            _print_row(row, [form(summary[key]) for summary in summaries])
    for summary in summaries:
        if counts[0]:
            coverage.UnknownShare(summary["unknown"], characters=summary["unknown_characters"]).warn(
                summary["tokenizer"]
            )
        console.result(f"longest entries of {summary['tokenizer']}: {' '.join(summary['longest'])}")
    differences = []
    if len(loaded) == 2 and args.text and loaded[0].rules == loaded[1].rules:
        differences = coverage.compare_tokenizers(loaded[0], loaded[1], counts[0])
        if differences:
            console.result("words that they split differently, largest difference first:")
        for word, *pieces in differences:
            _print_row(word, [f"{count} pieces" for count in pieces])
    return {"tokenizers": summaries, "apart": [{"word": word, "pieces": pieces} for word, *pieces in differences]}


def _counts(args: Args, tokenizer: Tokenizer) -> Counter[str]:
    if not args.text:
        return Counter()
    flags = {"reader_options": args.reading, "executor": args.work.build()}
    counts = count_words(args.text, tokenizer.normalization, tokenizer.user_tokens, **flags).counts
    if not counts:
        raise UserError("--text: the files contain no words: give text to measure the coverage on")
    return counts


def _summary(folder: Path, tokenizer: Tokenizer, counts: Counter[str]) -> dict[str, Any]:
    summary = {
        "tokenizer": str(folder),
        "entries": tokenizer.size,
        "continuing": int((~tokenizer.word_starts_table).sum()),
        "longest": coverage.longest_entries(tokenizer),
    }
    return {**summary, **asdict(coverage.measure_coverage(tokenizer, counts))} if counts else summary


def _print_row(row: str, cells: list[str]) -> None:
    console.result(f"{row:30}" + "".join(f"  {cell:>20}" for cell in cells))
