"""Hold out a part of the training examples, to evaluate on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import console, seeding, storage
from bertie.base.errors import UsageError, UserError, join_names
from bertie.examples.reader import Reader
from bertie.examples.rows import Row, is_stdin, name_of
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks import Task


@dataclass(frozen=True)
class SplitExamples:
    """The examples of a fine-tuning."""

    train: list[Any]
    """The examples to train on."""
    dev: list[Any]
    """The dev examples."""
    test: list[Any]
    """The test examples; empty: there are none."""
    rows: dict[str, list[dict[str, Any]]]
    """The rows of the parts of the training examples, by name, with the columns of their source; empty if nothing is held out."""
    data_set: list[int]
    """For each example to train on the number of its data set."""
    left_out: tuple[Any, ...] = ()
    """Examples that `max_train_examples` left out, of queries that others have: their texts are right, so no negatives."""

    def write(self, folder: Path) -> None:
        """Write the rows of each part to a .jsonl file that is read as their source is. Parts of an earlier start go."""
        for name in {"train", "dev", "test"} - self.rows.keys():
            (folder / f"{name}.jsonl").unlink(missing_ok=True)
        for name, rows in self.rows.items():
            folder.mkdir(exist_ok=True)
            storage.write_json_lines(folder / f"{name}.jsonl", rows, default=str)


def hold_out(
    config: FinetuneConfig, task: Task, sources: list[Any], read: list[list[Any]], has: tuple[bool, bool]
) -> SplitExamples:
    """Hold out `config.dev_share` of the examples, and `config.test_share`.

    Examples with the same text, or in the same group, are in one part: of several texts, the longest one counts, such
    as the passage of a question. Each part has about the same share of each class.

    Args:
        config: The configuration.
        task: The task, which has read the examples.
        sources: The files or the values that they come from, one for each data set.
        read: The labeled examples of each data set.
        has: Whether there are dev examples, and test examples, from elsewhere.

    Raises:
        UserError: There are too few examples that differ.
        UsageError: The group is not a column, or groups nothing.
    """
    _check(config, has)
    shares = {"test": 0.0 if has[1] else config.test_share, "dev": 0.0 if has[0] else config.dev_share}
    examples = [each for part in read for each in part]
    data_set = [number for number, part in enumerate(read) for _ in part]
    if not any(shares.values()):
        return SplitExamples(examples, [], [], {}, data_set)
    if any(isinstance(source, str | Path) and is_stdin(source) for source in sources):
        raise UsageError(
            "stdin can only be read once, so no part of it can be held out: give --dev, or a file as --train"
        )
    where, given = ", ".join(map(name_of, sources)), [_rows(task.reader, source) for source in sources]
    rows = [given[number].get(each.source, {}) for number, each in zip(data_set, examples, strict=True)]
    linked = _linked(_keys(config.group, texts, row) for texts, row in zip(task.together(examples), rows, strict=True))
    if config.group:
        _require_groups(config.group, rows, where)
    rules = task.reader.kind.label_rules
    labels = [each.gold or () if rules is None or rules.numbers is False else () for each in examples]
    left, taken, parts = np.arange(len(examples)), 0.0, dict[str, np.ndarray]()
    for number, (name, share) in enumerate(shares.items()):
        rng = seeding.generator(0, seeding.HELD_OUT, number)  # the same parts for every seed, so their scores compare
        wanted = share / (1 - taken)
        held = _choose([labels[i] for i in left], linked[left], wanted, rng) if share else np.zeros(len(left), bool)
        if share and not held.any():
            task.fit(examples)  # first says what is wrong with the labels
            among = "no class has two examples" if any(labels[i] for i in left) else "it has no two examples"
            problem = f"{among} with different texts{' and groups' * bool(config.group)}"
            raise UserError(f"{where}: no {name} examples can be held out: {problem}", f"Give --{name} FILE")
        parts[name], left, taken = left[held], left[~held], taken + share
    parts["train"] = left
    listed = [f"{len(parts[name]):,} for {name}" for name in ("dev", "test") if len(parts[name])]
    ways = ["by class"] * any(labels) + [f"by {config.group}"] * bool(config.group)
    console.info(
        f"{where}: held out {' and '.join(listed)} of {len(examples):,} examples"
        + f" ({', '.join(ways)})" * bool(ways)
        + f"; {len(left):,} to train on"
    )
    chosen = {name: [examples[i] for i in part] for name, part in parts.items()}
    written = {name: [rows[i] or task.to_row(examples[i]) for i in part] for name, part in parts.items() if len(part)}
    return SplitExamples(chosen["train"], chosen["dev"], chosen["test"], written, [data_set[i] for i in left])


def _check(config: FinetuneConfig, has: tuple[bool, bool]) -> None:
    """Raise UsageError if the shares contradict the files."""
    has_dev, has_test = has
    if has_dev and config.dev_share != FinetuneConfig.dev_share:
        raise UsageError("--dev-share is the part of the training examples to use without --dev: give one of them")
    if has_test and config.test_share:
        raise UsageError("--test-share is the part of the training examples to use without --test: give one of them")
    if not has_dev and config.dev_share + config.test_share == 1:
        raise UsageError("--dev-share and --test-share leave nothing to train on: lower them")
    if config.group and has_dev and not config.test_share:
        raise UsageError("--group says which examples to hold out together, but none are: remove --dev or --group")


def _rows(reader: Reader, source: Any) -> dict[str, dict[str, Any]]:
    """Return the values of rows by the `source` of their examples."""
    given = Path(source) if isinstance(source, str | Path) else source
    rows = [row for row in reader.rows(given) if isinstance(row, Row)]
    return {row.source: row.values for row in reversed(rows)}  # of questions with one id, the first is the example


def _keys(group: str, texts: tuple[str, ...], row: dict[str, Any]) -> Iterable[Hashable]:
    """Yield what an example has in common with those that it must not be apart from."""
    yield min((" ".join(text.lower().split()) for text in texts), key=lambda text: (-len(text), text))
    yield from ((group, value) for value in _groups(group, [row]))


def _groups(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return the groups of rows, without missing values, such as NaN in a frame of pandas."""
    return [str(value) for row in rows if (value := row.get(name)) not in (None, "") and value == value]


