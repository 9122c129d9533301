"""Add tokens to a tokenizer that are matched in a text as a whole, such as the markers "[E1]" and "[/E1]"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken

from bertie.base.errors import UsageError, UserError
from bertie.tokenizers.special_tokens import added_tokens, copy_engine
from bertie.tokenizers.tokenizer import Tokenizer


def with_tokens(tokenizer: Tokenizer, tokens: Iterable[str]) -> Tokenizer:
    """Return a tokenizer that reads each of these strings in a text as one special token.

    Entries of the vocabulary keep their ids, and other tokens get the next ids, in order. Where a blank belongs to the token
    after it, as in RoBERTa's vocabulary, a blank before an added token belongs to this token, as with <mask>.

    Raises:
        UsageError: One of them has a role in the vocabulary, such as "[SEP]".
    """
    matched, blank = set(tokenizer.user_tokens), tokenizer.algorithm != "wordpiece"
    new = [token for token in dict.fromkeys(tokens) if token not in matched]
    if roles := sorted({*new}.intersection(tokenizer.special.names().values())):
        raise UsageError(f"{roles[0]!r} is a special token of the vocabulary: take another string")
    if not new:
        return tokenizer
    before = tokenizer.backend.engine
    more = [AddedToken(token, lstrip=blank, normalized=False) for token in new]
    engine = copy_engine(before, [*added_tokens(before), *more])
    return replace(tokenizer, backend=replace(tokenizer.backend, engine=engine), extra=(*tokenizer.extra, *new))


def entry_ids(tokenizer: Tokenizer, tokens: Iterable[str]) -> dict[str, int]:
    """Return the ids of entries of the vocabulary. Raises UserError if it lacks one."""
    ids: Any = {token: tokenizer.backend.engine.token_to_id(token) for token in tokens}
    if missing := [token for token, number in ids.items() if number is None]:
        raise UserError(f"the vocabulary lacks {missing[0]!r}, which the task puts into texts")
    return ids
