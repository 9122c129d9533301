"""Which pairs `embed` learns from, and which it refuses."""

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


def test_pairs_with_scores_and_without() -> None:
    scored = Embed().fit(pairs("0", "2.5", "5"))
    assert (scored.scored, scored.lowest, scored.highest, scored.metric) == (True, 0, 5, "spearman")
    assert not Embed().fit(pairs(None, None)).scored
    assert not Embed().fit(pairs("entailment", "entailment")).scored  # all belong together


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("entailment", "contradiction"), r"pairs:1: the label 'entailment' is no score, and others differ"),
        (("1", None), r"pairs:2: no score, where others have one"),
        (("1", "nan"), r"pairs:2: the score 'nan', which is no finite number, where others have one"),
        (("1", "1"), r"every pair has the score 1"),
    ],
)
def test_pairs_that_teach_nothing_or_something_wrong(labels: tuple[str | None, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Embed().fit(pairs(*labels))


def test_classes_of_a_file_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "nli.tsv"
    path.write_text("sentence1\tsentence2\tgold_label\na\tb\tneutral\nc\td\tentailment\n")
    with pytest.raises(UserError, match="'neutral' is no score"):
        Embed().fit(list(Embed().reader.read(path)))


@pytest.mark.parametrize("name", ["label", "score", "similarity", "relatedness_score"])
def test_the_scores_column_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", name: score} for score in (1.0, 3.5)]
    assert Embed().fit(list(Embed().reader.values(rows))).scored
    path = tmp_path / "pairs.csv"
    path.write_text(f"sentence1,sentence2,{name}\na,b,1.0\nc,d,3.5\n")
    assert [each.label for each in Embed().reader.read(path) if isinstance(each, Example)] == ["1.0", "3.5"]


def test_two_columns_that_could_be_the_score() -> None:
    """Taken for pairs without one, they would be trained on something else."""
    row = {"sentence_A": "a", "sentence_B": "b", "relatedness_score": "1", "entailment_judgment": "NEUTRAL"}
    with pytest.raises(UsageError, match="more than one column could be the label"):
        list(Embed().reader.values([row]))


def test_dev_pairs_need_the_scores_that_training_had() -> None:
    with pytest.raises(UserError, match="pairs:1: no score, where the pairs of training have one"):
        Embed(scored=True).validate(pairs(None, None))
    Embed(scored=False).validate(pairs("1", "2"))


def test_spearman_comes_first_whatever_training_had() -> None:
    """The first score is taken where the task's usual one is not among them."""
    said = [SimilarityPrediction(cosine, (np.zeros(0), np.zeros(0))) for cosine in (0.1, 0.2, 0.9)]
    assert list(Embed().score(said, pairs("1", "2", "3"))) == ["spearman", "pearson"]
