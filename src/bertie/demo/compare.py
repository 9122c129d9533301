"""What pre-training was worth: the same classifier from the pre-trained model, from new weights, and a bag of words."""

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

RATES = (3e-4, 1e-3, 3e-3)  # so far apart that neither start does best at an end
START = {False: "pre-trained", True: "from scratch"}


@dataclass(frozen=True)
class Comparison:
    """Accuracies on the test examples, 0 to 1, one a seed; sweep: on held-back training examples, by start and rate."""

    sweep: dict[str, dict[str, float]]
    accuracy: dict[str, list[float]]
    bag_of_words: float
    majority: float
    epochs: int
    examples: dict[str, int]

    @property
    def gain(self) -> tuple[float, float]:
        """Pre-trained minus from scratch, and its standard error."""
        return difference(self.accuracy[START[False]], self.accuracy[START[True]])

    def table(self) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for start, values in self.accuracy.items():
            mean, _, half = mean_and_interval(values)
            rate = max(self.sweep[start], key=lambda rate: self.sweep[start][rate])
            rows.append([start, f"{mean:.3f} ± {half:.3f}", ", ".join(f"{value:.3f}" for value in values), rate])
        rows.append(["bag of words (TF-IDF, logistic regression)", f"{self.bag_of_words:.3f}", "", ""])
        return [*rows, ["always the commonest class", f"{self.majority:.3f}", "", ""]]


def compare(data: DemoData, bert: Path, epochs: int, seeds: int, known: Path) -> Comparison:
    """Fine-tune from the checkpoint and from scratch: a sweep of rates on held-back examples, then every seed on the test.

    Both starts get the same examples, steps, rates and seeds; neither the sweep nor anything else looks at the test.
    known: a JSON file of the accuracies so far, which a call that goes on takes from there.
    """
    found: dict[str, float] = storage.read_json(known) if known.is_file() else {}

    def accuracy_of(name: str, *of: Any) -> float:
        if name not in found:
            found[name] = _accuracy(*of)
            storage.write_json(known, found)
        bar.advance(1, f"{name}: {found[name]:.3f}")
        return found[name]

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
                place = (config, rate, 0, train, held_back, checkpoint)
                sweep[start][f"{rate:g}"] = accuracy_of(f"{start}, rate {rate:g}", *place)
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
    with console.silenced():  # the score says it: learning nothing from scratch is a result here, no trouble
        return finetune(config, train, dev, checkpoint).scores["accuracy"]


def _hold_back(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """To choose the rate by: of every label whole documents, in the order of a hash, while they are under a sixth.

    At least one, the smallest, where a label has several. Where none has, every sixth example.
    """
    sizes: dict[str, Counter[str]] = {}
    for example in examples:
        sizes.setdefault(str(example.label), Counter())[example.source] += 1
    chosen = {(label, source) for label, parts in sizes.items() for source in _a_sixth(parts)}
    held = [(str(example.label), example.source) in chosen for example in examples]
    if not any(held):
        held = [index % 6 == 0 for index in range(len(examples))]
    kept = [example for example, out in zip(examples, held, strict=True) if not out]
    return kept, [example for example, out in zip(examples, held, strict=True) if out]


def _a_sixth(parts: Counter[str]) -> set[str]:
    """Some of a label's documents; parts: their numbers of examples."""
    chosen: Counter[str] = Counter()
    for source in sorted(parts, key=lambda source: hashlib.sha256(source.encode()).digest()):
        if chosen.total() + parts[source] <= parts.total() / 6:
            chosen[source] = parts[source]
    return set(chosen) or ({min(parts, key=lambda source: (parts[source], source))} if len(parts) > 1 else set())


def bag_of_words(train: list[Example], test: list[Example]) -> float:
    """Accuracy of TF-IDF and logistic regression, scikit-learn's defaults."""
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
    commonest = max(sorted({str(label) for label in labels}), key=labels.count)
    return sum(example.label == commonest for example in test) / len(test)
