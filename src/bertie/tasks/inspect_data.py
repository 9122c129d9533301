"""Summary of a file of examples as a task reads it: columns, labels, lengths, first examples, and skipped rows with reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, cast

from bertie.base import config as configuration
from bertie.base import console
from bertie.base.errors import UserError, shorten
from bertie.base.notebook import NotebookDict
from bertie.examples.labels import MAX_KINDS, FirstExamples
from bertie.examples.left_out import valid_examples
from bertie.examples.odd_texts import OddTexts
from bertie.examples.rows import name_of, parse_finite
from bertie.tasks import AnyTask
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

AT_ONCE = 1024  # examples in memory
SHOWN = 3  # first examples, reasons and the like that are shown
LABELS_SHOWN = 20
MAX_COUNTS = 200_000  # different things in the counts of a task
MAX_REASONS = 50
LONGEST = 1 << 16  # longer texts count as this long in the quantiles


@dataclass
class Lengths:
    """The lengths of texts, summarized in fixed memory."""

    counts: Counter[int] = field(default_factory=Counter)
    total: int = 0
    longest: int = 0

    def add(self, length: int) -> None:
        self.counts[min(length, LONGEST)] += 1
        self.total += length
        self.longest = max(self.longest, length)

    def summary(self) -> dict[str, float]:
        """Return the mean, three quantiles and the maximum."""
        number = self.counts.total()
        shares = {"median": 0.5, "90 %": 0.9, "99 %": 0.99}
        quantiles = {name: self._quantile(share * number) for name, share in shares.items()}
        return {"mean": round(self.total / number, 1), **quantiles, "longest": self.longest}

    def _quantile(self, rank: float) -> int:
        below = 0
        for length, count in sorted(self.counts.items()):
            below += count
            if below >= rank:
                return length
        return self.longest


@dataclass
class _Seen:
    """Summary of the rows of a file so far, in fixed memory."""

    counts: Any
    """The task's own."""
    odd: OddTexts = field(default_factory=OddTexts)
    examples: int = 0
    skipped: int = 0
    unlabeled: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    other_labels: int = 0
    words: Lengths = field(default_factory=Lengths)
    tokens: Lengths = field(default_factory=Lengths)
    first: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, example: Any) -> None:
        self.examples += 1
        self.odd.add(example)
        if len(self.counts) <= MAX_COUNTS:
            self.counts.add(example)
        self.words.add(sum(len(text.split()) for text in example.texts))
        if len(self.first) < SHOWN:
            shown = {setting.name: asdict(example)[setting.name] for setting in fields(example) if setting.repr}
            del shown["source"]
            self.first.append({name: value for name, value in shown.items() if value not in (None, ())})
        if example.gold is None:
            self.unlabeled += 1
        for label in example.gold or ():
            if label in self.labels or len(self.labels) < MAX_KINDS:
                self.labels[label] += 1
            else:
                self.other_labels += 1

    def skip(self, error: UserError, where: str) -> None:
        self.skipped += 1
        reason = re.sub(r"^:?\d*:? *", "", str(error).removeprefix(where))
        kind = re.sub(r"'[^']*'|\d[\d,.]*", "…", reason)
        if kind not in self.reasons and len(self.reasons) == MAX_REASONS:
            kind = "other reasons"
        entry = self.reasons.setdefault(kind, [0, error])
        entry[0] += 1


