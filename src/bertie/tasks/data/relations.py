"""Examples of relations between two spans of a text: SemEval-2010 task 8, TACRED's JSON, and own columns.

The text has tags, <e1>…</e1> and <e2>…</e2>, or columns name the positions of the spans in a text or in a list of tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertie import console, storage
from bertie.errors import UsageError, UserError, join_names, shorten
from bertie.tasks.data.cells import is_written, parse_cell
from bertie.tasks.data.columns import columns_of
from bertie.tasks.data.in_memory import plain, require_list
from bertie.tasks.data.left_out import leave_out, left_out, raise_mistake
from bertie.tasks.data.marked_texts import (
    DIRECTED,
    ESCAPES,
    MARKER,
    TAG,
    RelationColumns,
    RelationExample,
    SpanEnd,
    cut_word,
    from_positions,
    from_tags,
    relation_name,
)
from bertie.tasks.data.open_nre import end_by_name, flat, flat_rows
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    Row,
    file_format,
    is_stdin,
    label_or_none,
    may_differ,
    parse_label,
    parse_position,
    read_rows,
    require_file,
    require_string,
    row_from_python,
)
from bertie.tasks.data.semeval import is_numbered, numbered_rows
from bertie.tasks.data.unknown_labels import MARKERS, find_markers, require_one_kind, require_stated, without_unknown

TEXTS = ("text", "sentence", "token", "tokens", "words")
LABELS = ("relation", "label")
PREFIXES = (("subj", "obj"), ("e1", "e2"), ("head", "tail"), ("h", "t"))
"""What the names of columns for the first and the second span begin with: e1_start, e1_end, e1_type."""
TACRED = "subj_start"
NO_RELATION = {marker for marker in MARKERS if any(map(str.isalpha, marker))}
"""Labels such as "NA" that mean here that there is no relation, and elsewhere that the label is unknown."""
_MOST = 0.9  # share of the rows whose positions must not cut words
ENDS: dict[SpanEnd, str] = {"last": "the last token of a span", "after": "the token after it"}


@dataclass(frozen=True)
class RelationReader:
    """Reads texts with two spans and the relation between them.

    Attributes:
        text: Column of the text or of the tokens. Empty: one of `TEXTS`.
        label: Column of the relation. Empty: one of `LABELS`.
        spans: Columns of the positions: start and end of the first span, then of the second one. Empty: found by `PREFIXES`.
        types: Columns of the types of the spans. Empty: found by `PREFIXES`.
        end: What the end of a span names.
        typed: Whether every span needs a type.
        known: The types of the first span and of the second one; None: not known yet.
        no_label: The labels that mean that the label is unknown. Empty: see `unknown_labels`.
        classes: All relations, if they are known.
        meant: Labels that are relations, whatever they look like.
    """

    text: str = ""
    label: str = ""
    spans: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    end: SpanEnd = "automatic"
    typed: bool = False
    known: tuple[frozenset[str], frozenset[str]] | None = None
    no_label: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    meant: tuple[str, ...] = ()
    usual: SpanEnd = "automatic"
    """What the ends named in the training examples, for files that leave a doubt."""
    found: dict[str, SpanEnd] = field(default_factory=dict, compare=False, repr=False)
    """What the ends name in the examples that were read last, under "end", if that is certain."""
    layouts: dict[tuple[bool, tuple[str, ...]], RelationColumns] = field(
        default_factory=dict, compare=False, repr=False
    )
    """The layout of the rows with the latest columns."""

    def read(self, path: Path) -> Iterator[RelationExample | UserError]:
        """Read examples with labels.

        Raises:
            UsageError: The file is missing or of unknown format, its columns are unclear, or it does not say what the ends of
                spans name.
            UserError: It cannot be read as a whole.
        """
        return self._file(path, labeled=True)

    def stream(self, path: Path) -> Iterator[RelationExample | UserError]:
        """Read examples for prediction, lazily: every row gives an example or an error, in order. Labels may be missing."""
        return self._file(path, labeled=False)

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns of a file are read as what: see `NamesColumns`."""
        rows = self._rows(path, labeled=False)
        return columns_of(rows, lambda row: self._layout(row, str(path), labeled=False).uses)

    def markers(self, labels: Collection[str], where: str) -> set[str]:
        """Return which labels mean that the label is unknown: see `LeavesOut`."""
        meant = {label for label in labels if label.lower() in NO_RELATION or label in self.meant}
        asked = set(labels) - meant | ({*self.no_label} & set(labels))
        return find_markers(asked, where, self.classes, self.no_label)

    def labeled(self, examples: list[RelationExample], where: str, training: bool) -> list[RelationExample]:
        """Return the examples whose label is known: see `LeavesOut`."""
        labels = [example.label for example in examples]
        if training:
            require_stated({label for label in labels if label}, where, self.no_label)
        return without_unknown(examples, labels, self.markers({label for label in labels if label}, where), where)

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Any]:
        """Convert texts with tags, dicts with the columns of files, or `RelationExample`s, lazily.

        Raises:
            UsageError: The columns are unclear, or it is unclear what the ends of spans name.
            UserError: For the first bad value.
        """
        given = require_list(given)
        known = enumerate(given, 1) if isinstance(given, list | tuple) else ()
        rows = (Row(value, "", f"example {number}") for number, value in known if isinstance(value, dict))
        reader, kinds = self._with_end(flat_rows(rows), "the examples"), dict[bool, str]()
        for number, value in enumerate(given, 1):
            place = f"example {number}"
            if isinstance(value, RelationExample):
                yield self._checked(value, value.source or place)
                continue
            if not isinstance(value, dict | str):
                expected = "a text with <e1>…</e1> and <e2>…</e2>, or a dict with its columns"
                raise UserError(f"{place}: expected {expected}, got {type(value).__name__}", f"Give {expected}")
            row = flat(row_from_python(value if isinstance(value, dict) else {self.text or "text": value}, place))
            error = left_out(row, (self.text, self.label)) if labeled else None
            yield raise_mistake(error or reader._example(row, reader._layout(row, place, labeled), labeled, kinds))

    def _file(self, path: Path, labeled: bool) -> Iterator[RelationExample | UserError]:
        rows, reader = self._rows(path, labeled), self
        if path.suffix.lower() == ".json":
            rows = list(rows)  # they are in memory
        if not is_stdin(path):
            reader = self._with_end(rows if isinstance(rows, list) else self._rows(path, labeled), str(path))
        same_columns = not may_differ(path) and path.suffix.lower() not in (".json", ".txt")
        rows = leave_out(rows, (self.text, self.label)) if labeled else rows
        return reader._examples(rows, str(path), labeled, same_columns)

    def _examples(
        self, rows: Iterable[Row | UserError], where: str, labeled: bool, same_columns: bool
    ) -> Iterator[RelationExample | UserError]:
        kinds: dict[bool, str] = {}
        for row in rows:
            if not isinstance(row, Row):
                yield row
                continue
            try:
                layout = self._layout(row, where, labeled)
            except UsageError as error:
                if same_columns:
                    raise
                yield UserError(str(error))
                continue
            try:
                example = self._example(row, layout, labeled, kinds)
            except UserError as error:
                if labeled and isinstance(error, UsageError):
                    raise  # a question about all rows
                yield UserError(str(error))
            else:
                yield example

    def _rows(self, path: Path, labeled: bool) -> Iterator[Row | UserError]:
        if not is_stdin(path):
            require_file(path)
            if path.suffix.lower() == ".json":
                return flat_rows(_json_rows(path))
            if file_format(path) == "txt" and is_numbered(path):
                return numbered_rows(path)
        if labeled and file_format(path) == "txt":
            known = "give SemEval's file, .tsv or .jsonl (OpenNRE's .txt is one: rename it)"
            raise UsageError(f"{path}: a line is a text, without labels, in .txt: {known}")
        return flat_rows(read_rows(path, _headerless, lambda row: self._layout(flat(row), str(path), labeled)))

    def _with_end(self, rows: Iterable[Row | UserError], where: str) -> RelationReader:
        """Find out what the ends of spans of tokens name, if no setting says it: a span of one token tells.

        Raises:
            UsageError: It is not certain, or positions in a text cut words, so that they are not those of characters.
        """
        found: dict[SpanEnd | None, str] = {}
        name, texts, cuts = "", 0, list[str]()
        for row in rows if self.end == "automatic" else ():
            if not isinstance(row, Row):
                continue
            try:
                layout = self._layout(row, where, labeled=False)
                given = _tokens(row, layout)
            except UserError:
                continue
            if not layout.spans or texts == PROBED_ROWS:
                break  # tags, or enough positions of characters
            name = name or layout.spans[1]
            if isinstance(given, str):
                texts, cuts = texts + 1, [*cuts, *_cuts(row, layout, given)]
            else:
                found.setdefault(_end_of(row, layout), row.place)
                if TACRED in layout.spans:
                    found.setdefault("last", f"the name {TACRED}")
        if len(cuts) > (1 - _MOST) * texts:
            choice = (
                "--task.end last (the last character) or --task.end after; positions of tokens need a list of tokens"
            )
            raise UsageError(f"{cuts[0]} (so in {len(cuts)} of {console.plural(texts, 'text')})", f"Choose {choice}")
        if not found:
            return self
        certain: list[SpanEnd] = [end for end in ENDS if end in found]
        if not certain and self.usual != "automatic":
            console.info_once(f"{where}: {name} is {ENDS[self.usual]}, as in the training examples")
            return self._with(self.usual)
        if len(certain) != 1:
            shown = "; ".join(f"by {found[end]}, it is {ENDS[end]}" for end in certain)
            raise _doubt(where, name, f" ({shown})" * bool(shown))
        console.info_once(f"{where}: {name} is {ENDS[certain[0]]}, as {found[certain[0]]} shows")
        return self._with(certain[0])

    def _with(self, end: SpanEnd) -> RelationReader:
        self.found["end"] = end
        return replace(self, end=end)

    def _layout(self, row: Row, where: str, labeled: bool) -> RelationColumns:
        key = (labeled, tuple(row.values))
        if key not in self.layouts:
            layout = self._find_layout(key[1], where, labeled)
            self.layouts.clear()  # rows with the same columns follow each other
            self.layouts[key] = layout
        return self.layouts[key]

    def _find_layout(self, names: tuple[str, ...], where: str, labeled: bool) -> RelationColumns:
        """Find the columns. Raises a UsageError that lists the names and the flag to choose with."""
        known = {name.lower(): name for name in names}

        def error(problem: str, flag: str) -> UsageError:
            return UsageError(f"{where}: {problem}; its columns are: {join_names(names)}", f"Choose with --task.{flag}")

        def one_of(given: str, usual: tuple[str, ...], what: str, flag: str) -> str | None:
            if given and given not in names:
                raise error(f"no column {given!r}", flag)
            found = [given] if given else [known[name] for name in usual if name in known]
            if len(found) > 1:
                raise error(f"more than one column could be {what} ({', '.join(found)})", flag)
            return found[0] if found else None

        def columns(given: tuple[str, ...], endings: tuple[str, ...], flag: str) -> tuple[str, ...]:
            if given:
                wrong = [name for name in given if name not in names]
                if wrong or len(given) != 2 * len(endings):
                    raise error(f"no column {wrong[0]!r}" if wrong else f"{2 * len(endings)} columns are needed", flag)
                return given
            usual = [tuple(f"{side}_{ending}" for side in sides for ending in endings) for sides in PREFIXES]
            found = [each for each in usual if all(name in known for name in each)]
            if len(found) > 1:
                raise error(f"more than one set of columns could be the {flag}", flag)
            if not found and (part := [name for each in usual for name in each if name in known]) and flag == "spans":
                raise error(f"a column beside {part[0]} is missing ({', '.join(usual[0] + usual[1])})", flag)
            return tuple(known[name] for name in found[0]) if found else ()

        text = one_of(self.text, TEXTS, "the text", "text")
        if text is None:
            raise error("cannot tell which column is the text", "text")
        label = self.label if self.label and not labeled else one_of(self.label, LABELS, "the relation", "label")
        spans, types = columns(self.spans, ("start", "end"), "spans"), columns(self.types, ("type",), "types")
        return RelationColumns(text, spans, types, label if label in names else None)

    def _example(
        self, row: Row, layout: RelationColumns, labeled: bool, label_kinds: dict[bool, str]
    ) -> RelationExample:
        values, source, place = row
        given = _tokens(row, layout)
        if layout.spans:
            if isinstance(given, str) and TAG.search(given):
                raise UserError(
                    f"{place}: the text has tags, and {layout.spans[0]} names positions: remove one of both"
                )
            end = self.end
            if end == "automatic" and not isinstance(given, str):
                end = "last" if TACRED in layout.spans else _end_of(row, layout) or self.usual
            if end == "automatic" and not isinstance(given, str):
                raise _doubt(place, layout.spans[1])
            text, first, second = from_positions(given, [values[name] for name in layout.spans], end, place)
        elif isinstance(given, list):
            raise UserError(f"{place}: tokens without the positions of the spans", "Name them with --task.spans")
        else:
            text, first, second = from_tags(given, place)
        kinds = [parse_label(values[name], name, place) for name in layout.types] or [None, None]
        name, label = layout.label, None
        if name is not None:
            label = label_or_none(lambda: parse_label(values[name], name, place), labeled)
            if label is not None:
                require_one_kind(label_kinds, values[name], place)
                label = relation_name(label)
            elif labeled:
                raise UserError(f"{place}: no label")
        return self._checked(RelationExample(text, first, second, kinds[0], kinds[1], label, source), place)

    def _checked(self, example: RelationExample, place: str) -> RelationExample:
        """Return the example. Raises UserError for a marker in its text, and for a type that is unknown or missing."""
        if marker := MARKER.search(example.text):
            raise UserError(f"{place}: the text has {marker[0]!r}, which is how bertie marks spans: replace it")
        pairs = zip(("first", "second"), (example.first_type, example.second_type), strict=True)
        for number, (side, found) in enumerate(pairs) if self.typed else ():
            if found is None:
                raise UserError(f"{place}: the {side} span has no type", "Name both columns with --task.types")
            if not found.isprintable():
                raise UserError(f"{place}: the type {shorten(repr(found))} of the {side} span is no line of text")
            if self.known is not None and found not in self.known[number]:
                known = join_names(sorted(self.known[number]))
                raise UserError(
                    f"{place}: the type {shorten(found)!r} of the {side} span is none of those known: {known}"
                )
        return example


