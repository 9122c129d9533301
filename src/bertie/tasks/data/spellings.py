"""One name for a label that programs write in several ways: true as True, and 1 as 1.0."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from bertie import console
from bertie.errors import UserError, first_few
from bertie.tasks.data.unknown_labels import MARKERS, LeavesOut

_WHOLE = re.compile(r"-?\d+(\.0)?")


def spellings(labels: Collection[str], classes: Collection[str] = ()) -> dict[str, str]:
    """Return the names of those labels that are written in another way.

    A label is the class that it means. Without classes, true and false are named as in JSON, if all labels are one of them.

    Args:
        labels: All labels of a column.
        classes: All classes, if they are known.
    """
    found: dict[str, str] = {}
    for meaning in (_boolean, _whole):
        names = _names(classes, meaning)
        found |= {label: names[key] for label in labels if label not in classes and (key := meaning(label)) in names}
    if not classes and all(_boolean(label) or label.lower() in MARKERS for label in labels):
        found = {label: name for label in labels if (name := _boolean(label)) and name != label}
    return found


def spell(reader: object, examples: list[Any], where: str) -> list[Any]:
    """Return examples, or errors, with the names of their labels, and say which were written in another way."""
    if not isinstance(reader, LeavesOut):
        return examples
    labels = {label for each in examples if not isinstance(each, UserError) for label in each.gold or ()}
    if not (names := spellings(labels, reader.classes)):
        return examples
    shown = first_few((f"{label} as {name}" for label, name in sorted(names.items())), len(names), ", ")
    console.info_once(f"{where}: labels are read so: {shown}")
    return [each if isinstance(each, UserError) else each.named(names) for each in examples]


def class_of(label: str, classes: Collection[str]) -> str:
    """Return the class that a predicted label means; the label itself if it means none."""
    return spellings((label,), classes).get(label, label)


def _names(classes: Collection[str], meaning: Callable[[str], str]) -> dict[str, str]:
    """Return the class of each meaning that one class has."""
    counts = Counter(map(meaning, classes))
    return {key: name for name in classes if (key := meaning(name)) and counts[key] == 1}


def _boolean(label: str) -> str:
    return label.lower() if label.lower() in ("true", "false") else ""


def _whole(label: str) -> str:
    return label.removesuffix(".0") if _WHOLE.fullmatch(label) else ""
