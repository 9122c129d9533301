"""Which pairs the `embed` task accepts for training and scoring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertie.base.contracts import Hidden, Sequence, to_tensors
from bertie.base.errors import UsageError, UserError
from bertie.batches.collate import collate
from bertie.examples.texts import Example
from bertie.model.config import TransformerConfig
from bertie.model.encoders.gru import GruConfig
from bertie.model.heads.pooling_head import PoolingHead
from bertie.tasks.embed import Embed
from bertie.tasks.known_positives import with_relation
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
        (("entailment", "contradiction"), r"pairs:1: the label 'entailment' is not a score"),
        (("1", None), r"pairs:2: no score, but other pairs have one"),
        (("1", "nan"), r"pairs:2: the score 'nan', which is not a finite number, but other pairs have one"),
        (("1", "1"), r"every pair has the score 1"),
    ],
)
def test_fit_refuses_unusable_labels(labels: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Embed().fit(pairs(*labels))


def test_a_first_token_that_sees_no_other_is_not_pooled(tiny_config: TransformerConfig) -> None:
    """`bertie embed` would read it, and training the last one."""
    assert Embed(pooling="cls").head(tiny_config, 8).pooling == "cls"
    assert Embed(pooling="lasttoken").head(GruConfig(hidden_size=8), 8).pooling == "lasttoken"
    for causal in (GruConfig(hidden_size=8), replace(tiny_config, causal=True)):
        with pytest.raises(UsageError, match=r'task.pooling is "cls".*the last token.*to "lasttoken" or "mean"'):
            Embed(pooling="cls").head(causal, 8)


def test_dev_pairs_need_scores_if_training_pairs_have_them() -> None:
    with pytest.raises(UserError, match="pairs:1: no score, but the training pairs have scores"):
        Embed(scored=True).validate(pairs(None, None))
    Embed(scored=False).validate(pairs("1", "2"))


def test_spearman_is_the_first_score() -> None:
    """The first score selects the best run if the task's default metric is not among the scores."""
    predictions = [SimilarityPrediction(cosine, (np.zeros(0), np.zeros(0))) for cosine in (0.1, 0.2, 0.9)]
    assert list(Embed().score(predictions, pairs("1", "2", "3"))) == ["spearman", "pearson"]


def test_equal_texts_are_one_candidate() -> None:
    """In evaluation and among negatives. Other partners of the same first text are no negatives."""
    pairs = [("a", "p"), ("b", "p"), ("c", "q"), ("c", "r"), ("d", "q")]
    examples = [Example(first, second, None, f"f:{number}") for number, (first, second) in enumerate(pairs)]
    vectors = {text: np.eye(3, dtype=np.float32)[number] for number, text in enumerate("pqr")}
    found = [SimilarityPrediction(1.0, (vectors[second], vectors[second])) for _, second in pairs]
    assert Embed().score(found, examples) == {"accuracy": 1.0}
    wrong = [SimilarityPrediction(0.0, (vectors["q"], each.vectors[1])) for each in found]
    assert Embed().score(wrong, examples) == {"accuracy": 2 / 5}  # c with q, d with q
    ids = [
        (np.array([ord(text)], np.int32), number, part)
        for number, pair in enumerate(pairs)
        for part, text in enumerate(pair)
    ]
    sequences = with_relation([Sequence(one, one, one > 0, example=number, part=part) for one, number, part in ids])
    masked = Embed().targets(collate(sequences, 8), sequences, np.arange(10)).masked
    contrasted = [{pairs[j][1] for j in range(5) if not masked[i, j]} for i in range(5)]
    assert contrasted == [{"p", "q", "r"}, {"p", "q", "r"}, {"p", "q"}, {"p", "r"}, {"p", "q", "r"}]
    assert [int((~row).sum()) for row in masked] == [3, 3, 2, 2, 3]
    vectors_SD = torch.nn.functional.normalize(torch.randn(10, 4, generator=torch.Generator().manual_seed(3)))
    targets = to_tensors(Embed().targets(collate(sequences, 8), sequences, np.arange(10)))
    loss = PoolingHead("mean")(Hidden(vectors_SD), targets)
    logits = 20 * vectors_SD[::2] @ vectors_SD[1::2].T
    alone = [logits[i][~torch.from_numpy(masked[i])].logsumexp(0) - logits[i, i] for i in range(5)]
    assert float(loss.total) == pytest.approx(float(sum(alone)))