def _tokens(row: Row, layout: RelationColumns) -> str | list[str]:
    """Return the text, or its tokens. Cells may have them as a list. TACRED's brackets become those of text."""
    value = row.values[layout.text]
    if layout.text.lower() in TEXTS[2:] and is_written(value):
        value = parse_cell(value, layout.text, row.place)
    if isinstance(value, list | tuple) or hasattr(value, "tolist"):
        tokens = [require_string(token, layout.text, row.place) for token in value]
        return [ESCAPES.get(token.upper(), token) for token in tokens] if TACRED in layout.spans else tokens
    return require_string(value, layout.text, row.place)


def _end_of(row: Row, layout: RelationColumns) -> SpanEnd | None:
    """Return what the ends of spans of tokens must name, by one row; None if it leaves a doubt, or has no tokens."""
    try:
        tokens = _tokens(row, layout)
    except UserError:
        return None
    found = [parse_position(plain(row.values[name])) for name in layout.spans]
    numbers = [number for number in found if number is not None]
    if isinstance(tokens, str) or len(numbers) < len(found):
        return None
    if numbers[0] == numbers[1] or numbers[2] == numbers[3]:
        return "last"
    return "after" if len(tokens) in (numbers[1], numbers[3]) else end_by_name(row.values, tokens, numbers)