def inspect_data(
    task: AnyTask | str, data: str | Path | Iterable[Any], *, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Read labeled examples as fine-tuning does, in constant memory, and summarize what is read.

    Args:
        task: A task or its kind.
        data: A file, or examples in memory.
        tokenizer: Counts the tokens of the texts, without special tokens; None: only words between spaces are counted.

    Returns:
        {"examples", "columns", "labels", "unlabeled", "words", "first", "skipped", "reasons"}, and "tokens" with a
        tokenizer. "labels" are the counts of at most 10,000 labels, "unknown" the labels that mean that the label is
        unknown, and "reasons" why rows are skipped: {"reason", "rows", "first"}. "refused" says why fine-tuning refuses
        the file, if it does; else, for tags, "fitted" has the settings that it finds, such as the scheme.

    Raises:
        UserError: The file as a whole cannot be read.
        UsageError: The file is missing, or it is unclear how to read it.
    """
    if isinstance(task, str):
        task = cast(AnyTask, configuration.build(AnyTask, {"kind": task}, "task"))
    where, reader, seen = name_of(data), task.reader, _Seen(task.counts())
    columns = reader.columns(Path(data)) if isinstance(data, str | Path) else {}
    examples = reader.read(data)
    with console.progress("read", 0, "rows", passing=True) as bar:
        while part := list(islice(examples, AT_ONCE)):
            good = [example for example in part if not isinstance(example, UserError)]
            for example in part:
                seen.skip(example, where) if isinstance(example, UserError) else seen.add(example)
            if tokenizer is not None and good:
                _count_tokens(good, tokenizer, seen.tokens)
            bar.advance(len(part))
    if not seen.examples and not seen.skipped:
        raise UserError(f"{where}: no examples in it")
    seen.odd.warn(where)
    return NotebookDict(_result(seen, columns, _unknown(task, seen, where)) | _fitted(task, seen, where))


def kinds_that_read(path: Path) -> list[str]:
    """Return the kinds of tasks that read a labeled example from the first row of a file, without flags."""
    kinds = []
    for kind, task in configuration.kinds(AnyTask).items():
        with console.silenced(), suppress(UserError):
            first = next(task().reader.read(path), None)
            if first is not None and not isinstance(first, UserError) and first.gold is not None:
                kinds.append(kind)
    return kinds


def _count_tokens(examples: Sequence[Any], tokenizer: Tokenizer, lengths: Lengths) -> None:
    sizes = iter(truncation.tokenize(tokenizer, [text for example in examples for text in example.texts]))
    for example in examples:
        lengths.add(sum(len(next(sizes).ids) for _ in example.texts))


def _unknown(task: AnyTask, seen: _Seen, where: str) -> list[str]:
    """Name the labels, and return those that mean that the label is unknown. If that is not certain, fine-tuning refuses it."""
    if (rules := task.reader.kind.label_rules) is None or seen.other_labels:
        return []
    for label, name in rules.spellings(seen.labels.keys()).items():
        seen.labels[name] += seen.labels.pop(label)
    with suppress(UserError):
        return sorted(rules.unknown(seen.labels.keys(), where))
    return []


def _fitted(task: AnyTask, seen: _Seen, where: str) -> dict[str, Any]:
    """Return what fine-tuning finds in the counts, or why it refuses the file."""
    if len(seen.counts) > MAX_COUNTS:
        console.warn(f"{where}: its labels are too many and too diverse to predict how fine-tuning will read them")
        return {}
    try:
        if not seen.examples:
            valid_examples((error for rows, error in seen.reasons.values() for _ in range(rows)), where)
        fitted = task.fit_counts(seen.counts, where)
    except UserError as error:
        return {"refused": str(error)}
    if isinstance(seen.counts, FirstExamples):
        return {}  # they do not have the weights of classes, and the scale of numbers
    names = [setting.name for setting in fields(fitted) if getattr(fitted, setting.name) != getattr(task, setting.name)]
    return {"fitted": {name: getattr(fitted, name) for name in names}}


def _result(seen: _Seen, columns: dict[str, str], unknown: list[str]) -> dict[str, Any]:
    reasons = [{"reason": kind, "rows": rows, "first": str(first)} for kind, (rows, first) in seen.reasons.items()]
    return {
        "examples": seen.examples,
        "columns": columns,
        "labels": dict(seen.labels.most_common()),
        "other_labels": seen.other_labels,
        "unlabeled": seen.unlabeled,
        "unknown": unknown,
        **({"words": seen.words.summary()} if seen.examples else {}),
        **({"tokens": seen.tokens.summary()} if seen.tokens.counts else {}),
        "first": seen.first,
        "skipped": seen.skipped,
        "reasons": sorted(reasons, key=lambda reason: -reason["rows"]),
    }


def lines_of(result: dict[str, Any]) -> list[str]:
    """Return the lines for people of a result of `inspect_data`."""
    examples, skipped = console.plural(result["examples"], "example"), console.plural(result["skipped"], "row")
    uses = ", ".join(f"{use} {names!r}" for use, names in result["columns"].items())
    lines = [f"{examples}, {skipped} skipped", *[f"columns: {uses}"] * bool(uses)]
    lines += _label_lines(result["labels"], result["other_labels"])
    if result["unlabeled"]:
        lines.append(f"{result['unlabeled']:,} without a label")
    if result["unknown"]:
        count = sum(result["labels"][label] for label in result["unknown"])
        lines.append(f"{', '.join(result['unknown'])}: means that the label is unknown; {count:,} are left out")
    for unit in ("words", "tokens"):
        if unit in result:
            measures = ", ".join(f"{name} {value:,}" for name, value in result[unit].items()).replace("%", "% up to")
            lines.append(f"{unit} of an example: {measures}")
    for example in result["first"]:
        lines.append("first: " + ", ".join(f"{name} {shorten(repr(value), 80)}" for name, value in example.items()))
    reasons = [reason for reason in result["reasons"][:LABELS_SHOWN] if reason["first"] != result.get("refused")]
    return lines + [f"skipped {reason['rows']:,}: {reason['first']}" for reason in reasons]


def _label_lines(labels: dict[str, int], others: int) -> list[str]:
    numbers = [parse_finite(label) for label in labels]
    known = [number for number in numbers if number is not None]
    if len(labels) > LABELS_SHOWN and len(known) == len(labels):
        return [f"labels: {len(labels):,} numbers, from {min(known):g} to {max(known):g}"]
    shown = ", ".join(f"{shorten(label)} {count:,}" for label, count in islice(labels.items(), LABELS_SHOWN))
    more = f" … and {len(labels) - LABELS_SHOWN:,} more" if len(labels) > LABELS_SHOWN else ""
    beyond = f"; {others:,} with other labels" if others else ""
    return [f"labels: {shown}{more}{beyond}"] if labels else []
