"""How well single heads find the antecedent of a mention (Clark et al. 2019, section 4.3).

Each attention head names, for a mention, the candidate whose head word gets the most attention from the head word of the
mention. The answer is right if this is the head word of an antecedent: a candidate that mentions the same entity.

S  windows of a group    M  head words in a window    N  heads of a layer    Q  questions of a group    K  candidates
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertie.inspect.attention import Group, SeeLayer, head_names
from bertie.inspect.heads.best_heads import Answers, best_table
from bertie.inspect.intervals import UnitSums, meaning_of_interval, ratio, resample, with_interval
from bertie.inspect.mention_windows import RULES, MentionWindows, PlacedQuestion
from bertie.inspect.tables import HEAD, Table, TableRow
from bertie.inspect.words import WordGrid
from bertie.model.transformer import TransformerEncoder


class _Asked(NamedTuple):
    """The questions of a group."""

    numbers: np.ndarray
    """Their numbers."""
    grid: WordGrid
    """The head words, [S, M]."""
    window: Int[Tensor, " Q"]
    """The window of each question, in the group."""
    word: Int[Tensor, " Q"]
    """Its head word, as an index into M."""
    candidates: Int[Tensor, "Q K"]
    """The head words of its candidates."""
    present: Bool[Tensor, "Q K"]
    """False in the padding of `candidates`."""
    right: Bool[Tensor, "Q K"]
    """Whether each candidate is right."""


class Coreference:
    """Finds the best attention head for every type of mention.

    Use `add` for some texts, give what it returns their attention, and so on. `tables` returns the results.
    """

    def __init__(self, encoder: TransformerEncoder):
        """Prepare the analysis of an encoder."""
        layers, heads = (column.tolist() for column in head_names(encoder))
        self._heads = [{"layer": layer, "head": head} for layer, head in zip(layers, heads, strict=True)]
        self._answers: list[Answers] = []
        self.add(MentionWindows([], [], 0, 0))

    def add(self, windows: MentionWindows) -> SeeLayer:
        """Ask the questions of some texts. `windows`: what `encode_mentions` made of the texts.

        Returns:
            A function that records which heads are right, when it sees the attention in the sequences of `windows`.
        """
        questions = windows.questions
        texts, unit = np.unique(np.array([question.text for question in questions], np.int64), return_inverse=True)
        numbers_of: list[list[int]] = [[] for _ in windows.sequences]
        groups: dict[str, list[int]] = {}
        for number, question in enumerate(questions):
            numbers_of[question.window].append(number)
            for name in question.groups:
                groups.setdefault(name, []).append(number)
        baselines = np.array([question.baselines for question in questions], bool).reshape(-1, len(RULES))
        answers = Answers.prepare(unit, len(texts), baselines, groups, len(self._heads))
        self._answers.append(answers)

        @lru_cache(1)
        def ask(group: Group) -> _Asked:
            return _ask(group, [numbers_of[index] for index in group.indices], questions)

        def see(group: Group, layer: int, probabilities: Float[Tensor, "S N L L"]) -> None:
            asked = ask(group)
            attention = asked.grid.merge(probabilities)[asked.window, :, asked.word]
            index = asked.candidates[:, None].expand(-1, attention.shape[1], -1)
            value, place = attention.gather(2, index).masked_fill(~asked.present[:, None], -1).max(2)
            right = asked.right.gather(1, place) & (value > 0)  # a causal model does not see a candidate that follows
            answers.record(layer, asked.numbers, right.cpu().numpy())

        return see

    def tables(self) -> list[Table]:
        """Return `coreference_best`, with the best head for each type of mention, and `coreference`, with all of them."""
        answers = Answers.join(self._answers)
        return [best_table("coreference_best", answers, _BEST_MEANING, self._describe), self._all_heads(answers)]

    def _describe(self, head: int, baseline: int) -> dict[str, int | str]:
        return {**self._heads[head], "rule": RULES[baseline]}

    def _all_heads(self, answers: Answers) -> Table:
        methods: list[TableRow] = [{"method": "attention", **head} for head in self._heads]
        methods += [{"method": rule, "layer": None, "head": None} for rule in RULES]
        rows: list[TableRow] = []
        for name, questions in answers.groups.items():
            terms = np.insert(answers.right[questions].astype(float), 0, 1, axis=1)
            sums = UnitSums.of(answers.unit[questions], terms)
            [totals] = resample(answers.units, [sums])
            if len(sums.units) < 2:  # all samples would be equal
                totals[1:] = np.nan
            for method, right in zip(methods, totals[:, 1:].T, strict=True):
                accuracy = with_interval("accuracy", ratio(right, totals[:, 0]), "")
                rows.append({"mention_type": name, **method, "mentions": len(questions), **accuracy})
        return Table.of_rows("coreference", rows, _MEANING)


_BEST_MEANING = {
    "mention_type": "type of the mentions whose antecedent is asked for",
    "mentions": "number of these mentions",
    "layer": "layer of the best attention head, from 1",
    "head": "the best attention head, from 1",
    "rule": "the best baseline",
}
_MEANING = {
    "mention_type": _BEST_MEANING["mention_type"],
    "method": "method that chooses the antecedent: attention, or a baseline",
    **HEAD,
    "mentions": _BEST_MEANING["mentions"],
    "accuracy": "share of the mentions for which an antecedent is chosen",
    **meaning_of_interval(of="accuracy"),
}


def _ask(group: Group, numbers: list[list[int]], questions: list[PlacedQuestion]) -> _Asked:
    """Arrange the questions of each window of a group. `numbers`: the numbers of the questions of each window."""
    asked = [(s, questions[number]) for s, members in enumerate(numbers) for number in members]
    words: list[list[int]] = [[] for _ in numbers]
    for s, question in asked:
        words[s] = sorted({*words[s], question.word, *question.candidates})
    window, word = [s for s, _ in asked], [words[s].index(question.word) for s, question in asked]
    candidates = [[words[s].index(candidate) for candidate in question.candidates] for s, question in asked]
    present = [[True] * len(row) for row in candidates]
    padded = [_padded(rows, 0) for rows in (candidates, present, [question.right for _, question in asked])]
    tensors = (torch.as_tensor(column).to(group.valid.device) for column in (window, word, *padded))
    return _Asked(np.concatenate(numbers).astype(np.int64), _head_words(group, words), *tensors)


def _padded(rows: Many[Many[int]], value: int) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def _head_words(group: Group, words: list[list[int]]) -> WordGrid:
    """Return the grid of some words of every window of a group."""
    grid = WordGrid.of(group, max(row[-1] for row in words) + 1)
    index = _padded(words, -1).to(group.valid.device)
    present = (index >= 0)[:, :, None]
    row = torch.arange(len(words), device=index.device)[:, None], index.clamp(min=0)
    return WordGrid(grid.belongs[row] * present, grid.mean[row] * present)
