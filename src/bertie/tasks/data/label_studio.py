"""Label Studio's export: a .json file with a list of tasks, as rows of texts with annotated spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertie.errors import UserError
from bertie.tasks.data.rows import Row

_TEXT = "text"


def label_studio_rows(values: Iterable[Any], path: Path) -> Iterator[Row | UserError]:
    """Yield a row with text and spans for each task; its objects as they are for the short export (JSON-MIN) and others."""
    for number, value in enumerate(values, 1):
        place = f"{path}: example {number}"
        try:
            if not isinstance(value, dict):
                raise UserError(f'{place}: expected an object, as in {{"text": …}}, found {type(value).__name__}')
            is_task = isinstance(value.get("data"), dict)
            yield Row(_of_task(value, place) if is_task else value, f"{path.name}: {number}", place)
        except UserError as error:
            yield error


def _of_task(task: dict[str, Any], place: str) -> dict[str, Any]:
    texts = {name: text for name, text in task["data"].items() if isinstance(text, str)}
    if _TEXT not in texts and len(texts) == 1:
        texts = {_TEXT: next(iter(texts.values()))}
    annotations = [each for each in task.get("annotations") or () if not each.get("was_cancelled")]
    if len(annotations) > 1:
        raise UserError(f"{place}: {len(annotations)} annotations: keep one of them")
    if not annotations:
        return texts
    spans = []
    for region in annotations[0].get("result") or ():
        kind = str(region.get("type"))
        if kind == "labels":
            spans.append(region.get("value"))
        elif kind.endswith("labels"):
            raise UserError(f"{place}: {kind} are not labels of characters of a text, which are read")
    return texts | {"spans": spans}
