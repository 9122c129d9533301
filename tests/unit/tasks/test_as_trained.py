"""What a task takes from that of a trained model, so that examples are read and encoded as in training."""

from __future__ import annotations

from typing import Any

import pytest
from examples.own_task import Ordinal

from bertie.examples.reader import DataFormat
from bertie.tasks import Choose, Classify, Embed, MultiLabel, Regress, Relate, Span, Tag
from bertie.tasks.task_json import task_from_json, to_task_json

CASES = [
    (Classify(text="a"), Classify(text="b", paired=True), Classify(text="a", paired=True)),
    (Classify(paired=False), Classify(paired=True), Classify(paired=False)),
    (MultiLabel(separator=","), MultiLabel(paired=False), MultiLabel(separator=",", paired=False)),
    (Regress(), Regress(paired=True, activation="sigmoid"), Regress(paired=True, activation="sigmoid")),
    (Choose(context="a"), Choose(context="b", labels_from=1), Choose(context="a")),
    (Ordinal(text="a"), Ordinal(text="b", paired=True), Ordinal(text="a", paired=True)),
    (Span(question="a"), Span(doc_stride=9), Span(question="a")),
    (Embed(text="a"), Embed(scored=True, lowest=1, highest=5), Embed(text="a", scored=True, lowest=1, highest=5)),
    (Tag(tag=3), Tag(scheme="iob1", sorted_labels=True), Tag(tag=3, scheme="iob1", sorted_labels=True)),
    (Tag(scheme="none"), Tag(scheme="iob1"), Tag(scheme="none")),
    (Relate(text="a"), Relate("relate", "masked", "cls"), Relate("relate", "masked", "cls", text="a")),
    (Relate(), Relate(markers={"E1": "*"}, negative="no"), Relate(markers={"E1": "*"}, negative="no")),
]


@pytest.mark.parametrize(("asked", "own", "expected"), CASES)
def test_settings_remain_and_what_training_decided_comes_from_the_model(asked: Any, own: Any, expected: Any) -> None:
    assert asked.as_trained(own) == expected


@pytest.mark.parametrize(
    ("kind", "earlier", "value", "now"),
    [
        ("multi_label", "usual_separator", ",", DataFormat(separator=",")),
        ("multi_label", "usual_separator", "", DataFormat()),
        ("relate", "usual_end", "last", DataFormat(end="last")),
        ("relate", "usual_end", "automatic", DataFormat()),
        ("tag", "usual_comments", "skip", DataFormat(has_comments=True)),
        ("choose", "counts_from_0", True, DataFormat(first_ending=0)),
        ("choose", "counts_from_0", False, DataFormat()),
    ],
)
def test_earlier_files_say_the_same(kind: str, earlier: str, value: Any, now: DataFormat) -> None:
    task: Any = task_from_json({"kind": kind, earlier: value}, "task.json")
    assert task.data_format == now
    assert task_from_json(to_task_json(task, 128, "last", 0), "task.json") == task
