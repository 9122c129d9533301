"""Examples of relations between two spans of a text: SemEval-2010 task 8, TACRED's JSON, OpenNRE's rows, and own columns.

The text has tags, <e1>…</e1> and <e2>…</e2>, or columns name the positions of the spans in a text or in a list of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import console
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.cells import is_written, parse_cell
from bertie.examples.labels import MARKERS, LabelRules, require_one_type
from bertie.examples.marked_texts import (
    DIRECTED,
    ESCAPES,
    MARKER,
    TAG,
    RelationExample,
    SpanEnd,
    cut_word,
    from_positions,
    from_tags,
    relation_name,
)
from bertie.examples.open_nre import end_by_name, flat
from bertie.examples.reader import DataFormat, KindFacts, rows_or_lines
from bertie.examples.rows import (
    PROBED_ROWS,
    Header,
    Row,
    file_format,
    is_stdin,
    label_or_none,
    parse_label,
    parse_position,
    read_json_rows,
    require_file,
    require_string,
)
from bertie.examples.semeval import is_numbered, numbered_rows

TEXTS = ("text", "sentence", "token", "tokens", "words")
LABELS = ("relation", "label")
PREFIXES = (("subj", "obj"), ("e1", "e2"), ("head", "tail"), ("h", "t"))
"""Beginnings of the names of columns for the first and the second span: e1_start, e1_end, e1_type."""
TACRED = "subj_start"
NO_RELATION = frozenset(marker for marker in MARKERS if any(map(str.isalpha, marker)))
"""Labels such as "NA" that mean here that there is no relation, and elsewhere that the label is unknown."""
_MOST = 0.9  # share of the rows whose positions must not cut words
ENDS = {"last": "the last token of a span", "after": "the token after it"}


class RelationColumns(NamedTuple):
    """The columns of a row."""

    text: str
    spans: tuple[str, ...]
    """Start and end of the first span, then of the second one. Empty: the text has tags."""
    types: tuple[str, ...]
    """Types of both spans. Empty: they are unknown."""
    label: str | None

    @property
    def uses(self) -> dict[str, str | None]:
        return {"text": self.text, "spans": ", ".join(self.spans), "types": ", ".join(self.types), "label": self.label}


def _headerless(cells: list[str]) -> list[str] | None:
    """Recognize tables without a header: a text with tags, and its relation in the cell before or after it."""
    tagged = [TAG.search(cell) is not None for cell in cells]
    if len(cells) == 2 and not any(tagged):
        tagged = [DIRECTED.fullmatch(cell) is None for cell in cells]
    if len(cells) > 2 or tagged.count(True) != 1:
        return None
    return ["text" if is_text else "relation" for is_text in tagged]


@dataclass(frozen=True)
class RelationTexts:
    """Texts with two spans and the relation between them.

    Attributes:
        text: Column of the text or of the tokens. Empty: one of `TEXTS`.
        label: Column of the relation. Empty: one of `LABELS`.
        spans: Columns of the positions: start and end of the first span, then of the second one. Empty: found by `PREFIXES`.
        types: Columns of the types of the spans. Empty: found by `PREFIXES`.
        end: What the end of a span names.
        typed: Whether every span needs a type.
        known: The types of the first span and of the second one; None: not known yet.
        no_label: The labels that mean that the label is unknown. Empty: see `labels`.
        classes: All relations, if they are known.
        negative: The label that means that there is no relation, if the user names it.
        join: Whether labels that look the same are one.
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
    negative: str = ""
    data_format: DataFormat = DataFormat()
    join: bool = False
    facts = KindFacts(flat=flat, headerless=_headerless)

    @property
    def label_rules(self) -> LabelRules:
        return LabelRules(self.classes, self.no_label, kept=NO_RELATION | {self.negative.lower()}, join=self.join)

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:
        if not is_stdin(path):
            require_file(path)
            if path.suffix.lower() == ".json":
                return read_json_rows(path, "a list of objects, as in TACRED")
            if file_format(path) == "txt" and is_numbered(path):
                return numbered_rows(path)
        return rows_or_lines(self, path, labeled)

    def from_python(self, value: Any, place: str, source: str) -> Row | RelationExample:
        """Return the row of a text with tags, or of OpenNRE's objects."""
        if isinstance(value, RelationExample):
            return self._checked(value, value.source or place)
        if not isinstance(value, str):
            expected = "a text with <e1>…</e1> and <e2>…</e2>, or a dict with its columns"
            raise UserError(f"{place}: expected {expected}, got {type(value).__name__}", f"Give {expected}")
        return Row({self.text or "text": value}, source, place)

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> RelationTexts:  # noqa: ARG002
        """Find out what the ends of spans of tokens name, if no setting says it: a span of one token tells.

        Raises:
            UsageError: It is not certain, or positions in a text cut words, so that they do not count characters.
        """
        places: dict[str | None, str] = {}
        name, texts, cuts = "", 0, list[str]()
        for row in (item for item in rows if isinstance(item, Row)) if self.end == "automatic" else ():
            with suppress(UserError):
                columns = self.columns(row, labeled=False)
                if not columns.spans or texts == PROBED_ROWS:
                    break  # tags, or enough positions of characters
                name, text = name or columns.spans[1], _tokens(row, columns)
                if isinstance(text, str):
                    texts, cuts = texts + 1, [*cuts, *_cuts(row, columns, text)]
                    continue
                places.setdefault(_end_of(row, columns, text), row.place)
                if TACRED in columns.spans:
                    places.setdefault("last", f"the name {TACRED}")
        if len(cuts) > (1 - _MOST) * texts:
            choice = "--task.end last (the last character) or after; positions of tokens need a list of tokens"
            raise UsageError(f"{cuts[0]} (so in {len(cuts)} of {console.plural(texts, 'text')})", f"Choose {choice}")
        certain, end = [end for end in ENDS if end in places], self.data_format.end
        if places and not certain and end is not None:
            console.info_once(f"{path or 'the examples'}: {name} is {ENDS[end]}, as in the training examples")
        if not places or (not certain and end is not None):
            return self
        if len(certain) != 1:
            shown = "; ".join(f"by {places[end]}, it is {ENDS[end]}" for end in certain)
            raise _doubt(path or "the examples", name, f" ({shown})" * bool(shown))
        console.info_once(f"{path or 'the examples'}: {name} is {ENDS[certain[0]]}, as {places[certain[0]]} shows")
        return replace(self, data_format=DataFormat(end="last" if certain[0] == "last" else "after"))

    def columns(self, row: Row, labeled: bool) -> RelationColumns:
        return _find_columns(self, Header(row.values), labeled)

    def to_example(self, row: Row, columns: RelationColumns, labeled: bool, seen: dict[Any, Any]) -> RelationExample:
        values, source, place = row
        text = _tokens(row, columns)
        if columns.spans:
            if isinstance(text, str) and TAG.search(text):
                problem = f"the text has tags, and {columns.spans[0]} gives positions: remove one of the two"
                raise UserError(f"{place}: {problem}")
            end = self.end
            if end == "automatic" and not isinstance(text, str):
                end = self.data_format.end or ("last" if TACRED in columns.spans else _end_of(row, columns, text))
                if end is None:
                    raise _doubt(place, columns.spans[1])
            text, first, second = from_positions(text, [values[name] for name in columns.spans], end, place)
        elif isinstance(text, list):
            raise UserError(f"{place}: tokens without the positions of the spans", "Name them with --task.spans")
        else:
            text, first, second = from_tags(text, place)
        types = [parse_label(values[name], name, place) for name in columns.types] or [None, None]
        name, label = columns.label, None
        if name is not None:
            label = label_or_none(lambda: parse_label(values[name], name, place), labeled)
            if labeled and label is None:
                raise UserError(f"{place}: no label")
            if label is not None:
                require_one_type(seen, values[name], place)
                label = relation_name(label)
        return self._checked(RelationExample(text, first, second, types[0], types[1], label, source), place)

    def _checked(self, example: RelationExample, place: str) -> RelationExample:
        """Return the example. Raises UserError for a marker in its text, and for a type that is unknown or missing."""
        if marker := MARKER.search(example.text):
            raise UserError(f"{place}: the text has {marker[0]!r}, which is how bertie marks spans: replace it")
        types = (example.first_type, example.second_type)
        for number, (side, name) in enumerate(zip(("first", "second"), types, strict=True)) if self.typed else ():
            if name is None:
                raise UserError(f"{place}: the {side} span has no type", "Name both columns with --task.types")
            if self.known is not None and name not in self.known[number]:
                problem = f"the type {shorten(name)!r} of the {side} span is not one of the known types"
                raise UserError(f"{place}: {problem}: {join_names(sorted(self.known[number]))}")
        return example


