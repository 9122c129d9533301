"""Which heads answer a question right, such as "which word is the head of this word?", and the best of them.

The best of many heads is better on the data that chose it than on other data. Therefore `find_best` also chooses a head
on half of the sentences or documents and measures it on the other half.

One bit is kept per head and question: 36 bytes per question for the 144 heads of BERT base and two directions. All sums
come from these bits, so one pass over the text is enough. With the groups and the baselines, a word of a treebank takes
some 60 bytes during the pass and 120 after it: 0.4 GB for the largest treebank of Universal Dependencies, which has 3.5
million words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt8

from bertie.inspect.intervals import UnitSums, in_report_half, meaning_of_interval, ratio, resample, with_interval
from bertie.inspect.tables import Table

_BITS_AT_ONCE = 1 << 22  # bounds the memory of the unpacked answers
_SUMS_AT_ONCE = 1 << 19  # bounds the memory of the sums per unit, in rows


@dataclass(frozen=True, eq=False)
class Answers:
    """Right and wrong answers of all heads and baselines. Q: questions. P: answers to a question in a layer."""

    unit: Int[np.ndarray, " Q"]
    """Sentence or document of each question, int32."""
    units: int
    """Number of all sentences or documents."""
    baseline_bits: UInt8[np.ndarray, "Q B/8"]
    """Whether the baselines are right."""
    baselines: int
    """B: number of baselines."""
    groups: dict[str, Int[np.ndarray, " n"]]
    """Questions that are counted together: their numbers, int32, by the name of the group. No group is empty."""
    bits: UInt8[np.ndarray, "layers Q P/8"]
    """Whether the heads are right. `record` fills them."""
    per_layer: int
    """P: heads of a layer, times the ways in which each can answer."""

    @classmethod
    def prepare(
        cls,
        unit: Int[np.ndarray, " Q"],
        units: int,
        baselines: Bool[np.ndarray, "Q B"],
        groups: dict[str, list[int]],
        *,
        layers: int,
        per_layer: int,
    ) -> Answers:
        """Return an object that `record` can fill. See the fields for the arguments."""
        arrays = {name: np.array(numbers, np.int32) for name, numbers in groups.items()}
        bits = np.zeros((layers, len(unit), -(-per_layer // 8)), np.uint8)
        packed = np.packbits(baselines, axis=1)
        return cls(unit.astype(np.int32), units, packed, baselines.shape[1], arrays, bits, per_layer)

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
            np.concatenate([block.baseline_bits for block in blocks]),
            blocks[0].baselines,
            {name: np.concatenate(groups[name]) for name in sorted(groups)},
            np.concatenate([block.bits for block in blocks], 1),
            blocks[0].per_layer,
        )

    def record(self, layer: int, questions: Int[np.ndarray, " n"], right: Bool[np.ndarray, "n P"]) -> None:
        """Keep the answers of one layer."""
        self.bits[layer, questions] = np.packbits(right, axis=1)

    def right(self, questions: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "n layers*P"]:
        """Return whether each head is right, layer by layer."""
        bits = np.unpackbits(self.bits[:, questions], axis=2, count=self.per_layer)
        return bits.astype(bool).transpose(1, 0, 2).reshape(len(questions), -1)

    def baselines_right(self, questions: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "n B"]:
        """Return whether each baseline is right."""
        return np.unpackbits(self.baseline_bits[questions], axis=1, count=self.baselines).astype(bool)

    def count(self, questions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " layers*P"]:
        """Return how many of the questions each head answers right."""
        total = np.zeros(len(self.bits) * self.per_layer, np.int64)
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
    """Column of the baseline in `Answers.baselines`."""
    questions: int
    """Number of questions that the accuracies are measured on."""
    columns: dict[str, float]
    """The accuracies and their intervals, as `_MEANING` explains them. NaN: there is no question."""


_Key = tuple[str, bool]  # a group, and whether the choice is held out
_Choice = tuple[int, int, np.ndarray]  # a head, a baseline, and the questions that they are measured on


@dataclass(frozen=True)
class Best:
    """The best head for a group of questions."""

    everywhere: Chosen
    """Chosen and measured on all questions: biased upward."""
    held_out: Chosen | None
    """Chosen on the selection half, measured on the report half. None: one of the halves has no question."""


def find_best(answers: Answers) -> dict[str, Best]:
    """Find the best head and the best baseline for every group of questions."""
    reported = in_report_half(answers.units)[answers.unit]
    choices: dict[_Key, _Choice] = {}
    for name, questions in answers.groups.items():
        choices[name, False] = (*_choose(answers, questions), questions)
        halves = questions[~reported[questions]], questions[reported[questions]]
        if len(halves[0]) and len(halves[1]):
            choices[name, True] = (*_choose(answers, halves[0]), halves[1])
    chosen = {}
    for part in _portions(choices):
        sums = {key: _sums(answers, *choice) for key, choice in part.items()}
        samples = resample(answers.units, sums.values())
        for (key, (head, baseline, _)), sample in zip(part.items(), samples, strict=True):
            chosen[key] = _summarize(head, baseline, sums[key], sample)
    return {name: Best(chosen[name, False], chosen.get((name, True))) for name in answers.groups}


def _portions(choices: dict[_Key, _Choice]) -> Iterator[dict[_Key, _Choice]]:
    """Split the choices into portions whose sums fit into memory. All portions are resampled in the same way."""
    portion: dict[_Key, _Choice] = {}
    rows = 0
    for key, choice in choices.items():
        if portion and rows + len(choice[2]) > _SUMS_AT_ONCE:
            yield portion
            portion, rows = {}, 0
        portion[key] = choice
        rows += len(choice[2])
    yield portion


def _choose(answers: Answers, questions: np.ndarray) -> tuple[int, int]:
    return int(answers.count(questions).argmax()), int(answers.baselines_right(questions).sum(0).argmax())


def _sums(answers: Answers, head: int, baseline: int, questions: np.ndarray) -> UnitSums:
    """Return per unit the right answers of a head, those of a baseline, and the questions."""
    layer, place = divmod(head, answers.per_layer)
    right = answers.bits[layer, questions, place // 8] >> (7 - place % 8) & 1
    base = answers.baseline_bits[questions, baseline // 8] >> (7 - baseline % 8) & 1
    terms = np.stack([right, base, np.ones_like(right)], 1).astype(np.float32)  # exact: they are 0 or 1
    return UnitSums.of(answers.unit[questions], terms)


def _summarize(head: int, baseline: int, part: UnitSums, samples: np.ndarray) -> Chosen:
    right, base, count = part.sums.sum(0, dtype=float)
    if len(part.units) < 2:  # all samples would be equal
        samples = np.full_like(samples, np.nan)
    accuracy = with_interval("accuracy", right / count, ratio(samples[:, 0], samples[:, 2]), "")
    gain = with_interval("gain", (right - base) / count, ratio(samples[:, 0] - samples[:, 1], samples[:, 2]))
    return Chosen(head, baseline, int(count), {**accuracy, "baseline": float(base / count), **gain})


@dataclass(frozen=True)
class BestColumns:
    """What a table of the best heads calls its columns, with their meanings."""

    group: tuple[str, str]
    """Name and meaning of the column with the groups of questions."""
    questions: tuple[str, str]
    """Name and meaning of the column with their number."""
    choice: dict[str, str]
    """Names and meanings of the columns that `describe` fills."""
    describe: Callable[[int, int], dict[str, int | str]]
    """Describes a head and a baseline, given by their columns in `Answers`."""


_MEANING = {
    "accuracy": "share of right answers of the best head",
    **meaning_of_interval(of="accuracy"),
    "baseline": "accuracy of the best baseline",
    "gain": "accuracy minus that of the baseline",
    **meaning_of_interval("gain_", "gain"),
}


def best_table(name: str, best: dict[str, Best], columns: BestColumns) -> Table:
    """Return a table with one row per group of questions. The columns held_out_… are empty if a half has no question."""
    meaning = dict([columns.questions]) | columns.choice | _MEANING

    def row(chosen: Chosen | None) -> dict[str, int | float | str | None]:
        if chosen is None:
            return dict.fromkeys(meaning)
        return {
            columns.questions[0]: chosen.questions,
            **columns.describe(chosen.head, chosen.baseline),
            **chosen.columns,
        }

    rows = [(row(each.everywhere), row(each.held_out)) for each in best.values()]
    held_out = {
        f"held_out_{key}": f"chosen on one half, measured on the other: {text}" for key, text in meaning.items()
    }
    return Table(
        name,
        {
            columns.group[0]: list(best),
            **{key: [everywhere[key] for everywhere, _ in rows] for key in meaning},
            **{f"held_out_{key}": [other[key] for _, other in rows] for key in meaning},
        },
        dict([columns.group]) | meaning | held_out,
    )
