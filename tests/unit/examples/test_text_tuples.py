"""Pairs, triples, tuples and collections as training data of embed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.retrieval.test_collection import folder

from bertie.base.errors import UsageError, UserError
from bertie.tasks.embed import Embed
from bertie.tasks.scoring import labeled_examples, training_examples


def read(path: Path, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return of(path)


def of(source: Any) -> list[tuple[Any, ...]]:
    examples = labeled_examples(Embed().reader, source)
    return [(e.text, e.text_pair, e.negatives, e.scores or e.label) for e in examples]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"anchor": "a", "positive": "p"}, [("a", "p", (), None)]),
        ({"anchor": "a", "positive": "p", "negative": "n"}, [("a", "p", ("n",), None)]),
        ({"query": "a", "positive": "p", "negative_1": "n", "negative_2": "m"}, [("a", "p", ("n", "m"), None)]),
        ({"query": "a", "pos": ["p", "q"], "neg": ["n"]}, [("a", "p", ("n",), None), ("a", "q", ("n",), None)]),
        ({"query": "a", "document": "p"}, [("a", "p", (), None)]),
        ({"question": "a", "answer": "p"}, [("a", "p", (), None)]),
        ({"sentence1": "a", "sentence2": "p", "score": 0.5}, [("a", "p", (), "0.5")]),
        ({"anchor": "a", "positive": "p", "negative": "n", "label": [1, -2.5]}, [("a", "p", ("n",), (1.0, -2.5))]),
        (
            {"anchor": "a", "positive": "p", "neg": ["n", "m"], "scores": [3, 2, 1]},
            [("a", "p", ("n", "m"), (3.0, 2.0, 1.0))],
        ),
    ],
)
def test_forms_of_tuples(tmp_path: Path, row: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    assert read(tmp_path / "a.jsonl", [row]) == expected
    assert of([row]) == expected


def test_triples_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("anchor,positive,negative\na,p,n\nb,q,\n")
    assert of(tmp_path / "a.csv") == [("a", "p", ("n",), None), ("b", "q", (), None)]


def test_collection_gives_its_positives(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n")
    assert of(tmp_path) == [("what purrs?", "Cats\npurr.", (), None)]
    assert [row[1] for row in of(tmp_path / "qrels" / "test.tsv")] == ["Cats\npurr.", "Dogs bark."]


def test_scores_that_do_not_match_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'scores' has 1 scores, and there are 1 negatives: expected 2 numbers"):
        read(tmp_path / "a.jsonl", [{"anchor": "a", "positive": "p", "negative": "n", "scores": [1]}])


@pytest.mark.parametrize(
    ("task", "row", "problem"),
    [
        (Embed(loss="cosent"), {"anchor": "a", "positive": "p"}, "cosent learns from pairs with scores"),
        (Embed(positives="one"), {"sentence1": "a", "sentence2": "p", "score": 1}, "are for infonce: leave them out"),
        (Embed(loss="kl"), {"anchor": "a", "positive": "p"}, "kl learns from tuples with a teacher's scores"),
        (
            Embed(loss="infonce"),
            {"sentence1": "a", "sentence2": "p", "score": 1},
            "infonce learns from pairs without scores",
        ),
    ],
)
def test_losses_that_do_not_fit_the_data_are_refused(task: Embed, row: dict[str, Any], problem: str) -> None:
    rows = [row, {name: (value + value if isinstance(value, str) else value + 1) for name, value in row.items()}]
    fitted, examples = training_examples(task, rows)
    with pytest.raises(UsageError, match=problem):
        fitted.fit(examples)