def _require_groups(group: str, rows: list[dict[str, Any]], where: str) -> None:
    """Raise UsageError if no row has the group, or if none share one."""
    values = _groups(group, rows)
    if not values:
        names = join_names(dict.fromkeys(name for row in rows for name in row)) or "none"
        raise UsageError(f"{where}: no column {group!r} to group by; its columns are: {names}")
    if len(values) > 1 and len(set(values)) == len(values):
        problem = f"{where}: every value of {group!r} occurs once, so it groups nothing"
        raise UsageError(problem, "Remove --group, or name another column")


def _linked(keys: Iterable[Iterable[Hashable]]) -> np.ndarray:
    """Return for each example the number of its set: those that share keys with it, directly or through others."""
    parents: list[int] = []
    first: dict[Hashable, int] = {}

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for number, shared in enumerate(keys):
        parents.append(number)
        for key in shared:
            parents[root(number)] = root(first.setdefault(key, number))
    return np.array([root(number) for number in range(len(parents))])


def _choose(labels: list[tuple[str, ...]], linked: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Choose about the same share of each class, and at least one example, in whole sets. Each class keeps an example.

    A set is tried for the rarest of its labels.

    Returns:
        Whether each example is chosen: bool.
    """
    sets: dict[int, list[int]] = defaultdict(list)
    for number, name in enumerate(linked.tolist()):
        sets[name].append(number)
    each_has = {
        name: Counter(label for i in members for label in set(labels[i] or ("",))) for name, members in sets.items()
    }
    counts = sum(each_has.values(), Counter[str]())
    rarest_first = sorted(counts, key=lambda label: (counts[label], label))
    classes: dict[str, list[int]] = defaultdict(list)
    for name, has in each_has.items():
        classes[next(label for label in rarest_first if label in has)].append(name)
    chosen, held = np.zeros(len(labels), bool), Counter[str]()

    def hold(name: int) -> None:
        if all(held[label] + n < counts[label] for label, n in each_has[name].items()):
            chosen[sets[name]] = True
            held.update(each_has[name])

    for label in rarest_first:
        names = [classes[label][i] for i in rng.permutation(len(classes[label]))]
        for name in names:
            if held[label] + each_has[name][label] <= max(1, round(share * counts[label])):
                hold(name)
        for name in sorted(names, key=lambda name: len(sets[name])):
            if not held[label]:
                hold(name)
    return chosen
