"""How well single heads find the antecedent of a mention (Clark et al. 2019, section 4.3).

Each attention head names, for a mention, the candidate whose head word gets the most attention from the head word of the
mention. The answer is right if this is the head word of an antecedent: a candidate that mentions the same entity.

S  windows of a group    M  head words in a window    N  heads of a layer    Q  questions of a group    K  candidates
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bertie.inspect.antecedents import RULES
from bertie.inspect.attention import Group, head_names
from bertie.inspect.best_heads import Answers, BestColumns, best_table, find_best
from bertie.inspect.intervals import UnitSums, meaning_of_interval, ratio, resample, with_interval
from bertie.inspect.mention_windows import MentionWindows, PlacedQuestion
from bertie.inspect.tables import Table
from bertie.inspect.words import WordGrid
from bertie.model.transformer import TransformerEncoder


@dataclass(frozen=True, eq=False)
class _Asked:
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


@dataclass(frozen=True, eq=False)
class _Block:
    """Texts that are read together."""

    questions: list[PlacedQuestion]
    """Their questions."""
    numbers_of: list[list[int]]
    """The numbers of the questions of each window."""
    answers: Answers
    """The answers."""


class Coreference:
    """Finds the best attention head for every type of mention.

    Use `add` for some texts, then `see` for their attention, and so on. `tables` returns the results.
    """

    def __init__(self, encoder: TransformerEncoder):
        """Prepare the analysis of an encoder."""
        self._encoder = encoder
        self._blocks = [self._prepare(MentionWindows([], [], 0, 0))]
        self._asked: tuple[Group, _Asked] | None = None

    def add(self, windows: MentionWindows) -> None:
        """Add texts. `windows`: what `encode_mentions` made of them; `see` receives its sequences next."""
        self._blocks.append(self._prepare(windows))

    def _prepare(self, windows: MentionWindows) -> _Block:
        questions = windows.questions
        texts, unit = np.unique(np.array([question.text for question in questions], np.int64), return_inverse=True)
        numbers_of: list[list[int]] = [[] for _ in windows.sequences]
        groups: dict[str, list[int]] = {}
        for number, question in enumerate(questions):
            numbers_of[question.window].append(number)
            for name in question.groups:
                groups.setdefault(name, []).append(number)
        config = self._encoder.config
        answers = Answers.prepare(
            unit,
            len(texts),
            np.array([question.baselines for question in questions], bool).reshape(-1, len(RULES)),
            groups,
            layers=config.num_hidden_layers,
            per_layer=config.num_attention_heads,
        )
        return _Block(questions, numbers_of, answers)

    def see(self, group: Group, layer: int, probabilities: Float[Tensor, "S N L L"]) -> None:
        """Record which heads are right."""
        if self._asked is None or self._asked[0] is not group:
            self._asked = group, _ask(self._blocks[-1], group)
        asked = self._asked[1]
        attention = asked.grid.merge(probabilities)[asked.window, :, asked.word]
        index = asked.candidates[:, None].expand(-1, attention.shape[1], -1)
        value, place = attention.gather(2, index).masked_fill(~asked.present[:, None], -1).max(2)
        right = asked.right.gather(1, place) & (value > 0)  # a causal model does not see a candidate that follows
        self._blocks[-1].answers.record(layer, asked.numbers, right.cpu().numpy())

    def tables(self) -> list[Table]:
        """Return `coreference_best`, with the best head for each type of mention, and `coreference`, with all of them."""
        columns = BestColumns(
            ("mention_type", "type of the mentions whose antecedent is asked for"),
            ("mentions", "number of these mentions"),
            {
                "layer": "layer of the best attention head, from 1",
                "head": "the best attention head, from 1",
                "rule": "the best baseline",
            },
            self._describe,
        )
        answers = Answers.join([block.answers for block in self._blocks])
        return [best_table("coreference_best", find_best(answers), columns), self._all_heads(answers)]

    def _describe(self, head: int, baseline: int) -> dict[str, int | str]:
        layer, place = divmod(head, self._encoder.config.num_attention_heads)
        return {"layer": layer + 1, "head": place + 1, "rule": RULES[baseline]}

    def _all_heads(self, answers: Answers) -> Table:
        layers, heads = (column.tolist() for column in head_names(self._encoder))
        methods: list[dict[str, Any]] = [
            {"method": "attention", "layer": layer, "head": head} for layer, head in zip(layers, heads, strict=True)
        ]
        methods += [{"method": rule, "layer": None, "head": None} for rule in RULES]
        rows: list[dict[str, Any]] = []
        for name, questions in answers.groups.items():
            right = np.hstack([answers.right(questions), answers.baselines_right(questions)])
            terms = np.hstack([right, np.ones((len(questions), 1))]).astype(float)
            sums = UnitSums.of(answers.unit[questions], terms)
            samples = resample(answers.units, [sums])[0]
            if len(sums.units) < 2:  # all samples would be equal
                samples = np.full_like(samples, np.nan)
            for column, method in enumerate(methods):
                values = ratio(samples[:, column], samples[:, -1])
                accuracy = with_interval("accuracy", right[:, column].mean(), values, "")
                rows.append({"mention_type": name, **method, "mentions": len(questions), **accuracy})
        return Table.of_rows("coreference", rows, _MEANING)


_MEANING = {
    "mention_type": "type of the mentions whose antecedent is asked for",
    "method": "what chooses the antecedent: attention, or a baseline",
    "layer": "layer of the attention head, from 1",
    "head": "attention head, from 1",
    "mentions": "number of these mentions",
    "accuracy": "share of the mentions for which an antecedent is chosen",
    **meaning_of_interval(of="accuracy"),
}


def _ask(block: _Block, group: Group) -> _Asked:
    members = [[block.questions[number] for number in block.numbers_of[index]] for index in group.indices]
    words = [sorted({word for each in asked for word in (each.word, *each.candidates)}) for asked in members]
    rows: list[tuple[int, int, list[int], PlacedQuestion]] = []
    for s, (asked, heads) in enumerate(zip(members, words, strict=True)):
        place = {word: m for m, word in enumerate(heads)}
        rows += [(s, place[each.word], [place[word] for word in each.candidates], each) for each in asked]
    width = max(len(row[2]) for row in rows)
    candidates, present, right = (np.zeros((len(rows), width), kind) for kind in (np.int64, bool, bool))
    for row, (_, _, places, question) in enumerate(rows):
        candidates[row, : len(places)], right[row, : len(places)] = places, question.right
        present[row, : len(places)] = True
    device = group.valid.device
    return _Asked(
        np.concatenate([block.numbers_of[index] for index in group.indices]).astype(np.int64),
        _head_words(group, words),
        torch.tensor([row[0] for row in rows], device=device),
        torch.tensor([row[1] for row in rows], device=device),
        *(torch.as_tensor(array, device=device) for array in (candidates, present, right)),
    )


def _head_words(group: Group, words: list[list[int]]) -> WordGrid:
    """Return the grid of some words of every window of a group."""
    grid = WordGrid.of(group, max(each[-1] for each in words) + 1)
    index = torch.full((len(words), max(map(len, words))), -1)
    for s, each in enumerate(words):
        index[s, : len(each)] = torch.tensor(each)
    index = index.to(group.valid.device)
    present = (index >= 0)[:, :, None]
    row = torch.arange(len(words), device=index.device)[:, None], index.clamp(min=0)
    return WordGrid(grid.belongs[row] * present, grid.mean[row] * present)
