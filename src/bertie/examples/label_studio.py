"""Label Studio's export: a .json file with a list of tasks, as rows of texts with annotated spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.left_out import CANCELLED
from bertie.examples.rows import Row

_TEXT = "text"
_ANSWERS = ("choices", "rating", "number")


def label_studio_rows(values: Iterable[Any], path: Path, key: str = "") -> Iterator[Row | UserError]:
    """Yield a row with text and spans for each task; its objects as they are for the short export (JSON-MIN) and others.

    Args:
        values: The content of the file.
        path: The file.
        key: The text that the user names; empty: the one that the regions name.
    """
    for number, value in enumerate(values, 1):
        place = f"{path}: example {number}"
        try:
            if not isinstance(value, dict):
                raise UserError(f'{place}: expected an object, as in {{"text": …}}, found {type(value).__name__}')
            is_task = isinstance(value.get("data"), dict)
            yield Row(_of_task(value, place, key) if is_task else value, f"{path.name}: {number}", place)
        except UserError as error:
            yield error


def label_studio_choice(row: Row) -> Row:
    """Return a row with the texts and the label of a task whose text has one: choices, a rating or a number.

    Rows of the short export and of others stay. Raises UserError if a text has several annotations, or several questions.
    """
    if not isinstance(row.values.get("data"), dict):
        return row
    texts, results = _annotation(row.values, row.place)
    answers = {}
    for region in results or ():
        value, kind = region.get("value"), str(region.get("type"))
        if kind not in _ANSWERS or not isinstance(value, dict):
            raise UserError(f"{row.place}: bertie reads {', '.join(_ANSWERS)} of a text, not {kind}")
        answers[region.get("from_name")] = value.get(kind)
    if len(answers) > 1:
        raise UserError(f"{row.place}: it answers {join_names(map(str, answers))}: keep one of them")
    label = next(iter(answers.values()), None if results is None else [])
    label = label[0] if isinstance(label, list) and len(label) == 1 else label
    return row._replace(values=texts | {"label": label})


def _annotation(task: dict[str, Any], place: str) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """Return the texts of a task, and the results of its only annotation, if it has one that is not cancelled."""
    texts: dict[str, Any] = {name: text for name, text in task["data"].items() if isinstance(text, str)}
    if _TEXT not in texts and len(texts) == 1:
        texts |= {_TEXT: next(iter(texts.values()))}
    all_annotations = _objects(task, "annotations", place)
    annotations = [annotation for annotation in all_annotations if not annotation.get(CANCELLED)]
    if len(annotations) > 1:
        raise UserError(f"{place}: {len(annotations)} annotations: keep one of them")
    if annotations:
        return texts, _objects(annotations[0], "result", place)
    return texts | ({CANCELLED: True} if all_annotations else {}), None


def _of_task(task: dict[str, Any], place: str, key: str) -> dict[str, Any]:
    """Return the texts of a task, and its spans; None without an annotation."""
    texts, results = _annotation(task, place)
    if results is None:
        return texts if CANCELLED in texts else texts | {"spans": None}
    regions = []
    for region in results:
        kind = str(region.get("type"))
        if kind == "labels":
            regions.append(region)
        elif kind.endswith("labels"):
            raise UserError(f"{place}: bertie reads labels of characters in a text, not {kind}")
    return _annotated(texts, regions, place, key) | {"spans": [region.get("value") for region in regions]}


def _objects(values: dict[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    objects = values.get(key) or []
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise UserError(f"{place}: {key!r} is not a list of objects: {shorten(str(objects))}")
    return objects


def _annotated(texts: dict[str, str], regions: list[dict[str, Any]], place: str, key: str) -> dict[str, str]:
    """Return the texts without those that the regions are not of. They name the text, or the tag that shows it."""
    names = sorted({str(region["to_name"]) for region in regions if "to_name" in region})
    named = [name for name in names if name in texts]
    shown = all(isinstance(value := region.get("value"), dict) and value.get("text") for region in regions)
    if len(names) > 1 or (named and key not in ("", *named)):
        raise UserError(f"{place}: its regions belong to {join_names(names)}: keep the regions of one text")
    if named:
        return {_TEXT: texts[named[0]], named[0]: texts[named[0]]}
    if names and not key and not shown and len(texts) > 1:
        problem = f"{place}: its regions belong to {names[0]!r}, but the texts are {join_names(texts)}"
        raise UsageError(problem, "Choose with --task.tokens")
    return texts
