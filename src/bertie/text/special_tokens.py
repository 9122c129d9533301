"""The roles of a tokenizer's special tokens, and the settings that both algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertie.errors import UserError

# The entry of a line break, in vocabularies that have one. It is a user token, so no other text becomes this entry.
LINE_BREAK = "\n"


def printable(entry: str) -> str:
    """Return an entry for people and for vocab.txt, which has one entry per line: a line break as a backslash and an n."""
    return entry.replace(LINE_BREAK, r"\n")


@dataclass(frozen=True)
class SpecialTokens:
    """The vocabulary entry of each role. None: the tokenizer has no token for it.

    Attributes:
        cls: Starts a sequence.
        sep: Ends a text.
        pad: Fills rows.
        unk: Stands for text without an entry.
        mask: Hides a token.
    """

    cls: str
    sep: str
    pad: str | None
    unk: str | None
    mask: str | None

    def names(self) -> dict[str, str]:
        """Return the roles under Hugging Face's names, without missing ones."""
        roles = {"pad": self.pad, "unk": self.unk, "cls": self.cls, "sep": self.sep, "mask": self.mask}
        return {f"{role}_token": token for role, token in roles.items() if token is not None}


def without_automatic_changes(engine: tokenizers.Tokenizer) -> Any:
    """Turn off truncation, padding and the recognition of special tokens in text, and return the engine."""
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True
    return engine


def add_user_tokens(engine: tokenizers.Tokenizer, user_tokens: Sequence[str | AddedToken]) -> None:
    """Add entries that the engine matches in the raw text."""
    engine.add_tokens([t if isinstance(t, AddedToken) else AddedToken(t, normalized=False) for t in user_tokens])


def read_engine(path: Path) -> Any:
    """Read tokenizer.json. Raises UserError if it is damaged."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path} is damaged or is not a tokenizer: {str(error)[:300]}") from error


def read_lines(path: Path) -> list[str]:
    """Read a file in UTF-8. Only a line feed ends a line: U+2028 is a token. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def require_ids_without_gaps(path: Path, vocabulary: dict[str, int]) -> None:
    """Raise UserError if the ids of a tokenizer.json do not run from 0."""
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError(f"{path}: the ids of its {len(vocabulary)} tokens do not run from 0 to {len(vocabulary) - 1}")
