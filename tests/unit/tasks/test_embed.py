"""Which pairs the `embed` task accepts for training and scoring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertie.errors import UsageError, UserError
from bertie.tasks.data.texts import Example
from bertie.tasks.embed import Embed
from bertie.tasks.predictions import SimilarityPrediction


def pairs(*labels: str | None) -> list[Example]:
    return [Example("a", "b", label, f"pairs:{number}") for number, label in enumerate(labels, 1)]


def test_fit_detects_whether_pairs_have_scores() -> None:
    scored = Embed().fit(pairs("0", "2.5", "5"))
    assert (scored.scored, scored.lowest, scored.highest, scored.metric) == (True, 0, 5, "spearman")
    assert not Embed().fit(pairs(None, None)).scored
    assert not Embed().fit(pairs("entailment", "entailment")).scored  # positive pairs


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("entailment", "contradiction"), r"pairs:1: the label 'entailment' is not a score, and other pairs"),
        (("1", None), r"pairs:2: no score, but other pairs have one"),
        (("1", "nan"), r"pairs:2: the score 'nan', which is not a finite number, but other pairs have one"),
        (("1", "1"), r"every pair has the score 1"),
    ],
)
def test_fit_refuses_unusable_labels(labels: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Embed().fit(pairs(*labels))


def test_pairs_of_several_classes_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nli.tsv"
    path.write_text("sentence1\tsentence2\tgold_label\na\tb\tneutral\nc\td\tentailment\n")
    with pytest.raises(UserError, match="'neutral' is not a score"):
        Embed().fit(list(Embed().reader.read(path)))


@pytest.mark.parametrize("name", ["label", "score", "similarity", "relatedness_score"])
def test_score_column_is_detected_by_name(tmp_path: Path, name: str) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", name: score} for score in (1.0, 3.5)]
    assert Embed().fit(list(Embed().reader.values(rows))).scored
    path = tmp_path / "pairs.csv"
    path.write_text(f"sentence1,sentence2,{name}\na,b,1.0\nc,d,3.5\n")
    assert [each.label for each in Embed().reader.read(path) if isinstance(each, Example)] == ["1.0", "3.5"]


def test_two_possible_score_columns_are_refused() -> None:
    """Treated as pairs without scores, they would silently train another objective."""
    row = {"sentence_A": "a", "sentence_B": "b", "relatedness_score": "1", "entailment_judgment": "NEUTRAL"}
    with pytest.raises(UsageError, match="more than one column could be the label"):
        list(Embed().reader.values([row]))


def test_dev_pairs_need_scores_if_training_pairs_have_them() -> None:
    with pytest.raises(UserError, match="pairs:1: no score, but the training pairs have scores"):
        Embed(scored=True).validate(pairs(None, None))
    Embed(scored=False).validate(pairs("1", "2"))


def test_spearman_is_the_first_score() -> None:
    """The first score selects the best run if the task's default metric is not among the scores."""
    predictions = [SimilarityPrediction(cosine, (np.zeros(0), np.zeros(0))) for cosine in (0.1, 0.2, 0.9)]
    assert list(Embed().score(predictions, pairs("1", "2", "3"))) == ["spearman", "pearson"]
