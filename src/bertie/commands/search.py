"""bertie search"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bertie.base import console
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.predict.load import load
from bertie.retrieval.index import index_facts, open_index, search
from bertie.tokenizers.special_tokens import printable


@dataclass(frozen=True)
class Args:
    """Find the passages of an index that are nearest to a query, by the vectors of a model and by words (BM25) together."""

    index: Positional[str]
    """Index: the output of `bertie index`."""
    query: Positional[str]
    """Text to search for."""
    top_k: int = 5
    """Number of passages to print."""
    model: str = ""
    """The model of the index, if it is no longer where it was: a run, a checkpoint folder or a hub id."""
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    model = load(args.model or index_facts(args.index)["model"], **vars(args.how))
    hits = search(open_index(args.index, model), args.query, args.top_k)
    for hit in hits:
        heading = f"  {printable(hit.heading)}" * bool(hit.heading)
        console.result(f"{hit.score:.3f}  {printable(hit.document)}{heading}\n       {printable(hit.text)}")
    return {"query": args.query, "found": [asdict(hit) for hit in hits]}
