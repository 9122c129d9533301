"""bertie demo"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.commands.common import Output, OutputFlags
from bertie.demo.main import demo


@dataclass(frozen=True)
class Args:
    """Train a vocabulary and a small BERT, fine-tune it, compare, and write report.html."""

    out: Path = Path("runs/demo")
    """Folder for everything that is made."""
    corpus: list[Path] | None = None
    """Your own text instead of Python's documentation: files or folders. The classifier tells the files, or if they are
    more than 20 the sub-folders, apart that have at least 4 documents and 50 sentences."""
    scale: float = 1.0
    """Size of the demo: steps and repetitions, 0.05 is a quick look."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    return demo(args.out, args.corpus, args.scale)
