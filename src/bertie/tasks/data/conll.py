"""Sentences with one tag per word: CoNLL files (any number of columns, the tag last), and rows of "tokens" and "tags"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError, require_range
from bertie.files.sources import split_suffix
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    STDIN,
    Row,
    convert_rows,
    file_format,
    join_names,
    label_or_none,
    read_lines,
    read_rows,
    require_distinct_columns,
    require_file,
    require_string,
    row_from_python,
)

_WORD_KEYS = ("tokens", "words")
_TAG_KEYS = ("tags", "ner_tags", "labels", "ner")
_WORD_HEADINGS = {*_WORD_KEYS, "token", "word", "form", "text"}
_TAG_HEADINGS = {*_TAG_KEYS, "tag", "label", "ner_tag", "ne", "entity", "pos", "upos", "xpos"}
DOCUMENT = "-DOCSTART-"
NOT_CONLL = ("csv", "json", "zip")  # formats of files that cannot have CoNLL's columns
_Line = tuple[int, list[str]]  # the number of a line and its cells


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence and its tags.

    Attributes:
        words: The words.
        tags: One tag per word; None if they are unknown.
        source: The file and line of the first word ("test.conll:120"), for messages.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (" ".join(self.words),)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.tags


@dataclass(frozen=True)
class ConllReader:
    """Reads tagged sentences.

    A CoNLL file has one word per line, in columns between tabs or blanks; an empty line, or -DOCSTART-, ends a sentence.
    In .conllu files, comments, multiword tokens and empty nodes are skipped. Files with lists of words are .jsonl and
    .parquet.
    """

    word: int = -1
    """Column of the word in a CoNLL file, from 0; -1: the second in .conllu files, else the first."""
    tag: int = -1
    """Column of the tag, from 0, or from the end: -1 is the last. Required for .conllu files: 3 has the parts of speech."""
    tokens: str = ""
    """Key of the words in .jsonl (empty: tokens or words)."""
    tags: str = ""
    """Key of their tags in .jsonl (empty: tags, ner_tags, labels or ner)."""
    refuse_txt: bool = False
    """Whether `stream` refuses .txt files, whose lines could be columns or sentences."""

    def __post_init__(self) -> None:
        require_range("", self, "word", low=-1)
        require_distinct_columns(tokens=self.tokens, tags=self.tags)

    def read(self, path: Path) -> Iterator[TaggedSentence | UserError]:
        """Read sentences with tags, for training and evaluation.

        Raises:
            UsageError: if the file does not exist, or has no column of words or tags.
        """
        return self._read(path, tagged=True)

    def stream(self, path: Path) -> Iterator[TaggedSentence | UserError]:
        """Read sentences for prediction. Lines of one column are words without tags; a line of stdin is a sentence.

        Raises:
            UsageError: As `read`, or the file is a .txt and `refuse_txt` is set.
        """
        if self.refuse_txt and split_suffix(str(path))[0] == ".txt":
            remedy = "Rename it to .conll for columns; pipe sentences: --input -"
            raise UsageError(f"{path}: does it hold columns or sentences? {remedy}")
        return self._read(path, tagged=False)

    def values(self, given: Iterable[Any]) -> Iterator[TaggedSentence]:
        """Convert Python values: dicts ({"tokens": […], "tags": […]}), lists of words, texts (words between blanks) or
        `TaggedSentence`s. Raises UserError for the first bad one."""
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            reader = self if isinstance(value, dict) else ConllReader()
            if isinstance(value, str):
                value = value.split()
            if isinstance(value, list | tuple):
                value = {"tokens": list(value)}
            if isinstance(value, dict):
                row = row_from_python(value, place)
            elif isinstance(value, TaggedSentence):
                row = Row({"tokens": [*value.words], "tags": value.tags and [*value.tags]}, value.source, place)
            else:
                expected = "expected a dict, a list of words or a TaggedSentence"
                raise UserError(f"{place}: {expected}, got {type(value).__name__}")
            yield reader._from_row(row, None)

    def _read(self, path: Path, tagged: bool) -> Iterator[TaggedSentence | UserError]:
        format = file_format(path)
        if format in ("jsonl", "parquet") or path == STDIN:
            rows, reader = read_rows(path), self
            if path == STDIN:
                rows, reader = map(_split_text, rows), ConllReader()
            return convert_rows(rows, lambda row: reader._from_row(row, tagged), format == "parquet")
        if format in NOT_CONLL:
            known = "files with columns between blanks or tabs (CoNLL), .jsonl and .parquet"
            raise UsageError(f"{path}: sentences are read from {known}")
        require_file(path)
        return self._read_columns(path, tagged)

    def _from_row(self, row: Row, tagged: bool | None) -> TaggedSentence:
        """Return the sentence of a row. tagged: whether tags are required; None: they may be missing, but not wrong."""
        values, source, place = row
        word_keys = (self.tokens,) if self.tokens else _WORD_KEYS
        tag_keys = (self.tags,) if self.tags else _TAG_KEYS
        words = next((values[name] for name in word_keys if name in values), None)
        tags = next((values[name] for name in tag_keys if name in values), None)
        if not isinstance(words, list):
            problem = f"no list of words under {word_keys[0]!r}: its keys are {join_names(values)}"
            raise UsageError(f"{place}: {problem}", "Choose with --task.tokens")
        if not words:
            raise UserError(f"{place}: a sentence without words")
        checked = tuple(require_string(word, "tokens", place) for word in words)
        if tags is None and tagged:
            problem = f"no tags under {tag_keys[0]!r}: its keys are {join_names(values)}"
            raise UserError(f"{place}: {problem}", "Choose with --task.tags")
        if tags is not None:
            tags = label_or_none(lambda: _check_tags(tags, len(words), place), tagged is not False)
        return TaggedSentence(checked, tags, source)

    def _read_columns(self, path: Path, tagged: bool) -> Iterator[TaggedSentence | UserError]:
        lines = _split_lines(path)
        probed = list(islice(lines, PROBED_ROWS))
        layout: _Layout | None = None
        may_be_header = True
        for is_filled, group in groupby(chain(probed, lines), key=lambda line: bool(line[1])):
            sentence: list[_Line] = []
            errors: list[UserError] = []
            for number, cells in group if is_filled else ():
                if isinstance(cells, UserError):
                    errors.append(cells)
                    continue
                if layout is None:
                    filled = [(n, line) for n, line in probed if line and not isinstance(line, UserError)]
                    layout = self._find_layout(path, filled or [(number, cells)], tagged)
                if may_be_header and len(cells) == layout.width:
                    may_be_header = False
                    if layout.is_header(cells):
                        continue
                sentence.append((number, cells))
            if errors:
                yield errors[0]
            elif sentence and layout:
                yield _to_sentence(path, sentence, layout, tagged)

    def _find_layout(self, path: Path, probed: list[_Line], tagged: bool) -> _Layout:
        """Return the layout of a file that starts with these lines. The number of columns is that of most lines.

        Raises:
            UsageError: if there is no column of words, or no column of tags although they are needed.
        """
        [(width, _)] = Counter(len(cells) for _, cells in probed).most_common(1)
        place = f"{path}:{next(number for number, cells in probed if len(cells) == width)}"
        is_conllu = file_format(path) == "conllu"
        word, tag = self.word if self.word >= 0 else int(is_conllu), self.tag
        if word >= width:
            raise UsageError(f"{place}: no column {word} with words: there are {width}, counted from 0")
        ambiguous = is_conllu and tag == -1
        tag_column = tag if tag >= 0 else width + tag
        if 0 <= tag_column < width and tag_column != word and not ambiguous:
            return _Layout(width, word, tag_column)
        if tagged:
            problem = "more than one column could be the tag" if ambiguous else f"no tags in column {tag} of {width}"
            remedy = "name one with --task.tag, counted from 0 (in CoNLL-U, 3 has the parts of speech)"
            raise UsageError(f"{place}: {problem}, beside the words in {word}; {remedy}")
        return _Layout(width, word, None)


def _split_text(row: Row | UserError) -> Row | UserError:
    """Return the words of a line as a row."""
    return row._replace(values={"tokens": row.values["text"].split()}) if isinstance(row, Row) else row


class _Layout(NamedTuple):
    """Of a CoNLL file: the number of columns, and those of the word and the tag."""

    width: int
    word: int
    tag: int | None

    def is_header(self, cells: list[str]) -> bool:
        """Whether a line names the columns: no data tags the word "word" with "tag"."""
        is_tag = self.tag is not None and cells[self.tag].lower() in _TAG_HEADINGS
        return is_tag and cells[self.word].lower() in _WORD_HEADINGS


def _to_sentence(path: Path, lines: list[_Line], layout: _Layout, tagged: bool) -> TaggedSentence | UserError:
    start = lines[0][0]
    for number, cells in lines:
        if len(cells) != layout.width:
            problem = f"{len(cells)} columns, where most lines have {layout.width}"
        elif tagged and layout.tag is not None and not cells[layout.tag]:
            problem = "no tag"
        else:
            continue
        return UserError(f"{path}:{number}: {problem} (the sentence that starts in line {start})")
    tags = tuple(cells[layout.tag] for _, cells in lines) if layout.tag is not None else ()
    words = tuple(cells[layout.word] for _, cells in lines)
    return TaggedSentence(words, tags if tags and all(tags) else None, f"{path.name}:{start}")


def _split_lines(path: Path) -> Iterator[tuple[int, list[str] | UserError]]:
    """Yield the number and the cells of each line; no cells where a sentence ends. Raises UserError for an empty file."""
    is_conllu = file_format(path) == "conllu"
    number = 0
    for number, line in read_lines(path):
        if isinstance(line, UserError):
            yield number, line
            continue
        cells = _split_line(line)
        if not is_conllu or not cells or cells[0].isdecimal():  # else a comment, a multiword token or an empty node
            yield number, [] if cells[:1] == [DOCUMENT] else cells
    if not number:
        raise UserError(f"{path} is empty")


def _split_line(line: str) -> list[str]:
    """Split at tabs if there are any, else at blanks. Other white space is part of a word."""
    line = line.rstrip("\r\n")
    if not line.strip(" \t"):
        return []
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


def _check_tags(tags: Any, count: int, place: str) -> tuple[str, ...]:
    if not isinstance(tags, list) or len(tags) != count:
        found = len(tags) if isinstance(tags, list) else "no list of"
        raise UserError(f"{place}: {count} words and {found} tags")
    return tuple(str(tag) if isinstance(tag, int) else require_string(tag, "tags", place) for tag in tags)
