"""bertie demo"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.commands.common import STRIP_ACCENTS, KeepAccents
from bertie.commands.flags import JsonResult
from bertie.demo.main import demo


@dataclass(frozen=True)
class Args:
    """Train a vocabulary and a small BERT, fine-tune it, compare it with baselines, and write report.html."""

    out: Path = Path("runs/demo")
    """Output folder. data/text.jsonl and data/sentences.csv in it are the text and the labeled sentences."""
    corpus: list[Path] | None = None
    """Your own files or folders, instead of Python's documentation. The classifier predicts the file of a sentence, or
    its subfolder if there are more than 20 files. Each class needs at least 4 documents and 50 sentences. In .txt files,
    a blank line ends a document."""
    scale: float = 1.0
    """Factor on the numbers of steps, epochs and seeds, such as 0.05 for a quick test."""
    keep_accents: KeepAccents = None
    """Strip or keep accents. By default, the text decides, as in `bertie tokenizer train`."""


def run(args: Args) -> JsonResult:
    return demo(args.out, args.corpus, args.scale, STRIP_ACCENTS[args.keep_accents])
