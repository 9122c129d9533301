"""Sentences with a tag for each word: rows of words and tags or of texts with annotated spans, and files of other forms.

.jsonl and .parquet have rows; .json has Label Studio's tasks or other rows, .ann brat's annotations, and every other file is
CoNLL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import console, storage
from bertie.base.errors import UsageError, UserError, join_names, raise_error, shorten
from bertie.examples.annotations import from_spans, parse_span
from bertie.examples.brat import is_brat, read_brat
from bertie.examples.conll import TAG_KEYS, WORD_KEYS, ConllFile, Keep
from bertie.examples.label_studio import label_studio_rows
from bertie.examples.marked_texts import SpanEnd
from bertie.examples.reader import DataFormat, KindFacts, rows_or_lines
from bertie.examples.rows import (
    STDIN,
    Row,
    distinct_columns,
    file_format,
    is_json_lines,
    label_or_none,
    parse_index,
    parse_position,
    read_rows,
    require_file,
    require_string,
)
from bertie.examples.tag_form import TagForm
from bertie.examples.tagged import TaggedSentence, sentence_of_text
from bertie.examples.words import TextRange, Units, split_characters, split_words

TEXT_KEY = "text"
SPAN_KEYS = ("entities", "spans", "label", "labels")
NO_TAG = (-1, -100)  # numbers for "no label" in data sets and for loss functions
_ROWS = ("jsonl", "parquet")
_NOT_CONLL = ("csv", "json", "zip")  # formats of files that cannot have CoNLL's columns


_CONVERT = (
    'Of a table with a word per row: pandas.read_csv(…).ffill().groupby("Sentence #", sort=False).agg(list)'
    '.rename(columns={"Word": "tokens", "Tag": "tags"})[["tokens", "tags"]].to_json("OUT.jsonl", orient="records", lines=True)'
)


class SentenceColumns(NamedTuple):
    """The keys of a row."""

    words: str
    """Key of the words, or of the text."""
    tags: str | None
    """Key of the tags of words, or of the spans of a text."""
    of_words: bool
    """Whether the tags belong to words."""

    @property
    def uses(self) -> dict[str, str | None]:
        return {"words" if self.of_words else "text": self.words, self.kind: self.tags}

    @property
    def kind(self) -> str:
        """Return what its tags are called, for messages."""
        return "tags" if self.of_words else "spans"


def _conll_columns(kind: TaggedSentences, path: Path) -> dict[str, str]:
    return kind._conll(path, labeled=True).columns().uses if _is_conll(path) else {}


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences with a tag for each word."""

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
    """How to read lines that begin a sentence with "#"; see `conll`."""
    known: tuple[str, ...] = ()
    """Tags of the training examples, which tell words from comments."""
    units: Units = "words"
    """What has a tag: a word, or a character."""
    end: SpanEnd = "automatic"
    """What the end of a span names: its last character, or the one after it, which is usual."""
    data_format: DataFormat = DataFormat()
    facts, label_rules = KindFacts((TaggedSentence,), same_by_name=False, columns_of_file=_conll_columns), None

    __post_init__ = distinct_columns("tokens", "tags")

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:
        if path == STDIN:
            return rows_or_lines(self, path, labeled)
        if is_brat(path):
            return read_brat(path, self.form, labeled, self._split)
        if file_format(path) in _ROWS or is_json_lines(path):
            return read_rows(path)
        require_file(path)
        if path.suffix == ".json":
            tasks = storage.read_json_list(path, "a list, of Label Studio's tasks or other objects")
            return label_studio_rows(tasks, path, self.tokens)
        if (format := file_format(path)) in _NOT_CONLL:
            known = "columns between spaces or tabs (CoNLL), .jsonl, .parquet, .json (Label Studio), .ann (brat)"
            raise UsageError(f"{path}: sentences are read from {known}", _CONVERT if format == "csv" else "")
        if file_format(path) == "txt" and not labeled:
            remedy = "Rename it to .conll for columns; pipe sentences: --input -"
            raise UsageError(f"{path}: does it hold columns or sentences? {remedy}")
        sentences = map(self._in_units, self._conll(path, labeled).sentences())
        return map(self._named, sentences) if labeled else sentences

    def _conll(self, path: Path, labeled: bool) -> ConllFile:
        comments = (self.comments, self.data_format.has_comments, self.known)
        return ConllFile(path, self.word, self.tag, labeled, *comments, self.units)

    def _split(self, text: str) -> list[TextRange]:
        return split_words(text) if self.units == "words" else split_characters(text)

    def _in_units(self, sentence: Any) -> Any:
        """Return a sentence, or an error. A list of characters, some of them blanks, becomes a text."""
        if isinstance(sentence, UserError) or self.units == "words":
            return sentence
        text, kept = "".join(sentence.words), [i for i, word in enumerate(sentence.words) if word.strip()]
        places = tuple(self._split(text))
        words = tuple(text[start:end] for start, end in places)
        if words != tuple(sentence.words[i] for i in kept):
            odd = next((word for word in sentence.words if len(self._split(word)) > 1), text)
            problem = f"{shorten(odd)!r} is not one character with its marks, but task.units is characters"
            return UserError(f"{sentence.source}: {problem}", "Give texts with spans, or one character per word")
        tags = sentence.tags and tuple(sentence.tags[i] for i in kept)
        lines = [sentence.lines[i] for i in kept] if sentence.lines else ()
        return TaggedSentence(words, tags, sentence.source, text, places, lines)

    def _named(self, sentence: TaggedSentence | UserError) -> TaggedSentence | UserError:
        """Return a sentence with the names of the tags that are numbers, or an error in its place."""
        if isinstance(sentence, UserError) or not self.names or {*self.names}.issuperset(sentence.tags or ()):
            return sentence
        try:
            return replace(sentence, tags=self._names_of(sentence.tags or (), sentence.place(0)))
        except UserError as error:
            return error

    def from_python(self, value: Any, place: str, source: str) -> TaggedSentence:
        """Return the sentence of a text (see `words.split_words`) or of a list of words."""
        if isinstance(value, str):
            sentence = sentence_of_text(require_string(value, TEXT_KEY, place), source, self._split(value))
            if not sentence.words:
                raise UserError(f"{place}: a sentence without words")
            return sentence
        if not isinstance(value, list | tuple):
            expected = "expected a dict, a list of words or a TaggedSentence"
            raise UserError(f"{place}: {expected}, got {type(value).__name__}")
        return raise_error(self._in_units(TaggedSentence(_words(list(value), WORD_KEYS[0], place), None, source)))

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> TaggedSentences:
        """Find out whether lines of a CoNLL file that begin with "#" are comments, if the file leaves no doubt.

        In rows, find out whether spans include the character at their end: several of a single character tell, unless more
        would then end with a blank, a mark or beyond the text.

        Raises:
            UsageError: There is one such span.
        """
        if path is not None and _is_conll(path):
            certain = not self.comments and self._conll(path, labeled).has_comments()
            return replace(self, data_format=DataFormat(has_comments=True)) if certain else self
        if not labeled or self.end != "automatic" or self.data_format.end is not None:
            return self
        empty, contrary = list[str](), 0
        for row in (row for row in rows if isinstance(row, Row)):
            with suppress(UserError):
                columns = self.columns(row, labeled)
                spans = [] if columns.of_words or columns.tags is None else row.values[columns.tags]
                text = str(row.values.get(columns.words if isinstance(row.values[columns.words], str) else TEXT_KEY))
                for span in (parse_span(span, row.place) for span in spans):
                    empty += [row.place] * (span.start == span.end)
                    exact = bool(span.surface) and text[span.start : span.end] == span.surface
                    contrary += exact or not text[span.end : span.end + 1].isalnum()  # also the end of the text
        if len(empty) <= contrary:
            return self
        where = f"{path or 'the examples'}: the end of a span"
        if len(empty) == 1:
            problem = f"{where} could be its last character, as {empty[0]} shows, or the one after it"
            raise UsageError(problem, "Choose with --task.end last, or after")
        console.info_once(f"{where} is its last character, as {empty[0]} shows")
        return replace(self, data_format=DataFormat(end="last"))

    def columns(self, row: Row, labeled: bool) -> SentenceColumns:
        values, words = row.values, self._words_key(row.values)
        content = values[words]
        of_words = isinstance(content, list) and not any(isinstance(word, dict) for word in content[:1])
        names = (self.tags,) if self.tags else TAG_KEYS if of_words else SPAN_KEYS
        tags = [name for name in names if isinstance(values.get(name), list)]
        columns = SentenceColumns(words, tags[0] if len(tags) == 1 else None, of_words)
        if len(tags) > 1 and labeled:
            problem = f"the {columns.kind} could be under {' or '.join(map(repr, tags))}"
            raise UsageError(problem, "Choose with --task.tags")
        return columns

    def _words_key(self, values: dict[str, Any]) -> str:
        """Return the key of the words or of the text. If a row has both, what is annotated decides."""
        if self.tokens:
            keys = [self.tokens] if isinstance(values.get(self.tokens), list | str) else []
        else:
            keys = [name for name in WORD_KEYS if isinstance(values.get(name), list)]
            if isinstance(values.get(TEXT_KEY), str) and not (
                keys and isinstance(next(iter(values[keys[0]]), ""), dict)
            ):
                names = [self.tags] if self.tags else [*TAG_KEYS, *SPAN_KEYS] if keys else []
                tags = [
                    values[name][0]
                    for name in dict.fromkeys(names)
                    if isinstance(values.get(name), list) and values[name]
                ]
                are_tags = {isinstance(tag, str | int) for tag in tags}
                keys = keys if are_tags == {True} else [TEXT_KEY] if are_tags == {False} else [*keys, TEXT_KEY]
        if len(keys) == 1:
            return keys[0]
        problem = f"no list of words under {(self.tokens or WORD_KEYS[0])!r}: its keys are {join_names(values)}"
        if keys:
            problem = f"the words could be under {' or '.join(map(repr, keys))}"
        raise UsageError(problem, "Choose with --task.tokens")

    def to_example(self, row: Row, columns: SentenceColumns, labeled: bool, seen: dict[Any, Any]) -> TaggedSentence:  # noqa: ARG002
        values, source, place = row
        content, tags = values[columns.words], values[columns.tags] if columns.tags else None
        text, words = None, ()
        if columns.of_words:
            words = _words(content, columns.words, place)
        else:
            text = require_string(content if isinstance(content, str) else values.get(TEXT_KEY), TEXT_KEY, place)
        tokens = content if text is not None and isinstance(content, list) else []
        if (
            labeled and tags is None and not tokens
        ):  # Prodigy, whose rows bring tokens, leaves out the key without spans
            names = (self.tags,) if self.tags else TAG_KEYS if columns.of_words else SPAN_KEYS
            if any(name in values and values[name] is None for name in names):
                raise UserError(f"{place}: it has no annotation")
            problem = f"no {columns.kind} under {' or '.join(map(repr, names))}: its keys are {join_names(values)}"
            raise UserError(f"{place}: {problem}", "Choose with --task.tags")
        if text is None:
            found = None if tags is None else label_or_none(lambda: self._tags(tags, len(words), place), labeled)
            return raise_error(self._in_units(TaggedSentence(words, found, source)))

        places = _token_places(tokens, text, place) if tokens and self.units == "words" else self._split(text)

        def read() -> TaggedSentence:
            spans = [parse_span(tag, place) for tag in tags or []]
            if "last" in (self.end, self.data_format.end):
                spans = [span._replace(end=span.end + 1) for span in spans]
            return from_spans(text, places, spans, self.form, source)

        sentence = label_or_none(read, labeled) if labeled or tags is not None else None
        sentence = sentence or sentence_of_text(text, source, places)
        if not sentence.words:
            raise UserError(f"{place}: a sentence without words")
        return sentence

    def _tags(self, tags: list[Any], count: int, place: str) -> tuple[str, ...]:
        if len(tags) != count:
            raise UserError(f"{place}: {count} words, but {len(tags)} tags")
        if missing := [tag for tag in tags if tag in NO_TAG]:
            raise UserError(f"{place}: the tag {missing[0]} means that there is no tag, but every word needs one")
        names = tuple(str(tag) if isinstance(tag, int) else require_string(tag, "tags", place) for tag in tags)
        return self._names_of(names, place) if self.names else names

    def _names_of(self, tags: tuple[str, ...], place: str) -> tuple[str, ...]:
        """Return tags with the names of those that are numbers. Raises UserError if a number has no name."""
        if all(name.isdecimal() for name in self.names):
            return tags
        numbers = {tag: parse_index(tag) for tag in tags if tag.isdecimal() and tag not in self.names}
        if wrong := [tag for tag, number in numbers.items() if number is None or number >= len(self.names)]:
            count = f"task.labels has {len(self.names)} names, counted from 0"
            raise UserError(f"{place}: the tag is {shorten(wrong[0])}, but {count}")
        return tuple(self.names[numbers[tag] or 0] if tag in numbers else tag for tag in tags)


