"""Dependency parsing from attention (Clark et al. 2019, section 5): probes that name the head of each word.

The attention-only probe learns two weights per attention head k: word j is the head of word i with the probability
p(j | i) ∝ exp(Σ_k w_k α^k_ij + u_k α^k_ji). With vectors, w_k and u_k are linear functions of the word embeddings of i
and j. Each word's head is chosen on its own, so the arcs need not form a tree.

S  sentences    P  places (0 is the root)    K  attention heads of all layers    E  size of the word embeddings
D  hidden size    C  relations    layers  the embeddings and every layer    n  words    M  methods
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bertie.base import seeding
from bertie.inspect.intervals import UnitSums, meaning_of_interval, ratio, resample_alone, with_interval
from bertie.inspect.probes.probe_data import StateScale, WordBatch, universal
from bertie.inspect.tables import Table
from bertie.inspect.treebank import ParsedSentence

NETWORK = 13  # random stream of the purpose INSPECT
ATTENTION, VECTORS, DISTANCES, GOLD = "attention", "attention and vectors", "distances and vectors", "gold heads"
LEARNING_RATES = {ATTENTION: 0.1, VECTORS: 6e-3, DISTANCES: 6e-3, "labels": 6e-3}
HIDDEN, FARTHEST = 128, 20  # hidden size of the baseline network, and its largest distance
ROOT = 0
RIGHT = "right-branching"
OFFSETS = (*range(-5, 0), ROOT, *range(1, 6))
"""Choices: the distance to the head, or 0 for the root of the sentence."""
Property = Callable[[ParsedSentence, int], str]
"""Returns a property of a word."""


@dataclass(frozen=True)
class OffsetBaseline:
    """Names the word at a distance that depends on a property of the word. Outside the sentence, it names the root."""

    key: Property
    """The property that the distance depends on."""
    offsets: dict[str, int]
    """The distance for every value of the property. `default` for others."""
    default: int
    """The distance that is right most often for all words."""

    @classmethod
    def fit(cls, key: Property, sentences: Iterable[ParsedSentence]) -> OffsetBaseline:
        """Choose the distance that is right most often for each value of the property."""
        counts: dict[str, np.ndarray] = {}
        for sentence in sentences:
            for word, head in enumerate(sentence.heads):
                count = counts.setdefault(key(sentence, word), np.zeros(len(OFFSETS), int))
                count += [_target(sentence, word, offset) == head for offset in OFFSETS]
        best = {value: OFFSETS[int(count.argmax())] for value, count in counts.items()}
        total = sum(counts.values(), np.zeros(len(OFFSETS), int))
        return cls(key, best, OFFSETS[int(total.argmax())])

    def predict(self, sentence: ParsedSentence) -> list[int]:
        """Return the head of each word; -1 for the root."""
        offsets = (self.offsets.get(self.key(sentence, word), self.default) for word in range(len(sentence.words)))
        return [_target(sentence, word, offset) for word, offset in enumerate(offsets)]


def _target(sentence: ParsedSentence, word: int, offset: int) -> int:
    target = word + offset
    return target if offset != ROOT and 0 <= target < len(sentence.words) else -1


def baselines(sentences: Many[ParsedSentence]) -> dict[str, OffsetBaseline]:
    """Return the baselines by name. `sentences` choose the distances."""
    keys: dict[str, Property] = {
        "best offset": lambda _, __: "",
        "best offset for the part of speech": lambda sentence, word: sentence.parts_of_speech[word],
        "best offset for the relation": lambda sentence, word: universal(sentence.relations[word]),
    }
    fitted = {name: OffsetBaseline.fit(key, sentences) for name, key in keys.items()}
    return {RIGHT: replace(fitted["best offset"], offsets={}, default=1), **fitted}


class AttentionProbe(nn.Module):
    """Names heads from attention alone: 2 K weights."""

    def __init__(self, heads: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2, heads))

    def forward(self, batch: WordBatch) -> Float[Tensor, "S P P"]:
        to, back = self.weights
        return torch.einsum("k,skij->sij", to, batch.attention) + torch.einsum("k,skji->sij", back, batch.attention)


class AttentionVectorsProbe(nn.Module):
    """Names heads from attention, with weights that depend on the two words: W_k (v_i ⊕ v_j ⊕ 1)."""

    def __init__(self, heads: int, size: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2, 2, size + 1, heads))

    def forward(self, batch: WordBatch) -> Float[Tensor, "S P P"]:
        vectors = F.pad(batch.vectors, (0, 1), value=1.0)
        (to_i, to_j), (back_i, back_j) = torch.einsum("spe,xyek->xyskp", vectors, self.weights).unbind(0)
        attention = batch.attention
        to = ((to_i[..., None] + to_j[:, :, None]) * attention).sum(1)
        return to + ((back_i[:, :, None] + back_j[..., None]) * attention).sum(1).transpose(1, 2)


class DistanceVectorsProbe(nn.Module):
    """The baseline of Clark et al.: a network with one hidden layer that sees two words and their distance, no attention."""

    def __init__(self, size: int, seed: int):
        super().__init__()
        rng = seeding.generator(seed, seeding.INSPECT, NETWORK)

        def drawn(spread: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.as_tensor(rng.normal(0, spread, shape), dtype=torch.float32))

        self.dependent, self.head = drawn(size**-0.5, size, HIDDEN), drawn(size**-0.5, size, HIDDEN)
        self.distance = drawn(1.0, 2 * FARTHEST + 2, HIDDEN)  # the last row is for the root
        self.out = drawn(HIDDEN**-0.5, HIDDEN)

    def forward(self, batch: WordBatch) -> Float[Tensor, "S P P"]:
        place = torch.arange(batch.valid.shape[1], device=batch.valid.device)
        between = (place - place[:, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
        between[:, 0] = 2 * FARTHEST + 1
        dependent, head = batch.vectors @ self.dependent, batch.vectors @ self.head
        hidden = dependent[:, :, None] + head[:, None] + self.distance[between]
        return hidden.relu() @ self.out


class ArcLabeler(nn.Module):
    """Names the relation of an arc from the hidden states of its two words, with a linear classifier for every layer."""

    def __init__(self, scale: StateScale, relations: int):
        super().__init__()
        layers, *_, size = scale.mean.shape
        self.weights = nn.Parameter(torch.zeros(2, layers, size, relations))
        self.bias = nn.Parameter(torch.zeros(layers, 1, relations))
        self.scale = scale

    def forward(
        self, batch: WordBatch, words: Bool[Tensor, "S P"], heads: Int[Tensor, " n"]
    ) -> Float[Tensor, "layers n C"]:
        """Return the logits of the arcs from the places `heads` to the given words."""
        states = self.scale.of(batch)
        sentence = words.nonzero()[:, 0]
        return states[:, words] @ self.weights[0] + states[:, sentence, heads] @ self.weights[1] + self.bias


class DependencyProbes(nn.Module):
    """The probes of Clark et al. and baselines, with labels for their arcs."""

    def __init__(
        self,
        batch: WordBatch,
        scale: StateScale,
        train: Many[ParsedSentence],
        seed: int,
        name: str,
        control: bool = False,
    ):
        """Create the probes.

        Args:
            batch: Any batch, for its sizes.
            scale: Scale of the hidden states.
            train: Training sentences, for the relations and the baselines.
            seed: Random seed of the initial weights.
            name: Name of the model in the tables.
            control: The model is a control: leave out the methods that do not use it.
        """
        super().__init__()
        heads, size = batch.attention.shape[1], batch.vectors.shape[-1]
        self.relations = sorted({universal(relation) for sentence in train for relation in sentence.relations})
        self.probes = nn.ModuleDict({ATTENTION: AttentionProbe(heads), VECTORS: AttentionVectorsProbe(heads, size)})
        if not control:
            self.probes[DISTANCES] = DistanceVectorsProbe(size, seed)
        self.labeler = ArcLabeler(scale, len(self.relations))
        self.baselines: dict[str, OffsetBaseline] = {} if control else baselines(train)
        self.to(batch.valid.device)
        parts = {**dict(self.probes.items()), "labels": self.labeler}
        self.learning_rates = [(list(part.parameters()), LEARNING_RATES[name]) for name, part in parts.items()]
        self.methods = [*self.probes, *self.baselines, GOLD]
        self._name, self._layers = name, len(batch.states)
        self._held_out = np.zeros(self._layers)
        self._answers: list[np.ndarray] = []
        self._labels: list[UnitSums] = []

    def loss(self, batch: WordBatch) -> Tensor:
        """Return the sum of the mean cross-entropies, in nats, of the heads and of the labels in every layer."""
        words = self._with_head(batch)
        heads = batch.heads[words]
        gold = self._gold_labels(batch)[words]
        logits = self.labeler(batch, words, heads)
        count = max(len(heads), 1)
        total = sum(F.cross_entropy(layer, gold, reduction="sum") for layer in logits)
        for probe in self.probes.values():
            scores = _among_candidates(probe(batch), batch)[words]
            total = total + F.cross_entropy(scores, heads, reduction="sum")
        return torch.as_tensor(total) / count

    def hold_out(self, batch: WordBatch) -> None:
        """Count the right labels of gold arcs in every layer, to choose the layer of the labels."""
        self._held_out += self._right_labels(batch).sum(0)

    @property
    def label_layer(self) -> int:
        """The layer with the best labels on held-out sentences."""
        return int(self._held_out.argmax())

    def test(self, batch: WordBatch) -> None:
        """Record for every word and method whether the head is right, and whether the label is, too."""
        words = batch.words
        gold, labels = batch.heads[words], self._gold_labels(batch)[words]
        columns = [batch.sentence_of[words], labels, batch.punctuation[words]]
        for method in self.methods:
            heads = self._predict(method, batch)[words]
            named = self.labeler(batch, words, heads)[self.label_layer].argmax(-1)
            columns += [heads == gold, (heads == gold) & (named == labels)]
        self._answers.append(torch.stack([column.int() for column in columns], 1).cpu().numpy())
        right = self._right_labels(batch)
        numbers = batch.sentence_of[self._with_head(batch)].cpu().numpy()
        self._labels.append(UnitSums.of(numbers, np.insert(right.astype(float), 0, 1, axis=1)))

    def tables(self) -> list[Table]:
        """Return `dependency_probes`, `dependency_relations` and `arc_labels`."""
        answers = np.concatenate(self._answers) if self._answers else np.zeros((0, 3 + 2 * len(self.methods)), int)
        return [self._methods_table(answers), self._relations_table(answers), self._labels_table()]

    def _with_head(self, batch: WordBatch) -> Bool[Tensor, "S P"]:
        """Words whose head has a token, too."""
        return batch.words & batch.valid.gather(1, batch.heads.clamp(min=0))

    def _gold_labels(self, batch: WordBatch) -> Int[Tensor, "S P"]:
        """Return the number of each word's relation; -100, which the loss ignores, if the training data lack it."""
        number = {relation: i for i, relation in enumerate(self.relations)}
        return batch.grid([[number.get(universal(r), -100) for r in s.relations] for s in batch.sentences])

    def _right_labels(self, batch: WordBatch) -> Bool[np.ndarray, "n layers"]:
        words = self._with_head(batch)
        named = self.labeler(batch, words, batch.heads[words]).argmax(-1)
        return (named == self._gold_labels(batch)[words]).T.cpu().numpy()

    def _predict(self, method: str, batch: WordBatch) -> Int[Tensor, "S P"]:
        """Return the place of each word's head; for gold heads, 0 if the head has no token."""
        if method == GOLD:
            return batch.heads.where(self._with_head(batch), 0)
        if method in self.baselines:
            predict = self.baselines[method].predict
            return batch.grid([[head + 1 for head in predict(sentence)] for sentence in batch.sentences])
        return _among_candidates(self.probes[method](batch), batch).argmax(-1)

    def _model_of(self, method: str) -> str:
        """Return the name of the model behind the heads of a method; "" for a baseline."""
        return "" if method in self.baselines else self._name

    def _methods_table(self, answers: Int[np.ndarray, "n columns"]) -> Table:
        counted = np.stack([np.ones(len(answers)), 1 - answers[:, 2]], 1)  # all words, and those but punctuation
        right = counted[:, :, None] * answers[:, None, 3:]
        sums = resample_alone(UnitSums.of(answers[:, 0], np.concatenate([counted, *right.swapaxes(0, 1)], 1)))
        shares = ratio(sums[:, 2:].reshape(len(sums), 2, -1, 2), sums[:, :2, None, None])
        rows = []
        for number, method in enumerate(self.methods):
            row: dict[str, object] = {"model": self._model_of(method), "probe": method}
            row |= {"words": len(answers), "label_layer": self.label_layer}
            for name, samples in zip(_SCORES, shares[:, :, number].reshape(len(sums), -1).T, strict=True):
                row |= with_interval(name, samples)
            rows.append(row)
        return Table.of_rows("dependency_probes", rows, _MEANING)

    def _relations_table(self, answers: Int[np.ndarray, "n columns"]) -> Table:
        counts = Counter(answers[answers[:, 1] >= 0, 1].tolist())
        rows = []
        for relation in sorted(counts, key=lambda r: (-counts[r], r)):
            right = answers[answers[:, 1] == relation, 3::2].mean(0).tolist()
            row = {"relation": self.relations[relation], "words": counts[relation]}
            rows += [
                {"model": self._model_of(method), "probe": method, **row, "uas": share}
                for method, share in zip(self.methods, right, strict=True)
                if method != GOLD
            ]
        return Table.of_rows("dependency_relations", rows, _RELATION_MEANING)

    def _labels_table(self) -> Table:
        sums = resample_alone(UnitSums.join(self._labels, 1 + self._layers))
        rows = [
            {"model": self._name, "layer": layer, **with_interval("accuracy", ratio(right, sums[:, 0]), "")}
            for layer, right in enumerate(sums[:, 1:].T)
        ]
        return Table.of_rows("arc_labels", rows, _LABEL_MEANING)


