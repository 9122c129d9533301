"""bertie minimal-pairs"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.base.console import percent
from bertie.commands.flags import JsonResult, Positional
from bertie.predict.minimal_pairs import minimal_pairs


@dataclass(frozen=True)
class Args:
    """Test a model's grammar with minimal pairs: is the acceptable sentence more probable than the other one?

    Reads BLiMP's files (Warstadt et al. 2020), or others with the columns sentence_good and sentence_bad, and optionally
    UID, linguistics_term and field. Compares pseudo-log-likelihoods, or log-likelihoods of a causal model.
    """

    run: Positional[str]
    """A pre-trained run, or a model's folder or hub id."""
    files: Positional[list[Path]]
    """Files of pairs: .jsonl, .tsv, .csv or .parquet."""
    out: Path | None = None
    """Output folder: pairs.jsonl (scores of every pair), results.json, results.csv and report.html."""
    within_word: bool = False
    """Also mask the later pieces of the word of each predicted piece. The pieces of a rare word then do not reveal each
    other (Kauf and Ivanova 2023)."""
    from_left: bool = False
    """The exact log-likelihood of a model that was trained to read both ways (objectives with shares), in place of the
    pseudo-log-likelihood."""
    language: str = ""
    """Language of the texts, for a model with language embeddings; empty: the first one that the model knows."""


def run(args: Args) -> JsonResult:
    how = {name: getattr(args, name) for name in ("within_word", "from_left", "language")}
    result = minimal_pairs(args.run, args.files, args.out, **how)
    width = max(len(group["name"]) for group in result["groups"])
    for group in result["groups"]:
        interval = f"({percent(group['low'])} to {percent(group['high'])})"
        accuracy = f"{percent(group['accuracy']):>8} {interval:<20}"
        console.result(f"{group['name']:<{width}} {accuracy} of {group['pairs']:,}  {group['kind']}")
    if args.out is not None:
        console.info(f"{args.out}: {', '.join(path.name for path in sorted(args.out.iterdir()))}")
    return result
