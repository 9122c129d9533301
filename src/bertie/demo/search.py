"""The search of the demo: static vectors of its BERT, trained on pairs from nothing but the text, and an index of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from bertie.base import console
from bertie.base.errors import UserError
from bertie.examples.texts import Example
from bertie.finetuning.finetune import finetune
from bertie.retrieval.distill import distill
from bertie.retrieval.index import Hit, index, open_index, search
from bertie.retrieval.own_text import own_pairs
from bertie.tokenizers.tokenizer import Tokenizer

QUERIES = (
    "How do I read a file line by line?",
    "parse arguments of the command line",
    "run code in several threads",
)
FOUND = 3  # passages of each query
INDEX = "index"


def train_search(out: Path, text: Path, scale: float) -> None:
    """Write the index, unless it is there; none if the text is too short to hold out pairs."""
    if (out / INDEX).exists():
        return
    work = out / "search"
    shutil.rmtree(work, ignore_errors=True)  # of a call that was interrupted
    work.mkdir()
    try:
        distill(out / "bert", work / "words")
        own_pairs(text, Tokenizer.load(out / "tokenizer"), work / "pairs.jsonl")
        recipe = {"extends": "embed-static", "training": {"epochs": max(1, round(3 * scale))}}
        finetune(recipe, work / "pairs.jsonl", work / "words", work / "model")
        index(text, work / "model", out / INDEX)
    except UserError as error:
        console.info(f"no search: {error}")


def found_by(out: Path, examples: list[Example]) -> dict[str, list[Hit]]:
    """Return what the index finds for the texts of some examples, or else for QUERIES; nothing if there is no index."""
    if not (out / INDEX).exists():
        return {}
    opened, queries = open_index(out / INDEX), [each.text for each in examples[: len(QUERIES)]] or QUERIES
    return {query: search(opened, query, FOUND) for query in queries}
