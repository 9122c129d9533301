"""bertie index"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.corpus.readers import ReaderOptions
from bertie.predict.load import load
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.index import IndexOptions, index
from bertie.retrieval.passages import WHOLE_FILES


@dataclass(frozen=True)
class Args:
    """Index files for `bertie search` and `bertie serve`. Run it again after changes: only new passages are read by the model."""

    text: Positional[list[str]]
    """Files that `bertie prepare` reads, folders of them, or a folder as BEIR's, with corpus.jsonl."""
    model: str
    """Model with vectors: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output: the folder of the index."""
    options: Flat[IndexOptions] = IndexOptions()
    bm25: Flat[Bm25] = Bm25()
    reading: Flat[ReaderOptions] = WHOLE_FILES
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    model = load(args.model, **vars(args.how))
    return index(args.text, model, args.out, args.options, args.bm25, reader=args.reading)
