"""Leaks: what of a test collection the training data has already shown.

T  queries of the test    R  queries of the training
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertie.base.errors import UserError
from bertie.examples.queries.collection import Collection, is_collection, read_collection
from bertie.examples.queries.tuples import PAIRS, is_right
from bertie.examples.reader import Reader
from bertie.tasks.scoring import labeled_examples

NEAR = 0.8  # Jaccard index of the sets of words from which two queries are near-equal
TOO_FEW = 30  # queries below which a row says so
_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Shown:
    """What a model was trained on: queries and the texts of their positives."""

    name: str
    queries: list[str]
    positives: set[str]


@dataclass(frozen=True, eq=False)
class Leaks:
    """Which test queries the training data has shown."""

    trained_on: str
    equal: Bool[np.ndarray, " T"]
    """Queries with an equal one in training, but for case, punctuation and the order of words."""
    near: Bool[np.ndarray, " T"]
    """Queries with one whose words have a Jaccard index of at least NEAR, the equal ones included."""
    shared: Bool[np.ndarray, " T"]
    """Queries with a positive that is a positive in training."""
    shared_positives: float
    """Share of the pairs of a query and a positive whose positive is one in training."""

    @property
    def rows(self) -> dict[str, Bool[np.ndarray, " T"]]:
        """The rows of the report: its queries by what they lack."""
        return {
            "all queries": np.ones_like(self.near),
            "without near-equal training queries": ~self.near,
            "also without shared positives": ~self.near & ~self.shared,
        }


def trained_on(source: str | Path, reader: Reader = PAIRS) -> Shown:
    """Read training data: a collection's folder (its split train), or a file of pairs as `bertie finetune embed` reads.

    Raises UsageError or UserError.
    """
    path = Path(source)
    if not is_collection(path):
        pairs = [each for each in labeled_examples(reader, path) if getattr(each, "text_pair", None) and is_right(each)]
        if not pairs:
            raise UserError(f"{path} has no pairs of texts")
        return Shown(path.name, [pair.text for pair in pairs], {pair.text_pair or "" for pair in pairs})
    known = read_collection(path, "train")
    queries = [known.queries[query] for query in known.positives if query in known.queries]
    positives = {document for documents in known.positives.values() for document in documents}
    texts = {known.documents[document] for document in positives if document in known.documents}
    return Shown(f"{known.name}, its training queries", queries, texts)


def find_leaks(collection: Collection, shown: Shown) -> Leaks:
    """Compare the queries of a test, and their positives, with those of the training data."""
    positives = [
        [collection.documents.get(document) in shown.positives for document in collection.positives[query]]
        for query in collection.queries
    ]
    jaccard = _nearest(list(collection.queries.values()), shown.queries)
    share = float(np.mean([known for row in positives for known in row]))
    return Leaks(shown.name, jaccard == 1, jaccard >= NEAR, np.array([any(row) for row in positives]), share)


def _nearest(queries: list[str], training: list[str]) -> np.ndarray:
    """Return for each query the largest Jaccard index of its words with those of a training query, float64 [T]."""
    from sklearn.feature_extraction import text as of_text

    library: Any = of_text
    count = library.CountVectorizer(analyzer=lambda text: set(re.findall(r"\w+", text.lower())), dtype=np.float32)
    both = count.fit_transform([*queries, *training]) if any(map(str.strip, queries + training)) else None
    if both is None or not training:
        return np.zeros(len(queries))
    sizes, best = np.asarray(both.sum(1)).ravel(), np.zeros(len(queries))
    known, known_sizes = both[len(queries) :].T.tocsc(), sizes[len(queries) :]
    for start in range(0, len(queries), _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, len(queries)))
        common = (both[rows] @ known).tocoo()
        union = sizes[rows][common.row] + known_sizes[common.col] - common.data
        np.maximum.at(best[rows], common.row, common.data / union)
    return best
