"""How well single heads find the head of a word in a dependency tree (Clark et al. 2019, section 4.2).

Each attention head names, for every word, one other word of the sentence as its syntactic head:

- "dependent to head": the word that the dependent attends to most;
- "head to dependent": the word that attends most to the dependent.

[CLS], [SEP] and the word itself are excluded. Punctuation is treated as in the paper's code: it may be named, and it counts
in `all`. The root of a sentence has no head and is left out; the paper's code counts it as wrong in `all`.

S  sequences of a group    W  words of the longest one    N  heads of a layer    n  words of a group that have a head
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bertie.inspect.attention import Group, head_names
from bertie.inspect.best_heads import Answers, BestColumns, best_table, find_best
from bertie.inspect.tables import Table
from bertie.inspect.treebank import ParsedSentence
from bertie.inspect.words import EncodedWords, WordGrid
from bertie.model.transformer import TransformerEncoder

DIRECTIONS = ("dependent to head", "head to dependent")
OFFSETS = np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5])
"""Distances of the baseline, which names the word at a fixed distance: -2 is the second word to the left."""
ALL, ALL_BUT_PUNCTUATION = "all", "all but punct"
POSSESSOR, MARKED = "nmod:poss", " ('s)"
"""The relation of possessors, and the ending of its name where the attention of a marker "'s" counts instead of that of the
word before it, as in the paper."""


@dataclass(frozen=True, eq=False)
class _Block:
    """Sentences that are read together, and the words whose head is asked for."""

    word: np.ndarray
    """int64 [questions]: the words."""
    head: np.ndarray
    """int64 [questions]: their heads."""
    places: np.ndarray
    """int64 [sentences + 1]: the first question of each sentence."""
    answers: Answers
    """The answers."""


class Relations:
    """Finds the best attention head for every relation of a treebank.

    Use `add` for some sentences, then `see` for their attention, and so on. `tables` returns the results.
    """

    def __init__(self, encoder: TransformerEncoder):
        """Prepare the analysis of an encoder."""
        self._encoder = encoder
        self._block = self._ask([], [])
        self._answers = [self._block.answers]
        self._grid: tuple[Group, WordGrid] | None = None

    def add(self, sentences: Many[ParsedSentence], encoded: EncodedWords) -> None:
        """Add sentences. `encoded`: what `encode_words` made of their words; `see` receives its sequences next."""
        parsed = [sentences[sequence.example] for sequence in encoded.sequences]
        present = [_words_with_tokens(sequence.offsets) for sequence in encoded.sequences]
        self._block = self._ask(parsed, present)
        self._answers.append(self._block.answers)

    def see(self, group: Group, layer: int, probabilities: Float[Tensor, "S N L L"]) -> None:
        """Record which heads are right."""
        block = self._block
        counts = np.diff(block.places)[group.indices]
        if not counts.sum():
            return
        questions = np.concatenate([np.arange(*block.places[index : index + 2]) for index in group.indices])
        sequence = np.repeat(np.arange(len(counts)), counts)
        named = named_words(self._grid_of(group), probabilities, sequence, block.word[questions])
        right = named == block.head[questions, None, None]
        block.answers.record(layer, questions, right.reshape(len(questions), -1))

    def _grid_of(self, group: Group) -> WordGrid:
        if self._grid is None or self._grid[0] is not group:
            last = max(
                int(sequence.offsets[:, 0].max()) for sequence in group.sequences if sequence.offsets is not None
            )
            self._grid = group, WordGrid.of(group, last + 1)
        return self._grid[1]

    def tables(self) -> list[Table]:
        """Return `relations`, with one row per relation, and `relation_heads`, with the accuracy of every head."""
        answers = Answers.join(self._answers)
        columns = BestColumns(
            ("relation", "UD relation; `nmod` includes its subtypes, such as `nmod:poss`"),
            ("words", "words with this relation to their head"),
            _CHOICE,
            self._describe,
        )
        return [best_table("relations", find_best(answers), columns), self._heads_table(answers)]

    def _ask(self, parsed: Many[ParsedSentence], present: Many[set[int]]) -> _Block:
        """Ask for the heads of all words that have one. `present`: the words of each sentence that have a token."""
        asked: list[tuple[int, int, int]] = []
        groups: dict[str, list[int]] = {}
        for number, (sentence, words) in enumerate(zip(parsed, present, strict=True)):
            for word, head in enumerate(sentence.heads):
                if word in words and head in words:  # not the root, nor a word that the tokenizer drops
                    for source, names in _askers(sentence, word, words):
                        for name in names:
                            groups.setdefault(name, []).append(len(asked))
                        asked.append((number, source, head))
        sentence_of, word_of, head_of = np.array(asked, np.int64).reshape(-1, 3).T
        config = self._encoder.config
        answers = Answers.prepare(
            sentence_of,
            len(parsed),
            (head_of - word_of)[:, None] == OFFSETS,
            groups,
            layers=config.num_hidden_layers,
            per_layer=len(DIRECTIONS) * config.num_attention_heads,
        )
        return _Block(word_of, head_of, np.searchsorted(sentence_of, np.arange(len(parsed) + 1)), answers)

    def _describe(self, head: int, baseline: int) -> dict[str, int | str]:
        heads = self._encoder.config.num_attention_heads
        layer, place = divmod(head, len(DIRECTIONS) * heads)
        direction = DIRECTIONS[place // heads]
        return {"layer": layer + 1, "head": place % heads + 1, "direction": direction, "offset": int(OFFSETS[baseline])}

    def _heads_table(self, answers: Answers) -> Table:
        layers, heads = head_names(self._encoder)
        shape = len(answers.bits), len(DIRECTIONS), self._encoder.config.num_attention_heads
        right = [answers.count(words).reshape(shape).swapaxes(0, 1).reshape(-1) for words in answers.groups.values()]
        sizes = np.array([len(words) for words in answers.groups.values()], int)
        each, groups = len(DIRECTIONS) * len(layers), len(answers.groups)
        accuracy = np.concatenate(right or [np.zeros(0)]) / np.repeat(sizes, each)
        return Table(
            "relation_heads",
            {
                "relation": np.repeat(np.array(list(answers.groups), dtype=object), each),
                "direction": np.tile(np.repeat(np.array(DIRECTIONS, dtype=object), len(layers)), groups),
                "layer": np.tile(layers, len(DIRECTIONS) * groups),
                "head": np.tile(heads, len(DIRECTIONS) * groups),
                "words": np.repeat(sizes, each),
                "accuracy": accuracy,
            },
            {
                "relation": "UD relation; `nmod` includes its subtypes, such as `nmod:poss`",
                "direction": _CHOICE["direction"],
                "layer": "layer, from 1",
                "head": "attention head, from 1",
                "words": "words with this relation to their head",
                "accuracy": "share of these words whose syntactic head is named",
            },
        )


_CHOICE = {
    "layer": "layer of the best attention head, from 1",
    "head": "the best attention head, from 1",
    "direction": "which of the two words attends to the other",
    "offset": "distance of the word that the best baseline names: -2 is the second word to the left",
}


def named_words(
    grid: WordGrid, probabilities: Float[Tensor, "S N L L"], sequence: np.ndarray, word: np.ndarray
) -> np.ndarray:
    """Return the word that each head names for the given words: int64 [n, 2, N], both directions; -1 for none.

    A head names no word if it pays no attention to any other, as in the first row of a causal model.

    Args:
        grid: The words of the group.
        probabilities: Attention between tokens.
        sequence: int [n]: the sequence of each word, in the group.
        word: int [n]: the word in its sequence.
    """
    attention = grid.merge(probabilities)
    valid = grid.valid
    other = ~torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    attention = attention.masked_fill(~(valid[:, None, :, None] & valid[:, None, None, :] & other), 0)
    rows = torch.as_tensor(sequence, device=valid.device), slice(None), torch.as_tensor(word, device=valid.device)
    named = []
    for dim in (-1, -2):
        value, place = attention.max(dim)
        named.append(torch.where(value > 0, place, -1)[rows])
    return torch.stack(named, 1).cpu().numpy()


def _words_with_tokens(offsets: np.ndarray | None) -> set[int]:
    assert offsets is not None
    return set(offsets[:, 0].tolist()) - {-1}


def _askers(sentence: ParsedSentence, word: int, present: set[int]) -> Iterator[tuple[int, list[str]]]:
    """Yield the words whose attention answers for a word, with the groups that the answer counts in."""
    names = _names(sentence.relations[word])
    if sentence.relations[word] == POSSESSOR:
        if (marker := _marker(sentence, word)) in present:
            yield marker, [POSSESSOR + MARKED]
        else:
            names.append(POSSESSOR + MARKED)
    yield word, names


def _names(relation: str) -> list[str]:
    """Return the groups that a word counts in."""
    family = relation.split(":")[0]
    names = [ALL, relation] if family == relation else [ALL, relation, family]
    return names if family == "punct" else [ALL_BUT_PUNCTUATION, *names]


def _marker(sentence: ParsedSentence, word: int) -> int:
    """Return the possessive marker that follows a word, such as "'s"; -1 for none."""
    after = word + 1
    if after == len(sentence.words) or sentence.heads[after] != word:
        return -1
    is_marker = sentence.relations[after].split(":")[0] == "case" and sentence.parts_of_speech[after] == "PART"
    return after if is_marker else -1
