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
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bertie.inspect.attention import Group, SeeLayer, head_names
from bertie.inspect.heads.best_heads import Answers, best_table
from bertie.inspect.tables import HEAD, Table, TableRow
from bertie.inspect.treebank import ParsedSentence
from bertie.inspect.words import EncodedWords, WordGrid, words_of
from bertie.model.transformer import TransformerEncoder

DIRECTIONS = ("dependent to head", "head to dependent")
OFFSETS = np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5])
"""Distances of the baseline, which names the word at a fixed distance: -2 is the second word to the left."""
ALL, ALL_BUT_PUNCTUATION = "all", "all but punct"
POSSESSOR, MARKED = "nmod:poss", " ('s)"
"""The relation of possessors, and the ending of its name where the attention of a marker "'s" counts instead of the
attention of the word before it, as in the paper."""


class Relations:
    """Finds the best attention head for every relation of a treebank.

    Use `add` for some sentences, give what it returns their attention, and so on. `tables` returns the results.
    """

    def __init__(self, encoder: TransformerEncoder):
        """Prepare the analysis of an encoder."""
        self._layers, self._heads = (column.tolist() for column in head_names(encoder))
        self._per_layer = encoder.config.num_attention_heads
        self._answers: list[Answers] = []
        self.add([], EncodedWords([], 0, 0))

    def add(self, sentences: Many[ParsedSentence], encoded: EncodedWords) -> SeeLayer:
        """Ask for the heads of all words that have one. `encoded`: what `encode_words` made of the words of the sentences.

        Returns:
            A function that records which heads are right, when it sees the attention in the sequences of `encoded`.
        """
        asked: list[tuple[int, int, int]] = []
        groups: dict[str, list[int]] = {}
        for number, sequence in enumerate(encoded.sequences):
            sentence, words = sentences[sequence.example], set(words_of(sequence).tolist()) - {-1}
            for word, head in enumerate(sentence.heads):
                if word in words and head in words:  # not the root, nor a word that the tokenizer drops
                    for source, names in _askers(sentence, word, words):
                        for name in names:
                            groups.setdefault(name, []).append(len(asked))
                        asked.append((number, source, head))
        sentence_of, word_of, head_of = np.array(asked, np.int64).reshape(-1, 3).T
        size, heads = len(encoded.sequences), len(DIRECTIONS) * len(self._layers)
        answers = Answers.prepare(sentence_of, size, (head_of - word_of)[:, None] == OFFSETS, groups, heads)
        self._answers.append(answers)
        first = np.searchsorted(sentence_of, np.arange(size + 1))
        grid_of = lru_cache(1)(WordGrid.of)

        def see(group: Group, layer: int, probabilities: Float[Tensor, "S N L L"]) -> None:
            counts = np.diff(first)[group.indices]
            if counts.sum():
                questions = np.concatenate([np.arange(*first[index : index + 2]) for index in group.indices])
                sequence = np.repeat(np.arange(len(counts)), counts)
                named = named_words(grid_of(group), probabilities, sequence, word_of[questions])
                right = named == head_of[questions, None, None]
                answers.record(layer, questions, right.reshape(len(questions), -1))

        return see

    def tables(self) -> list[Table]:
        """Return `relations`, with one row per relation, and `relation_heads`, with the accuracy of every head."""
        answers = Answers.join(self._answers)
        return [best_table("relations", answers, _GROUP | _CHOICE, self._describe), self._heads_table(answers)]

    def _describe(self, head: int, baseline: int) -> dict[str, int | str]:
        layer, direction, place = np.unravel_index(head, (max(self._layers), len(DIRECTIONS), self._per_layer))
        chosen = {"layer": int(layer) + 1, "head": int(place) + 1, "direction": DIRECTIONS[direction]}
        return {**chosen, "offset": int(OFFSETS[baseline])}

    def _heads_table(self, answers: Answers) -> Table:
        rows: list[TableRow] = []
        for name, words in answers.groups.items():
            right = answers.count(words)[: answers.heads].reshape(-1, len(DIRECTIONS), self._per_layer) / len(words)
            for direction, shares in zip(DIRECTIONS, right.swapaxes(0, 1), strict=True):
                row = {"relation": name, "direction": direction, "words": len(words)}
                for layer, head, share in zip(self._layers, self._heads, shares.flatten().tolist(), strict=True):
                    rows.append({**row, "layer": layer, "head": head, "accuracy": share})
        return Table.of_rows("relation_heads", rows, _MEANING)


_GROUP = {
    "relation": "UD relation; `nmod` includes its subtypes, such as `nmod:poss`",
    "words": "words with this relation to their head",
}
_CHOICE = {
    "layer": "layer of the best attention head, from 1",
    "head": "the best attention head, from 1",
    "direction": "which of the two words attends to the other",
    "offset": "distance of the word that the best baseline names: -2 is the second word to the left",
}
_MEANING = {
    "relation": _GROUP["relation"],
    "direction": _CHOICE["direction"],
    **HEAD,
    "words": _GROUP["words"],
    "accuracy": "share of these words whose syntactic head is named",
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
