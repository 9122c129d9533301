"""bertie similarity"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.base.errors import UsageError
from bertie.commands.common import print_lines, require_one_input, require_stdout
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.examples.reader import Reader
from bertie.examples.texts import LabeledTexts
from bertie.predict.embed import TextUnit
from bertie.predict.load import load
from bertie.predict.pair_similarities import pair_similarities
from bertie.tasks.predictions import rounded
from bertie.tokenizers.special_tokens import printable


@dataclass(frozen=True)
class Args:
    """Compare texts by the similarity of their vectors: a matrix of all texts, or the pairs of a file.

    The similarity is the cosine, unless the files of sentence-transformers name another function.
    """

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id."""
    texts: Positional[list[str]]
    """Two or more texts; each argument is one text."""
    input: Path | None = None
    """File with pairs of texts, of any size: .tsv, .csv, .jsonl or .parquet. Prints one JSON object per pair."""
    text: str = ""
    """Column of the first text in the file; empty: detected from the header."""
    text_pair: str = ""
    """Column of the second text; empty: detected from the header."""
    unit: Flat[TextUnit] = TextUnit()
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    require_one_input(args.texts, args.input)
    if len(args.texts) == 1:
        raise UsageError("give at least two texts")
    if not args.input and (args.text or args.text_pair):
        raise UsageError("--text and --text-pair name columns of a file: add --input FILE")
    predictor, unit = load(args.run, **vars(args.how)), args.unit
    if args.input:
        require_stdout("similarities")
        pairs = Reader(LabeledTexts(args.text, args.text_pair, paired=True)).stream(args.input)
        similarities = pair_similarities(predictor, pairs, unit)
        return print_lines(similarities, lambda value: {"similarity": value}, args.input, "pairs", "similarity")
    rows = predictor.similarity(args.texts, None, unit.pooling, unit.layers, unit.prompt_name).tolist()
    digits = len(str(len(args.texts)))
    console.result(" " * digits + "".join(f"{number:>8}" for number in range(1, len(args.texts) + 1)))
    for number, (row, text) in enumerate(zip(rows, args.texts, strict=True), 1):
        console.result(f"{number:>{digits}}" + "".join(f"{value:>8.3f}" for value in row) + f"   {printable(text)}")
    return {"texts": args.texts, "similarity": rounded(rows)}
