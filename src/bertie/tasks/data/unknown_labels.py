"""Labels that mean that the label is unknown, such as -1 in SNLI and "-" in MNLI: found where the other labels leave no doubt."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

from bertie import console
from bertie.errors import UsageError, UserError, first_few, join_names, shorten
from bertie.tasks.data.rows import parse_finite

T = TypeVar("T")
MARKERS = frozenset(("-1", "-1.0", "-", "?", "none", "null", "n/a", "na", "<na>"))
"""What may mean that a label is unknown, in lower case. An empty cell and NaN always do."""
_NLI = {"entailment", "neutral", "contradiction"}
_PLUS, _PLUS_1 = {"+"}, {"1", "+1", "1.0"}


@runtime_checkable
class LeavesOut(Protocol):
    """A reader of labels that may mean that the label is unknown, which only all labels together can tell."""

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes; empty: they are not known yet."""
        ...

    def markers(self, labels: Collection[str], where: str) -> set[str]:
        """Return which of all labels of a file mean that the label is unknown: `find_markers`."""
        ...

    def labeled(self, examples: list[Any], where: str, training: bool) -> list[Any]:
        """Return the examples whose label is known, and say how many others there are.

        Args:
            examples: All examples of a file, as `Reader.read` yields them.
            where: The file, for messages.
            training: Whether every label that is said to mean this must occur.

        Raises:
            UserError: No label is known.
            UsageError: It is not certain what a label means, or one that should mean this does not occur.
        """
        ...


def find_markers(
    labels: Collection[str],
    where: str,
    known: Collection[str] = (),
    stated: Collection[str] = (),
    numbers: bool = False,
) -> set[str]:
    """Return which labels mean that the label is unknown.

    Args:
        labels: All labels of a column.
        where: The file, for messages.
        known: All classes, if they are known.
        stated: The labels that the caller says mean this, however they are written; empty: they are found.
        numbers: Whether labels are scores.

    Raises:
        UserError: Two labels are the same number.
        UsageError: It is not certain.
    """
    found = among(labels, stated) if stated else _doubtless(labels, where, known, numbers)
    if not numbers:
        _require_one_spelling({*labels} - {*known} - found, where)
    return found


def among(labels: Collection[str], stated: Collection[str]) -> set[str]:
    """Return the labels that the caller names, however they are written."""
    meant = {_meaning(label) for label in stated}
    return {label for label in labels if _meaning(label) in meant}


def require_stated(labels: Collection[str], where: str, stated: Collection[str]) -> None:
    """Raise a UsageError if a label that the caller says means that the label is unknown is none of the labels."""
    meanings = {_meaning(label) for label in (*labels, "", "nan")}  # an empty cell and NaN always do
    if missing := [label for label in stated if _meaning(label) not in meanings]:
        problem = f"{where}: no label is {missing[0]!r}, which task.no_label says means that it is unknown"
        raise UsageError(problem, f"Its labels are {join_names(sorted(labels)[:5])}")


def _meaning(label: str) -> str | float:
    """Return what two ways to write a marker have in common: -1 is -1.0, none is None, true is True."""
    number, low = parse_finite(label), label.lower()
    return low if low in (*MARKERS, "true", "false") and number is None else label if number is None else number


def _require_one_spelling(labels: Collection[str], where: str) -> None:
    for label in labels:
        if (whole := label.removesuffix(".0")) != label and whole in labels and parse_finite(label) is not None:
            problem = f"{where}: the labels {whole!r} and {label!r} are one number, and would be two classes"
            raise UserError(f"{problem}: write all in the same way")


def _doubtless(labels: Collection[str], where: str, known: Collection[str], numbers: bool) -> set[str]:
    """Return which labels mean that the label is unknown: `find_markers`, if the caller does not say it."""
    doubtful = {label for label in labels if label.lower() in MARKERS and label not in known}
    others = set(labels) - doubtful
    if not doubtful or known or not others:
        return doubtful
    if others <= _PLUS:
        doubtful -= {"-"}
    if others <= _PLUS_1 or _has_negative(others):
        doubtful -= {"-1", "-1.0"}
    classes = {label.removesuffix(".0") for label in others}
    counted = len(classes) > 2 and classes == {str(number) for number in range(len(classes))}
    conventions = ({"-1", "-1.0"} if counted and not numbers else set()) | ({"-"} if others <= _NLI else set())
    if unclear := sorted(doubtful - conventions):
        label = unclear[0]
        examples = join_names(sorted(others)[:5])
        problem = f"{where}: the label {label!r} could mean that the label is unknown; others are {examples}"
        kept = "--task.no-label nan if it is a score" if numbers else "name all classes with --task.labels if it is one"
        raise UsageError(problem, f"Say --task.no-label={label} if it is unknown, or {kept}")
    return doubtful


def _has_negative(labels: Iterable[str]) -> bool:
    return any((parse_finite(label) or 0) < 0 for label in labels)


def without_unknown(examples: list[T], labels: list[str | None], markers: Collection[str], where: str) -> list[T]:
    """Return the examples whose label is known, and say how many are left out.

    Args:
        examples: The examples.
        labels: The label of each.
        markers: The labels that mean that it is unknown.
        where: The file, for messages.

    Raises:
        UserError: No example is left.
    """
    if not markers:
        return examples
    kept = [example for example, label in zip(examples, labels, strict=True) if label not in markers]
    names = first_few((repr(shorten(marker)) for marker in sorted(markers)), len(markers), ", ")
    if not kept:
        raise UserError(f"{where}: every label is {names}, which means that it is unknown")
    left = f"{len(examples) - len(kept):,} of {len(examples):,} examples"
    console.info(f"{where}: left out {left}, whose label {names} means that it is unknown")
    return kept


def require_one_kind(kinds: dict[bool, str], label: Any, place: str) -> None:
    """Raise UsageError if some labels are text and others are not. kinds: the first places of both."""
    is_text = isinstance(label, str)
    kinds.setdefault(is_text, place)
    if before := kinds.get(not is_text):
        problem = f"the label {shorten(str(label))!r} is {'' if is_text else 'not '}text, and that of {before} is"
        raise UsageError(f"{place}: {problem}{' not' * is_text}: write all in the same way")
