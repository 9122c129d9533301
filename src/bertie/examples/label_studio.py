"""Label Studio's export: a .json file with a list of tasks, as rows of texts with annotated spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.left_out import CANCELLED
from bertie.examples.rows import Row

_TEXT = "text"


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


def _of_task(task: dict[str, Any], place: str, key: str) -> dict[str, Any]:
    """Return the texts of a task, and its spans; None without an annotation."""
    texts = {name: text for name, text in task["data"].items() if isinstance(text, str)}
    if _TEXT not in texts and len(texts) == 1:
        texts = {_TEXT: next(iter(texts.values()))}
    all_annotations = _objects(task, "annotations", place)
    annotations = [annotation for annotation in all_annotations if not annotation.get(CANCELLED)]
    if len(annotations) > 1:
        raise UserError(f"{place}: {len(annotations)} annotations: keep one of them")
    if not annotations:
        return texts | ({CANCELLED: True} if all_annotations else {"spans": None})
    regions = []
    for region in _objects(annotations[0], "result", place):
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
