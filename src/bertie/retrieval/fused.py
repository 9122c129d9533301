"""A search by a model and by BM25 together: a weighted sum of their scores. The weight is chosen on queries.

N  documents    C  candidates    Q  queries
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bertie.base import seeding
from bertie.base.errors import UsageError, UserError
from bertie.corpus.sentences import split_sentences
from bertie.examples.queries.collection import Collection, is_collection, read_collection
from bertie.predict.predictor import Predictor
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.leaks import sources_of
from bertie.retrieval.measures import measure, order
from bertie.retrieval.mine import pairs_as_collection
from bertie.retrieval.passages import long_sentences
from bertie.retrieval.system import DenseSearch

CANDIDATES = 100  # first documents of each search that are fused
PSEUDO, FEWEST = 100, 20  # queries that choose the weight
MOST_DOCUMENTS = 20_000  # that they are compared with
WEIGHTS = np.arange(11) / 10


class FusionWeight(NamedTuple):
    """The share of the model's score in a fused one."""

    value: float
    """From 0, BM25 alone, to 1, the model alone."""
    origin: str
    """What it was chosen on, or why it was not chosen."""


@dataclass(frozen=True, eq=False)
class Fused:
    """A model and BM25 together."""

    model: DenseSearch
    words: Bm25
    weight: FusionWeight
    name = "fused"

    @property
    def settings(self) -> str:
        return f"{self.weight.value:g} of the model's score, scaled to 0 to 1: {self.weight.origin}"

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        """Yield for each query the scores of the candidates; the other documents are not found."""
        for dense_N, words_N in zip(self.model.scores(collection), self.words.scores(collection), strict=True):
            chosen = candidates(dense_N) | candidates(words_N)
            scores_N = np.full(len(chosen), -np.inf)
            scores_N[chosen] = fuse(dense_N[chosen], words_N[chosen], self.weight.value)
            yield scores_N


def candidates(scores_N: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Return which documents are among the first CANDIDATES."""
    chosen = np.zeros(len(scores_N), bool)
    chosen[order(scores_N, np.arange(len(scores_N)), CANDIDATES)] = True
    return chosen


def fuse(dense_C: Float[np.ndarray, " C"], words_C: Float[np.ndarray, " C"], weight: float) -> Float[np.ndarray, " C"]:
    """Return the weighted sums of scores, each scaled to 0 to 1 over the candidates. A document without a score has 0."""
    return weight * _scaled(dense_C, None) + (1 - weight) * _scaled(words_C, 0.0)


def _scaled(scores_C: np.ndarray, lowest: float | None) -> np.ndarray:
    found = scores_C > -np.inf
    if not found.any():
        return np.zeros(len(scores_C))
    low, high = scores_C[found].min() if lowest is None else lowest, scores_C[found].max()
    return np.where(found, (np.where(found, scores_C, low) - low) / ((high - low) or 1.0), 0.0)


def choose_weight(
    model: DenseSearch, words: Bm25, collection: Collection, dev: Collection | None = None
) -> FusionWeight:
    """Return the weight with the highest nDCG@10.

    Args:
        model: The model.
        words: BM25.
        collection: The documents.
        dev: Queries with grades of documents. None: pseudo-queries, sentences that are held out from the documents.
    """
    judged, origin = dev, "dev queries"
    if judged is None:
        judged, origin = pseudo_queries(collection), "sentences held out from the text"
        if _were_shown(model.model, {*judged.queries.values()}):  # it would find these too well
            return FusionWeight(0.5, "the model was trained on sentences of this text")
        vectors = model.document_vectors(collection)
        model = replace(model, known=dict(zip(collection.documents.values(), vectors, strict=True)))
    if len(judged.queries) < FEWEST:
        return FusionWeight(0.5, f"there are only {len(judged.queries)} {origin}")
    numbers, ids = np.zeros(len(WEIGHTS)), list(judged.documents)
    searches = zip(judged.queries, model.scores(judged), words.scores(judged), strict=True)
    for query, dense_N, words_N in searches:
        chosen, grades = candidates(dense_N) | candidates(words_N), judged.grades[query]
        grades_C = np.array([grades.get(ids[i], 0) for i in np.flatnonzero(chosen)])
        positives = np.array([grade for grade in grades.values() if grade > 0])
        for i, weight in enumerate(WEIGHTS):
            best = np.argsort(-fuse(dense_N[chosen], words_N[chosen], float(weight)), kind="stable")
            numbers[i] += measure(grades_C[best], positives, (10,))[0]
    return FusionWeight(float(WEIGHTS[numbers.argmax()]), f"chosen on {len(judged.queries)} {origin}")


def _were_shown(model: Predictor, queries: set[str]) -> bool:
    """Return whether a model was trained on one of the queries, as far as its files of training data are still there."""
    if model.task is None or model.task.unit != "batch":
        return False
    for source in sources_of(model.folder):
        with suppress(UsageError, UserError):  # it is gone or has changed, and says nothing any more
            if queries & {*pairs_as_collection(Path(source), model.task.reader).queries.values()}:
                return True
    return False


def dev_queries(folder: Path | None) -> Collection | None:
    """Return the collection of a folder as BEIR's, with its dev queries. None: it has none, or is something else."""
    if folder is None or not is_collection(folder) or not any((folder / "qrels").glob("dev.*")):
        return None
    return read_collection(folder, "dev").judged()


def pseudo_queries(collection: Collection) -> Collection:
    """Return a collection whose queries are sentences that are held out from its documents."""
    rng = seeding.generator(0, seeding.HELD_OUT, 0)
    names = rng.permutation(list(collection.documents))[:MOST_DOCUMENTS]
    documents = {name: collection.documents[name] for name in names}
    queries: dict[str, str] = {}
    for name, text in documents.items():
        sentences = split_sentences(text)
        long = long_sentences(sentences)
        if len(sentences) > 2 and long and len(queries) < PSEUDO:
            held = int(rng.choice(long))
            queries[name] = sentences[held]
            documents[name] = " ".join(sentence for i, sentence in enumerate(sentences) if i != held)
    grades = {name: {name: 1} for name in queries}
    return Collection(documents, queries, grades, f"sentences of {collection.name}")