def _among_candidates(scores: Float[Tensor, "S P P"], batch: WordBatch) -> Float[Tensor, "S P P"]:
    """Exclude the word itself and places without a token."""
    itself = torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    return scores.masked_fill(itself | ~batch.valid[:, None], torch.finfo(scores.dtype).min)


_SCORES = ("uas", "las", "uas_without_punctuation", "las_without_punctuation")
_MODEL = "the model, or an untrained one of the same shape with the word embeddings of the model"
_MEANING = {
    "model": f"{_MODEL}; empty: no model",
    "probe": "method that names the head of each word. The best offset for the relation uses the gold relation",
    "words": "test words, punctuation included",
    "label_layer": "layer whose hidden states give the labels: the best one on held-out training sentences; 0: embeddings",
    "uas": "share of the words whose head is right; the root of a sentence counts (UAS)",
    **meaning_of_interval("uas_"),
    "las": "share of the words whose head is right, and also the relation, without subtypes, that a linear classifier "
    "names from the hidden states of the word and that head (LAS)",
    **meaning_of_interval("las_"),
    "uas_without_punctuation": "the same without words whose relation is punct",
    **meaning_of_interval("uas_without_punctuation_"),
    "las_without_punctuation": "the same without words whose relation is punct",
    **meaning_of_interval("las_without_punctuation_"),
}
_RELATION_MEANING = {
    "model": _MODEL,
    "probe": _MEANING["probe"],
    "relation": "gold relation of the word to its head, without subtypes",
    "words": "test words with this relation",
    "uas": "share of these words whose head is right",
}
_LABEL_MEANING = {
    "model": _MODEL.split(" with")[0],
    "layer": "layer, from 1; 0: the embeddings",
    "accuracy": "share of the gold arcs whose relation, without subtypes, is right",
    **meaning_of_interval(),
}
