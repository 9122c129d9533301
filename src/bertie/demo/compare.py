"""Measure the gain from pre-training: the same classifier pre-trained, from scratch, and as a bag of words."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from bertie.base import config as configuration
from bertie.base import console, storage
from bertie.corpus.executors import Executor, LocalExecutor
from bertie.demo.corpus import DemoData
from bertie.examples.texts import Example
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks.metrics import mean_and_interval

RATES = (1e-3, 2e-3)
START = {False: "pre-trained", True: "from scratch"}
BAG_OF_WORDS = "bag of words"


@dataclass(frozen=True)
class Comparison:
    """Accuracies, 0 to 1, of the pre-trained classifier and of the baselines."""

    sweep: dict[str, dict[str, float]]
    """Accuracy on the selection examples, by initial weights and learning rate."""
    correct: dict[str, list[list[bool]]]
    """Which test examples are right, [seeds][examples], by initial weights; for the bag of words, as a single seed."""
    majority: float
    """Accuracy of always predicting the most frequent class."""
    epochs: int
    """Epochs of every fine-tuning."""
    examples: dict[str, int]
    """Numbers of examples: train, held back (for selecting the learning rate) and test."""

    @property
    def accuracy(self) -> dict[str, list[float]]:
        """Accuracy on the test examples for each seed, by initial weights."""
        return {start: np.mean(self.correct[start], axis=1).tolist() for start in START.values()}

    @property
    def bag_of_words(self) -> float:
        """Accuracy of TF-IDF and logistic regression."""
        return float(np.mean(self.correct[BAG_OF_WORDS]))

    def gain(self, baseline: str) -> tuple[float, float, float]:
        """Return the mean accuracy pre-trained minus the accuracy of a baseline, its standard error, and half its 95 % interval.

        The error covers other seeds and other test sentences, for which both sides are compared sentence by
        sentence. The interval is Student's t, since there are few seeds; degrees of freedom of Welch and Satterthwaite.
        """
        from scipy import stats

        sides = [np.array(self.correct[name], float) for name in (START[False], baseline)]
        per_example = sides[0].mean(0) - sides[1].mean(0)
        samples = [per_example, *(side.mean(1) for side in sides if len(side) > 1)]
        squares = np.array([sample.var(ddof=1) / len(sample) for sample in samples])
        error = math.sqrt(squares.sum())
        if not error:
            return float(per_example.mean()), 0.0, 0.0
        freedom = squares.sum() ** 2 / sum(
            square**2 / (len(sample) - 1) for square, sample in zip(squares, samples, strict=True)
        )
        return float(per_example.mean()), error, float(stats.t.ppf(0.975, freedom)) * error

    def table(self) -> list[list[Any]]:
        """Return rows of: initial weights or baseline, mean accuracy, accuracy per seed, learning rate."""
        rows: list[list[Any]] = []
        for start, values in self.accuracy.items():
            rate = max(self.sweep[start], key=lambda rate: self.sweep[start][rate])
            rows.append([start, interval(values), ", ".join(f"{value:.3f}" for value in values), rate])
        rows.append(["bag of words (TF-IDF, logistic regression)", f"{self.bag_of_words:.3f}", "", ""])
        return [*rows, ["most frequent class", f"{self.majority:.3f}", "", ""]]


def interval(values: list[float]) -> str:
    """Return mean and 95 % confidence interval over seeds, or the mean alone: two seeds give no useful interval."""
    mean, half = mean_and_interval(values)
    return f"{mean:.3f} ± {half:.3f}" if len(values) > 2 else f"{mean:.3f}"


def compare(
    data: DemoData, bert: Path, epochs: int, seeds: int, results: Path, executor: Executor = LocalExecutor()
) -> Comparison:
    """Fine-tune the pre-trained checkpoint and the same model from scratch, and score both.

    Both get the same examples, steps, learning rates and seeds. The learning rate is selected with the first seed, on
    examples held back from training; the test examples select nothing.

    Args:
        data: Examples to train and to test on.
        bert: The pre-trained run.
        epochs: Epochs of every fine-tuning.
        seeds: Number of seeds with the selected learning rate.
        results: A JSON file of the results so far. A second call with the same file resumes.
        executor: Where to fine-tune. Each model has one thread, because it is too small to gain much from a second one.
    """
    done: dict[str, list[bool]] = storage.read_json(results) if results.is_file() else {}
    train, held_back = _hold_back(data.train)
    settings = {"extends": "classify", "task": {"pooling": "mean"}, "training": {"epochs": epochs}}
    # Without dropout: the models see every sentence only a few times.
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    base = configuration.load(FinetuneConfig, settings, "finetune")
    right = partial(_right, train, held_back, data.test, bert)

    def run(models: list[_Model]) -> dict[_Model, list[bool]]:
        missing = [model for model in models if model.name not in done]
        bar.advance(len(models) - len(missing))
        with closing(executor.run(right, [model.config(base) for model in missing])) as outcomes:
            for model, outcome in zip(missing, outcomes, strict=True):
                done[model.name] = outcome
                storage.write_json(results, done)
                bar.advance(1, f"{model.name}: {fmean(outcome[len(held_back) :]):.3f}")
        return {model: done[model.name] for model in models}

    with console.progress("compare", len(START) * (len(RATES) + seeds - 1), "models") as bar:
        first = run([_Model(scratch, rate, 0) for scratch in START for rate in RATES])
        selected = {model: fmean(outcome[: len(held_back)]) for model, outcome in first.items()}
        best = {
            scratch: max(RATES, key=lambda rate, scratch=scratch: selected[_Model(scratch, rate, 0)])
            for scratch in START
        }
        others = run([_Model(scratch, best[scratch], seed) for scratch in START for seed in range(1, seeds)])
    outcomes = first | others
    sweep = {
        start: {f"{rate:g}": selected[_Model(scratch, rate, 0)] for rate in RATES} for scratch, start in START.items()
    }
    correct = {
        start: [outcomes[_Model(scratch, best[scratch], seed)][len(held_back) :] for seed in range(seeds)]
        for scratch, start in START.items()
    }
    correct[BAG_OF_WORDS] = [bag_of_words(train, data.test)]
    sizes = {"train": len(train), "held back": len(held_back), "test": len(data.test)}
    return Comparison(sweep, correct, _majority(train, data.test), epochs, sizes)


class _Model(NamedTuple):
    """A model to fine-tune."""

    scratch: bool
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{START[self.scratch]}, rate {self.rate:g}, seed {self.seed}"

    def config(self, base: FinetuneConfig) -> FinetuneConfig:
        training = replace(base.training, learning_rate=self.rate)
        return replace(base, from_scratch=self.scratch, seed=self.seed, training=training)


def _right(
    train: list[Example], held_back: list[Example], test: list[Example], bert: Path, config: FinetuneConfig
) -> list[bool]:
    """Fine-tune, and return which of the examples held back and to test on, in this order, the classifier gets right."""
    examples = held_back + test
    with console.silenced():  # a run from scratch that fails is a result here: no warning
        tuned = finetune(config, train, bert, dev=held_back, threads=1)
        predictions = tuned.predict([{"text": example.text} for example in examples])
    return [prediction.label == example.label for prediction, example in zip(predictions, examples, strict=True)]


def _hold_back(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Split off about a sixth of the examples, to select the learning rate.

    Whole documents of every label are held back, in the order of a hash; at least the smallest one of a label with
    several documents. If no label has several documents, every sixth example is held back.

    Returns:
        The examples to train on, and those held back.
    """
    sizes: dict[str, Counter[str]] = {}
    for example in examples:
        sizes.setdefault(str(example.label), Counter())[example.source] += 1
    chosen = {(label, source) for label, documents in sizes.items() for source in _a_sixth(documents)}
    is_held_back = [(str(example.label), example.source) in chosen for example in examples]
    if not any(is_held_back):
        is_held_back = [index % 6 == 0 for index in range(len(examples))]
    train = [example for example, held in zip(examples, is_held_back, strict=True) if not held]
    return train, [example for example, held in zip(examples, is_held_back, strict=True) if held]


def _a_sixth(sizes: Counter[str]) -> set[str]:
    """Choose documents of a label with a sixth of its examples or less. sizes: examples per document."""
    chosen: Counter[str] = Counter()
    for source in sorted(sizes, key=lambda source: hashlib.sha256(source.encode()).digest()):
        if chosen.total() + sizes[source] <= sizes.total() / 6:
            chosen[source] = sizes[source]
    return set(chosen) or ({min(sizes, key=lambda source: (sizes[source], source))} if len(sizes) > 1 else set())


def bag_of_words(train: list[Example], test: list[Example]) -> list[bool]:
    """Return which examples TF-IDF and logistic regression get right, with scikit-learn's defaults."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    model.fit([example.text for example in train], [str(example.label) for example in train])
    predicted = model.predict([example.text for example in test])
    return [str(label) == example.label for label, example in zip(predicted, test, strict=True)]


def _majority(train: list[Example], test: list[Example]) -> float:
    labels = [example.label for example in train]
    most_frequent = max(sorted({str(label) for label in labels}), key=labels.count)
    return sum(example.label == most_frequent for example in test) / len(test)
