"""bertie tokenizer extend"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.commands.common import ExecutorOptions
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.tokenizer_train import report_tokenizer
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.vocabulary import extend_tokenizer
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Add the words of a new domain to a vocabulary. `bertie pretrain --init-from` then extends the old model."""

    tokenizer: Positional[Path]
    """Folder of a tokenizer or of a model."""
    text: Positional[list[str]]
    """Text of the new domain: files, folders, patterns, URLs, hf:DATASET."""
    out: Path
    """Output folder."""
    add: int = 1000
    """Largest number of words to add. bertie picks those that save the most pieces."""
    min_frequency: int = 5
    """Smallest number of occurrences of a word to add."""
    reading: Flat[ReaderOptions] = ReaderOptions()
    work: Flat[ExecutorOptions] = ExecutorOptions()


def run(args: Args) -> JsonResult:
    flags = {"add": args.add, "min_frequency": args.min_frequency}
    old = Tokenizer.load(args.tokenizer)
    new = extend_tokenizer(old, args.text, args.out, reader_options=args.reading, executor=args.work.build(), **flags)
    return {**report_tokenizer(args.out, new.size, new.fingerprint), "added": new.vocabulary[old.size :]}
