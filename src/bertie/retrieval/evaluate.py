"""Evaluate a model as a search, beside BM25, LSA and earlier rankings, with intervals, and say what training has shown of it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import console, storage
from bertie.base.config import Positive
from bertie.base.errors import UsageError, UserError
from bertie.base.notebook import NotebookDict
from bertie.examples.queries.collection import Collection, read_collection
from bertie.examples.queries.tuples import PAIRS
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.retrieval import measures
from bertie.retrieval.baselines import Bm25, Lsa
from bertie.retrieval.fused import Fused, choose_weight, dev_queries
from bertie.retrieval.judge import Interval, Judged, judge, means, tie_changes
from bertie.retrieval.leaks import TOO_FEW, Leaks, find_leaks, sources_of
from bertie.retrieval.mine import pairs_as_collection
from bertie.retrieval.page import search_page
from bertie.retrieval.system import DenseSearch, Reranker, RunFile, System, write_run
from bertie.tasks.evaluation.folder import PAGE, SCORES, evaluation_folder
from bertie.tasks.relevance import relevance

QUERIES = "queries.jsonl"
RUNS = {name: f"{name.lower()}.trec" for name in ("model", "BM25", "LSA")}


@dataclass(frozen=True)
class SearchOptions:
    """How to evaluate a search."""

    cutoffs: tuple[int, ...] = (10, 100)
    """Numbers of first documents that nDCG and recall count; the first one's nDCG is the main score."""
    depth: Positive = 1000
    """Length of the rankings, for MAP and MRR too."""
    omit_own_id: bool = False
    """Leave out the document that has the id of the query, where queries are documents of the corpus."""
    trained_on: tuple[str, ...] = ()
    """What the model was trained on, for the report of leaks: files of pairs, or folders as BEIR's (their split train). By
    default what a run of bertie was fine-tuned on, otherwise the split train of the collection."""
    compare: tuple[Path, ...] = ()
    """Rankings in TREC's format to compare with, such as another model's model.trec."""
    first_stage: Path | None = None
    """Ranking in TREC's format that a reranker reorders; by default BM25's."""
    rerank: Positive = 100
    """Number of first documents that a reranker reads."""
    label: str = ""
    """The class of a reranker that means "relevant", if its name does not say so."""

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1 or max(self.cutoffs) > self.depth:
            raise UsageError(f"--cutoffs {self.cutoffs}: give numbers from 1 to --depth, which is {self.depth}")


def evaluate_search(
    model: str | Path | Predictor | RunFile,
    collection: str | Path | Collection,
    out: str | Path | None = None,
    options: SearchOptions = SearchOptions(),
    bm25: Bm25 = Bm25(),
) -> dict[str, Any]:
    """Evaluate a model as a search: a reranker if it scores pairs, otherwise by the vectors of queries and documents.

    Args:
        model: A loaded model, or a source as in `load`; or a ranking in TREC's format, of any program.
        collection: A collection, or a folder as BEIR's, whose split test is used.
        out: Output folder: the rankings in TREC's format, the measures of each query (queries.jsonl), scores.json and
            report.html. Replaces an earlier evaluation.
        options: How to evaluate.
        bm25: The BM25 beside the model, which is also what a reranker reorders.

    Returns:
        {"scores": {measure: value}, "systems": {name: {"settings", measure: [value, low, high]}}, "differences": of the model
        and each other system, the same, "leaks": for each row of queries their number and the same, "queries", "documents",
        "seconds"}, and "out" if it was given. low and high are the ends of the 95 % interval.

    Raises:
        UsageError: A file is missing, or `out` exists and is something else.
        UserError: A file cannot be read, or the collection has no query with a positive.
    """
    started = time.monotonic()
    judged = (collection if isinstance(collection, Collection) else read_collection(collection)).judged()
    if (own := [query for query in judged.queries if judged.is_own(query)]) and not options.omit_own_id:
        problem = f"{len(own):,} queries are documents with the same id, which every search finds first"
        console.warn(f"{judged.name}: {problem}: leave them out with --omit-own-id")
    if out and (blank := [name for name in (*judged.documents, *judged.queries) if len(name.split()) > 1]):
        raise UserError(f"{judged.name}: the id {blank[0]!r} has a blank, which TREC's format cannot hold: omit --out")
    predictor = opened(model) if isinstance(model, str | Path) else model
    title = f"{predictor.path if isinstance(predictor, RunFile) else predictor.folder.absolute().name} on {judged.name}"
    files = (*RUNS.values(), QUERIES, SCORES, PAGE)
    with evaluation_folder(Path(out), title, files) if out else nullcontext() as place:
        names = measures.names(options.cutoffs)
        leaks = _leaks(predictor, judged, options)
        systems = [
            judge(system, judged, options.cutoffs, options.depth, options.omit_own_id)
            for system in _systems(predictor, judged, options, bm25)
        ]
        result: dict[str, Any] = {"of": title, **_result(systems, leaks, names)}
        result["headline"] = [*leaks[0].rows][1] if leaks and (predictor.task or options.trained_on) else "all queries"
        result |= {"queries": len(judged.queries), "documents": len(judged.documents)}
        result["seconds"] = round(time.monotonic() - started, 3)
        first, told = str(options.first_stage or bm25.name), tie_changes(systems, names)
        if relevance(predictor.task, options.label) and result["differences"][first][names[0]][2] < 0:
            told.append(f"the reranked documents are significantly worse than those of {first}")
        for sentence in told:
            console.warn(sentence)
        if place is None:
            return NotebookDict(result)
        for one in systems[:3]:
            write_run(place / RUNS[one.name], one.name, one.found)
        _write_queries(place / QUERIES, judged, systems, names)
        storage.write_json(place / SCORES, result)
        storage.write_atomic(place / PAGE, search_page(result, judged, systems, leaks, told))
    return NotebookDict({**result, "out": str(out)}, Path(str(out)) / PAGE)


