"""Sentences of words with a tag each: CoNLL's columns (any number, the tag last), and .jsonl rows of "tokens" and "tags"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError, require_range
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    STDIN,
    Row,
    join_names,
    lines_or_errors,
    require_distinct_columns,
    require_file,
    require_list,
    row_from_python,
    rows,
    string,
)

_WORDS = ("tokens", "words")
_TAGS = ("tags", "ner_tags", "labels", "ner")
_WORD_HEADINGS = {*_WORDS, "token", "word", "form", "text"}
_TAG_HEADINGS = {*_TAGS, "tag", "label", "ner_tag", "ne", "entity", "pos", "upos", "xpos"}
DOCUMENT = "-DOCSTART-"
_Line = tuple[int, list[str]]  # its number and its cells
NOT_CONLL = (".csv", ".parquet", ".json", ".gz", ".bz2", ".xz", ".zst", ".zip")  # endings of files in other forms


@dataclass(frozen=True)
class TaggedSentence:
    """words and, where they are known, as many tags. `source` is for messages: "test.conll:120"."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    source: str


@dataclass(frozen=True)
class TagColumns:
    word: int = -1
    """Column of the word in a file of columns, from 0; -1: CoNLL-U's in .conllu, else the first."""
    tag: int = -1
    """Column of the tag, from 0, or from the end: -1 is the last. CoNLL-U's has to be named: parts of speech are in 3."""
    tokens: str = ""
    """Key of the words in .jsonl (empty: tokens or words)."""
    tags: str = ""
    """Key of their tags in .jsonl (empty: tags, ner_tags, labels or ner)."""

    def __post_init__(self) -> None:
        require_range("", self, "word", low=-1)
        require_distinct_columns(tokens=self.tokens, tags=self.tags)


@dataclass(frozen=True)
class ConllReader:
    """Lines of columns between tabs or blanks; an empty line, or -DOCSTART-, ends a sentence. In .conllu comments, ranges and
    empty nodes are passed over."""

    columns: TagColumns = TagColumns()

    def read(self, path: Path) -> Iterator[TaggedSentence | UserError]:
        """With tags. Errors, raised: UsageError for a missing file."""
        return self._found(path, tagged=True)

    def stream(self, path: Path) -> Iterator[TaggedSentence | UserError]:
        """For prediction: a line of one column is a word without a tag; on stdin ("-") a line is a sentence."""
        return self._found(path, tagged=False)

    def values(self, given: Iterable[Any]) -> Iterator[TaggedSentence]:
        """From dicts ({"tokens": […], "tags": […]}), lists of words, texts (words between blanks) or Sentences."""
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            columns = self.columns if isinstance(value, dict) else TagColumns()
            if isinstance(value, str):
                value = value.split()
            if isinstance(value, list | tuple):
                value = {"tokens": list(value)}
            if isinstance(value, dict):
                row = row_from_python(value, place)
            elif isinstance(value, TaggedSentence):
                row = Row({"tokens": [*value.words], "tags": value.tags and [*value.tags]}, value.source, place)
            else:
                raise UserError(f"{place}: expected a dict, a list of words or a Sentence, got {type(value).__name__}")
            yield _from_row(row, None, columns)

    def _found(self, path: Path, tagged: bool) -> Iterator[TaggedSentence | UserError]:
        if path.suffix == ".jsonl" or path == STDIN:
            columns = TagColumns() if path == STDIN else self.columns
            for row in rows(path):
                if isinstance(row, Row) and path == STDIN:
                    row = row._replace(values={"tokens": row.values["text"].split()})
                try:
                    yield _from_row(row, tagged, columns) if isinstance(row, Row) else row
                except UserError as error:
                    yield error
            return
        if path.suffix in NOT_CONLL:
            raise UsageError(
                f"{path}: sentences are read from columns between blanks or tabs (CoNLL's files) and from .jsonl"
            )
        require_file(path)
        yield from self._from_columns(path, tagged)

    def _from_columns(self, path: Path, tagged: bool) -> Iterator[TaggedSentence | UserError]:
        gathered: list[_Line] = []
        broken: list[UserError] = []
        found = _lines(path)
        first = list(islice(found, PROBED_ROWS))
        form: _Form | None = None
        named = False  # whether a line may still name the columns
        for number, cells in chain(first, found):
            if isinstance(cells, UserError):
                broken.append(cells)
            elif cells:
                if form is None:
                    known = [(n, each) for n, each in first if each and not isinstance(each, UserError)]
                    form = self._form(path, known or [(number, cells)], tagged)
                if not named and len(cells) == form.width:
                    named = True
                    if form.is_header(cells):
                        continue
                gathered.append((number, cells))
            else:
                yield from _sentences(path, gathered, broken, form, tagged)
                gathered, broken = [], []
        yield from _sentences(path, gathered, broken, form, tagged)

    def _form(self, path: Path, first: list[_Line], tagged: bool) -> _Form:
        """Of a file whose first lines are these: as wide as most of them. Errors: UsageError where the word's column, or a
        tag's that is needed, is not among them."""
        [(width, _)] = Counter(len(cells) for _, cells in first).most_common(1)
        place = f"{path}:{next(number for number, cells in first if len(cells) == width)}"
        conllu = path.suffix == ".conllu"
        word, tag = self.columns.word, self.columns.tag
        word = word if word >= 0 else int(conllu)
        if word >= width:
            raise UsageError(f"{place}: no column {word} with words: there are {width}, counted from 0")
        unnamed = conllu and tag == -1
        at = tag if tag >= 0 else width + tag
        if 0 <= at < width and at != word and not unnamed:
            return _Form(width, word, at)
        if tagged:
            problem = "more than one column could be the tag" if unnamed else f"no tags in column {tag} of {width}"
            remedy = "name one with --task.tag, counted from 0 (CoNLL-U's parts of speech are in 3)"
            raise UsageError(f"{place}: {problem}, beside the words in {word}; {remedy}")
        return _Form(width, word, None)


