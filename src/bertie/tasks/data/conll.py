"""Sentences with one tag per word: CoNLL files (any number of columns, the tag last), and the files of annotation tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from bertie import storage
from bertie.errors import UsageError, UserError, require_range
from bertie.files.sources import split_suffix
from bertie.tasks.data.brat import is_brat, read_brat
from bertie.tasks.data.columns import columns_of
from bertie.tasks.data.comments import COMMENT, Comments, ConllLine, Keep
from bertie.tasks.data.conll_columns import ConllColumns, find_columns
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.label_studio import label_studio_rows
from bertie.tasks.data.left_out import leave_out, left_out, raise_mistake
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    STDIN,
    Row,
    convert_rows,
    file_format,
    read_lines,
    read_rows,
    require_distinct_columns,
    require_file,
    row_from_python,
)
from bertie.tasks.data.tag_form import TagForm
from bertie.tasks.data.tagged import TaggedSentence
from bertie.tasks.data.tagged_rows import TaggedRows, tag_names

DOCUMENT = "-DOCSTART-"
NOT_CONLL = ("csv", "json", "zip")  # formats of files that cannot have CoNLL's columns


@dataclass(frozen=True)
class ConllReader:
    """Reads tagged sentences.

    A CoNLL file has one word per line, in columns between tabs or blanks; an empty line, or -DOCSTART-, ends a sentence.
    Comments (`comments.Comments`), and in .conllu files multiword tokens and empty nodes, are skipped. .jsonl and .parquet
    have lists of words, or texts with annotated spans (`tagged_rows`); .json has Label Studio's tasks, .ann brat's
    annotations.
    """

    word: int = -1
    """Column of the word in a CoNLL file, from 0; -1: the second in .conllu files, else the first."""
    tag: int = -1
    """Column of the tag, from 0, or from the end: -1 is the last. Required for .conllu files: 3 has the parts of speech."""
    tokens: str = ""
    """Key of the words, or of the text, in .jsonl (empty: tokens, words or text)."""
    tags: str = ""
    """Key of the tags or spans in .jsonl (empty: tags, ner_tags, labels or ner; of spans entities, spans, label or labels)."""
    names: tuple[str, ...] = ()
    """The tags in the order of their numbers, for data that have these (empty: numbers stay tags)."""
    form: TagForm = TagForm("bio")
    """How to tag the words of annotated spans."""
    comments: Keep = ""
    """What lines are that begin a sentence with "#"; see `comments`."""
    refuse_txt: bool = False
    """Whether `stream` refuses .txt files, whose lines could be columns or sentences."""
    known: tuple[str, ...] = ()
    """Tags of the training examples, which tell words from comments."""
    usual: Keep = ""
    """What lines with "#" were in the training examples, for files that leave a doubt."""
    found: dict[str, Keep] = field(default_factory=dict, compare=False, repr=False)
    """What such lines are in the file that was read last, under "comments", if that is certain."""

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

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns, or keys, of a file are the words and the tags: see `NamesColumns`."""
        if file_format(path) in ("jsonl", "parquet") or path.suffix == ".json":
            rows = _json_rows(path, self.tokens) if path.suffix == ".json" else read_rows(path)
            return columns_of(rows, self._rows(path).keys)
        if is_brat(path) or file_format(path) in NOT_CONLL:
            return {}
        probed = islice(_split_lines(path), PROBED_ROWS)
        lines = [(number, cells) for number, cells in probed if cells and not isinstance(cells, UserError)]
        layout = self._columns(path, lines, tagged=True) if lines else None
        uses = {} if layout is None else {"words": layout.word, "tags": layout.tag}
        return {f"{use} (column, from 0)": str(number) for use, number in uses.items() if number is not None}

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Any]:
        """Convert Python values: dicts ({"tokens": […], "tags": […]}), lists of words, texts (see `words.split_words`) or
        `TaggedSentence`s. Raises UserError for the first bad one."""
        tagged = None if labeled else False
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            reader = self if isinstance(value, dict) else ConllReader()
            if isinstance(value, str):
                value = {"text": value}
            if isinstance(value, list | tuple):
                value = {"tokens": list(value)}
            if isinstance(value, dict):
                row = row_from_python(value, place)
                error = left_out(row, (self.tokens, self.tags)) if labeled else None
                yield raise_mistake(error or reader._rows(place).sentence(row, tagged))
            elif isinstance(value, TaggedSentence):
                row = Row({"tokens": [*value.words], "tags": value.tags and [*value.tags]}, value.source, place)
                checked = reader._rows(place).sentence(row, tagged)
                yield replace(checked, text=value.text, places=value.places, lines=value.lines)
            else:
                expected = "expected a dict, a list of words or a TaggedSentence"
                raise UserError(f"{place}: {expected}, got {type(value).__name__}")

    def _read(self, path: Path, tagged: bool) -> Iterator[TaggedSentence | UserError]:
        format = file_format(path)
        if is_brat(path):
            return read_brat(path, self.form, tagged)
        if format in ("jsonl", "parquet") or path == STDIN:
            reader = ConllReader() if path == STDIN else self
            rows = reader._rows(path)
            return self._sentences(read_rows(path), rows, tagged, same_columns=format == "parquet")
        if path.suffix == ".json":
            return self._sentences(_json_rows(path, self.tokens), self._rows(path), tagged, same_columns=False)
        if format in NOT_CONLL:
            known = (
                "files with columns between blanks or tabs (CoNLL), .jsonl, .parquet, .json (Label Studio), .ann (brat)"
            )
            raise UsageError(f"{path}: sentences are read from {known}")
        require_file(path)
        return self._read_columns(path, tagged)

    def _sentences(
        self, given: Iterator[Row | UserError], rows: TaggedRows, tagged: bool, same_columns: bool
    ) -> Iterator[TaggedSentence | UserError]:
        kept = leave_out(given, (self.tokens, self.tags)) if tagged else given
        return convert_rows(kept, lambda row: rows.sentence(row, tagged), same_columns)

    def _rows(self, source: Path | str) -> TaggedRows:
        names = self.names or (tag_names(source, self.tags) if isinstance(source, Path) else ())
        return TaggedRows(self.tokens, self.tags, names, self.form)

    def _read_columns(self, path: Path, tagged: bool) -> Iterator[TaggedSentence | UserError]:
        lines = _split_lines(path)
        probed = list(islice(lines, PROBED_ROWS))
        layout: ConllColumns | None = None
        comments: Comments | None = None
        header = False
        for is_filled, group in groupby(chain(probed, lines), key=lambda line: bool(line[1])):
            sentence: list[ConllLine] = []
            errors: list[UserError] = []
            for number, cells in group if is_filled else ():
                if isinstance(cells, UserError):
                    errors.append(cells)
                    continue
                if layout is None or comments is None:
                    filled = [(n, line) for n, line in probed if line and not isinstance(line, UserError)]
                    layout = self._columns(path, filled or [(number, cells)], tagged)
                    comments = Comments(path, self.comments, layout.width, layout.tag, {*self.known}, self.usual)
                    header = layout.header
                    comments.probe(probed)
                    if comments.keep:
                        self.found["comments"] = comments.keep
                if not sentence and cells[0][:1] == COMMENT and comments.skips(number, cells):
                    continue
                if header and len(cells) == layout.width:
                    header = False
                    continue
                sentence.append((number, cells))
            if errors:
                yield errors[0]
            elif sentence and layout and comments:
                yield self._to_sentence(path, sentence, layout, comments, tagged)
        if comments:
            comments.report()

    def _columns(self, path: Path, lines: list[ConllLine], tagged: bool) -> ConllColumns:
        try:
            return find_columns(lines, str(path), self.word, self.tag, tagged, file_format(path) == "conllu")
        except UsageError as error:
            if path.suffix != ".txt":
                raise
            remedy = f"brat's annotations of a text are in {path.stem}.ann beside it, and there is none"
            raise UsageError(f"{error.problem}; {remedy}", error.remedy) from error

    def _to_sentence(
        self, path: Path, lines: list[ConllLine], layout: ConllColumns, comments: Comments, tagged: bool
    ) -> TaggedSentence | UserError:
        start = lines[0][0]
        width, word, tag, _ = layout
        for number, cells in lines:
            if len(cells) != width:
                problem = f"{len(cells)} columns, where most lines have {width}"
            elif tagged and tag is not None and not cells[tag]:
                problem = "no tag"
            elif not cells[word]:
                problem = "no word"
            else:
                continue
            return UserError(f"{path}:{number}: {problem} (the sentence that starts in line {start})")
        tags = tuple([cells[tag] for _, cells in lines]) if tag is not None else ()
        words = tuple([cells[word] for _, cells in lines])
        comments.seen.update(tags)
        if tags and tagged and self.names and not set(self.names).issuperset(tags):
            try:
                tags = self._rows("").named(tags, f"{path}:{start}")
            except UserError as error:
                return error
        last = lines[-1][0]
        places = range(start, last + 1) if last - start + 1 == len(lines) else tuple(number for number, _ in lines)
        found = tags if tags and all(tags) else None
        return TaggedSentence(words, found, f"{path.name}:{start}", lines=places)


def _json_rows(path: Path, key: str) -> Iterator[Row | UserError]:
    """Yield the rows of a .json file: a list of Label Studio's tasks, or of objects. Raises UserError for other content."""
    require_file(path)
    yield from label_studio_rows(
        storage.read_json_list(path, "a list, of Label Studio's tasks or other objects"), path, key
    )


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
            yield number, [] if cells and cells[0] == DOCUMENT else cells
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
