"""Rows with tagged words or with annotated spans of a text, as sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie.errors import UsageError, UserError, join_names, shorten
from bertie.tasks.data.annotations import from_spans, parse_spans
from bertie.tasks.data.conll_columns import TAG_KEYS, WORD_KEYS
from bertie.tasks.data.rows import Row, file_format, label_or_none, parse_index, parse_position, require_string
from bertie.tasks.data.tag_form import TagForm
from bertie.tasks.data.tagged import TaggedSentence, sentence_of_text
from bertie.tasks.data.words import TextRange

TEXT_KEY = "text"
SPAN_KEYS = ("entities", "spans", "label", "labels")
NO_TAG = (-1, -100)  # numbers for "no label" in data sets and for loss functions


@dataclass(frozen=True)
class TaggedRows:
    """Reads rows.

    Attributes:
        tokens: Key of the words, or of the text; empty: found.
        tags: Key of the tags, or of the spans; empty: found.
        names: The tags in the order of their numbers; empty: unknown.
        form: How to tag the words of annotated spans.
    """

    tokens: str
    tags: str
    names: tuple[str, ...]
    form: TagForm

    def sentence(self, row: Row, tagged: bool | None) -> TaggedSentence:
        """Return the sentence of a row.

        Args:
            row: The row.
            tagged: Whether tags are required. None: they may be missing, but not wrong. False: they may be both.

        Raises:
            UsageError: Its words, or its tags, are missing or could be under several keys.
            UserError: They are not of the expected form.
        """
        values, place = row.values, row.place
        key = self._words_key(row)
        given = values[key]
        if isinstance(given, str):
            return self._text(row, require_string(given, key, place), None, tagged)
        if not given:
            raise UserError(f"{place}: a sentence without words")
        if isinstance(given[0], dict) and all(isinstance(token, dict) for token in given):
            text = require_string(values.get(TEXT_KEY), TEXT_KEY, place)
            return self._text(row, text, _token_places(given, text, place), tagged)
        words = tuple(require_string(word, key, place) for word in given)
        if "" in words:
            raise UserError(f"{place}: word {words.index('') + 1} is empty")
        found = self._key(row, self.tags, [name for name in TAG_KEYS if name in values], tagged, "tags", TAG_KEYS)
        if found is None:
            return TaggedSentence(words, None, row.source)
        tags = label_or_none(lambda: self._check_tags(values[found], len(words), place), tagged is not False)
        return TaggedSentence(words, tags, row.source)

    def keys(self, row: Row) -> dict[str, str]:
        """Return the keys of the words, and of the tags or spans, of a row. Raises UsageError as `sentence`."""
        words, values = self._words_key(row), row.values
        given = values[words]
        of_words = isinstance(given, list) and not any(isinstance(word, dict) for word in given[:1])
        use, usual = ("tags", TAG_KEYS) if of_words else ("spans", SPAN_KEYS)
        found = self._key(
            row, self.tags, [name for name in usual if isinstance(values.get(name), list)], None, use, usual
        )
        return {"words" if of_words else "text": words, **({use: found} if found else {})}

    def named(self, tags: Iterable[str], place: str) -> tuple[str, ...]:
        """Return tags with the names of those that are numbers.

        Raises:
            UserError: A number has no name.
        """
        return tuple(self._named(tag, place) if tag.isdecimal() and tag not in self.names else tag for tag in tags)

    def _named(self, tag: str, place: str) -> str:
        if all(name.isdecimal() for name in self.names):
            return tag
        number = parse_index(tag)
        if number is None or number >= len(self.names):
            raise UserError(
                f"{place}: the tag {shorten(tag)}, and task.labels has {len(self.names)} names, counted from 0"
            )
        return self.names[number]

    def _words_key(self, row: Row) -> str:
        values, place = row.values, row.place
        first = WORD_KEYS[0]
        if (
            not self.tokens
            and TEXT_KEY not in values
            and WORD_KEYS[1] not in values
            and isinstance(values.get(first), list)
        ):
            return first
        if self.tokens:
            found = [self.tokens] if isinstance(values.get(self.tokens), list | str) else []
        else:
            found = [name for name in WORD_KEYS if isinstance(values.get(name), list)]
            if isinstance(values.get(TEXT_KEY), str):
                found = self._with_text(row, found)
        if len(found) > 1:
            problem = f"the words could be under {' or '.join(map(repr, found))}"
        elif not found:
            problem = f"no list of words under {(self.tokens or WORD_KEYS[0])!r}: its keys are {join_names(values)}"
        else:
            return found[0]
        raise UsageError(f"{place}: {problem}", "Choose with --task.tokens")

    def _with_text(self, row: Row, words: list[str]) -> list[str]:
        """Return the candidates for the words of a row that has a text, too: what is annotated decides."""
        values = row.values
        if not words or any(isinstance(token, dict) for token in values[words[0]][:1]):
            return words or [TEXT_KEY]
        keys = [self.tags] if self.tags else [*TAG_KEYS, *SPAN_KEYS]
        items = [values[name][:1] for name in dict.fromkeys(keys) if isinstance(values.get(name), list)]
        are_tags = {isinstance(item, str | int) for first in items for item in first}
        return words if are_tags == {True} else [TEXT_KEY] if are_tags == {False} else [*words, TEXT_KEY]

    def _text(self, row: Row, text: str, places: list[TextRange] | None, tagged: bool | None) -> TaggedSentence:
        """Return the words of a text, with the tags of its spans."""
        values, place = row.values, row.place
        names = [name for name in SPAN_KEYS if isinstance(values.get(name), list)]
        # Prodigy leaves out the key if there are no spans.
        required = tagged and places is None
        key = self._key(row, self.tags, names, required, "spans", SPAN_KEYS)

        def read() -> TaggedSentence:
            spans = parse_spans(values[key], place) if key is not None else []
            return from_spans(text, places, spans, self.form, row.source)

        sentence = label_or_none(read, strict=tagged is not False) if key is not None or tagged else None
        if sentence is None:
            plain = sentence_of_text(text, row.source)
            words = plain.words if places is None else tuple(text[start:end] for start, end in places)
            sentence = replace(plain, words=words, places=plain.places if places is None else tuple(places))
        if not sentence.words:
            raise UserError(f"{place}: a sentence without words")
        return sentence

    def _key(
        self, row: Row, named: str, found: list[str], tagged: bool | None, what: str, usual: Many[str]
    ) -> str | None:
        """Return the key of the tags or spans; None if there is none, and none is required."""
        values, place = row.values, row.place
        if named:
            found = [named] if isinstance(values.get(named), list) else []
        if len(found) > 1 and tagged is not False:
            problem = f"the {what} could be under {' or '.join(map(repr, found))}"
            raise UsageError(f"{place}: {problem}", "Choose with --task.tags")
        if not found and tagged:
            names = (named,) if named else usual
            if any(name in values and values[name] is None for name in names):
                raise UserError(f"{place}: it has no annotation")
            problem = f"no {what} under {' or '.join(map(repr, names))}: its keys are {join_names(values)}"
            raise UserError(f"{place}: {problem}", "Choose with --task.tags")
        return found[0] if len(found) == 1 else None

    def _check_tags(self, tags: Any, count: int, place: str) -> tuple[str, ...]:
        if not isinstance(tags, list) or len(tags) != count:
            found = len(tags) if isinstance(tags, list) else "no list of"
            raise UserError(f"{place}: {count} words and {found} tags")
        read = tuple(
            _number(tag, place) if isinstance(tag, int) else require_string(tag, "tags", place) for tag in tags
        )
        return self.named(read, place) if self.names else read


def _number(tag: int, place: str) -> str:
    if tag in NO_TAG:
        raise UserError(f"{place}: the tag {tag} stands for no tag, and every word needs one")
    return str(tag)


def _token_places(tokens: list[Any], text: str, place: str) -> list[TextRange]:
    """Return the places of Prodigy's tokens in the text. Those of white space alone are no words."""
    found: list[TextRange] = []
    for token in tokens:
        start, end = parse_position(token.get("start")), parse_position(token.get("end"))
        if start is None or end is None or not start < end <= len(text):
            ends = f"starts at {token.get('start')!r} and ends at {token.get('end')!r}"
            raise UserError(f"{place}: a token {ends}, in {len(text):,} characters")
        if found and start < found[-1][1]:
            raise UserError(f"{place}: the token at {start} begins before the one before it ends")
        if text[start:end] != token.get("text", text[start:end]):
            raise UserError(f"{place}: the token at {start} is {token['text']!r}, and the text has {text[start:end]!r}")
        if text[start:end].strip():
            found.append((start, end))
    return found


def tag_names(path: Path, key: str) -> tuple[str, ...]:
    """Return the names of the numbers in a column of a .parquet file, as `datasets` writes them; () without any."""
    if file_format(path) != "parquet":
        return ()
    from pyarrow import ArrowException, parquet

    try:
        written = (parquet.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
        features = json.loads(written).get("info", {}).get("features", {})
    except (ArrowException, OSError, ValueError, AttributeError):
        return ()  # reading the rows says what is wrong
    for name in (key,) if key else TAG_KEYS:
        feature = features.get(name) or {}
        inner = feature.get("feature", feature)
        if inner.get("_type") == "ClassLabel":
            return tuple(map(str, inner.get("names") or ()))
    return ()
