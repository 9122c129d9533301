"""Results in a notebook: what they show, and that they are plain values otherwise."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np

from bertie.base.notebook import MOST, NotebookDict, NotebookList
from bertie.tasks.label_sets import LabelSetPrediction
from bertie.tasks.predictions import (
    ChoicePrediction,
    ClassPrediction,
    Entity,
    NumbersPrediction,
    SimilarityPrediction,
    SpanPrediction,
    TagPrediction,
)

EVIL = '<script>&"'


@dataclass(frozen=True)
class Guess:
    token: str
    probability: float
    hidden: int = field(default=1, repr=False)
    share: float | None = None


def cells(html: str) -> list[list[str]]:
    """Return the rows of the tables, with the header."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]


def test_facts_and_rows_are_plain_values() -> None:
    facts = NotebookDict({"scores": NotebookDict({"f1": 0.5})}, Path("none.html"))
    rows = NotebookList([1, 2], [("a",), ("b",)])
    assert facts == {"scores": {"f1": 0.5}}
    assert rows == [1, 2]
    assert json.dumps([facts, rows]) == '[{"scores": {"f1": 0.5}}, [1, 2]]'
    assert pickle.loads(pickle.dumps([facts, rows])) == [facts, rows]


def test_facts_are_a_table_of_names_and_values() -> None:
    many = {str(number): 1000 + number for number in range(2 * MOST)}
    facts = NotebookDict(
        {
            "eval": {"mean_f1": 0.123456},
            "n": 12345,
            "names": ["a", EVIL, 0.123456],
            "none": None,
            "no": [],
            "many": many,
        }
    )
    *rows, (name, joined) = cells(facts._repr_html_())
    assert rows == [
        ["", "value"],
        ["eval: mean f1", "0.1235"],
        ["n", "12,345"],
        ["names", f"a; {escape(EVIL)}; 0.1235"],
    ]
    assert cells(NotebookDict({"a": 1, "b": {"c": 2}}, shown=("b",))._repr_html_())[1:] == [["b: c", "2"]]
    assert (name, joined[:20], joined[-1]) == ("many", "0: 1,000, 1: 1,001, ", "…")


def test_a_report_is_inline_and_escaped(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert "<iframe" not in NotebookDict({}, report=report)._repr_html_()
    report.write_text(f'<p class="a">{EVIL}</p>', encoding="utf-8")
    [content] = re.findall(r'<iframe srcdoc="([^"<>]*)"', NotebookDict({}, report=report)._repr_html_())
    assert content == escape(report.read_text())


def test_rows_are_a_table_with_texts_and_percentages() -> None:
    predictions = [
        ClassPrediction("good", {"bad": 0.0625, "good": 0.9}),
        ClassPrediction("bad", {"bad": 0.7, "good": 0.3}),
    ]
    assert cells(NotebookList(predictions, [(EVIL,), ("dull",)])._repr_html_()) == [
        ["text", "label", "probabilities"],
        [escape(EVIL), "good", "good: 90.0 %, bad: 6.2 %"],
        ["dull", "bad", "bad: 70.0 %, good: 30.0 %"],
    ]
    masks = NotebookList([[Guess("a", 0.5), Guess("b", 0.25)], [Guess("c", 1.0)]])
    table = [["mask", "token", "probability"], ["1", "a", "50.0 %"], ["1", "b", "25.0 %"], ["2", "c", "100.0 %"]]
    assert cells(masks._repr_html_()) == table
    numbers = [NumbersPrediction({"valence": 3.12345, "arousal": 1500.0})]
    assert cells(NotebookList(numbers)._repr_html_()) == [["scores"], ["valence: 3.123, arousal: 1,500"]]
    labels = [LabelSetPrediction(["a", "b"], {"a": 0.9, "b": 0.6, "c": 0.1, "d": 0.2})]
    assert cells(NotebookList(labels)._repr_html_())[1] == ["a; b", "a: 90.0 %, b: 60.0 %, d: 20.0 %"]
    arrays = (np.zeros(2), np.zeros(2))
    assert cells(NotebookList([SimilarityPrediction(0.5, arrays)])._repr_html_()) == [["similarity"], ["0.5000"]]
    assert "… and 3 rows more" in NotebookList([Guess("a", 0.5)] * (MOST + 3))._repr_html_()
    assert cells(NotebookList()._repr_html_()) == []


def test_entities_and_answers_are_marked_in_their_texts() -> None:
    entities = [Entity("Ada", 0, 3, "PER", 0.9), Entity("<Lyon>", 13, 19, "LOC", 0.8)]
    tagged = TagPrediction(["Ada", "lives", "in", "<Lyon>"], ["B-PER", "O", "O", "B-LOC"], [1.0] * 4, entities)
    assert (
        '<mark class="found">Ada</mark> <small class="note">PER</small> lives in <mark class="found">&lt;Lyon&gt;</mark>'
        ' <small class="note">LOC</small>!</p>'
    ) in NotebookList([tagged], [("Ada lives in <Lyon>!",)])._repr_html_()
    parts_of_speech = TagPrediction(["Ada", "lives"], ["PROPN", "VERB"], [1.0] * 2)
    html = NotebookList([parts_of_speech], [("Ada lives",)])._repr_html_()
    assert 'Ada <small class="note">PROPN</small> lives <small class="note">VERB</small></p>' in html
    answer, none = SpanPrediction("1", "in Lyon", 6, 13, 0.75, 0.0, []), SpanPrediction("2", "", 0, 0, 0.5, 1.0, [])
    html = NotebookList([answer, none], [("Where?", "lives in Lyon")] * 2)._repr_html_()
    assert html.count("<mark") == 1
    assert 'lives <mark class="found">in Lyon</mark> <small class="note">75.0 %</small></p>' in html
    assert '<p dir="auto"> <small class="note">no answer, 50.0 %: </small>lives in Lyon</p>' in html
    html = NotebookList([ChoicePrediction(1, [0.25, 0.75])], [("He sat", "down")])._repr_html_()
    assert 'He sat <small class="note">ending 1, 75.0 %</small></p>' in html
