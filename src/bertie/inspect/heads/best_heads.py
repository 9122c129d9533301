"""Which heads answer a question right, such as "which word is the head of this word?", and the best of them.

The best of many heads is better on the data that chose it than on other data. Therefore `find_best` also chooses a head
on half of the sentences or documents and measures it on the other half.

One byte is kept per head and question: 288 bytes per word of a treebank for the 144 heads of BERT base and two directions.
All sums come from these answers, so one pass over the text is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from bertie.inspect.intervals import UnitSums, in_report_half, meaning_of_interval, ratio, resample, with_interval
from bertie.inspect.tables import Table, TableRow
from bertie.tokenizers.batching import batches

_ANSWERS_AT_ONCE = 1 << 22  # bounds the memory of copied answers
_SUMS_AT_ONCE = 1 << 19  # bounds the memory of the sums per unit, in rows


@dataclass(frozen=True, eq=False)
class Answers:
    """Right and wrong answers of all heads and baselines. Q: questions. B: baselines."""

    unit: Int[np.ndarray, " Q"]
    """Sentence or document of each question, int32."""
    units: int
    """Number of all sentences or documents."""
    groups: dict[str, Int[np.ndarray, " n"]]
    """Questions that are counted together: their numbers, int32, by the name of the group. No group is empty."""
    right: Bool[np.ndarray, "Q heads+B"]
    """Whether each head is right, layer by layer, which `record` fills, and whether each baseline is right."""
    heads: int
    """Number of the columns of heads: layers × heads of a layer × ways in which each can answer."""

    @classmethod
    def prepare(
        cls,
        unit: Int[np.ndarray, " Q"],
        units: int,
        baselines: Bool[np.ndarray, "Q B"],
        groups: dict[str, list[int]],
        heads: int,
    ) -> Answers:
        """Return an object that `record` can fill. See the fields for the arguments."""
        arrays = {name: np.array(numbers, np.int32) for name, numbers in groups.items()}
        return cls(unit.astype(np.int32), units, arrays, np.pad(baselines, ((0, 0), (heads, 0))), heads)

    @classmethod
    def join(cls, blocks: list[Answers]) -> Answers:
        """Return the answers to the questions of all blocks, one after the other, with the groups sorted by name."""
        units = np.cumsum([0, *(block.units for block in blocks)], dtype=np.int32)
        starts = np.cumsum([0, *(len(block.unit) for block in blocks)], dtype=np.int32)
        groups: dict[str, list[np.ndarray]] = {}
        for block, start in zip(blocks, starts, strict=False):
            for name, numbers in block.groups.items():
                groups.setdefault(name, []).append(numbers + start)
        return cls(
            np.concatenate([block.unit + first for block, first in zip(blocks, units, strict=False)]),
            int(units[-1]),
            {name: np.concatenate(groups[name]) for name in sorted(groups)},
            np.concatenate([block.right for block in blocks]),
            blocks[0].heads,
        )

    def record(self, layer: int, questions: Int[np.ndarray, " n"], right: Bool[np.ndarray, "n P"]) -> None:
        """Keep the answers of one layer. P: answers to a question in a layer."""
        width = right.shape[1]
        self.right[questions, layer * width : (layer + 1) * width] = right

    def count(self, questions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " heads+B"]:
        """Return how many of the questions each head and each baseline answers right."""
        at_once = max(1, _ANSWERS_AT_ONCE // self.right.shape[1])
        parts = np.split(questions, range(at_once, len(questions), at_once))
        return np.sum([self.right[part].sum(0) for part in parts], 0)


@dataclass(frozen=True)
class Chosen:
    """The best head for a group of questions, beside the best baseline."""

    head: int
    """Column of the head in `Answers.right`."""
    baseline: int
    """Number of the baseline."""
    questions: int
    """Number of questions that the accuracies are measured on."""
    columns: dict[str, float]
    """The accuracies and their intervals, as `_MEANING` explains them."""


Best = dict[tuple[str, bool], Chosen]
"""The best heads for groups of questions, by the name of the group and by whether the choice is held out. False: chosen and
measured on all questions, biased upward. True: chosen on the selection half, measured on the report half; missing if one of
the halves has no question."""


def find_best(answers: Answers) -> Best:
    """Find the best head and the best baseline for every group of questions."""
    reported = in_report_half(answers.units)[answers.unit]
    choices: dict[tuple[str, bool], tuple[int, int, np.ndarray]] = {}  # group, held out -> head, baseline, questions
    for name, questions in answers.groups.items():
        choices[name, False] = (*_choose(answers, questions), questions)
        halves = questions[~reported[questions]], questions[reported[questions]]
        if len(halves[0]) and len(halves[1]):
            choices[name, True] = (*_choose(answers, halves[0]), halves[1])
    best: Best = {}
    for part in batches(choices.items(), _SUMS_AT_ONCE, lambda item: len(item[1][2])):  # all are resampled alike
        sums = [_sums(answers, *choice) for _, choice in part]
        for (key, (head, baseline, _)), terms, totals in zip(part, sums, resample(answers.units, sums), strict=True):
            if len(terms.units) < 2:  # all samples would be equal
                totals[1:] = np.nan
            right, base, count = totals.T
            accuracy = with_interval("accuracy", ratio(right, count), "")
            gain = with_interval("gain", ratio(right - base, count))
            columns = {**accuracy, "baseline": float(base[0] / count[0]), **gain}
            best[key] = Chosen(head, baseline, int(count[0]), columns)
    return best


def _choose(answers: Answers, questions: np.ndarray) -> tuple[int, int]:
    right = answers.count(questions)
    return int(right[: answers.heads].argmax()), int(right[answers.heads :].argmax())


def _sums(answers: Answers, head: int, baseline: int, questions: np.ndarray) -> UnitSums:
    """Return for each unit the right answers of a head, the right answers of a baseline, and the questions."""
    right, base = (answers.right[questions, column] for column in (head, answers.heads + baseline))
    terms = np.stack([right, base, np.ones_like(right)], 1).astype(np.float32)  # exact: they are 0 or 1
    return UnitSums.of(answers.unit[questions], terms)


_MEANING = {
    "accuracy": "share of right answers of the best head",
    **meaning_of_interval(of="accuracy"),
    "baseline": "accuracy of the best baseline",
    "gain": "accuracy minus the accuracy of the baseline",
    **meaning_of_interval("gain_", "gain"),
}


def best_table(
    name: str,
    answers: Answers,
    meaning: dict[str, str],
    describe: Callable[[int, int], dict[str, int | str]],
) -> Table:
    """Return a table with one row per group of questions. The columns held_out_… are empty if a half has no question.

    Args:
        name: Name of the table.
        answers: The answers of all heads and baselines.
        meaning: Names and meanings of the columns with the groups and with the number of questions, and of those that
            `describe` fills.
        describe: Describes a head and a baseline, given by the column of the head in `Answers.right` and the number
            of the baseline.
    """
    group, questions, *_ = meaning
    measured = {key: text for key, text in (meaning | _MEANING).items() if key != group}
    held_out = {key: f"held_out_{key}" for key in measured}
    rows: list[TableRow] = []
    for (name_of_group, is_held_out), chosen in find_best(answers).items():
        row = {questions: chosen.questions, **describe(chosen.head, chosen.baseline), **chosen.columns}
        if is_held_out:  # it follows the row of all questions
            rows[-1] |= {held_out[key]: value for key, value in row.items()}
        else:
            rows.append({group: name_of_group, **dict.fromkeys(held_out.values()), **row})
    held_out_meaning = {
        held_out[key]: f"chosen on one half, measured on the other: {measured[key]}" for key in measured
    }
    return Table.of_rows(name, rows, {group: meaning[group], **measured, **held_out_meaning})
