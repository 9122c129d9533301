"""bertie distill"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.corpus.readers import read
from bertie.examples.queries.collection import is_collection, read_collection
from bertie.predict.load import load
from bertie.retrieval.distill import distill


@dataclass(frozen=True)
class Args:
    """Distill a model into static vectors, which are computed much faster: for search on a small machine."""

    run: Positional[str]
    """Model with vectors, the teacher: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output: the model folder."""
    to: Literal["static"] = "static"
    """Kind of the new model. static: one vector per token. The vector of a text is the mean of those of its tokens."""
    texts: tuple[Path, ...] = ()
    """Texts to learn from, best such as will be searched: a folder as BEIR's, or files and folders as `prepare` reads. By
    default, it learns from the vocabulary only. The first 10,000 texts are read."""
    dimensions: int = 0
    """Width of the vectors; 0: the teacher's."""
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    texts = chain.from_iterable(map(_texts, args.texts)) if args.texts else None
    return distill(load(args.run, **vars(args.how)), args.out, texts, args.dimensions)


def _texts(path: Path) -> Iterable[str]:
    return read_collection(path).documents.values() if is_collection(path) else (page.text for page in read([path]))
