"""The three backends of a tokenizer, which have the same members, and which of them a tokenizer of the library gets."""

from __future__ import annotations

import tokenizers

from bertie.tokenizers import bpe_backend, wordpiece_backend
from bertie.tokenizers.bpe_backend import BPEBackend, ByteLevel
from bertie.tokenizers.library_backend import LibraryBackend, LibraryRules
from bertie.tokenizers.special_tokens import SpecialTokens, read_templates
from bertie.tokenizers.wordpiece_backend import NormalizerOptions, WordPieceBackend

Backend = WordPieceBackend | BPEBackend | LibraryBackend
ReadingRules = NormalizerOptions | ByteLevel | LibraryRules


def backend_of(engine: tokenizers.Tokenizer, special: SpecialTokens) -> Backend:
    """Return the backend of a tokenizer: one of bertie's own algorithms where it is equal to it. Raises UserError."""
    if wordpiece_backend.is_wordpiece(engine) and None not in (special.cls, special.sep, special.unk):
        return WordPieceBackend(engine, read_templates(engine), special)
    if bpe_backend.is_byte_level(engine) and special.cls is not None:
        return bpe_backend.backend_of(engine, special)
    return LibraryBackend(engine, read_templates(engine), special)
