"""bertie search"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from bertie.base import console
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.examples.unlabeled import UnlabeledReader
from bertie.predict.embed import TextUnit
from bertie.predict.load import load
from bertie.predict.search import search
from bertie.tokenizers.special_tokens import printable


@dataclass(frozen=True)
class Args:
    """Find the texts of a file that are nearest to a query, by the similarity of their vectors.

    The similarity is the cosine, unless the files of sentence-transformers name another function. The query has the model's
    prompt "query", and the texts have its prompt "document", if there are such prompts.
    """

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id. Models that were trained for similarity work best."""
    file: Positional[Path]
    """Texts of any number: .txt (one per line), .tsv, .csv, .jsonl, .parquet, or one word per line (.conllu and other
    CoNLL formats)."""
    query: Positional[str]
    """Text to search for."""
    top_k: int = 5
    """Number of texts to print."""
    vectors: Path | None = None
    """Vectors of the file that `bertie embed RUN --input FILE --out X.npy` wrote, so that they are not computed again."""
    source: Flat[UnlabeledReader] = UnlabeledReader()
    unit: Flat[TextUnit] = TextUnit()
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    predictor = load(args.run, **vars(args.how))
    nearest = search(predictor, args.file, args.query, args.top_k, args.unit, source=args.source, vectors=args.vectors)
    for hit in nearest:
        console.result(f"{hit.score:.4f}  {printable(hit.text)}")
    return {"query": args.query, "found": [asdict(hit) for hit in nearest]}