def _is_conll(path: Path) -> bool:
    return path != STDIN and not is_brat(path) and file_format(path) not in (*_ROWS, *_NOT_CONLL)


def _words(given: list[Any], key: str, place: str) -> tuple[str, ...]:
    if not given:
        raise UserError(f"{place}: a sentence without words")
    words = tuple(require_string(word, key, place) for word in given)
    if "" in words:
        raise UserError(f"{place}: word {words.index('') + 1} is empty")
    return words


def _token_places(tokens: list[Any], text: str, place: str) -> list[TextRange]:
    """Return the places of Prodigy's tokens in the text. Those of white space alone are no words."""
    places: list[TextRange] = []
    for token in tokens:
        start, end = parse_position(token.get("start")), parse_position(token.get("end"))
        if start is None or end is None or not (places[-1][1] if places else 0) <= start < end <= len(text):
            ends = f"starts at {token.get('start')!r} and ends at {token.get('end')!r}"
            raise UserError(f"{place}: a token {ends}, in {len(text):,} characters, or overlaps with the one before")
        if text[start:end] != token.get("text", text[start:end]):
            raise UserError(f"{place}: the token at {start} is {token['text']!r}, but the text has {text[start:end]!r}")
        if text[start:end].strip():
            places.append((start, end))
    return places
