"""How tags mark entities: a letter for the place of a word in its entity, beside the kind of the entity.

| scheme | letters | entity |
|---|---|---|
| bio (IOB2), iob1 | B, I | as the script of CoNLL-2003 (conlleval) and seqeval by default: B, another kind or O ends an entity |
| io | I, or the kind alone | words of one kind in a row |
| iobes | B, I, E, S | as seqeval in strict mode: B I … E of one kind, or S. Other words with tags are no entities |
| bilou | B, I, L, U | the same, with L for E and U for S |
| bmes | B, M, E, S | the same, with M for I |
| biewo, bmewo | B, I or M, E, W | as iobes and bmes, with W for S |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Scheme = Literal["", "iob1", "bio", "io", "iobes", "bilou", "bmes", "biewo", "bmewo", "none"]
ENTITY = "entity"
"""The kind of entities whose tags are letters alone."""
LETTERS: dict[Scheme, dict[str, str]] = {
    "bio": {"B": "B", "I": "I"},
    "iobes": {"B": "B", "I": "I", "E": "E", "S": "S"},
    "bilou": {"B": "B", "I": "I", "L": "E", "U": "S"},
    "bmes": {"B": "B", "M": "I", "E": "E", "S": "S"},
    "biewo": {"B": "B", "I": "I", "E": "E", "W": "S"},
    "bmewo": {"B": "B", "M": "I", "E": "E", "W": "S"},
    "iob1": {"B": "B", "I": "I"},
    "io": {"I": "I"},
}
TagMark = tuple[str, str]
"""The place of a word in its entity, one of B, I, E, S and O, and the kind of the entity."""
OUTSIDE: TagMark = ("O", "")


@dataclass(frozen=True)
class TagForm:
    """How tags mark entities."""

    scheme: Scheme
    """The scheme."""
    separator: str = "-"
    """The separator of letter and kind. Empty: the tag is the letter, or with `whole` the kind."""
    suffix: bool = False
    """Whether the letter follows the kind (PER-B)."""
    lower: bool = False
    """Whether letters are lower case."""
    whole: bool = False
    """Whether the tag is the kind, without a letter; then `separator` is empty."""
    outside: str = "O"
    """The tag of words outside of entities."""

    @property
    def strict(self) -> bool:
        """Whether entities must be complete, as seqeval's strict mode has it."""
        return "S" in LETTERS.get(self.scheme, {}).values()

    def mark(self, tag: str) -> TagMark | None:
        """Return the mark of a tag; None if the tag does not have this form."""
        return _mark(self, tag)

    def marks(self, tags: Iterable[str]) -> list[TagMark]:
        """Return the marks of tags. A tag of another form marks no entity."""
        return [_mark(self, tag) or OUTSIDE for tag in tags]

    def tag(self, place: str, kind: str) -> str:
        """Return the tag of a mark."""
        letter = next(letter for letter, meant in LETTERS[self.scheme].items() if meant == place)
        letter = letter.lower() if self.lower else letter
        if not self.separator:
            return kind if self.whole else letter
        return self.separator.join([kind, letter] if self.suffix else [letter, kind])


@lru_cache(1 << 12)
def _mark(form: TagForm, tag: str) -> TagMark | None:
    if tag == form.outside:
        return OUTSIDE
    if form.whole:
        return "I", tag
    letter, kind = tag, ENTITY
    if form.separator:
        kind, separator, letter = tag.rpartition(form.separator) if form.suffix else tag.partition(form.separator)[::-1]
        if not separator or not kind:
            return None
    if letter != (letter.lower() if form.lower else letter.upper()):
        return None
    place = LETTERS[form.scheme].get(letter.upper())
    return (place, kind) if place else None
