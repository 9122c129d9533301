"""Texts that are read in several windows count as one example."""

from __future__ import annotations

import numpy as np
import pytest

from bertie.examples.texts import Example
from bertie.tasks import Classify, Regress
from bertie.tasks.encoding import example_weights
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.mark.parametrize(
    "task",
    [Classify(labels=("0", "1"), truncation="windows", doc_stride=3), Regress(truncation="windows", doc_stride=3)],
)
def test_window_logits_are_averaged_and_weights_of_an_example_sum_to_one(
    task: Classify | Regress, small_tokenizer: Tokenizer, small_texts: list[str]
) -> None:
    texts = [small_texts[0][:200], small_texts[1][:8], small_texts[2][:90]]
    examples = [Example(text, None, "1", f"e:{number}") for number, text in enumerate(texts)]
    sequences = task.encode(examples, small_tokenizer, 16)
    windows = np.bincount([sequence.example for sequence in sequences])
    assert windows[0] > windows[2] > windows[1] == 1
    weights = example_weights(sequences)
    for number in range(3):
        own = [weight for weight, sequence in zip(weights, sequences, strict=True) if sequence.example == number]
        assert sum(own) == pytest.approx(1)
        assert max(own) == min(own)
    outputs = [np.random.default_rng(i).normal(size=(1, 2)).astype(np.float32) for i in range(len(sequences))]
    outputs = [each[:, :1] for each in outputs] if isinstance(task, Regress) else outputs
    found = task.decode(outputs, sequences, examples)
    for number, prediction in enumerate(found):
        own = [row[0] for row, sequence in zip(outputs, sequences, strict=True) if sequence.example == number]
        mean = np.mean(own, axis=0)
        if isinstance(task, Regress):
            assert prediction.score == pytest.approx(float(mean[0]), abs=1e-6)
        else:
            odds = prediction.probabilities["1"] / prediction.probabilities["0"]
            assert odds == pytest.approx(float(np.exp(mean[1] - mean[0])), rel=1e-5)
