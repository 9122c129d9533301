"""Reranking, and calls from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_models import model_of, saved

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.predict.predictor import Predictor
from bertie.tasks import Classify, Regress
from bertie.tasks.relevance import relevance
from bertie.tokenizers.tokenizer import Tokenizer

TASKS = {
    "classify": Classify(labels=("no", "yes"), paired=True),
    "regress": Regress(paired=True),
}


@pytest.fixture(params=TASKS)
def cross_encoder(
    request: pytest.FixtureRequest, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> Predictor:
    task = TASKS[request.param]
    purpose = {"kind": task.kind, "paired": True, "max_length": 64}
    purpose |= {"labels": list(task.labels)} if task.labels else {}
    return saved(tmp_path, model_of(tiny_config, task, seed=2), small_tokenizer, purpose)


def test_a_model_for_pairs_reads_the_query_with_each_text(cross_encoder: Predictor, small_texts: list[str]) -> None:
    query, texts = small_texts[0][:40], [text[:50] for text in small_texts[:6]]
    found = cross_encoder.rerank(query, texts)
    each = [cross_encoder.predict([(query, text)])[0] for text in texts]
    expected = [one.score if isinstance(cross_encoder.task, Regress) else one.probabilities["yes"] for one in each]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(set(found.tolist())) == len(texts)


def test_other_models_rerank_by_cosine(predictor: Predictor, small_texts: list[str]) -> None:
    texts = small_texts[:5]
    np.testing.assert_array_equal(predictor.rerank(texts[1], texts), predictor.similarity([texts[1]], texts)[0])
    assert predictor.rerank(texts[1], texts).argmax() == 1
    assert predictor.rerank("a", []).shape == (0,)


def test_the_relevant_class_must_be_clear() -> None:
    task = TASKS["classify"]
    with pytest.raises(UsageError, match="the label 'maybe' is none of the classes"):
        relevance(task, "maybe")
    for labels in (("red", "green"), ("neutral", "entailment", "contradiction")):
        with pytest.raises(UsageError, match="name the class"):
            relevance(replace(task, labels=labels))
    with pytest.raises(UsageError, match="has no classes"):
        relevance(Regress(), "yes")
    assert relevance(replace(task, paired=False)) is None
    assert relevance(Regress(paired=False)) is None
    assert relevance(None) is None


def test_threads_get_the_results_of_one_thread(predictor: Predictor, small_texts: list[str]) -> None:
    """Each thread mixes methods, so that all of them run at the same time."""
    masked = [text[:30] + " [MASK] " + text[30:60] for text in small_texts[:8]]

    def work(number: int) -> list[np.ndarray]:
        texts = small_texts[number : number + 5]
        return [
            predictor.embed(texts),
            predictor.rerank(texts[0], texts),
            predictor.pseudo_log_likelihood([texts[0][:40]]),
            np.array([guess.probability for guess in predictor.fill_mask(masked[number])[0]]),
            predictor.hidden_states(texts[:2])[1],
            predictor.next_sentence([(texts[0][:40], texts[1][:40])]),
        ]

    expected = [work(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for found, wanted in zip(pool.map(work, range(8)), expected, strict=True):
            for mine, reference in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(mine, reference)