def _cuts(row: Row, layout: RelationColumns, text: str) -> list[str]:
    """Return the place of a row and the word that its positions cut, if they cut one."""
    numbers = [parse_position(plain(row.values[name])) or 0 for name in layout.spans]
    cut = cut_word(text, [(numbers[0], numbers[1]), (numbers[2], numbers[3])])
    return [f"{row.place}: {cut}"] if cut else []


def _doubt(where: str, name: str, shown: str = "") -> UsageError:
    problem = f"{name} could be {' or '.join(ENDS.values())}{shown}"
    return UsageError(f"{where}: {problem}", "Choose with --task.end last, as in TACRED, or --task.end after")


def _headerless(cells: list[str]) -> list[str] | None:
    """Recognize tables without a header: a text with tags, and its relation in the cell before or after it."""
    tagged = [TAG.search(cell) is not None for cell in cells]
    if len(cells) == 2 and not any(tagged):
        tagged = [DIRECTED.fullmatch(cell) is None for cell in cells]
    if len(cells) > 2 or tagged.count(True) != 1:
        return None
    return ["text" if is_text else "relation" for is_text in tagged]


def _json_rows(path: Path) -> Iterator[Row | UserError]:
    """Yield the objects of TACRED's list."""
    for number, values in enumerate(storage.read_json_list(path, "a list of objects, as that of TACRED"), 1):
        name = str(values.get("id", number)) if isinstance(values, dict) else str(number)
        place = f"{path}: example {number} ({name})" if name != str(number) else f"{path}: example {number}"
        if isinstance(values, dict):
            yield Row(values, f"{path.name}: {name}", place)
        else:
            yield UserError(f"{place}: expected an object, as in TACRED, found {type(values).__name__}")
