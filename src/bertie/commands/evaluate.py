"""bertie evaluate"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import isfile  # False for a name that is too long
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.examples.queries.collection import is_collection, read_collection
from bertie.predict.load import NoTaskError, load, read_task
from bertie.predict.shared import shared
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.evaluate import SearchOptions, evaluate_search, opened, said
from bertie.tasks import AnyTask
from bertie.tasks.evaluation.folder import PAGE
from bertie.training.sharing import shared_work

SHARED = True


@dataclass(frozen=True)
class Args:
    """Score a fine-tuned model on labeled examples. With --out, also write predictions and a report of the errors.

    With a collection of documents, queries and grades, score any model, or a ranking in TREC's format, as a search, beside BM25
    and LSA.
    """

    run: Positional[str]
    """A fine-tuned run, or a fine-tuned model's folder or hub id; for a search, any model, or a file with a ranking."""
    data: Path | None = None
    """Labeled examples, in a file format that `bertie finetune` reads; or a folder as BEIR's, with corpus.jsonl, queries.jsonl
    and qrels/."""
    corpus: Path | None = None
    """Documents, with an id and a text, in place of the folder's."""
    queries: Path | None = None
    """Queries, with an id and a text, in place of the folder's."""
    qrels: Path | None = None
    """Grades of documents for queries, as in BEIR's folders or TREC's four columns, in place of the folder's."""
    split: str = "test"
    """Name of the file in the folder's qrels/."""
    task: AnyTask | None = None
    search: Flat[SearchOptions] = SearchOptions()
    bm25: Flat[Bm25] = Bm25()
    out: Path | None = None
    """Output folder: predictions.jsonl, scores.json (also per class) and report.html (with charts); for a search, rankings in
    TREC's format, queries.jsonl, scores.json and report.html."""
    strict: bool = False
    """Fail at the first unreadable row, instead of skipping it."""
    how: Flat[ModelOptions] = ModelOptions()


def defaults(run: str) -> dict[str, Any]:
    """Return the defaults that a run determines: its task; none for a model without one, or a ranking."""
    try:
        return {"task": None if isfile(run) else read_task(run)}  # noqa: PTH113
    except NoTaskError:
        return {"task": None}


def run(args: Args) -> JsonResult:
    files = {"corpus": args.corpus, "queries": args.queries, "qrels": args.qrels}
    if any(files.values()) or (args.data and is_collection(args.data)):
        return _search(args, files)
    if args.data is None:
        raise UsageError("bertie evaluate needs --data: labeled examples, or a folder as BEIR's")
    if (args.search, args.bm25, args.split) != (SearchOptions(), Bm25(), "test"):
        raise UsageError(f"{args.data} has labeled examples: leave out the flags of a search")
    with shared_work(args) as share:
        model = shared(load(args.run, task=args.task, **vars(args.how)), share)
        if not share.first:
            model.predict([])
            return {}
        result = model.evaluate(args.data, args.strict, args.out)
    console.result(console.scores(result["scores"]))
    return _reported(args, result)


def _search(args: Args, files: dict[str, Path | None]) -> JsonResult:
    if args.strict or args.task != defaults(args.run)["task"]:
        raise UsageError("--strict and the flags of --task are for labeled examples: leave them out for a search")
    with shared_work(args) as share:
        if not share.first:  # a search is not shared out
            return {}
        collection = read_collection(args.data, args.split, **files)
        result = evaluate_search(opened(args.run, **vars(args.how)), collection, args.out, args.search, args.bm25)
    for line in said(result):
        console.result(line)
    return _reported(args, result)


def _reported(args: Args, result: JsonResult) -> JsonResult:
    if args.out:
        console.info(f"report: {args.out / PAGE}")
    return result
