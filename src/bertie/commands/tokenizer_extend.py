"""bertie tokenizer extend"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie.commands.common import ExecutorFlags, ExecutorOptions, Output, OutputFlags, ReaderFlags, ReaderOptions
from bertie.commands.tokenizer_train import report_tokenizer
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import extend_tokenizer


@dataclass(frozen=True)
class Args:
    """Append the words of a new field to a vocabulary; then `bertie pretrain --init-from` goes on with the old model."""

    tokenizer: Positional[Path]
    """Folder of a tokenizer or a model."""
    text: Positional[list[str]]
    """Text of the new field: files, folders, patterns, URLs, hf:DATASET."""
    out: Path
    """Folder to make."""
    add: int = 1000
    """Words to add at most: those that save the most pieces."""
    min_frequency: int = 5
    """Words that occur less often are not added."""
    reading: ReaderFlags = ReaderOptions()
    work: ExecutorFlags = ExecutorOptions()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    flags = {"add": args.add, "min_frequency": args.min_frequency}
    old = Tokenizer.load(args.tokenizer)
    new = extend_tokenizer(old, args.text, args.out, reading=args.reading, executor=args.work.build(), **flags)
    return {**report_tokenizer(args.out, new.size, new.fingerprint), "added": new.words[old.size :]}
