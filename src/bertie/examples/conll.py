"""CoNLL files: one word per line, in columns between tabs or blanks; an empty line, or -DOCSTART-, ends a sentence.

Comments, and in .conllu files multiword tokens and empty nodes, are skipped. A comment begins with "#" before the first word of
a sentence. "# id = 7" and lines with more columns than the others are comments. "# s7" in a file of two columns could also be
the word "#" with the tag s7. It is this word if other words have the tag. It is a comment if there are several with tags that no
word has, each with another one. Otherwise the user is asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple

from bertie.base import console
from bertie.base.errors import UsageError, UserError, shorten
from bertie.examples.rows import PROBED_ROWS, file_format, read_lines
from bertie.examples.tagged import TaggedSentence
from bertie.examples.words import BY_CHARACTERS, Units

DOCUMENT, COMMENT = "-DOCSTART-", "#"
WORD_KEYS = ("tokens", "words")
TAG_KEYS = ("tags", "ner_tags", "labels", "ner")
Keep = Literal["", "skip", "keep"]
ConllLine = tuple[int, list[str]]
"""The number of a line and its cells."""
_WORD_HEADINGS = {*WORD_KEYS, "token", "word", "form", "text"}
_TAG_HEADINGS = {*TAG_KEYS, "tag", "label", "ner_tag", "ne", "entity", "pos", "upos", "xpos"}
_ENTITY = re.compile(r"O|[BIESLUM][-_:/|].+|.+[-_:/|][BIESLUM]", re.IGNORECASE)
_ALONE = re.compile("#|##? .*")  # not a hashtag; KLUE has two
_MOST, _FEW = 0.9, 0.5  # shares of the lines
_MANY = 20  # lines that tell words from tags by how many differ
_SEVERAL = 3  # lines that make sure that they are comments
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

    @property
    def uses(self) -> dict[str, str]:
        uses = {"words": self.word, "tags": self.tag}
        return {f"{use} (column, from 0)": str(number) for use, number in uses.items() if number is not None}


@dataclass(frozen=True)
class ConllFile:
    """A file, and what is known of it."""

    path: Path
    word: int = -1
    """The column of the words; −1: the one that a header names, else the first, in .conllu files the second."""
    tag: int = -1
    """That of the tags; −1: the last one, or the only one that a header names."""
    tagged: bool = True
    """Whether tags are needed."""
    comments: Keep = ""
    """How to read lines that could be comments or words; empty: found, or asked."""
    usual: bool | None = None
    """Whether they are comments in this file or in the training file, if that is certain."""
    known: tuple[str, ...] = ()
    """Tags of the training examples, which tell words from comments."""
    units: Units = "words"
    """What a line has: a word, or a character, which may be a blank."""

    def sentences(self) -> Iterator[TaggedSentence | UserError]:
        """Yield the sentences, with an error in place of each one that has a bad line.

        Raises:
            UsageError: It has no column of words or tags, it is unclear which one it is, or a line could be a comment.
        """
        lines = _lines(self.path)
        probed = _first(lines)
        columns, seen, skipped = self._columns(probed), {*self.known}, list[int]()
        seen |= {cells[columns.tag] for cells in self._words(probed, columns)} if columns.tag is not None else set()
        header = columns.header
        for is_filled, group in groupby(chain(probed, lines), key=lambda line: bool(line[1])):
            sentence: list[ConllLine] = []
            error: UserError | None = None
            for number, cells in group if is_filled else ():
                if isinstance(cells, UserError):
                    error = error or cells
                elif not sentence and cells[0][:1] == COMMENT and self._is_comment(number, cells, columns, seen):
                    skipped.append(number)
                elif header and len(cells) == columns.width:
                    header = False
                else:
                    sentence.append((number, cells))
            if error:
                yield error
            elif sentence:
                tagged = self._to_sentence(sentence, columns)
                seen.update(tagged.tags or () if isinstance(tagged, TaggedSentence) else ())
                yield tagged
        if skipped:
            count = console.plural(len(skipped), "comment line")
            console.info_once(f"{self.path}: skips {count}, the first in line {skipped[0]}")

    def columns(self) -> ConllColumns:
        """Return the columns of the file. Raises UsageError as `sentences`."""
        return self._columns(_first(_lines(self.path)))

    def has_comments(self) -> bool:
        """Return whether lines that could be comments or words are certainly comments, by the first lines of the file."""
        probed = _first(_lines(self.path))
        if (tag := (columns := self._columns(probed)).tag) is None:
            return False
        seen = {*self.known, *(cells[tag] for cells in self._words(probed, columns))}
        starts, begins = list[str](), True
        for _, cells in probed:
            if not isinstance(cells, UserError):
                is_comment = bool(cells) and _ALONE.fullmatch(cells[0]) is not None
                if begins and is_comment and len(cells) == columns.width and cells[tag] not in seen:
                    starts.append(cells[tag])
                begins = not cells or (begins and is_comment)
        return _SEVERAL <= len(starts) == len(set(starts))

    def _words(self, lines: list[tuple[int, list[str] | UserError]], columns: ConllColumns) -> list[list[str]]:
        """Return the cells of the lines that are certainly words."""
        filled = [cells for _, cells in lines if cells and not isinstance(cells, UserError)]
        return [cells for cells in filled if len(cells) == columns.width and not _ALONE.fullmatch(cells[0])]

    def _is_comment(self, number: int, cells: list[str], columns: ConllColumns, seen: set[str]) -> bool:
        """Return whether a line that begins a sentence with "#" is a comment. Raises UsageError if it could be one."""
        alone = _ALONE.fullmatch(cells[0]) is not None
        if self.comments == "keep":
            return False
        if len(cells) != columns.width:
            return alone or len(cells) > columns.width
        if not alone or "=" in cells[2:3]:
            return alone
        if self.comments or columns.tag is None or cells[columns.tag] in seen:
            return self.comments == "skip"
        if self.usual is not None:
            return self.usual
        line, tag = shorten(" ".join(cells)), shorten(cells[columns.tag])
        problem = f"{line!r} could be a comment, or the word {COMMENT!r} with the tag {tag!r}, which is new"
        raise UsageError(f"{self.path}:{number}: {problem}", "Choose with --task.comments skip or keep")

    def _to_sentence(self, lines: list[ConllLine], columns: ConllColumns) -> TaggedSentence | UserError:
        start, last = lines[0][0], lines[-1][0]
        width, word, tag, _ = columns
        for number, cells in lines:
            if len(cells) != width:
                problem = f"{len(cells)} columns, where most lines have {width}"
            elif self.tagged and tag is not None and not cells[tag]:
                problem = "no tag"
            elif not cells[word] and self.units == "words":
                problem = f"no word; if each line has a character, set {BY_CHARACTERS}"
            else:
                continue
            return UserError(f"{self.path}:{number}: {problem} (the sentence that starts in line {start})")
        tags = tuple([cells[tag] for _, cells in lines]) if tag is not None else ()
        places = range(start, last + 1) if last - start + 1 == len(lines) else tuple(number for number, _ in lines)
        words = tuple([cells[word] or " " for _, cells in lines])
        return TaggedSentence(words, tags if all(tags) and tags else None, f"{self.path.name}:{start}", lines=places)

    def _columns(self, probed: list[tuple[int, list[str] | UserError]]) -> ConllColumns:
        lines = [(number, cells) for number, cells in probed if cells and not isinstance(cells, UserError)]
        data = [line for line in lines if line[1][0][:1] != COMMENT] or lines
        if not data:
            return ConllColumns(1, 0, None, False)
        [(width, _)] = Counter(len(cells) for _, cells in data).most_common(1)
        rows = [cells for _, cells in data if len(cells) == width]
        place, is_conllu = f"{self.path}:{next(n for n, cells in lines if len(cells) == width)}", _is_conllu(self.path)
        header = _header(rows[0], place)
        words, tags = header or ([], [])
        word = self.word if self.word >= 0 else words[0] if words else int(is_conllu)
        if word >= width:
            raise UsageError(f"{place}: no column {word} with words: there are {width}, counted from 0")
        numbers = sum(cells[0].isdecimal() for cells in rows)
        numbered = not is_conllu and not header and width > 1 and len(rows) > 1 and numbers >= _MOST * len(rows)
        if numbered and word == 0 > self.word:
            shown = shorten(" ".join(rows[0]))
            raise UsageError(f"{place}: the first column has numbers, not words: {shown!r}", _REMEDY)
        tag = self.tag if self.tag >= 0 else tags[0] if self.tag == -1 and len(tags) == 1 else width + self.tag
        several = is_conllu or (numbered and width > word + 2) or (len(tags) > 1 and tag not in tags)
        ambiguous = self.tag == -1 and several
        if 0 <= tag < width and tag != word and not ambiguous:
            if self.tag == -1 and self.tagged and not header:
                _require_tags([cells for _, cells in data], rows, word, place)
            return ConllColumns(width, word, tag, header is not None)
        if self.tagged:
            problem = f"no tags in column {self.tag} of {width}"
            problem = "more than one column could be the tag" if ambiguous else problem
            remedy = "name one with --task.tag, counted from 0 (in CoNLL-U, 3 has the parts of speech)"
            raise UsageError(f"{place}: {problem}, beside the words in {word}; {remedy}")
        return ConllColumns(width, word, None, header is not None)


def _header(cells: list[str], place: str) -> tuple[list[int], list[int]] | None:
    """Return the columns that a line names as words and as tags; None if it names none of both."""
    names = [cell.lower() for cell in cells]
    words, tags = ([i for i, name in enumerate(names) if name in known] for known in (_WORD_HEADINGS, _TAG_HEADINGS))
    if not words or not tags:
        return None
    if numbers := [cell for cell in cells if cell.lower().startswith(("sentence", "sent_"))]:
        problem = f"{place}: the column {numbers[0]!r} marks where sentences begin"
        raise UsageError(f"{problem}, but bertie looks for empty lines: write one between sentences")
    return words, tags


def _require_tags(data: Many[list[str]], rows: Many[list[str]], word: int, place: str) -> None:
    """Raise UsageError if the last column does not look like tags: another one does, or words differ less."""
    shares = [sum(map(bool, map(_ENTITY.fullmatch, column))) / len(rows) for column in zip(*rows, strict=True)]
    like = [i for i, share in enumerate(shares) if share >= _MOST and any(cells[i].upper() != "O" for cells in rows)]
    words, tags = (len({cells[i] for cells in rows}) for i in (word, -1))
    problem = ""
    if len(data) > 1 and all(cell[:1] == cell[-1:] == '"' and len(cell) > 1 for cells in data for cell in cells):
        problem = "every cell is in quotes: write the file without quotes"
    elif len(data) > 1 and any(all(mark in cell[1:-1] for cells in data for cell in cells) for mark in "/|_"):
        problem = "every cell has a word and its tag, but a line must have one word, and its tag in another column"
    elif like and shares[-1] < _FEW:
        problem = f"column {like[0]} looks like tags, but the last one does not"
    elif len(rows) >= _MANY and tags > 2 * words:
        problem = f"the last column has {tags} tags in {len(rows)} lines, for {words} words"
    if problem:
        raise UsageError(f"{place}: {shorten(' '.join(rows[0]))!r}: {problem}", _REMEDY)


def _is_conllu(path: Path) -> bool:
    return file_format(path) == "conllu"


def _lines(path: Path) -> Iterator[tuple[int, list[str] | UserError]]:
    """Yield the number and the cells of each line; no cells where a sentence ends. Raises UserError for an empty file."""
    is_conllu = _is_conllu(path)
    number = 0
    for number, line in read_lines(path):
        if isinstance(line, UserError):
            yield number, line
            continue
        cells = _split_line(line)
        if not is_conllu or not cells or cells[0].isdecimal():  # else a comment, a multiword token or an empty node
            yield number, [] if cells and cells[0] == DOCUMENT else cells
    if not number:
        raise UserError(f"{path} is empty")


def _first(lines: Iterator[tuple[int, list[str] | UserError]]) -> list[tuple[int, list[str] | UserError]]:
    """Return the lines up to the PROBED_ROWS-th one with cells."""
    first: list[tuple[int, list[str] | UserError]] = []
    filled = 0
    for line in lines:
        first.append(line)
        filled += bool(line[1])
        if filled == PROBED_ROWS:
            break
    return first


def _split_line(line: str) -> list[str]:
    """Split at tabs if there are any, else at blanks. Other white space is part of a word."""
    line = line.rstrip("\r\n")
    if not line.strip(" \t"):
        return []
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]
