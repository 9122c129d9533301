"""bertie distill"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
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
    texts: tuple[str, ...] = ()
    """Texts to learn from, best those that will be searched: files and folders as `bertie prepare` reads them, or a folder as
    BEIR's. By default, it learns from the vocabulary only. The first 10,000 documents are read."""
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    return distill(load(args.run, **vars(args.how)), args.out, args.texts)
