"""Which task takes over a head of another library: its shape, number of outputs and problem_type decide, as in transformers."""

from __future__ import annotations

import pytest
from examples.own_task import Ordinal

from bertie.base.config import kinds
from bertie.tasks import AnyTask, Choose, Classify, MultiLabel, Regress, Span, Tag
from bertie.tasks.foreign_head import ForeignHead

CASES = [
    (ForeignHead("text", 2, ("no", "yes"), ""), Classify(labels=("no", "yes"))),
    (ForeignHead("text", 3, (), ""), Classify(labels=("LABEL_0", "LABEL_1", "LABEL_2"))),
    (ForeignHead("text", 2, (), "single_label_classification"), Classify(labels=("LABEL_0", "LABEL_1"))),
    (ForeignHead("text", 2, ("a", "b"), "multi_label_classification"), MultiLabel(labels=("a", "b"))),
    (ForeignHead("text", 1, (), "multi_label_classification"), MultiLabel(labels=("LABEL_0",))),
    (ForeignHead("text", 1, ("LABEL_0",), ""), Regress()),
    (ForeignHead("text", 1, (), "regression"), Regress()),
    (ForeignHead("text", 3, (), "regression"), Regress(labels=("LABEL_0", "LABEL_1", "LABEL_2"))),
    (ForeignHead("choice", 1, ("LABEL_0", "LABEL_1"), ""), Choose()),
    (ForeignHead("tokens", 2, ("O", "B-PER"), ""), Tag(labels=("O", "B-PER"), in_place=True)),
    (ForeignHead("start_end", 2, (), ""), Span()),
    (ForeignHead("start_end", 5, (), ""), None),
]


@pytest.mark.parametrize(("head", "task"), CASES)
def test_at_most_one_task_takes_over_a_head(head: ForeignHead, task: AnyTask | None) -> None:
    found = [each for kind in (*kinds(AnyTask).values(), Ordinal) if (each := kind.from_head(head)) is not None]
    assert found == ([] if task is None else [task])
