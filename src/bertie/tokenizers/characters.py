"""Tokenizers that read every character by itself, for scripts without blanks: `Tag.units`.

A combining mark stays with the character before it, and so do the parts of a Korean syllable into which some normalizers take
it apart. Blanks have no token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenizers import Regex, pre_tokenizers

from bertie.tokenizers.library_backend import CHARACTER, LibraryBackend
from bertie.tokenizers.special_tokens import added_tokens, copy_engine
from bertie.tokenizers.tokenizer import Tokenizer


def by_characters(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the same entries that splits text into characters. Its tokenizer.json says so."""
    backend = tokenizer.backend
    if tokenizer.splits_characters:
        return tokenizer
    engine = copy_engine(backend.engine)
    splitters: list[Any] = [pre_tokenizers.Split(Regex(CHARACTER), "removed", invert=True)]
    if backend.word_mark == "Ġ":
        splitters.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    engine.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    engine.add_tokens(added_tokens(backend.engine))
    return replace(tokenizer, backend=LibraryBackend(engine, backend.templates, backend.special))
