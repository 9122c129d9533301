"""The text of the demo and its classification task."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from bertie.base.errors import UserError
from bertie.corpus.sentences import split_sentences
from bertie.demo import corpus
from bertie.demo.corpus import DemoData, comments, docstrings, folder_data, paragraphs, python_data


@pytest.fixture(scope="module")
def data() -> DemoData:
    return python_data()


def normal(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!?:;")


def assert_no_leak(data: DemoData):
    train, test = {normal(e.text) for e in data.train}, {normal(e.text) for e in data.test}
    assert len(train) == len(data.train)
    assert len(test) == len(data.test)
    assert train.isdisjoint(test)
    assert {e.source for e in data.train}.isdisjoint(e.source for e in data.test)
    assert {document.source for document in data.documents}.isdisjoint(e.source for e in data.test)
    seen = {normal(sentence) for document in data.documents for sentence in split_sentences(document.text)}
    assert test.isdisjoint(seen)


def test_python_documentation_is_large_enough(data: DemoData):
    assert sum(len(document.text) for document in data.documents) > 1_500_000
    assert any(document.source.startswith("pydoc_data.topics:") for document in data.documents)
    text = "\n".join(document.text for document in data.documents)
    assert ">>>" not in text
    assert "::=" not in text
    assert len(data.documents) == len({document.source for document in data.documents})


def test_python_data_is_a_balanced_task(data: DemoData):
    train, test = Counter(e.label for e in data.train), Counter(e.label for e in data.test)
    assert train.keys() == test.keys()
    assert 8 <= len(train) <= 12
    assert 2000 <= len(data.train) <= 4000
    assert len(data.test) >= 600
    assert max(test.values()) < 0.35 * len(data.test)
    assert str(len(train)) in data.question
    for example in data.train + data.test:
        assert example.source.split(".")[0] == example.label
        assert len(example.text.split()) >= 5


def test_python_data_has_no_leak_from_test_to_train(data: DemoData):
    assert_no_leak(data)


def test_a_python_without_source_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(UserError, match="--corpus"):
        python_data()


def test_modules_are_in_the_order_of_their_paths(tmp_path: Path):
    names = [f"{package}.{module}" for package in "abcdefgh" for module in ("one", "two")]
    for name in reversed(names):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"""The documentation of {name}."""')
    assert [name for name, _ in corpus._modules(tmp_path)] == names


def test_docstrings_and_comments_are_read_without_importing():
    source = b'''#!/bin/python
"""Module."""
# One line only.
raise SystemExit("imported")
class A:
    """Class."""
    async def f(self):
        """Method."""
    # A comment of
    # two lines.
'''
    assert docstrings(source) == ["Module.", "Class.", "Method."]
    assert comments(source) == ["A comment of\ntwo lines.\n"]
    assert docstrings(b"print 'python 2'") == []


def test_paragraphs_have_no_markup():
    text = """Title of this section
=====================

A paragraph with ``code``, :class:`~a.Thing` and *emphasis*
over two lines, for example::

    x = compute(this, that)

- The first item of a list
  goes on here.
- The second item of it.

>>> print("the answer is here")
the answer is here

.. versionadded:: 3.2

+-------+------+
| Table | that | is not wanted
+-------+------+

:param name: the name of the file

f(a, b[, c]) -> d
"""
    assert paragraphs(text) == [
        "Title of this section",
        "A paragraph with code, a.Thing and emphasis over two lines, for example:",
        "The first item of a list goes on here.",
        "The second item of it.",
        "the name of the file",
    ]


def words(topic: str, number: int) -> str:
    """Return a sentence that occurs once."""
    return f"The {topic} number {hashlib.sha256(f'{topic}{number}'.encode()).hexdigest()[:6]} is told here."


def write_documents(path: Path, topic: str, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(words(topic, number) for number in range(count)), encoding="utf-8")


def test_up_to_20_files_are_the_labels(tmp_path: Path):
    for topic in ("cats", "dogs", "eels"):
        write_documents(tmp_path / f"{topic}.txt", topic, 80)
    data = folder_data([tmp_path])
    assert data.question == "Which of 3 files does a sentence come from?"
    assert Counter(e.label for e in data.test) == dict.fromkeys(("cats.txt", "dogs.txt", "eels.txt"), 20)
    assert len(data.train) == 180
    assert_no_leak(data)


def test_subfolders_are_the_labels_of_more_files(tmp_path: Path):
    for number in range(12):
        for topic in ("cats", "dogs"):
            write_documents(tmp_path / topic / f"{number}.txt", f"{topic} {number}", 10)
    data = folder_data([tmp_path])
    assert data.question == "Which of 2 folders does a sentence come from?"
    assert {e.label for e in data.test} == {"cats", "dogs"}
    assert_no_leak(data)


def test_too_few_documents_are_refused_with_what_separates_documents(tmp_path: Path):
    for topic in ("cats", "dogs"):
        (tmp_path / topic).mkdir()
        (tmp_path / topic / "one.txt").write_text("\n".join(words(topic, number) for number in range(100)))
    with pytest.raises(UserError, match=r"2 documents: give 4, in \.txt separated by blank lines"):
        folder_data([tmp_path])


def test_too_few_labels_give_no_task(tmp_path: Path):
    write_documents(tmp_path / "one.txt", "cats", 100)
    write_documents(tmp_path / "two.txt", "dogs", 10)
    data = folder_data([tmp_path])
    assert (data.train, data.test, data.question) == ([], [], "")
    assert len(data.documents) == 110
