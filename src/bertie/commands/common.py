"""Flags that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from bertie.tasks.examples import Columns


@dataclass(frozen=True)
class Output:
    json: bool = False
    """Print one JSON object, last, on stdout."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Reading:
    """How to read text files."""

    documents: Literal["blank-line", "file"] = "blank-line"
    """In .txt files: a blank line ends a document, or every file is one."""
    text_field: str = "text"
    """In .jsonl files: the key of the text."""


Flat = arg(name="")  # a group of flags without a prefix of its own
ColumnFlags = Annotated[Columns, arg(name="task")]  # the names that fine-tuning has
OutputFlags = Annotated[Output, Flat]
ReadingFlags = Annotated[Reading, Flat]
