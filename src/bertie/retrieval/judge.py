"""Rank the documents of a collection by a system, measure the rankings, and compare systems with intervals.

Q  queries    M  measures
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from bertie.examples.queries.collection import Collection
from bertie.inspect.intervals import UnitSums, interval, resample
from bertie.retrieval import measures
from bertie.retrieval.system import System, tie_order

WORSE = 0.001  # a change of a score by the order of ties that is reported


@dataclass(frozen=True, eq=False)
class Judged:
    """The rankings of a system, and their measures."""

    name: str
    settings: str
    found: dict[str, list[tuple[str, float]]]
    """For each query the documents that were found, best first, with their scores."""
    values: Float[np.ndarray, "Q M"]
    """The measures of each query, in the order of `measures.names`."""
    worst: Float[np.ndarray, "Q M"]
    """The same if of documents with equal scores those with the highest grade come last."""


@dataclass(frozen=True)
class Interval:
    """A mean over queries, or the mean of a difference, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.3f}, {self.high:.3f}]"


def judge(
    system: System, collection: Collection, cutoffs: tuple[int, ...], depth: int, omit_own_id: bool = False
) -> Judged:
    """Rank the documents for every query, and measure.

    Args:
        system: What searches.
        collection: The collection, as from `Collection.judged`.
        cutoffs: The numbers of first documents that nDCG and recall count.
        depth: Length of the rankings.
        omit_own_id: Leave out the document whose id is that of the query.

    Raises:
        UserError: As `System.scores`.
    """
    ids, ties = list(collection.documents), tie_order(collection)
    number = {document: i for i, document in enumerate(ids)}
    found, values, worst = dict[str, list[tuple[str, float]]](), [], []
    for query, given in zip(collection.queries, system.scores(collection), strict=True):
        scores, grades = np.array(given), collection.grades[query]
        if omit_own_id and query in number:
            scores[number[query]] = -np.inf
            grades = {document: grade for document, grade in grades.items() if document != query}
        grades_N = np.zeros(len(ids), np.int64)
        for document, grade in grades.items():
            if document in number:
                grades_N[number[document]] = grade
        positives = np.array([grade for grade in grades.values() if grade > 0], np.int64)
        best, last = (measures.order(scores, order, depth) for order in (ties, grades_N))
        found[query] = [(ids[i], float(scores[i])) for i in best]
        for order, rows in ((best, values), (last, worst)):
            rows.append(measures.measure(grades_N[order], positives, cutoffs))
    return Judged(system.name, system.settings, found, np.array(values), np.array(worst))


def means(values_QM: Float[np.ndarray, "Q M"], chosen_Q: Bool[np.ndarray, " Q"] | None = None) -> list[Interval]:
    """Return the mean of each measure with its 95 % interval, by resampling the queries, always in the same way.

    Args:
        values_QM: Measures, or differences of two systems on the same queries, whose interval is that of a paired test.
        chosen_Q: The queries that count. None: all.
    """
    values = values_QM if chosen_Q is None else values_QM[chosen_Q]
    [sums] = resample(len(values), [UnitSums(np.arange(len(values)), values)])
    return [Interval(float(column[0]), *interval(column[1:])) for column in (sums / max(len(values), 1)).T]


def tie_changes(judged: Iterable[Judged], names: list[str]) -> list[str]:
    """Return a sentence for each mean that the order of documents with equal scores changes by more than WORSE."""
    return [
        f"{one.name}: documents with equal scores: with the best one last, {name} is {worst:.4f}, not {value:.4f}"
        for one in judged
        for name, value, worst in zip(names, one.values.mean(0), one.worst.mean(0), strict=True)
        if value - worst > WORSE
    ]
