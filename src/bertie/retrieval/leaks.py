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

from bertie.base import storage
from bertie.checkpoints.find import run_of
from bertie.examples.queries.collection import Collection
from bertie.training.run_folder import ENVIRONMENT, TRAINED_ON

NEAR = 0.8  # Jaccard index of the sets of words from which two queries are near-equal
TOO_FEW = 30  # queries below which a row says so
_AT_ONCE = 1 << 12


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


def sources_of(folder: Path) -> list[str]:
    """Return the names of the files and folders that the model of a folder was trained on."""
    environment = run_of(folder) / ENVIRONMENT
    return storage.read_json(environment).get(TRAINED_ON, []) if environment.is_file() else []


def find_leaks(collection: Collection, training: Collection) -> Leaks:
    """Compare the queries of a test, and their positives, with those of the training data."""
    right = {document for documents in training.positives.values() for document in documents}
    shown = {training.documents[document] for document in right if document in training.documents}
    positives = [
        [collection.documents.get(document) in shown for document in collection.positives[query]]
        for query in collection.queries
    ]
    queries = [training.queries[query] for query in training.positives if query in training.queries]
    jaccard = _nearest(list(collection.queries.values()), queries)
    share = float(np.mean([known for row in positives for known in row]))
    return Leaks(training.name, jaccard == 1, jaccard >= NEAR, np.array([any(row) for row in positives]), share)


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
