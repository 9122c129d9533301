"""brat's annotations: NAME.ann beside the text NAME.txt, or a folder of such pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bertie.base import console, untrusted
from bertie.base.errors import UsageError, UserError, first_few
from bertie.examples.annotations import LabeledSpan, from_spans
from bertie.examples.rows import parse_index, require_file
from bertie.examples.tag_form import TagForm
from bertie.examples.tagged import TaggedSentence, sentence_of_text
from bertie.examples.words import TextRange

_OTHERS = "REAMN#*"  # the first letters of relations, events, attributes, references, notes and equivalences


def is_brat(path: Path) -> bool:
    """Whether a path is a file of annotations, or a folder.

    Raises UsageError for a text beside its annotations.
    """
    beside = path.with_suffix(".ann")
    if path.suffix == ".txt" and beside.is_file():
        raise UsageError(f"{path} is the text of {beside.name}, brat's annotations beside it: give {beside}")
    return path.suffix == ".ann" or path.is_dir()


def read_brat(
    path: Path, form: TagForm, tagged: bool, split: Callable[[str], list[TextRange]]
) -> Iterator[TaggedSentence | UserError]:
    """Yield the documents of a file or folder, in the order of their names.

    Args:
        path: A file, or a folder.
        form: How to tag the words of annotated spans.
        tagged: Whether to read the annotations.
        split: Finds the words of a text.

    Raises:
        UsageError: A file of annotations has no text beside it, or a folder has no annotations.
    """
    files = sorted(path.glob("*.ann")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} is a folder: give a file, or a folder with brat's NAME.ann beside NAME.txt")
    texts = sorted(path.glob("*.txt")) if path.is_dir() else []
    if alone := [text.name for text in texts if not text.with_suffix(".ann").is_file()]:
        names = first_few(alone, len(alone), ", ")
        console.warn(f"{path}: no annotations (.ann) beside {console.plural(len(alone), 'text')}, not read: {names}")
    others = 0
    for file in files:
        require_file(file)
        beside = file.with_suffix(".txt")
        if not beside.is_file():
            raise UsageError(f"{file}: its text {beside.name} is missing beside it")
        try:
            text = _decoded(beside)
            if not tagged:
                yield sentence_of_text(text, file.name, split(text))
                continue
            spans = []
            for number, line in enumerate(_decoded(file).split("\n"), 1):
                line = line.rstrip("\r").removeprefix("\ufeff" if number == 1 else "")
                if line.strip() and line[0] not in _OTHERS:
                    spans.append(_parse(line, f"{file}:{number}"))
                else:
                    others += bool(line.strip())
            yield from_spans(text, split(text), spans, form, file.name)
        except UserError as error:
            yield error
    if others:
        lines = console.plural(others, "line")
        console.info(f"{path}: {lines} that annotate no entities are not read, such as relations")


def _parse(line: str, where: str) -> LabeledSpan:
    """Return the span of a line: its id, label and characters, and its text, between tabs."""
    cells = line.split("\t")
    parts = cells[1].split(" ") if len(cells) > 1 else []
    if ";" in "".join(parts):
        raise UserError(f"{where}: {' '.join(parts)} is discontinuous: an entity is one sequence of words")
    start, end = (parse_index(part) for part in (*parts, "", "", "")[1:3])
    if not line.startswith("T") or len(parts) != 3 or start is None or end is None:
        raise UserError(f"{where}: expected an id such as T1, then a label, a start and an end, found {line[:60]!r}")
    return LabeledSpan(start, end, parts[0], cells[2] if len(cells) > 2 else "", where)


def _decoded(path: Path) -> str:
    try:
        return untrusted.read_bytes(path, None).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start:,}): convert it first") from error
