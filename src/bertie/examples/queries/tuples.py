"""Queries with texts that are right for them, and maybe texts that are wrong: pairs, triples, tuples, and collections of BEIR."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie.base.errors import UserError
from bertie.examples.labels import LabelRules
from bertie.examples.queries.collection import read_collection, split_of
from bertie.examples.reader import DataFormat, Reader, rows_or_lines
from bertie.examples.rows import Row, parse_label, parse_label_number, require_string
from bertie.examples.texts import CLASSES, Example, LabeledTexts, TextColumns
from bertie.examples.texts import SCORES as PAIR_SCORES

_NEGATIVES = re.compile(r"(hard_)?neg(ative)?s?([ _-]?\d+)?", re.IGNORECASE)
SCORES = ("scores", "teacher_scores")


def tuple_rows(kind: TextTuples, path: Path, labeled: bool) -> Iterator[Any]:
    """Yield the rows of a file; or the pairs of a query and a positive of a collection: its folder, for the split train, or its
    file qrels/SPLIT.tsv."""
    if split := split_of(path):
        collection = read_collection(*split).judged()
        for query, documents in collection.positives.items():
            for document in documents:
                if document in collection.documents:
                    texts = {"anchor": collection.queries[query], "positive": collection.documents[document]}
                    yield Row(texts, f"{path.name}: {query}, {document}", f"{path}: {query}, {document}")
    else:
        yield from rows_or_lines(kind.texts, path, labeled)


def by_positive(row: Row) -> Iterator[Row]:
    """Yield a row for each positive where a cell lists several: `KindFacts.split`."""
    for name, value in row.values.items():
        if name.lower() in ("pos", "positive") and isinstance(value, list) and value:
            for number, text in enumerate(value, 1):
                yield row._replace(values=row.values | {name: text}, source=f"{row.source}, positive {number}")
            return
    yield row


@dataclass(frozen=True)
class TextTuples:
    """Pairs of texts, with a score, or with negatives of the first text and maybe a teacher's scores of all others.

    Attributes:
        texts: The columns of the pair and its score.
        negatives: Columns of the negatives, texts or lists of texts. Empty: found from the header: negative, negative_1, neg …
    """

    texts: LabeledTexts
    negatives: tuple[str, ...] = ()
    facts, data_format, rows = replace(LabeledTexts.facts, split=by_positive), DataFormat(), tuple_rows

    @property
    def label_rules(self) -> LabelRules:
        return self.texts.label_rules

    def from_python(self, value: Any, place: str, source: str) -> Example:
        return self.texts.from_python(value, place, source)

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> TextTuples:
        return replace(self, texts=self.texts.resolved(rows, path, labeled))

    def columns(self, row: Row, labeled: bool) -> TextColumns:
        columns = self.texts.columns(row, labeled)
        used = {*self.negatives, columns.text, columns.text_pair, columns.label}
        found = self.negatives or tuple(name for name in row.values if _NEGATIVES.fullmatch(name) and name not in used)
        return columns._replace(negatives=found)

    def to_example(self, row: Row, columns: TextColumns, labeled: bool, seen: dict[Any, Any]) -> Example:
        taught = next((name for name in (columns.label, *SCORES) if isinstance(row.values.get(name or ""), list)), None)
        pairs = columns._replace(label=None) if taught else columns
        example = self.texts.to_example(row, pairs, labeled and not taught, seen)
        cells = [(name, row.values.get(name)) for name in columns.negatives]
        texts = [(name, text) for name, cell in cells for text in (cell if isinstance(cell, list) else [cell])]
        negatives = tuple(require_string(text, name, row.place) for name, text in texts if text not in (None, ""))
        cells = row.values[taught] if taught else []
        scores = [parse_label_number(parse_label(cell, taught or "", row.place)) for cell in cells]
        if taught and (len(scores) != 1 + len(negatives) or None in scores):
            count = f"{len(negatives)} negatives: expected {1 + len(negatives)} numbers, first that of the positive"
            raise UserError(f"{row.place}: {taught!r} has {len(scores)} scores, and there are {count}")
        return replace(example, negatives=negatives, scores=tuple(score for score in scores if score is not None))


_LABELS = tuple(dict.fromkeys((*PAIR_SCORES, *CLASSES)))
PAIRS = Reader(TextTuples(LabeledTexts(label_names=_LABELS, numbers=None, optional=True)))
"""Reads queries with texts, and their scores, if there are some."""


@property
def tuple_reader(task: Any) -> Reader:
    """The reader of a task on tuples, with the columns that it names: `Task.reader`."""
    columns = (task.text, task.text_pair, task.label, _LABELS, None, True, task.no_label)
    return Reader(TextTuples(LabeledTexts(*columns, optional=True), task.negatives))


def is_right(example: Example) -> bool:
    """Return whether the text of a pair is right for its query: it has no score, or one above 0."""
    score = parse_label_number(example.label)
    return score is None or score > 0
