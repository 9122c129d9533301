"""bertie embed"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Flat, Output, OutputFlags
from bertie.errors import UsageError
from bertie.model.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.embed import TextUnit, Unit, WordUnit, embed
from bertie.predict.vector_files import Dtype
from bertie.predict.vectors import WordPooling
from bertie.tasks.data.unlabelled import UnlabelledReader


@dataclass(frozen=True)
class Args:
    """Vectors of texts, or of their words, as a file of numbers: any BERT, tuned for it or not."""

    run: Positional[str]
    """A run, a checkpoint folder or a hub id."""
    texts: Positional[list[str]]
    """Texts to embed."""
    out: Path
    """Where to: X.npy, float32 [n, width] in input order, or X.parquet. Words of X.npy are listed in X.words.parquet."""
    input: Path | None = None
    """A file of any size: .txt (a text a line), .tsv, .csv, .jsonl, or a word a line (.conllu and others of CoNLL's).
    -: stdin, a text a line, which is held in memory."""
    source: Annotated[UnlabelledReader, Flat] = UnlabelledReader()
    unit: Literal["text", "word"] = "text"
    """A vector a text, or one a word."""
    pooling: Pooling | None = None
    """What a text's vector is of its tokens'; left out: as the model was tuned for it, else their mean."""
    word_pooling: WordPooling | None = None
    """What a word's vector is of its pieces': the first one's (so where left out), or their mean."""
    layers: Fixed = "last"
    """Which layers' states: of these, sum_last_4 and concat_last_4 need 4; sum_all is without the embeddings."""
    dtype: Dtype = "float32"
    """float16 halves the file."""
    strict: bool = False
    """Refuse a file with rows that cannot be read, rather than give those NaN (.parquet: null) and count them."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    if bool(args.texts) == bool(args.input):
        raise UsageError("give either texts or --input FILE")
    given = args.input or args.texts
    result = embed(args.run, given, args.out, _unit(args), source=args.source, dtype=args.dtype, strict=args.strict)
    rate = result["texts"] / max(result["seconds"], 1e-3)
    console.info(
        f"{args.out}: {result['vectors']:,} vectors of {result['width']} numbers, {rate:,.{1 if rate < 10 else 0}f} texts/s"
    )
    return result


def _unit(args: Args) -> Unit:
    if args.unit == "word":
        if args.pooling:
            raise UsageError("--pooling is of texts: with --unit word, say --word-pooling first or mean")
        return WordUnit(word_pooling=args.word_pooling or "first", layers=args.layers)
    if args.word_pooling:
        raise UsageError("--word-pooling is of words: say it with --unit word")
    return TextUnit(pooling=args.pooling, layers=args.layers)
