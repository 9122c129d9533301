"""Data of the probes: words of a treebank with their hidden states in all layers, and the attention between them.

Everything is computed batch by batch, again in every epoch. Only words and trees are kept for the whole treebank.

A *place* is a word or the root: place 0 is the first special token, such as [CLS], which stands for the root, and place
w + 1 is word w, from 0.

S  sentences of a batch    P  places of the longest one    L  tokens of the longest one    K  heads of all layers
layers  the embeddings and every layer    D  hidden size    E  size of the word embeddings
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bertie.base import seeding
from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.inspect.attention import Group, observed, require_transformer
from bertie.inspect.treebank import ParsedSentence
from bertie.inspect.words import WordGrid, encode_words
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

ORDER, SCALE = 10, 11  # random streams of the purpose INSPECT
TRAIN_TOKENS = 512  # tokens of a batch in training: about 20 sentences, the batch of Hewitt & Manning
TEST_TOKENS = 2048
PLACE_PAIRS = 1 << 16  # bounds the attention of a batch: at most this many pairs of places (or one sentence), × K
POOL = 32  # batches whose sentences are sorted by length together
SCALE_SENTENCES = 200  # sentences from which the scale of the hidden states is estimated


@dataclass(frozen=True, eq=False)
class EncodedTreebank:
    """The sentences of a treebank that a model can read."""

    sentences: list[ParsedSentence]
    """The sentences."""
    sequences: list[Sequence]
    """Their tokens. Column 0 of `offsets` is the place of each token, -1 for the last special token."""
    too_long: int
    """Sentences left out, because they have more tokens than the model reads."""
    not_trees: int
    """Sentences left out, because their arcs are not a tree with one root."""
    without_tokens: int
    """Words of `sentences` without a token, because the tokenizer drops punctuation."""

    @classmethod
    def of(cls, sentences: Many[ParsedSentence], tokenizer: Tokenizer, max_length: int) -> EncodedTreebank:
        """Encode the words of sentences."""
        trees = [sentence for sentence in sentences if sentence.is_tree]
        encoded = encode_words(tokenizer, [sentence.words for sentence in trees], max_length)
        kept = [trees[sequence.example] for sequence in encoded.sequences]
        sequences = [_with_places(sequence) for sequence in encoded.sequences]
        return cls(kept, sequences, encoded.too_long, len(sentences) - len(trees), encoded.without_tokens)


def universal(relation: str) -> str:
    """Return a relation without its subtype: "nmod" of "nmod:poss"."""
    return relation.split(":")[0]


def _with_places(sequence: Sequence) -> Sequence:
    assert sequence.offsets is not None
    offsets = sequence.offsets.copy()
    first = 0 if offsets[0, 0] < 0 else -1  # XLNet has its <cls> at the end
    offsets[offsets[:, 0] >= 0, 0] += 1
    if offsets[first, 0] < 0:
        offsets[first, 0] = 0
    return replace(sequence, offsets=offsets)


@dataclass(frozen=True, eq=False)
class WordBatch:
    """Sentences with what a model computes for their words."""

    sentences: list[ParsedSentence]
    """The sentences."""
    numbers: list[int]
    """Their numbers in the treebank."""
    valid: Bool[Tensor, "S P"]
    """False for words without a token and past the end of a sentence."""
    states: Float[Tensor, "layers S P D"]
    """Hidden states: the mean over the tokens of a word."""
    attention: Float[Tensor, "S K P P"]
    """Attention from place to place: the sum to the tokens of a word, the mean from them."""
    vectors: Float[Tensor, "S P E"]
    """Word embeddings, the same in every context: the mean over the tokens of a word."""

    @property
    def words(self) -> Bool[Tensor, "S P"]:
        """Whether a place is a word with a token: not the root."""
        return self.valid & (torch.arange(self.valid.shape[1], device=self.valid.device) > 0)

    @cached_property
    def heads(self) -> Int[Tensor, "S P"]:
        """Place of each word's head: 0 for the root of the sentence, -1 for place 0 and past the end."""
        return self.grid([[head + 1 for head in sentence.heads] for sentence in self.sentences])

    @cached_property
    def punctuation(self) -> Bool[Tensor, "S P"]:
        """Whether a word has the relation `punct`."""
        return self.grid([[universal(r) == "punct" for r in s.relations] for s in self.sentences]) > 0

    @cached_property
    def sentence_of(self) -> Int[Tensor, "S P"]:
        """Number of each place's sentence in the treebank."""
        numbers = torch.tensor(self.numbers, device=self.valid.device)
        return numbers[:, None].expand(self.valid.shape)

    def grid(self, values: Many[Many[int]]) -> Int[Tensor, "S P"]:
        """Arrange a number per word as the places of the batch, with -1 elsewhere."""
        grid = np.full(tuple(self.valid.shape), -1)
        for row, sentence in zip(grid, values, strict=True):
            row[1 : len(sentence) + 1] = sentence
        return torch.as_tensor(grid, device=self.valid.device)


ReadVectors = Callable[[list[int], int], Float[Tensor, "S P E"]]
"""Returns the vectors of some sentences, given by their numbers, for so many places. 0 where a word has no token."""


