"""Add tokens to a tokenizer that are matched in a text as a whole, such as the markers "[E1]" and "[/E1]"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tokenizers import AddedToken

from bertie.text.special_tokens import copy_engine
from bertie.text.tokenizer import Tokenizer


def with_tokens(tokenizer: Tokenizer, tokens: Iterable[str]) -> Tokenizer:
    """Return a tokenizer that reads each of these strings in a text as one special token.

    Entries of the vocabulary keep their ids, and other tokens get the next ids, in order. Where a blank belongs to the token
    after it, as in RoBERTa's vocabulary, a blank before an added token belongs to this token, as with <mask>.
    """
    matched, blank = set(tokenizer.user_tokens), tokenizer.algorithm != "wordpiece"
    new = [token for token in dict.fromkeys(tokens) if token not in matched]
    if not new:
        return tokenizer
    engine, added = copy_engine(tokenizer.backend.engine), tokenizer.backend.engine.get_added_tokens_decoder()
    engine.add_tokens([added[i] for i in sorted(added)])
    engine.add_tokens([AddedToken(token, lstrip=blank, normalized=False) for token in new])
    return replace(tokenizer, backend=replace(tokenizer.backend, engine=engine), extra=(*tokenizer.extra, *new))