def opened(source: str | Path, **how: Any) -> Predictor | RunFile:
    """Return what a source names: a ranking if it is a file, otherwise a model, loaded as `load` does."""
    if not Path(source).is_file():
        return load(source, **how)
    if any(how.values()):
        raise UsageError(f"{source} is a ranking: leave out the flags of a model")
    return RunFile(Path(source), "model")


def _systems(
    predictor: Predictor | RunFile, collection: Collection, options: SearchOptions, bm25: Bm25
) -> list[System]:
    """Return the model, the baselines, the rankings to compare with, and the model with BM25."""
    paths = dict.fromkeys([*filter(None, [options.first_stage]), *options.compare])
    earlier = [RunFile(path, str(path)) for path in paths]
    beside: list[System] = [bm25, Lsa(words=bm25.words), *earlier]
    if isinstance(predictor, Predictor) and relevance(predictor.task, options.label) is not None:
        first = earlier[0] if options.first_stage else bm25
        return [Reranker(predictor, first, options.rerank, options.label), *beside]
    if options.first_stage:
        raise UsageError(f"--first-stage {options.first_stage}: {predictor.folder} is no reranker: omit it")
    if isinstance(predictor, RunFile):
        return [predictor, *beside]
    model = DenseSearch(predictor)
    return [model, *beside, Fused(model, bm25, choose_weight(model, bm25, collection, dev_queries(collection.folder)))]


def _leaks(predictor: Predictor | RunFile, collection: Collection, options: SearchOptions) -> list[Leaks]:
    """Return the leaks of what the model was trained on; none of what is unknown, or cannot be read."""
    known, leaks = list[str | Path](sources_of(predictor.folder)), list[Leaks]()
    if not known and collection.folder and any((collection.folder / "qrels").glob("train.*")):
        known = [collection.folder]
    reader = PAIRS if predictor.task is None or options.trained_on else predictor.task.reader
    for source in options.trained_on or known:
        try:
            leaks.append(find_leaks(collection, pairs_as_collection(Path(source), reader)))
        except (UserError, UsageError) as error:
            if options.trained_on:
                raise
            console.warn(f"no report of leaks of what the model was trained on: {error}: name it with --trained-on")
    if not options.trained_on and not known:
        console.info("no report of leaks: name what the model was trained on with --trained-on")
    return leaks


def _result(systems: list[Judged], leaks: list[Leaks], names: list[str]) -> dict[str, Any]:
    model, others = systems[0], systems[1:]
    return {
        "scores": {name: float(value) for name, value in zip(names, model.values.mean(0), strict=True)},
        "systems": {one.name: {"settings": one.settings, **_table(means(one.values), names)} for one in systems},
        "differences": {one.name: _table(means(model.values - one.values), names) for one in others},
        "leaks": {leak.trained_on: _leak_rows(leak, systems, names) for leak in leaks},
    }


def _leak_rows(leak: Leaks, systems: list[Judged], names: list[str]) -> dict[str, Any]:
    rows: dict[str, Any] = {"shared_positives": leak.shared_positives}
    for row, chosen in leak.rows.items():
        rows[row] = {"queries": int(chosen.sum()), "too_few": bool(chosen.sum() < TOO_FEW)}
        rows[row] |= {one.name: _table(means(one.values, chosen), names) for one in systems if chosen.any()}
    return rows


def _table(intervals: list[Interval], names: list[str]) -> dict[str, list[float]]:
    return {name: [one.value, one.low, one.high] for name, one in zip(names, intervals, strict=True)}


def _write_queries(path: Path, collection: Collection, systems: list[Judged], names: list[str]) -> None:
    """Write the measures of each query by each system, a line of JSON for each query."""
    lines = [
        {"query": query} | {one.name: dict(zip(names, one.values[i].tolist(), strict=True)) for one in systems}
        for i, query in enumerate(collection.queries)
    ]
    storage.write_json_lines(path, lines)


def said(result: dict[str, Any]) -> list[str]:
    """Return the lines that the command prints: the scores of each system, the differences, and the rows of the leaks."""

    def row(name: str, table: dict[str, Any], shown: list[str]) -> str:
        return f"{name}: " + ", ".join(f"{key} {Interval(*table[key])}" for key in shown)

    names = list(result["scores"])
    lines = [row(name, table, names) for name, table in result["systems"].items()]
    lines += [row(f"model − {name}", table, names[:1]) for name, table in result["differences"].items()]
    for source, rows in result["leaks"].items():
        lines.append(
            f"compared with {source}: {console.percent(rows['shared_positives'])} of the positives are positives there"
        )
        for name, table in list(rows.items())[1:]:
            few = " (too few)" * table["too_few"] + ", the row that counts" * (name == result["headline"])
            scores = "; ".join(row(one, table[one], names[:1]) for one in result["systems"] if one in table)
            lines.append(f"  {name}, {table['queries']:,}{few}{'; ' * bool(scores)}{scores}")
    return lines
