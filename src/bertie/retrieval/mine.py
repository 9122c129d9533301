"""Mine hard negatives: documents that a search finds for a query, and that are not right for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import console, seeding, storage
from bertie.base.config import Count, Fraction, Positive
from bertie.base.errors import UsageError, UserError
from bertie.examples.queries.collection import Collection, read_collection, split_of
from bertie.examples.queries.tuples import PAIRS, is_right
from bertie.examples.reader import Reader
from bertie.examples.texts import Example
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.measures import order
from bertie.retrieval.system import DenseSearch, System, tie_order
from bertie.tasks.scoring import labeled_examples

KNOWN, EQUAL, MARGIN, FILTER = "known positives", "equal texts", "above the margin", "relevant for the filter"


@dataclass(frozen=True)
class MineOptions:
    """Which negatives to take."""

    negatives: Positive = 5
    """Negatives of a query."""
    first: Positive = 100
    """Documents that are considered: the first ones that the search finds, besides the known positives."""
    margin: Fraction = 0.95
    """Largest score of a negative, as a share of the score of the query's best positive. Documents with a higher score are often
    relevant, and only not known to be. 1: all that are below it."""
    random: Count = 0
    """Random documents of a query, in addition."""
    label: str = ""
    """The class of the filter that means "relevant", if its name does not say so."""


def mine(
    data: str | Path | Collection,
    out: str | Path,
    model: str | Path | Predictor | None = None,
    reranker: str | Path | Predictor | None = None,
    options: MineOptions = MineOptions(),
    bm25: Bm25 = Bm25(),
) -> dict[str, Any]:
    """Write a line of JSON for each query: its text ("query"), its positives ("pos") and its negatives ("neg").

    Documents that equal a known positive or the query are left out. The same arguments give the same bytes.

    Args:
        data: Pairs, in a form of the training data of `embed`: a folder as BEIR's (its split train), or a file of pairs, whose
            documents are all second texts. Or a collection.
        out: The file to write, X.jsonl.
        model: What searches: a model with vectors. None: BM25.
        reranker: A model that scores pairs. It drops negatives that it scores above the margin, too.
        options: Which negatives to take.
        bm25: What searches without a model.

    Returns:
        {"out", "queries": lines, "negatives": their number, "dropped": documents by the reason, "without": queries without a
        negative, which have no line}.

    Raises:
        UsageError: `out` exists, or has another ending.
        UserError: The data cannot be read, or no negative remains.
    """
    out = Path(out)
    if out.suffix != ".jsonl" or out.exists():
        raise UsageError(f"{out}: give a new file X.jsonl")
    collection = (data if isinstance(data, Collection) else pairs_as_collection(Path(data))).judged()
    searcher, scorer = (load(each) if isinstance(each, str | Path) else each for each in (model, reranker))
    system: System = bm25 if searcher is None else DenseSearch(searcher)
    dropped, without, rows = Counter({KNOWN: 0, EQUAL: 0, MARGIN: 0}), 0, list[dict[str, Any]]()
    searched = _chosen(collection, system, scorer, options, dropped)
    first = next(searched)  # encodes the documents, whose time is not that of a query
    with console.progress("mine", len(collection.queries), "queries") as bar:
        for query, chosen in chain([first], searched):
            bar.advance(1)
            without += not chosen
            known = [collection.documents[name] for name in collection.positives[query] if name in collection.documents]
            if chosen and known:
                rows.append({"query": collection.queries[query], "pos": known, "neg": chosen})
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    if not rows:
        raise UserError(
            f"{collection.name}: no negative remains; dropped: {counts or 'none'}: give a higher --margin or --first"
        )
    storage.write_json_lines(out, rows)
    total = sum(len(row["neg"]) for row in rows)
    console.info(
        f"{out}: {total:,} negatives of {len(rows):,} queries by {system.name} ({system.settings}); dropped: {counts}"
    )
    if without:
        console.warn(f"left out {without:,} of {len(collection.queries):,} queries: no negative remains for them")
    return {"out": str(out), "queries": len(rows), "negatives": total, "dropped": dict(dropped), "without": without}


def pairs_as_collection(data: Path, reader: Reader = PAIRS) -> Collection:
    """Return training data of `embed` as a collection: of a file of pairs, equal texts are one query, or one document.

    Args:
        data: A folder as BEIR's (its split train), its file qrels/SPLIT.tsv, or a file of pairs.
        reader: Of the file.

    Raises:
        UserError: It cannot be read, or has no pairs of texts.
        UsageError: It is missing, or of another format.
    """
    if split := split_of(data):
        return read_collection(*split)
    documents, queries = dict[str, str](), dict[str, str]()  # their ids, by their texts
    grades: dict[str, dict[str, int]] = {}
    for example in labeled_examples(reader, data):
        if isinstance(example, Example) and example.text_pair is not None:
            ids = [documents.setdefault(text, str(len(documents))) for text in (example.text_pair, *example.negatives)]
            known = grades.setdefault(queries.setdefault(example.text, str(len(queries))), {})
            known[ids[0]] = int(is_right(example))
    if not grades:
        raise UserError(f"{data} has no pairs of texts")
    by_id = [{number: text for text, number in of.items()} for of in (documents, queries)]
    return Collection(by_id[0], by_id[1], grades, "/".join(data.absolute().parts[-2:]))


def _chosen(
    collection: Collection, system: System, scorer: Predictor | None, options: MineOptions, dropped: Counter[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each query with the texts of its negatives, and count what is dropped."""
    ids, texts, ties = list(collection.documents), list(collection.documents.values()), tie_order(collection)
    number = {name: i for i, name in enumerate(ids)}
    same = {text: " ".join(text.lower().split()) for text in {*texts, *collection.queries.values()}}
    searched = zip(collection.queries.items(), system.scores(collection), strict=True)
    for drawn, ((query, question), scores) in enumerate(searched):
        known = [number[name] for name in collection.positives[query] if name in number]
        right = {same[texts[i]] for i in known} | {same[question], ""}
        limit = _limit(scores[known].max(), options) if known and np.isfinite(scores[known]).any() else np.inf
        found = order(scores, ties, options.first + len(known)).tolist()
        reasons = [
            KNOWN if i in known else EQUAL if same[texts[i]] in right else MARGIN if scores[i] > limit else None
            for i in found
        ]
        dropped.update(filter(None, reasons))
        found = [i for i, reason in zip(found, reasons, strict=True) if reason is None]
        if scorer is not None and found and known:
            with console.silenced():  # of truncated texts in each query
                count, found = len(found), _filtered(scorer, question, texts, known, found, options)
            dropped[FILTER] += count - len(found)
        hard = list(dict.fromkeys(texts[i] for i in found))[: options.negatives]
        order_of_all = seeding.generator(0, seeding.EXAMPLES, drawn).permutation(len(texts)) if options.random else []
        others = (texts[i] for i in order_of_all if same[texts[i]] not in right and texts[i] not in hard)
        yield query, [*hard, *islice(others, options.random)]


def _filtered(
    scorer: Predictor, question: str, texts: list[str], known: list[int], found: list[int], options: MineOptions
) -> list[int]:
    """Return the found documents that a reranker does not score above the margin."""
    scores = scorer.rerank(question, [texts[i] for i in (*known, *found)], options.label)
    limit = _limit(scores[: len(known)].max(), options)
    return [i for i, score in zip(found, scores[len(known) :], strict=True) if score <= limit]


def _limit(best: float, options: MineOptions) -> float:
    """Return the largest score of a negative: below that of the best positive, also if scores are below 0."""
    return best - (1 - options.margin) * abs(best)
