"""The words of a text, with their characters, by the rule of BERT's first step, whatever the tokenizer of a model.

`Units` says whether its words or its characters have tags.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

BY_CHARACTERS = "--task.units characters"
Units = Literal["words", "characters"]
TextRange = tuple[int, int]
"""First and last character (exclusive)."""
CHINESE = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
# A letter or mark, with what has no width inside it; or a character that is a word, with the accents on it.
_WORD = re.compile("[wm](?:[wmz]*[wm])?|cm*")


class _Kinds(dict[int, str]):
    """The kind of each character: s (space), c (punctuation, or Chinese), m (accent), z (without width), w (others)."""

    def __missing__(self, code: int) -> str:
        kind = self[code] = _kind(chr(code))
        return kind


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace():
        return "s"
    if category in ("Mn", "Me"):
        return "m"
    if category[0] == "C" or character == "\ufffd":
        return "z"
    is_symbol = character.isascii() and not character.isalnum()
    return "c" if is_symbol or category[0] == "P" or CHINESE.match(character) else "w"


_KINDS = _Kinds()


def split_characters(text: str) -> list[TextRange]:
    """Return the places of the characters of a text, without white space.

    Combining marks, and characters without width, belong to the character before them.
    """
    places: list[TextRange] = []
    for number, character in enumerate(text):
        follows = places and places[-1][1] == number
        if follows and (_KINDS[ord(character)] in "mz" or unicodedata.category(character) == "Mc"):
            places[-1] = places[-1][0], number + 1
        elif not character.isspace():
            places.append((number, number + 1))
    return places


def split_words(text: str) -> list[TextRange]:
    """Return the places of the words of a text: between white space, and at punctuation.

    Each character of punctuation (Unicode's, and all symbols of ASCII) and each Chinese character is a word, as in BERT's
    tokenizer (BasicTokenizer in Devlin et al.'s code). Accents belong to the character before them. Characters without width
    and control characters belong to the word around them, and neither begin nor end one.
    """
    return [match.span() for match in _WORD.finditer(text.translate(_KINDS))]