def _find_columns(kind: RelationTexts, names: Header, labeled: bool) -> RelationColumns:
    """Find the columns of a row with these names. labeled: whether the column of the label must be clear, if there is one."""
    known = {name.lower(): name for name in names}

    def one_of(named: str, usual: tuple[str, ...], use: str, flag: str) -> str | None:
        names.require(flag, named)
        candidates = [named] if named else [known[name] for name in usual if name in known]
        if len(candidates) > 1:
            raise names.unclear(f"more than one column could be {use} ({', '.join(candidates)})", flag)
        return candidates[0] if candidates else None

    def group(named: tuple[str, ...], endings: tuple[str, ...], flag: str) -> tuple[str, ...]:
        if named:
            names.require(flag, *named)
            if len(named) != 2 * len(endings):
                raise names.unclear(f"{2 * len(endings)} columns are needed", flag)
            return named
        usual = [tuple(f"{side}_{ending}" for side in sides for ending in endings) for sides in PREFIXES]
        complete = [group for group in usual if all(name in known for name in group)]
        if len(complete) > 1:
            raise names.unclear(f"more than one set of columns could be the {flag}", flag)
        if flag == "spans" and not complete and (part := [n for group in usual for n in group if n in known]):
            raise names.unclear(f"a column beside {part[0]} is missing ({', '.join(usual[0] + usual[1])})", flag)
        return tuple(known[name] for name in complete[0]) if complete else ()

    if (text := one_of(kind.text, TEXTS, "the text", "text")) is None:
        raise names.unclear("cannot tell which column is the text", "text")
    label = kind.label if kind.label and not labeled else one_of(kind.label, LABELS, "the relation", "label")
    if labeled and label is None and len(names) > 1:  # a row of SemEval's files has its relation in a line of its own
        raise names.unclear("no label column", "label")
    spans, types = group(kind.spans, ("start", "end"), "spans"), group(kind.types, ("type",), "types")
    return RelationColumns(text, spans, types, label if label in names else None)


