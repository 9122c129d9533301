"""Labels that mean that the label is unknown, such as SNLI's -1 and MNLI's dash, and labels that are written in several ways.

Both follow from all labels of a file together.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError, UserError, first_few, join_names, shorten
from bertie.examples.rows import parse_finite, parse_label_number

MARKERS = frozenset(("-1", "-1.0", "-", "?", "none", "null", "n/a", "na", "<na>"))
"""Labels that may mean that the label is unknown, in lower case. An empty cell and NaN always do."""
MAX_KINDS = 10_000  # different labels that are counted
_NLI = {"entailment", "neutral", "contradiction"}
_WITHOUT_WIDTH = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe0f\ufeff]")
_WHOLE = re.compile(r"-?\d+(\.0)?")


@property
def gold_label(example: Any) -> tuple[str, ...] | None:
    """The label to count, if it is known: `gold` of examples with one label."""
    return None if example.label is None else (str(example.label),)


def with_named_label(example: Any, names: dict[str, str]) -> Any:
    """Return an example with the name of its label, if there is one in `names`: `named` of examples with one label."""
    return replace(example, label=names.get(example.label or "", example.label))


@dataclass(frozen=True)
class LabelRules:
    """Facts about labels that are known before they are read."""

    classes: tuple[str, ...] = ()
    """All classes; empty: they are not known yet."""
    no_label: tuple[str, ...] = ()
    """The labels that the user says mean that the label is unknown, however they are written; empty: they are found."""
    numbers: bool | None = False
    """Whether labels are scores. None: if all of them are numbers."""
    kept: frozenset[str] = frozenset()
    """Labels that are classes, whatever they look like, in lower case."""
    join: bool = False
    """Whether labels that look the same are one."""

    def unknown(self, labels: Collection[str], where: str) -> set[str]:
        """Return which of all labels of a file mean that the label is unknown.

        Raises:
            UserError: Two labels are the same number.
            UsageError: It is not certain what a label means.
        """
        numbers = self.numbers is not False and all(parse_label_number(label) is not None for label in labels)
        unknown = among(labels, self.no_label) if self.no_label else self._certain(labels, where, numbers)
        for label in () if numbers else {*labels} - {*self.classes} - unknown:
            if (whole := label.removesuffix(".0")) != label and whole in labels and parse_finite(label) is not None:
                problem = f"{where}: the labels {whole!r} and {label!r} are the same number, but would be two classes"
                raise UserError(f"{problem}: write all numbers in the same way")
        return unknown

    def _certain(self, labels: Collection[str], where: str, numbers: bool) -> set[str]:
        open_labels = {label for label in labels if label not in self.classes and label.lower() not in self.kept}
        doubtful = {label for label in open_labels if label.lower() in MARKERS}
        others = open_labels - doubtful
        if self.classes or not doubtful or not others:
            return doubtful
        if others <= {"+"}:
            doubtful -= {"-"}
        if others <= {"1", "+1", "1.0"} or any((parse_finite(label) or 0) < 0 for label in others):
            doubtful -= {"-1", "-1.0"}
        whole = {label.removesuffix(".0") for label in others}
        counted = len(whole) > 2 and whole == {str(number) for number in range(len(whole))}
        conventions = ({"-1", "-1.0"} if counted and not numbers else set()) | ({"-"} if others <= _NLI else set())
        if unclear := sorted(doubtful - conventions):
            examples = join_names(sorted(others)[:5])
            problem = f"{where}: the label {unclear[0]!r} could mean that the label is unknown; others are {examples}"
            kept = "--task.no-label nan if it is a score" if numbers else "name all classes with --task.labels"
            raise UsageError(problem, f"Set --task.no-label={unclear[0]} if it does, or {kept}")
        return doubtful

    def require_stated(self, labels: Collection[str], where: str) -> None:
        """Raise a UsageError if the user says that a label means that it is unknown, and no label is this one."""
        meanings = {_meaning(label) for label in (*labels, "", "nan")}
        if missing := [label for label in self.no_label if _meaning(label) not in meanings]:
            problem = f"{where}: task.no_label is {missing[0]!r}, but no label has this value"
            raise UsageError(problem, f"Its labels are {join_names(sorted(labels)[:5])}")

    def require_looks(self, labels: Collection[str], where: str) -> None:
        """Raise a UsageError if two labels look the same."""
        for label, other in self.alike(labels).items():
            problem = f"{where}: the labels {other!a} and {label!a} look the same"
            raise UsageError(problem, "If they are one, set --task.join-labels")

    def alike(self, labels: Collection[str]) -> dict[str, str]:
        """Return the labels that look like a class, or like another label that is composed, and this one."""
        looks = {_look(name): name for name in self.classes}
        ordered = sorted(labels, key=lambda label: (not unicodedata.is_normalized("NFC", label), label))
        firsts = {label: looks.setdefault(_look(label), label) for label in ordered}
        return {label: first for label, first in firsts.items() if label != first}

    def spellings(self, labels: Collection[str]) -> dict[str, str]:
        """Return the names of those labels that are written in another way: "1" for 1.0, "true" for True, or joined ones.

        A label is the class that it means. Without classes, true and false are named as in JSON, if all labels are one of them.
        """
        names = self.alike(labels) if self.join else {}
        for meaning in (_boolean, _whole):
            counts = Counter(map(meaning, self.classes))
            named = {key: name for name in self.classes if (key := meaning(name)) and counts[key] == 1}
            names |= {
                each: named[key] for each in labels if each not in self.classes and (key := meaning(each)) in named
            }
        if not self.classes and all(_boolean(label) or label.lower() in MARKERS for label in labels):
            return {label: name for label in labels if (name := _boolean(label)) and name != label}
        return names


def spelled(rules: LabelRules | None, examples: list[Any], where: str) -> list[Any]:
    """Return examples, or errors, with the names of their labels, and say which were written in another way."""
    labels = {label for each in examples if rules and not isinstance(each, UserError) for label in each.gold or ()}
    if rules is None or not (names := rules.spellings(labels)):
        return examples
    shown = first_few((f"{label} as {name}" for label, name in sorted(names.items())), len(names), ", ")
    console.info(f"{where}: bertie reads the labels {shown}")
    return [each if isinstance(each, UserError) else each.named(names) for each in examples]


def labeled(rules: LabelRules | None, examples: list[Any], where: str, training: bool = False) -> list[Any]:
    """Return the examples whose label is known, and say how many others there are.

    Args:
        rules: What is known of the labels. None: all are known.
        examples: All examples of a file.
        where: The file, for messages.
        training: Whether every label that the user says means this must occur.

    Raises:
        UserError: No label is known.
        UsageError: It is not certain what a label means, or one that should mean this does not occur.
    """
    if rules is None:
        return examples
    labels = {label for example in examples for label in example.gold or ()}
    rules.require_looks(labels, where)
    if training:
        rules.require_stated(labels, where)
    if not (unknown := rules.unknown(labels, where)):
        return examples
    kept = [example for example in examples if unknown.isdisjoint(example.gold or ())]
    names = first_few((repr(shorten(label)) for label in sorted(unknown)), len(unknown), ", ")
    several = [each for each in examples if len(each.gold or ()) > 1 and not unknown.isdisjoint(each.gold)]
    if several and not rules.numbers:  # of several numbers, one that is unknown leaves the others without use
        problem = f"{several[0].source}: a label of {names} means that the labels are unknown"
        raise UserError(f"{problem}, so it cannot stand beside others")
    if not kept:
        raise UserError(f"{where}: every label is {names}, which means that it is unknown")
    left = f"{len(examples) - len(kept):,} of {len(examples):,} examples"
    console.info(f"{where}: left out {left}, whose label {names} means that it is unknown")
    return kept


class FirstExamples:
    """The first two examples with each label. The memory does not grow with their number.

    `fit` of most tasks refuses these if it refuses all examples: it reads the labels, whether each occurs once, and whether
    there are pairs.
    """

    def __init__(self) -> None:
        self.examples: list[Any] = []
        self.kinds: Counter[Any] = Counter()

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, example: Any) -> None:
        kind = (example.gold, len(example.texts))
        if kind in self.kinds or len(self.kinds) < MAX_KINDS:
            self.kinds[kind] += 1
            self.examples += [example] * (self.kinds[kind] <= 2)


def among(labels: Collection[str], stated: Collection[str]) -> set[str]:
    """Return the labels that the user names, however they are written."""
    meant = {_meaning(label) for label in stated}
    return {label for label in labels if _meaning(label) in meant}


def class_of(label: str, classes: Collection[str]) -> str:
    """Return the class that a predicted label means; the label itself if it means none."""
    return LabelRules(tuple(classes)).spellings((label,)).get(label, label)


def require_one_type(seen: dict[Any, Any], label: Any, place: str) -> None:
    """Raise a UsageError if some labels are text and others are numbers: they would be other classes.

    seen: the notes of the file, which get the place of the first label of each type.
    """
    if type(label) in seen:
        return
    name = _type(label)
    seen[type(label)] = seen[name] = place
    for other in ("text", "true or false", "a number"):
        if other != name and other in seen:
            problem = f"{place}: the label {shorten(str(label))!r} is {name}, but the label of {seen[other]} is {other}"
            raise UsageError(f"{problem}: write all labels in the same way")


def _type(label: Any) -> str:
    return "text" if isinstance(label, str) else "true or false" if isinstance(label, bool) else "a number"


def _meaning(label: str) -> str | float:
    """Return what two ways to write a marker have in common: -1 is -1.0, none is None, true is True."""
    number, low = parse_finite(label), label.lower()
    return low if low in (*MARKERS, "true", "false") and number is None else label if number is None else number


def _look(label: str) -> str:
    """Return what labels have in common that look the same: composed characters, and plain blanks."""
    return " ".join(unicodedata.normalize("NFC", _WITHOUT_WIDTH.sub("", label)).split())


def _boolean(label: str) -> str:
    return label.lower() if label.lower() in ("true", "false") else ""


def _whole(label: str) -> str:
    return label.removesuffix(".0") if _WHOLE.fullmatch(label) else ""