class _Form(NamedTuple):
    """Of a file: how many columns its lines have, and which are the word's and the tag's."""

    width: int
    word: int
    tag: int | None

    def is_header(self, cells: list[str]) -> bool:
        """Whether a line names columns: nobody tags the word "word" with "tag"."""
        is_tag = self.tag is not None and cells[self.tag].lower() in _TAG_HEADINGS
        return is_tag and cells[self.word].lower() in _WORD_HEADINGS


def _sentences(
    path: Path, gathered: list[_Line], broken: list[UserError], form: _Form | None, tagged: bool
) -> Iterator[TaggedSentence | UserError]:
    """One or none, of the lines between two empty ones. broken: those of them that cannot be read."""
    if broken:
        yield broken[0]
    elif gathered and form:
        yield _sentence(path, gathered, form, tagged)


def _sentence(path: Path, gathered: list[_Line], form: _Form, tagged: bool) -> TaggedSentence | UserError:
    start = gathered[0][0]
    for number, cells in gathered:
        if len(cells) != form.width:
            problem = f"{len(cells)} columns, where most lines have {form.width}"
        elif tagged and form.tag is not None and not cells[form.tag]:
            problem = "no tag"
        else:
            continue
        return UserError(f"{path}:{number}: {problem} (the sentence from line {start} on)")
    tags = tuple(cells[form.tag] for _, cells in gathered) if form.tag is not None else ()
    words = tuple(cells[form.word] for _, cells in gathered)
    return TaggedSentence(words, tags if tags and all(tags) else None, f"{path.name}:{start}")


def _lines(path: Path) -> Iterator[tuple[int, list[str] | UserError]]:
    """The cells of each line with its number, none where a sentence ends. Errors, raised: UserError for an empty file."""
    number = 0
    for number, line in enumerate(lines_or_errors(path), 1):
        if isinstance(line, UserError):
            yield number, line
            continue
        cells = _cells(line)
        if path.suffix != ".conllu" or not cells or cells[0].isdecimal():  # else a comment, a range, an empty node
            yield number, [] if cells[:1] == [DOCUMENT] else cells
    if not number:
        raise UserError(f"{path} is empty")


def _cells(line: str) -> list[str]:
    """Of one line: between tabs where there are any, else between blanks. Other white space is text."""
    line = line.rstrip("\r\n")
    if not line.strip(" \t"):
        return []
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


def _from_row(row: Row, tagged: bool | None, columns: TagColumns) -> TaggedSentence:
    """tagged: whether tags are needed; None: they may be missing, but not wrong."""
    values, source, place = row
    word_names = (columns.tokens,) if columns.tokens else _WORDS
    tag_names = (columns.tags,) if columns.tags else _TAGS
    words = next((values[name] for name in word_names if name in values), None)
    tags = next((values[name] for name in tag_names if name in values), None)
    if not isinstance(words, list):
        told = f"no list of words under {word_names[0]!r}: its keys are {join_names(values)}"
        raise UsageError(f"{place}: {told}. Choose with --task.tokens")
    if not words:
        raise UserError(f"{place}: a sentence without words")
    named = tuple(string(word, "tokens", place) for word in words)
    if tags is None and not tagged:
        return TaggedSentence(named, None, source)
    try:
        if tags is None:
            raise UserError(
                f"{place}: no tags under {tag_names[0]!r}: its keys are {join_names(values)}. Choose with --task.tags"
            )
        return TaggedSentence(named, _tags(tags, len(words), place), source)
    except UserError:
        if tagged is False:
            return TaggedSentence(named, None, source)
        raise


def _tags(tags: Any, count: int, place: str) -> tuple[str, ...]:
    if not isinstance(tags, list) or len(tags) != count:
        have = len(tags) if isinstance(tags, list) else "no list of"
        raise UserError(f"{place}: {count} words and {have} tags")
    return tuple(str(tag) if isinstance(tag, int) else string(tag, "tags", place) for tag in tags)
