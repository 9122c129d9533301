"""Linear probes for parts of speech and relations in every layer, with control tasks (Hewitt & Liang 2019).

A control task has the same labels, drawn at random for every word type. A probe can only learn it by heart. Selectivity is
the accuracy of the task minus the accuracy of its control task.

S  sentences    P  places    D  hidden size    C  labels    layers  the embeddings and every layer    n  words
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base import seeding
from bertie.inspect.intervals import UnitSums, meaning_of_interval, ratio, resample_alone, with_interval
from bertie.inspect.probes.probe_data import StateScale, WordBatch, universal
from bertie.inspect.tables import Table
from bertie.inspect.treebank import ParsedSentence

CONTROL = 14  # random stream of the purpose INSPECT
LEARNING_RATE = 6e-3
UNKNOWN = -100  # a label that the loss ignores
MISSING = "_"  # an empty field in CoNLL-U
PART_OF_SPEECH, RELATION = "part of speech", "relation"
_LABELS: dict[str, Callable[[ParsedSentence], list[str]]] = {
    PART_OF_SPEECH: lambda sentence: list(sentence.parts_of_speech),
    RELATION: lambda sentence: [universal(relation) for relation in sentence.relations],
}


@dataclass(frozen=True, eq=False)
class ProbeTask:
    """A task: a label for every word."""

    name: str
    """Its name."""
    labels: list[str]
    """The labels in the training data, sorted."""
    majority: int
    """The most frequent one in the training data."""
    of_type: dict[str, int]
    """The most frequent label of each word type in the training data."""
    control: dict[str, int]
    """A random label for every word type in the training and test data, drawn from the frequencies of the labels."""

    @classmethod
    def of(cls, name: str, train: Many[ParsedSentence], test: Many[ParsedSentence], seed: int) -> ProbeTask | None:
        """Define a task by its training data; None if no word has a label."""
        counts: dict[str, Counter[str]] = {}
        for sentence in train:
            for word, label in zip(sentence.words, _LABELS[name](sentence), strict=True):
                if label != MISSING:
                    counts.setdefault(word, Counter())[label] += 1
        total = sum(counts.values(), Counter[str]())
        if not total:
            return None
        labels = sorted(total)
        number = {label: i for i, label in enumerate(labels)}
        frequency = np.array([total[label] for label in labels], float)
        types = sorted({word for sentence in (*train, *test) for word in sentence.words})
        rng = seeding.generator(seed, seeding.INSPECT, CONTROL, sorted(_LABELS).index(name))
        drawn = rng.choice(len(labels), len(types), p=frequency / frequency.sum()).tolist()
        best = {word: number[min(n, key=lambda label: (-n[label], label))] for word, n in counts.items()}
        return cls(name, labels, int(frequency.argmax()), best, dict(zip(types, drawn, strict=True)))

    def gold(self, sentence: ParsedSentence) -> list[int]:
        """Return the label of each word: UNKNOWN if training has no such label, and also for a missing one."""
        number = {label: i for i, label in enumerate(self.labels)}
        return [number.get(label, UNKNOWN) for label in _LABELS[self.name](sentence)]

    def control_gold(self, sentence: ParsedSentence) -> list[int]:
        """Return the random label of each word; UNKNOWN where the task has no label."""
        return [
            UNKNOWN if label == MISSING else self.control[word]
            for word, label in zip(sentence.words, _LABELS[self.name](sentence), strict=True)
        ]


class LayerProbes(nn.Module):
    """A linear classifier for every layer, task and control task."""

    def __init__(self, scale: StateScale, tasks: Many[ProbeTask], name: str):
        """Create the classifiers.

        Args:
            scale: Scale of the hidden states.
            tasks: The tasks.
            name: Name of the model in the table.
        """
        super().__init__()
        layers, *_, size = scale.mean.shape
        self.tasks = tasks
        self.weights = nn.ParameterList(torch.zeros(2, layers, size, len(task.labels)) for task in tasks)
        self.biases = nn.ParameterList(torch.zeros(2, layers, 1, len(task.labels)) for task in tasks)
        self.scale = scale
        self.to(scale.mean.device)
        self.learning_rates = [(list(self.parameters()), LEARNING_RATE)]
        self._name, self._layers = name, layers
        self._sums: list[list[UnitSums]] = [[] for _ in tasks]  # words, majority, usual label, then each layer twice

    def logits(self, task: int, batch: WordBatch) -> Float[Tensor, "2 layers n C"]:
        """Return the logits of all words, for a task and its control task."""
        states = self.scale.of(batch)[:, batch.words]
        return states @ self.weights[task] + self.biases[task]

    def loss(self, batch: WordBatch) -> Tensor:
        """Return the sum of the mean cross-entropies, in nats."""
        total = torch.zeros((), device=batch.valid.device)
        for number, task in enumerate(self.tasks):
            for layers, gold in zip(self.logits(number, batch), self._gold(task, batch), strict=True):
                count = (gold != UNKNOWN).sum().clamp(min=1)
                losses = [F.cross_entropy(logits, gold, ignore_index=UNKNOWN, reduction="sum") for logits in layers]
                total = total + torch.stack(losses).sum() / count
        return total

    def test(self, batch: WordBatch) -> None:
        """Count the right labels of every sentence."""
        sentence = batch.sentence_of[batch.words].cpu().numpy()
        for number, task in enumerate(self.tasks):
            gold, control = self._gold(task, batch)
            named = self.logits(number, batch).argmax(-1)
            right = torch.cat([named[0] == gold, named[1] == control]).T
            usual = batch.grid([[task.of_type.get(w, task.majority) for w in s.words] for s in batch.sentences])
            labeled = control != UNKNOWN  # also with a label that training lacks
            columns = [labeled[:, None], (gold == task.majority)[:, None], (gold == usual[batch.words])[:, None], right]
            terms = torch.cat(columns, 1)[labeled].double().cpu().numpy()
            self._sums[number].append(UnitSums.of(sentence[labeled.cpu().numpy()], terms))

    def tables(self) -> list[Table]:
        """Return `layer_probes`, with a row for every task and layer."""
        rows: list[dict[str, object]] = []
        for task, parts in zip(self.tasks, self._sums, strict=True):
            sums = resample_alone(UnitSums.join(parts, 3 + 2 * self._layers))
            _, majority, usual, *right = ratio(sums, sums[:, :1]).T
            row: dict[str, object] = {"model": self._name, "task": task.name, "labels": len(task.labels)}
            row |= {"words": int(sums[0, 0]), "majority": majority[0], "usual_label": usual[0]}
            for layer, (accuracy, control) in enumerate(zip(right[: self._layers], right[self._layers :], strict=True)):
                scores = with_interval("accuracy", accuracy, "") | with_interval(
                    "control_accuracy", control, "control_"
                )
                rows.append({**row, "layer": layer, **scores, **with_interval("selectivity", accuracy - control)})
        return [Table.of_rows("layer_probes", rows, _MEANING)]

    def _gold(self, task: ProbeTask, batch: WordBatch) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        kinds = (task.gold, task.control_gold)
        grids = [batch.grid([kind(sentence) for sentence in batch.sentences])[batch.words] for kind in kinds]
        return grids[0], grids[1]


_MEANING = {
    "model": "the model, or an untrained one of the same shape",
    "task": "label that is predicted for each word: its universal part of speech, or its relation to its head without subtypes",
    "layer": "layer, from 1; 0: the embeddings",
    "words": "test words with a label, punctuation included",
    "labels": "number of labels in the training data",
    "accuracy": "share of the words whose label is right",
    **meaning_of_interval(),
    "control_accuracy": "accuracy of the control task: random labels, one for every word type",
    **meaning_of_interval("control_"),
    "selectivity": "accuracy minus accuracy of the control task",
    **meaning_of_interval("selectivity_"),
    "majority": "accuracy of the most frequent label",
    "usual_label": "accuracy of the most frequent label of each word type in the training data",
}
