"""Results that show themselves in a notebook, which calls `_repr_html_`. They are plain dicts and lists in all other ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from bertie.base.console import percent, plural
from bertie.base.errors import shorten
from bertie.base.report import Page, formatted

# Columns of texts, and how much is shown: rows, characters of a cell, probabilities of a row.
TEXTS, MOST, LONGEST, LARGEST = ("text", "text pair"), 30, 300, 3


class NotebookDict(dict[str, Any]):
    """A dict that a notebook shows as a table, in which a small dict is several rows, with a report below.

    report: an HTML page, which is shown if the file exists. shown: the keys that are shown; (): all.
    """

    def __init__(self, values: Mapping[str, Any], report: Path | None = None, shown: tuple[str, ...] = ()):
        super().__init__(values)
        self.report, self.shown = report, shown

    def _repr_html_(self) -> str:
        page, rows = Page(""), []
        for name in self.shown or self:
            parts = self[name] if isinstance(self[name], dict) and len(self[name]) <= MOST else {"": self[name]}
            rows += [(f"{name}: {key}".removesuffix(": ").replace("_", " "), _cell(parts[key])) for key in parts]
        page.table(("", "value"), [row for row in rows if row[1] not in ("", None)])
        if self.report and self.report.is_file():
            content = escape(self.report.read_text(encoding="utf-8"))
            page.parts.append(f'<iframe srcdoc="{content}" title="report" loading="lazy"></iframe>')
        return page.fragment()


class NotebookList(list[Any]):
    """A list of dataclasses, or of a list for each [MASK], that a notebook shows as a table, with the texts of each row.

    Rows that have a method `marked` are shown as what it returns for their texts: a list of parts for each.
    """

    def __init__(self, rows: Iterable[Any] = (), texts: Iterable[tuple[str, ...]] = ()):
        super().__init__(rows)
        self.texts = list(texts)

    def _repr_html_(self) -> str:
        page, table, texts = Page(""), [], self.texts or [()] * len(self)
        for number, (row, given) in enumerate(zip(self[:MOST], texts, strict=False), 1):
            if marked := getattr(row, "marked", None):
                page.passage({}, marked(given))
            else:
                rows = row if isinstance(row, list) else [row]
                start = {"mask": number} if len(self) > 1 and rows is row else dict(zip(TEXTS, given, strict=False))
                table += [start | _columns(each) for each in rows]
        if table:
            page.table([name.replace("_", " ") for name in table[0]], [[*map(_cell, row.values())] for row in table])
        if len(self) > MOST:
            page.paragraph(f"… and {plural(len(self) - MOST, 'row')} more")
        return page.fragment()


def _columns(row: Any) -> dict[str, object]:
    """Return what a table shows of a dataclass: the fields of its `repr` that have a value."""
    values = {each.name: getattr(row, each.name) for each in fields(row) if each.repr}
    return {name: _cell(value, name) for name, value in values.items() if value is not None}


def _cell(value: Any, name: str = "") -> Any:
    """Return a value for a table."""
    if name in ("probability", "share"):
        return percent(value)
    if name == "probabilities":
        value = {key: percent(value[key]) for key in sorted(value, key=value.get, reverse=True)[:LARGEST]}
    if isinstance(value, dict):
        value = ", ".join(f"{key}: {formatted(_cell(each))}" for key, each in value.items())
    if isinstance(value, list | tuple):
        value = "; ".join(formatted(_cell(each)) for each in value)
    return shorten(value, LONGEST) if isinstance(value, str) else value
