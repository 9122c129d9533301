"""Texts with mentions of entities: GAP (Webster et al. 2018) and the coreference column of CoNLL-2012 (Pradhan et al. 2012).

A mention is a span of words; its head word is taken to be its last word. That is right for most English names and short
noun phrases, and wrong if a modifier follows: "the president of France".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bertie.base.errors import UserError, raise_error, shorten
from bertie.examples.rows import parse_index, read_lines, require_file
from bertie.inspect.texts import parsed

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
_BEGIN, _END = "#begin", "#end"
_SPLIT = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Mention:
    """A mention of an entity. Words count from 0."""

    first: int
    """Its first word."""
    last: int
    """Its last word, which is taken as its head word."""
    kind: MentionKind = "other"
    """Kind of its head word."""
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
    lines = (numbered for numbered in read_lines(path) if isinstance(numbered[1], UserError) or numbered[1].strip())
    number, first = next(lines, (0, ""))
    if not number:
        raise UserError(f"{path} is empty")
    if str(first).rstrip("\r\n").split("\t") == GAP_COLUMNS:
        return (parsed(_gap_text, path, number, line) for number, line in lines)
    if str(first).startswith(_BEGIN):
        return (parsed(_conll_text, path, document) for document in _documents(chain([(number, first)], lines)))
    raise UserError(
        f"{path}:{number}: expected the header of GAP ({GAP_COLUMNS[0]}, {GAP_COLUMNS[1]}, …) or the line "
        '"#begin document" of CoNLL-2012'
    )


_Line = tuple[int, str | UserError]


def _gap_text(path: Path, number: int, line: str | UserError) -> MentionText:
    cells, place = raise_error(line).rstrip("\r\n").split("\t"), f"{path}:{number}"
    if len(cells) != len(GAP_COLUMNS):
        raise UserError(f"{place}: expected {len(GAP_COLUMNS)} columns between tabs, found {len(cells)}")
    row = dict(zip(GAP_COLUMNS, cells, strict=True))
    text = row["Text"]
    spans = np.array([match.span() for match in _SPLIT.finditer(text)], np.int64).reshape(-1, 2)
    for name in ("A-coref", "B-coref"):
        if row[name].upper() not in ("TRUE", "FALSE"):
            raise UserError(f"{place}: {name} is {shorten(row[name])!r}: expected TRUE or FALSE")
    placed = [(*_locate(row, name, spans, place), name) for name in ("Pronoun", "A", "B")]
    placed.sort(key=lambda mention: (mention[0], -mention[1]))
    kinds: dict[str, MentionKind] = {"Pronoun": "pronoun", "A": "proper noun", "B": "proper noun"}
    mentions = tuple(Mention(first, last, kinds[name]) for first, last, name in placed)
    names = [name for *_, name in placed]
    candidates = tuple(number for number, name in enumerate(names) if name != "Pronoun")
    right = tuple(row[f"{names[number]}-coref"].upper() == "TRUE" for number in candidates)
    question = AntecedentQuestion(names.index("Pronoun"), candidates, right, closed=True)
    words = tuple(text[start:end] for start, end in spans.tolist())
    return MentionText(words, mentions, (question,) if any(right) else (), f"{path.name}:{number}", text, spans)


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


def _documents(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Split the lines of CoNLL-2012 after the end of each document. A line "#begin document" starts one, too."""
    document: list[_Line] = []
    for number, line in lines:
        if document and str(line).startswith(_BEGIN):
            yield document
            document = []
        document.append((number, line))
        if str(line).startswith(_END):
            yield document
            document = []
    if document:
        yield document


def _conll_text(path: Path, document: list[_Line]) -> MentionText:
    (start, first), (stop, last) = document[0], document[-1]
    if not str(first).startswith(_BEGIN) or not str(last).startswith(_END):
        raise UserError(
            f'{path}:{start}: expected a document from "#begin document" to "#end document", found line {stop}'
        )
    words: list[str] = []
    tags: list[str] = []
    opened: dict[str, list[int]] = {}  # entity -> the first words of its mentions that have not ended
    spans: list[tuple[int, int, str]] = []
    for number, line in document:
        text = raise_error(line)
        columns = text.rstrip("\r\n").split("\t" if "\t" in text else None)
        if columns[0].startswith("#"):
            continue
        if len(columns) < CONLL_COLUMNS:
            raise UserError(f"{path}:{number}: expected at least {CONLL_COLUMNS} columns, found {len(columns)}")
        for item in [] if columns[-1] in ("-", "_", "") else columns[-1].split("|"):
            match = re.fullmatch(r"(\(?)(\d+)(\)?)", item)
            if match is None or not (match[1] or match[3]):
                raise UserError(
                    f"{path}:{number}: the coreference column has {shorten(item)!r}: expected (0, 0) or (0)"
                )
            starts = opened.setdefault(match[2], [])
            if match[1]:
                starts.append(len(words))
            if match[3]:
                if not starts:
                    raise UserError(f"{path}:{number}: {shorten(item)!r} closes a mention that is not open")
                spans.append((starts.pop(), len(words), match[2]))
        words.append(_ESCAPED.get(columns[_WORD], columns[_WORD]))
        tags.append(columns[_PART_OF_SPEECH])
    if unclosed := sorted(entity for entity, starts in opened.items() if starts):
        raise UserError(f"{path}:{start}: the document ends within a mention of entity {unclosed[0]}")
    spans.sort(key=lambda span: (span[0], -span[1]))
    mentions = tuple(_conll_mention(first, last, words[last].lower(), tags[last]) for first, last, _ in spans)
    questions = []
    for number, (_, last, entity) in enumerate(spans):
        candidates = tuple(other for other in range(number) if spans[other][1] != last)
        right = tuple(spans[other][2] == entity for other in candidates)
        if any(right):
            questions.append(AntecedentQuestion(number, candidates, right, closed=False))
    return MentionText(tuple(words), mentions, tuple(questions), f"{path.name}:{start}")


def _conll_mention(first: int, last: int, head: str, tag: str) -> Mention:
    if first == last and (tag in ("PRP", "PRP$") or (tag in ("-", "_") and head in PRONOUNS)):
        return Mention(first, last, "pronoun")
    return Mention(first, last, *_OF_TAG.get(tag, ("other", None)))