def _tokens(row: Row, columns: RelationColumns) -> str | list[str]:
    """Return the text, or its tokens. Cells may have them as a list. TACRED's brackets become plain ones."""
    value = row.values[columns.text]
    if columns.text.lower() in TEXTS[2:] and is_written(value):
        value = parse_cell(value, columns.text, row.place)
    if not isinstance(value, list | tuple):
        return require_string(value, columns.text, row.place)
    tokens = [require_string(token, columns.text, row.place) for token in value]
    return [ESCAPES.get(token.upper(), token) for token in tokens] if TACRED in columns.spans else tokens


def _end_of(row: Row, columns: RelationColumns, tokens: list[str]) -> SpanEnd | None:
    """Return what the ends of spans of tokens must name, by one row; None if it leaves a doubt."""
    numbers = [number for name in columns.spans if (number := parse_position(row.values[name])) is not None]
    if len(numbers) < len(columns.spans):
        return None
    if numbers[0] == numbers[1] or numbers[2] == numbers[3]:
        return "last"
    return "after" if len(tokens) in (numbers[1], numbers[3]) else end_by_name(row.values, tokens, numbers)


def _cuts(row: Row, columns: RelationColumns, text: str) -> list[str]:
    """Return the place of a row and the word that its positions cut, if they cut one."""
    numbers = [parse_position(row.values[name]) or 0 for name in columns.spans]
    cut = cut_word(text, [(numbers[0], numbers[1]), (numbers[2], numbers[3])])
    return [f"{row.place}: {cut}"] if cut else []


def _doubt(where: object, name: str, shown: str = "") -> UsageError:
    problem = f"{where}: {name} could be {' or '.join(ENDS.values())}{shown}"
    return UsageError(problem, "Choose with --task.end last, as in TACRED, or --task.end after")
