"""The examples: every row of their data is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bertie
from bertie.corpus import readers
from bertie.tasks import AnyTask, Choose, Classify, Embed, MultiLabel, Regress, Relate, Span, Tag

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES / "data"
REVIEWS = {"reviews.csv": 3, "reviews.fr.csv": 2, "reviews.ja.csv": 2, "reviews.th.csv": 2}
TASKS: dict[str, tuple[AnyTask, int]] = {  # with the number of labels, 0 for numbers
    **{name: (Classify(), classes) for name, classes in REVIEWS.items()},
    "topics.csv": (MultiLabel(), 6),
    "pairs.csv": (Regress(), 51),
    "search.jsonl": (Embed(text="query", text_pair="passage"), 0),
    "entities.conll": (Tag(), 7),
    "relations.jsonl": (Relate(), 5),
    "questions.json": (Span(), 2),
    "choices.csv": (Choose(), 4),
}
TEXTS = ("text.jsonl", "text.fr.jsonl", "text.ja.jsonl")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_reads_every_row_of_its_data(name: str) -> None:
    task, labels = TASKS[name]
    found = bertie.inspect_data(task, DATA / name)
    assert found["examples"] >= 60
    assert (found["skipped"], len(found["labels"])) == (0, labels)


@pytest.mark.parametrize("name", TEXTS)
def test_a_corpus_has_documents(name: str) -> None:
    documents = list(readers.read([DATA / name]))
    assert len({document.text for document in documents}) == len(documents) >= 20


def test_the_page_of_the_data_names_all_files() -> None:
    page = (DATA / "README.md").read_text(encoding="utf-8")
    assert {"README.md", *re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)} == {
        path.name for path in DATA.iterdir()
    }
    assert {"README.md", *TASKS, *TEXTS} == {path.name for path in DATA.iterdir()}
