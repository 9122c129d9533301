"""Texts with mentions of entities: GAP (Webster et al. 2018) and the coreference column of CoNLL-2012 (Pradhan et al. 2012).

A mention is a span of words; its head word is taken to be its last word. That is right for most English names and short
noun phrases, and wrong if a modifier follows: "the president of France".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bertie.base.errors import UserError, shorten
from bertie.examples.rows import parse_index, read_lines, require_file

Gender = Literal["feminine", "masculine", "neuter"]


class Agreement(NamedTuple):
    """Properties that a pronoun shares with its antecedent. None: not known, so everything agrees."""

    person: int | None = None
    plural: bool | None = None
    gender: Gender | None = None

    def agrees(self, other: Agreement) -> bool:
        """Return whether no property contradicts."""
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))


PRONOUNS: dict[str, Agreement] = {
    word: agreement
    for words, agreement in (
        ("i me my mine myself", Agreement(1, False)),
        ("we us our ours ourselves", Agreement(1, True)),
        ("you your yours", Agreement(2)),
        ("yourself", Agreement(2, False)),
        ("yourselves", Agreement(2, True)),
        ("he him his himself", Agreement(3, False, "masculine")),
        ("she her hers herself", Agreement(3, False, "feminine")),
        ("it its itself", Agreement(3, False, "neuter")),
        ("they them their theirs themselves", Agreement(3, True)),
    )
    for word in words.split()
}


MentionKind = Literal["pronoun", "proper noun", "nominal", "other"]
GAP_COLUMNS = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"]
CONLL_COLUMNS = 12  # of a word without predicates
_WORD, _PART_OF_SPEECH = 3, 4
_OF_TAG: dict[str, tuple[MentionKind, bool]] = {  # part of speech -> kind of the mention, whether it is plural
    **{"NNP": ("proper noun", False), "NNPS": ("proper noun", True)},
    **{"NN": ("nominal", False), "NNS": ("nominal", True)},
}
_ESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "/.": ".", "/?": "?"}
_SPLIT = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Mention:
    """A mention of an entity. Words count from 0."""

    first: int
    """Its first word."""
    last: int
    """Its last word, which is taken as its head word."""
    kind: MentionKind = "other"
    """What its head word is."""
    plural: bool | None = None
    """Its number, from the part of speech of its head word. None: not known."""


@dataclass(frozen=True)
class AntecedentQuestion:
    """A mention whose antecedent is asked for."""

    mention: int
    """Number of the mention."""
    candidates: tuple[int, ...]
    """Numbers of the mentions to choose from, in the order of the text."""
    right: tuple[bool, ...]
    """Whether each candidate mentions the same entity."""
    closed: bool
    """Whether the question needs all candidates: if some do not fit into a window, it is not asked."""


@dataclass(frozen=True)
class MentionText:
    """A text with mentions."""

    words: tuple[str, ...]
    """The words."""
    mentions: tuple[Mention, ...]
    """The mentions, by their first word; the longer one first."""
    questions: tuple[AntecedentQuestion, ...]
    """The mentions that have an antecedent."""
    source: str
    """File and line where the text starts, for messages: "gap.tsv:12"."""
    text: str | None = None
    """The raw text, if the file has it; None: the words are all there is."""
    spans: np.ndarray | None = None
    """int [words, 2]: the characters where each word of a raw text starts and ends."""


def read_coreference(path: Path) -> Iterator[MentionText | UserError]:
    """Read a file in the format of GAP (.tsv with a header) or of CoNLL-2012, lazily.

    Yields:
        The texts, in order. A `UserError` with the line takes the place of a broken one.

    Raises:
        UsageError: There is no such file.
        UserError: The file has neither format.
    """
    require_file(path)
    lines = read_lines(path)
    first = next((each for each in lines if isinstance(each[1], UserError) or each[1].strip()), None)
    if first is None:
        raise UserError(f"{path} is empty")
    start = "" if isinstance(first[1], UserError) else first[1]
    if start.rstrip("\r\n").split("\t") == GAP_COLUMNS:
        return _read_gap(path, lines)
    if start.startswith("#begin"):
        return _read_conll(path, chain([first], lines))
    raise UserError(
        f"{path}:{first[0]}: expected the header of GAP ({GAP_COLUMNS[0]}, {GAP_COLUMNS[1]}, …) or the line "
        '"#begin document" of CoNLL-2012'
    )


_Lines = Iterator[tuple[int, str | UserError]]


def _read_gap(path: Path, lines: _Lines) -> Iterator[MentionText | UserError]:
    for number, line in lines:
        if isinstance(line, UserError):
            yield line
        elif line.strip():
            try:
                yield _gap_text(line.rstrip("\r\n").split("\t"), f"{path}:{number}", f"{path.name}:{number}")
            except UserError as error:
                yield error


def _gap_text(cells: list[str], place: str, source: str) -> MentionText:
    if len(cells) != len(GAP_COLUMNS):
        raise UserError(f"{place}: expected {len(GAP_COLUMNS)} columns between tabs, found {len(cells)}")
    row = dict(zip(GAP_COLUMNS, cells, strict=True))
    text = row["Text"]
    spans = np.array([match.span() for match in _SPLIT.finditer(text)], np.int64).reshape(-1, 2)
    right = {}
    found: list[tuple[tuple[int, int], str]] = []
    for name in ("Pronoun", "A", "B"):
        found.append((_locate(row, name, spans, place), name))
        right[name] = name != "Pronoun" and _is_true(row[f"{name}-coref"], f"{name}-coref", place)
    found.sort(key=lambda each: (each[0][0], -each[0][1]))
    mentions = tuple(Mention(*span, "pronoun" if name == "Pronoun" else "proper noun") for span, name in found)
    number_of = {name: number for number, (_, name) in enumerate(found)}
    candidates = sorted(number_of[name] for name in "AB")
    answers = tuple(right[found[number][1]] for number in candidates)
    question = AntecedentQuestion(number_of["Pronoun"], tuple(candidates), answers, closed=True)
    words = tuple(text[start:end] for start, end in spans.tolist())
    return MentionText(words, mentions, (question,) if any(answers) else (), source, text, spans)


def _is_true(value: str, name: str, place: str) -> bool:
    if value.upper() not in ("TRUE", "FALSE"):
        raise UserError(f"{place}: {name} is {shorten(value)!r}: expected TRUE or FALSE")
    return value.upper() == "TRUE"


def _locate(row: dict[str, str], name: str, spans: np.ndarray, place: str) -> tuple[int, int]:
    """Return the first and the last word of a mention, given by its characters."""
    mention, start = row[name], parse_index(row[f"{name}-offset"])
    if start is None or not mention or row["Text"][start : start + len(mention)] != mention:
        offset = shorten(row[f"{name}-offset"])
        raise UserError(f"{place}: the text does not have {name}, {shorten(mention)!r}, at {name}-offset {offset!r}")
    inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < start + len(mention)))
    if not len(inside):
        raise UserError(f"{place}: {name} is {shorten(mention)!r}, which has no word")
    return int(inside[0]), int(inside[-1])


@dataclass(eq=False)
class _Part:
    """A document of CoNLL-2012 while it is read."""

    number: int
    words: list[str]
    tags: list[str]
    open: dict[str, list[int]]
    mentions: list[tuple[int, int, str]]
    error: UserError | None = None


def _read_conll(path: Path, lines: _Lines) -> Iterator[MentionText | UserError]:
    part: _Part | None = None
    for number, line in lines:
        place, error = f"{path}:{number}", None
        if isinstance(line, UserError):
            error = line
        elif line.startswith("#begin"):
            if part is not None:
                yield part.error or UserError(f'{place}: expected "#end document" before the next document')
            part = _Part(number, [], [], {}, [])
        elif line.startswith("#end"):
            yield (
                UserError(f'{place}: "#end document" without "#begin document"')
                if part is None
                else _end_part(path, part)
            )
            part = None
        elif line.strip() and not line.startswith("#"):
            if part is None:
                error = UserError(f'{place}: a word before "#begin document"')
            else:
                error = part.error or _add_word(part, line, place)
        if part is not None:
            part.error = part.error or error
        elif error is not None:
            yield error
    if part is not None:
        yield part.error or UserError(f'{path}:{part.number}: the document has no "#end document"')


def _add_word(part: _Part, line: str, place: str) -> UserError | None:
    """Add a word to a document. Returns what is wrong with its line."""
    columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    if len(columns) < CONLL_COLUMNS:
        return UserError(f"{place}: expected at least {CONLL_COLUMNS} columns, found {len(columns)}")
    word = len(part.words)
    part.words.append(_ESCAPED.get(columns[_WORD], columns[_WORD]))
    part.tags.append(columns[_PART_OF_SPEECH])
    for item in [] if columns[-1] in ("-", "_", "") else columns[-1].split("|"):
        match = re.fullmatch(r"(\(?)(\d+)(\)?)", item)
        if match is None or not (match[1] or match[3]):
            return UserError(f"{place}: the coreference column has {shorten(item)!r}: expected (0, 0) or (0)")
        if match[1]:
            part.open.setdefault(match[2], []).append(word)
        if match[3]:
            if not part.open.get(match[2]):
                return UserError(f"{place}: {shorten(item)!r} closes a mention of entity {match[2]} that is not open")
            part.mentions.append((part.open[match[2]].pop(), word, match[2]))
    return None


def _end_part(path: Path, part: _Part) -> MentionText | UserError:
    if part.error is not None:
        return part.error
    if unclosed := sorted(entity for entity, starts in part.open.items() if starts):
        return UserError(f"{path}:{part.number}: the document ends within a mention of entity {unclosed[0]}")
    spans = sorted(part.mentions, key=lambda span: (span[0], -span[1]))
    mentions = tuple(_conll_mention(first, last, part) for first, last, _ in spans)
    questions = []
    for number, (_, last, entity) in enumerate(spans):
        candidates = tuple(other for other in range(number) if spans[other][1] != last)
        right = tuple(spans[other][2] == entity for other in candidates)
        if any(right):
            questions.append(AntecedentQuestion(number, candidates, right, closed=False))
    return MentionText(tuple(part.words), mentions, tuple(questions), f"{path.name}:{part.number}")


def _conll_mention(first: int, last: int, part: _Part) -> Mention:
    tag, word = part.tags[last], part.words[last].lower()
    if first == last and (tag in ("PRP", "PRP$") or (tag in ("-", "_") and word in PRONOUNS)):
        return Mention(first, last, "pronoun")
    return Mention(first, last, *_OF_TAG.get(tag, ("other", None)))