def treebank_vectors(model: Model, treebank: EncodedTreebank) -> ReadVectors:
    """Return a function that reads the word embeddings of a model for the words of a treebank, with a mean square of 1.

    Args:
        model: The model.
        treebank: The sentences, in the tokens of that model.

    Raises:
        UserError: The model computes its word embeddings from characters.
    """
    word = getattr(model.encoder.embeddings, "word", None)
    if not isinstance(word, nn.Embedding):
        raise UserError("the vectors of the words come from characters: give a model with word embeddings")
    table = word.weight.detach().float()
    scale = float(table.square().mean().sqrt().clamp(min=1e-30))

    def read(numbers: list[int], places: int) -> Float[Tensor, "S P E"]:
        group = _group([treebank.sequences[number] for number in numbers], numbers, table.device)
        return WordGrid.of(group, places).mean @ table[group.input_ids.clamp(min=0)] / scale

    return read


class WordReader:
    """Computes the hidden states and the attention of a model for the words of a treebank."""

    def __init__(self, model: Model, treebank: EncodedTreebank, vectors: ReadVectors):
        """Prepare the reading. `vectors` reads the same sentences, perhaps with another model."""
        self._model = model.eval()
        self._encoder = require_transformer(model.encoder)
        self._vectors = vectors
        self.treebank = treebank

    def read(self, numbers: list[int]) -> WordBatch:
        """Read some sentences of the treebank together."""
        sentences = [self.treebank.sentences[number] for number in numbers]
        group = _group([self.treebank.sequences[number] for number in numbers], numbers, self._model.device)
        places = 1 + max(len(sentence.words) for sentence in sentences)
        grid = WordGrid.of(group, places)
        attention: list[Tensor] = []
        with torch.no_grad():
            with observed(self._encoder, lambda _, probabilities: attention.append(grid.merge(probabilities))):
                hidden = self._encoder(group.batch, all_layers=True)
            rows = group.padding.rows
            states = torch.stack([grid.mean @ layer[rows].float() for layer in hidden.layers or ()])
            vectors = self._vectors(numbers, places)
        return WordBatch(sentences, numbers, grid.valid, states, torch.cat(attention, 1), vectors)

    def batches(self, numbers: Many[int], tokens: int = TEST_TOKENS) -> Iterator[WordBatch]:
        """Read sentences in batches of similar length, longest first."""
        for batch in self._cut(sorted(numbers, key=self._length, reverse=True), tokens):
            yield self.read(batch)

    def shuffled(self, numbers: Many[int], seed: int, epoch: int) -> list[list[int]]:
        """Return the sentences of the batches of an epoch, in random order. Sentences of a batch have similar lengths."""
        rng = seeding.generator(seed, seeding.INSPECT, ORDER, epoch)
        order = [numbers[i] for i in rng.permutation(len(numbers)).tolist()]
        sizes = np.cumsum([self._length(number) for number in order]) // (POOL * TRAIN_TOKENS)
        starts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(order)]
        batches = [
            batch
            for start, end in pairwise(starts)
            for batch in self._cut(sorted(order[start:end], key=self._length, reverse=True), TRAIN_TOKENS)
        ]
        return [batches[i] for i in rng.permutation(len(batches)).tolist()]

    def _length(self, number: int) -> int:
        return len(self.treebank.sequences[number])

    def _cut(self, numbers: Many[int], tokens: int) -> list[list[int]]:
        """Cut sentences, longest first, into batches."""
        batches: list[list[int]] = []
        most = 0
        for number in numbers:
            if not batches or len(batches[-1]) == most:
                places = len(self.treebank.sentences[number].words) + 1
                most = max(1, min(tokens // self._length(number), PLACE_PAIRS // places**2))
                batches.append([])
            batches[-1].append(number)
        return batches


@dataclass(frozen=True, eq=False)
class StateScale:
    """Mean and standard deviation of the hidden states of words, for probes that start from a common scale."""

    mean: Float[Tensor, "layers 1 1 D"]
    """The mean."""
    deviation: Float[Tensor, "layers 1 1 D"]
    """The standard deviation; 1 where it is 0."""

    def of(self, batch: WordBatch) -> Float[Tensor, "layers S P D"]:
        """Return the hidden states of a batch on the common scale."""
        return (batch.states - self.mean) / self.deviation

    @classmethod
    def estimate(cls, reader: WordReader, numbers: Many[int], seed: int) -> StateScale:
        """Estimate the scale from a sample of sentences."""
        rng = seeding.generator(seed, seeding.INSPECT, SCALE)
        sample = [numbers[i] for i in rng.permutation(len(numbers))[:SCALE_SENTENCES].tolist()]
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for batch in reader.batches(sample):
            words = batch.states[:, batch.words].double()
            count += words.shape[1]
            total, squares = total + words.sum(1), squares + words.square().sum(1)
        mean = total / max(count, 1)
        deviation = (squares / max(count, 1) - mean.square()).clamp(min=0).sqrt()
        tiny = 1e-6 * deviation.amax(-1, keepdim=True)
        deviation = torch.where(deviation > tiny, deviation, 1.0)
        return cls(mean[:, None, None].float(), deviation[:, None, None].float())


def _group(sequences: list[Sequence], numbers: list[int], device: torch.device) -> Group:
    return Group(sequences, numbers, collate(sequences, max(map(len, sequences))).tensors(device))
