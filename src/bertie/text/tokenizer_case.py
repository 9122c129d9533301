"""Whether the tokenizer of a folder lowercases, where no file says it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bertie import console
from bertie.errors import UserError
from bertie.text import wordpiece_backend
from bertie.text.tokenizer_settings import CONFIG, TokenizerSettings


def decide_case(path: Path, entries: list[str], settings: TokenizerSettings, values: dict[str, Any]) -> None:
    """Set do_lower_case where no file does: transformers lowercases; a bare vocabulary says it by its letters."""
    folder = path.parent
    if not settings.values and not (folder / "config.json").is_file():
        wordpiece_backend.require_special(entries, str(folder))
    if "do_lower_case" in settings.values:
        return
    if not (folder / "config.json").is_file() and "tokenizer_class" not in settings.values:
        values["do_lower_case"] = _lowercases(path, entries)
    elif wordpiece_backend.is_cased(entries):
        console.warn(
            f"{path} has uppercase letters, and {folder / CONFIG} does not set do_lower_case: the tokenizer lowercases, as "
            'transformers does (if that is wrong, write "do_lower_case": false there)'
        )


def _lowercases(path: Path, entries: list[str]) -> bool:
    """Return whether text is lowercased, if no file says it: unless an entry has uppercase letters.

    Google's uncased models, its Chinese one and its first multilingual one lowercase. Their vocabularies have no uppercase
    letters, those of the cased models do.

    Raises:
        UserError: No entry has letters with a case, or the name of the folder says otherwise.
    """
    cased = wordpiece_backend.is_cased(entries)
    named = re.search(r"(?<![a-z])(un)?cased(?![a-z])", path.parent.resolve().name.lower())
    doubt = ""
    if not wordpiece_backend.has_case(entries):
        doubt = "no entry has letters with a case"
    elif named and cased == (named[1] is not None):
        doubt = f"{'some entries' if cased else 'no entries'} have uppercase letters, and the name says {named[0]}"
    if doubt:
        remedy = f'write {{"do_lower_case": true}} or false to {path.parent / CONFIG}'
        raise UserError(f"{path} does not say whether text is lowercased ({doubt}): {remedy}")
    return not cased
