"""Measure the gain from pre-training: the same classifier pre-trained, from scratch, and as a bag of words."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie import config as configuration
from bertie import console, storage
from bertie.checkpoints.folder import Checkpoint, read_checkpoint
from bertie.demo.corpus import DemoData
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks.data.texts import Example
from bertie.tasks.metrics import classification_scores, difference, mean_and_interval

RATES = (3e-4, 1e-3, 3e-3)  # a range in which the best rate of both starts is not at an end
START = {False: "pre-trained", True: "from scratch"}


@dataclass(frozen=True)
class Comparison:
    """Accuracies, 0 to 1, of the pre-trained classifier and of the baselines."""

    sweep: dict[str, dict[str, float]]
    """Accuracy on the selection examples, by initial weights and learning rate."""
    accuracy: dict[str, list[float]]
    """Accuracy on the test examples for each seed, by initial weights."""
    bag_of_words: float
    """Accuracy of TF-IDF and logistic regression."""
    majority: float
    """Accuracy of always predicting the most frequent class."""
    epochs: int
    """Epochs of every fine-tuning."""
    examples: dict[str, int]
    """Numbers of examples: train, held back (for selecting the learning rate) and test."""

    @property
    def gain(self) -> tuple[float, float]:
        """Mean accuracy pre-trained minus from scratch, and its standard error."""
        return difference(self.accuracy[START[False]], self.accuracy[START[True]])

    def table(self) -> list[list[Any]]:
        """Return rows of: initial weights or baseline, mean accuracy, accuracy per seed, learning rate."""
        rows: list[list[Any]] = []
        for start, values in self.accuracy.items():
            mean, _, half = mean_and_interval(values)
            rate = max(self.sweep[start], key=lambda rate: self.sweep[start][rate])
            rows.append([start, f"{mean:.3f} ± {half:.3f}", ", ".join(f"{value:.3f}" for value in values), rate])
        rows.append(["bag of words (TF-IDF, logistic regression)", f"{self.bag_of_words:.3f}", "", ""])
        return [*rows, ["most frequent class", f"{self.majority:.3f}", "", ""]]


def compare(data: DemoData, bert: Path, epochs: int, seeds: int, results: Path) -> Comparison:
    """Fine-tune the pre-trained checkpoint and the same model from scratch, and score both.

    Both get the same examples, steps, learning rates and seeds. The learning rate is selected on examples held back
    from training; the test examples select nothing.

    Args:
        data: Examples to train and to test on.
        bert: The pre-trained run.
        epochs: Epochs of every fine-tuning.
        seeds: Number of seeds with the selected learning rate.
        results: A JSON file of the accuracies so far. A second call with the same file resumes.
    """
    accuracies: dict[str, float] = storage.read_json(results) if results.is_file() else {}

    def accuracy_of(name: str, *arguments: Any) -> float:
        if name not in accuracies:
            accuracies[name] = _accuracy(*arguments)
            storage.write_json(results, accuracies)
        bar.advance(1, f"{name}: {accuracies[name]:.3f}")
        return accuracies[name]

    checkpoint = read_checkpoint(bert)
    train, held_back = _hold_back(data.train)
    base = configuration.load(FinetuneConfig, "classify", "finetune")
    base = replace(base, training=replace(base.training, epochs=epochs))
    sweep: dict[str, dict[str, float]] = {}
    accuracy: dict[str, list[float]] = {}
    with console.progress("compare", len(START) * (len(RATES) + seeds), "models") as bar:
        for scratch, start in START.items():
            config = replace(base, from_scratch=scratch)
            sweep[start] = {}
            for rate in RATES:
                arguments = (config, rate, 0, train, held_back, checkpoint)
                sweep[start][f"{rate:g}"] = accuracy_of(f"{start}, rate {rate:g}", *arguments)
            best = max(RATES, key=lambda rate, start=start: sweep[start][f"{rate:g}"])
            accuracy[start] = [
                accuracy_of(f"{start}, seed {seed}", config, best, seed, train, data.test, checkpoint)
                for seed in range(seeds)
            ]
    sizes = {"train": len(train), "held back": len(held_back), "test": len(data.test)}
    return Comparison(sweep, accuracy, bag_of_words(train, data.test), _majority(train, data.test), epochs, sizes)


def _accuracy(
    config: FinetuneConfig, rate: float, seed: int, train: list[Example], dev: list[Example], checkpoint: Checkpoint
) -> float:
    config = replace(config, seed=seed, training=replace(config.training, learning_rate=rate))
    with console.silenced():  # a run from scratch that fails is a result here: no warning
        return finetune(config, train, dev, checkpoint).scores["accuracy"]


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


def bag_of_words(train: list[Example], test: list[Example]) -> float:
    """Return the accuracy of TF-IDF and logistic regression with scikit-learn's defaults."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    gold = [str(example.label) for example in test]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    model.fit([example.text for example in train], [str(example.label) for example in train])
    predicted = [str(label) for label in model.predict([example.text for example in test])]
    return classification_scores(gold, predicted, sorted(set(gold)))["accuracy"]


def _majority(train: list[Example], test: list[Example]) -> float:
    labels = [example.label for example in train]
    most_frequent = max(sorted({str(label) for label in labels}), key=labels.count)
    return sum(example.label == most_frequent for example in test) / len(test)
