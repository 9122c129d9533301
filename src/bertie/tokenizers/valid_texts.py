"""Checks of texts that callers give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bertie.base import storage
from bertie.base.errors import UserError


def require_texts(texts: Iterable[Any]) -> None:
    """Raise UserError, naming the first offender, unless all texts are strings without lone surrogates."""
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{text!r:.60} is not a text but of type {type(text).__name__}: give a string")
        if not storage.is_unicode(text):
            raise UserError(f"the text {text[:60]!a} contains half of a surrogate pair, which is not a character")


def invalid_text(texts: list[Any]) -> UserError:
    """Return the error that names the invalid text: the library rejects a batch without saying which text it is."""
    try:
        require_texts(texts)
    except UserError as error:
        return error
    return UserError("the tokenizer rejected the texts")
