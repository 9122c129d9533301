"""bertie mine"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.commands.flags import Flat, JsonResult
from bertie.commands.model_options import ModelOptions
from bertie.predict.load import load
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.mine import MineOptions, mine


@dataclass(frozen=True)
class Args:
    """Mine hard negatives for `bertie finetune embed`: documents that a search finds for a query, without the right ones."""

    data: Path
    """Pairs: a folder as BEIR's (its split train), or a file as `bertie finetune embed` reads."""
    out: Path
    """Output: X.jsonl, with a query, its positives and its negatives in each line."""
    model: str = ""
    """Model whose vectors search: a run, a checkpoint folder or a hub id; by default BM25."""
    reranker: str = ""
    """Model that scores pairs and drops negatives that are relevant for it."""
    options: Flat[MineOptions] = MineOptions()
    bm25: Flat[Bm25] = Bm25()
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    models = [load(name, **vars(args.how)) if name else None for name in (args.model, args.reranker)]
    return mine(args.data, args.out, *models, options=args.options, bm25=args.bm25)
