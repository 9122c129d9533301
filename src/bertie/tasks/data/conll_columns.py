"""The columns of CoNLL files: which one has the words and which one the tags, by a header or the first lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence as Many
from typing import NamedTuple

from bertie.errors import UsageError, shorten
from bertie.tasks.data.comments import COMMENT, ConllLine

WORD_KEYS = ("tokens", "words")
TAG_KEYS = ("tags", "ner_tags", "labels", "ner")
_WORD_HEADINGS = {*WORD_KEYS, "token", "word", "form", "text"}
_TAG_HEADINGS = {*TAG_KEYS, "tag", "label", "ner_tag", "ne", "entity", "pos", "upos", "xpos"}
_ENTITY = re.compile(r"O|[BIESLUM][-_:/|].+|.+[-_:/|][BIESLUM]", re.IGNORECASE)
_MOST, _FEW = 0.9, 0.5  # shares of the lines
_MANY = 20  # lines that tell words from tags by how many differ
_REMEDY = "Name the columns with --task.word and --task.tag, counted from 0"


class ConllColumns(NamedTuple):
    """The columns of a file."""

    width: int
    """How many there are, in most lines."""
    word: int
    """That of the words."""
    tag: int | None
    """That of the tags; None: there is none."""
    header: bool
    """Whether the first line names them."""


def find_columns(lines: list[ConllLine], path: str, word: int, tag: int, tagged: bool, is_conllu: bool) -> ConllColumns:
    """Return the columns of a file.

    Args:
        lines: Its first lines that are not empty.
        path: The file, for messages.
        word: The column of the words; −1: the one that a header names, else the first, in .conllu files the second.
        tag: That of the tags; −1: the last one, or the only one that a header names.
        tagged: Whether tags are needed.
        is_conllu: Whether it is a .conllu file.

    Raises:
        UsageError: There is no column of words, or no column of tags although they are needed, or it is unclear which one
            it is.
    """
    data = [line for line in lines if line[1][0][:1] != COMMENT] or lines
    [(width, _)] = Counter(len(cells) for _, cells in data).most_common(1)
    rows = [cells for _, cells in data if len(cells) == width]
    place = f"{path}:{next(number for number, cells in lines if len(cells) == width)}"
    header = _header(rows[0], place)
    words, tags = header or ([], [])
    found = word if word >= 0 else words[0] if words else int(is_conllu)
    if found >= width:
        raise UsageError(f"{place}: no column {found} with words: there are {width}, counted from 0")
    numbered = not is_conllu and not header and _is_numbered(rows)
    if numbered and found == 0 and word < 0:
        shown = shorten(" ".join(rows[0]))
        raise UsageError(f"{place}: the first column has numbers, and no words: {shown!r}", _REMEDY)
    column = tag if tag >= 0 else tags[0] if tag == -1 and len(tags) == 1 else width + tag
    several = is_conllu or (numbered and width > found + 2) or (len(tags) > 1 and column not in tags)
    ambiguous = tag == -1 and several
    if 0 <= column < width and column != found and not ambiguous:
        if tag == -1 and tagged and not header:
            _require_tags([cells for _, cells in data], rows, found, place)
        return ConllColumns(width, found, column, header is not None)
    if tagged:
        problem = "more than one column could be the tag" if ambiguous else f"no tags in column {tag} of {width}"
        remedy = "name one with --task.tag, counted from 0 (in CoNLL-U, 3 has the parts of speech)"
        raise UsageError(f"{place}: {problem}, beside the words in {found}; {remedy}")
    return ConllColumns(width, found, None, header is not None)


def _header(cells: list[str], place: str) -> tuple[list[int], list[int]] | None:
    """Return the columns that a line names as words and as tags; None if it names none of both."""
    names = [cell.lower() for cell in cells]
    words, tags = ([i for i, name in enumerate(names) if name in known] for known in (_WORD_HEADINGS, _TAG_HEADINGS))
    if not words or not tags:
        return None
    if numbers := [cell for cell in cells if cell.lower().startswith(("sentence", "sent_"))]:
        problem = f"{place}: the column {numbers[0]!r} says where sentences begin"
        raise UsageError(f"{problem}, and an empty line does so here: write one between sentences")
    return words, tags


def _is_numbered(rows: Many[list[str]]) -> bool:
    """Whether the first column has numbers, such as those of words in their sentence."""
    numbers = sum(cells[0].isdecimal() for cells in rows)
    return len(rows[0]) > 1 and len(rows) > 1 and numbers >= _MOST * len(rows)


def _require_tags(data: Many[list[str]], rows: Many[list[str]], word: int, place: str) -> None:
    """Raise UsageError if the last column does not look like tags: another one does, or words differ less."""
    shown = shorten(" ".join(rows[0]))
    if len(data) > 1:
        if all(cell[:1] == cell[-1:] == '"' and len(cell) > 1 for cells in data for cell in cells):
            raise UsageError(f"{place}: every cell is in quotes: {shown!r}: write the file without")
        if any(all(mark in cell[1:-1] for cells in data for cell in cells) for mark in "/|_"):
            raise UsageError(f"{place}: {shown!r} has a tag in every cell, and a line has one word and its tag here")
    shares = [sum(map(bool, map(_ENTITY.fullmatch, column))) / len(rows) for column in zip(*rows, strict=True)]
    like = [i for i, share in enumerate(shares) if share >= _MOST and any(cells[i].upper() != "O" for cells in rows)]
    if like and shares[-1] < _FEW:
        problem = f"column {like[0]} looks like tags, and the last one does not: {shown!r}"
        raise UsageError(f"{place}: {problem}", _REMEDY)
    different = [len({cells[i] for cells in rows}) for i in (word, -1)]
    if len(rows) >= _MANY and different[1] > 2 * different[0]:
        problem = f"the last column has {different[1]} tags in {len(rows)} lines, for {different[0]} words: {shown!r}"
        raise UsageError(f"{place}: {problem}", _REMEDY)
