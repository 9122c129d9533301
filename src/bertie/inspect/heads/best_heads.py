"""Which heads answer a question right, such as "which word is the head of this word?", and the best of them.

The best of many heads is better on the data that chose it than on other data. Therefore `find_best` also chooses a head
on half of the sentences or documents and measures it on the other half.

One bit is kept per head and question: 36 bytes per question for the 144 heads of BERT base and two directions. All sums
come from these bits, so one pass over the text is enough. With the groups and the baselines, a word of a treebank takes
some 60 bytes during the pass and 120 after it: 0.4 GB for the largest treebank of Universal Dependencies, which has 3.5
million words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, UInt8

from bertie.inspect.intervals import UnitSums, in_report_half, meaning_of_interval, ratio, resample, with_interval
from bertie.inspect.tables import Table
from bertie.tokenizers.batching import batches

_BITS_AT_ONCE = 1 << 22  # bounds the memory of the unpacked answers
_SUMS_AT_ONCE = 1 << 19  # bounds the memory of the sums per unit, in rows


@dataclass(frozen=True, eq=False)
class Answers:
    """Right and wrong answers of all heads and baselines. Q: questions. P: answers to a question in a layer."""

    unit: Int[np.ndarray, " Q"]
    """Sentence or document of each question, int32."""
    units: int
    """Number of all sentences or documents."""
    groups: dict[str, Int[np.ndarray, " n"]]
    """Questions that are counted together: their numbers, int32, by the name of the group. No group is empty."""
    bits: list[UInt8[np.ndarray, "Q P/8"]]
    """Whether the heads are right, layer by layer, which `record` fills, and whether the baselines are right."""
    widths: list[int]
    """P for each layer: heads of a layer, times the ways in which each can answer. Then B: number of baselines."""

    @classmethod
    def prepare(
        cls,
        unit: Int[np.ndarray, " Q"],
        units: int,
        baselines: Bool[np.ndarray, "Q B"],
        groups: dict[str, list[int]],
        layers: int,
        per_layer: int,
    ) -> Answers:
        """Return an object that `record` can fill. `per_layer`: P. See the fields for the other arguments."""
        arrays = {name: np.array(numbers, np.int32) for name, numbers in groups.items()}
        bits = [np.zeros((len(unit), -(-per_layer // 8)), np.uint8) for _ in range(layers)]
        widths = [per_layer] * layers + [baselines.shape[1]]
        return cls(unit.astype(np.int32), units, arrays, [*bits, np.packbits(baselines, axis=1)], widths)

    @classmethod
    def join(cls, blocks: list[Answers]) -> Answers:
        """Return the answers to the questions of all blocks, one after the other, with the groups sorted by name."""
        units, starts = (
            np.cumsum([0, *counts], dtype=np.int32)
            for counts in ((block.units for block in blocks), (len(block.unit) for block in blocks))
        )
        groups: dict[str, list[np.ndarray]] = {}
        for block, start in zip(blocks, starts, strict=False):
            for name, numbers in block.groups.items():
                groups.setdefault(name, []).append(numbers + start)
        return cls(
            np.concatenate([block.unit + first for block, first in zip(blocks, units, strict=False)]),
            int(units[-1]),
            {name: np.concatenate(groups[name]) for name in sorted(groups)},
            [np.concatenate(parts) for parts in zip(*(block.bits for block in blocks), strict=True)],
            blocks[0].widths,
        )

    @property
    def heads(self) -> int:
        """Number of the columns of heads in `right`: layers × P. Those of the baselines follow."""
        return sum(self.widths[:-1])

    def record(self, layer: int, questions: Int[np.ndarray, " n"], right: Bool[np.ndarray, "n P"]) -> None:
        """Keep the answers of one layer."""
        self.bits[layer][questions] = np.packbits(right, axis=1)

    def right(self, questions: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "n layers*P+B"]:
        """Return whether each head is right, layer by layer, and whether each baseline is right."""
        parts = zip(self.bits, self.widths, strict=True)
        unpacked = [np.unpackbits(bits[questions], axis=1, count=width) for bits, width in parts]
        return np.concatenate(unpacked, 1).astype(bool)

    def column(self, column: int, questions: Int[np.ndarray, " n"]) -> UInt8[np.ndarray, " n"]:
        """Return a column of `right`, as 0 or 1."""
        part, place = divmod(column, self.widths[0]) if column < self.heads else (-1, column - self.heads)
        return self.bits[part][questions, place // 8] >> (7 - place % 8) & 1

    def count(self, questions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " layers*P+B"]:
        """Return how many of the questions each head and each baseline answers right."""
        total = np.zeros(sum(self.widths), np.int64)
        at_once = max(1, _BITS_AT_ONCE // len(total))
        for start in range(0, len(questions), at_once):
            total += self.right(questions[start : start + at_once]).sum(0)
        return total


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
    """The accuracies and their intervals, as `_MEANING` explains them. NaN: there is no question."""


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
        for (key, (head, baseline, _)), own, totals in zip(part, sums, resample(answers.units, sums), strict=True):
            if len(own.units) < 2:  # all samples would be equal
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
    """Return per unit the right answers of a head, those of a baseline, and the questions."""
    right, base = (answers.column(column, questions) for column in (head, answers.heads + baseline))
    terms = np.stack([right, base, np.ones_like(right)], 1).astype(np.float32)  # exact: they are 0 or 1
    return UnitSums.of(answers.unit[questions], terms)


_MEANING = {
    "accuracy": "share of right answers of the best head",
    **meaning_of_interval(of="accuracy"),
    "baseline": "accuracy of the best baseline",
    "gain": "accuracy minus that of the baseline",
    **meaning_of_interval("gain_", "gain"),
}


def best_table(
    name: str,
    best: Best,
    meaning: dict[str, str],
    describe: Callable[[int, int], dict[str, int | str]],
) -> Table:
    """Return a table with one row per group of questions. The columns held_out_… are empty if a half has no question.

    Args:
        name: Name of the table.
        best: The best heads, as `find_best` returns them.
        meaning: Names and meanings of the columns with the groups and with the number of questions, and of those that
            `describe` fills.
        describe: Describes a head and a baseline, given by the column of the head in `Answers.right` and the number
            of the baseline.
    """
    (group, of_group), (questions, of_questions), *choice = meaning.items()
    measured = {questions: of_questions, **dict(choice), **_MEANING}
    held_out = _held_out({key: f"chosen on one half, measured on the other: {text}" for key, text in measured.items()})

    def values(chosen: Chosen | None) -> dict[str, Any]:
        if chosen is None:
            return dict.fromkeys(measured)
        return {questions: chosen.questions, **describe(chosen.head, chosen.baseline), **chosen.columns}

    rows = [
        {group: key, **values(chosen), **_held_out(values(best.get((key, True))))}
        for (key, held), chosen in best.items()
        if not held
    ]
    return Table.of_rows(name, rows, {group: of_group, **measured, **held_out})


def _held_out(columns: dict[str, Any]) -> dict[str, Any]:
    return {f"held_out_{key}": value for key, value in columns.items()}
