"""bertie embed"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertie.base import console
from bertie.base.errors import UsageError
from bertie.commands.common import require_one_input, selected
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.examples.unlabeled import UnlabeledReader
from bertie.model.heads.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.embed import TextUnit, VectorUnit, WordUnit, embed, vector_blocks
from bertie.predict.load import load
from bertie.predict.shared import shared
from bertie.predict.vector_files import Dtype
from bertie.predict.vectors import WordPooling
from bertie.training.sharing import shared_work

SHARED = True


@dataclass(frozen=True)
class Args:
    """Write the vectors of texts, or of their words, to a file. Works with every BERT."""

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id."""
    texts: Positional[list[str]]
    """Texts; each argument is one text."""
    out: Path
    """Output file: X.npy (an array [vectors, width], in input order) or X.parquet. With --unit word, X.words.parquet
    lists the words of X.npy."""
    input: Path | None = None
    """Input file of any size: .txt (one text per line), .tsv, .csv, .jsonl, .parquet, or one word per line (.conllu
    and other CoNLL formats). -: stdin, one text per line, held in memory."""
    source: Flat[UnlabeledReader] = UnlabeledReader()
    unit: Literal["text", "word"] = "text"
    """text: one vector per text. word: one vector per word."""
    pooling: Pooling | None = None
    """Pooling of the token vectors into the vector of the text. By default as the model was trained, otherwise mean."""
    word_pooling: WordPooling | None = None
    """first (the default): the vector of the word's first piece. mean: the mean of its pieces. Needs --unit word."""
    layers: Fixed = "last"
    """Layers whose hidden states to use. sum_last_4 and concat_last_4 need a model with 4 or more layers. sum_all
    excludes the embeddings."""
    prompt_name: str | None = None
    """Name of the model's prompt to put before each text, such as query or document; by default the model's own default,
    usually none."""
    dtype: Dtype = "float32"
    """Data type of the vectors; float16 halves the size of the file."""
    strict: bool = False
    """Fail at the first row without a vector, instead of writing NaN (.parquet: null) for it."""
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    require_one_input(args.texts, args.input)
    unit = _unit(args)
    with shared_work(args) as share:
        if not share.first:
            list(vector_blocks(shared(load(args.run, **vars(args.how)), share), unit, ()))
            return {}
        options = selected(args, "source", "dtype", "strict") | vars(args.how)
        result = embed(args.run, args.input or args.texts, args.out, unit, **options, share=share)
    rate = result["texts"] / max(result["seconds"], 1e-3)
    console.info(
        f"{args.out}: {console.plural(result['vectors'], 'vector')}, width {result['width']}, "
        f"{rate:,.{1 if rate < 10 else 0}f} texts/s"
    )
    return result


def _unit(args: Args) -> VectorUnit:
    others = ("word_pooling",) if args.unit == "text" else ("pooling", "prompt_name")
    for name in others:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} has no effect with --unit {args.unit}: remove it")
    if args.unit == "word":
        return WordUnit(word_pooling=args.word_pooling or "first", layers=args.layers)
    return TextUnit(pooling=args.pooling, layers=args.layers, prompt_name=args.prompt_name)
