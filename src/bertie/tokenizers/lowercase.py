"""A tokenizer that lowercases texts before it reads them, as sentence-transformers does with `do_lower_case`."""

from __future__ import annotations

from dataclasses import replace

import tokenizers
from tokenizers import normalizers

from bertie.tokenizers.tokenizer import Tokenizer


def lowercased(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that lowercases, character by character, before its own normalization.

    It is for reading texts, not for saving.
    """
    if tokenizer.lowercase:
        return tokenizer
    engine = tokenizers.Tokenizer.from_str(tokenizer.backend.engine.to_str())
    steps = [] if engine.normalizer is None else [engine.normalizer]
    engine.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])  # pyright: ignore[reportAttributeAccessIssue]
    return replace(tokenizer, backend=replace(tokenizer.backend, engine=engine))
