"""Helpers for the tokenizers ("engines") of the library `tokenizers`: its errors, its file, copies and added tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertie.base.errors import UserError


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn what the library raises into a UserError that begins with `problem`, also its panics, which are no Exceptions."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{problem}: {' '.join(str(error).split())[:300]}") from error


def read_engine(path: Path, content: bytes) -> Any:
    """Read tokenizer.json. Raises UserError if it is damaged, or reads a text differently each time."""
    with library_errors(f"{path} is damaged or is not a tokenizer"):
        engine = tokenizers.Tokenizer.from_buffer(content)
    if dropout := getattr(engine.model, "dropout", None):
        raise UserError(f"{path}: model.dropout is {dropout}, so each reading of a text is another: set it to null")
    return engine


def copy_engine(engine: tokenizers.Tokenizer, tokens: Iterable[AddedToken] = ()) -> Any:
    """Return a tokenizer with the parts of another one and these added tokens, without truncation and padding."""
    copied = tokenizers.Tokenizer(engine.model)
    for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        if getattr(engine, part) is not None:
            setattr(copied, part, getattr(engine, part))
    copied.encode_special_tokens = True
    copied.add_tokens(list(tokens))
    return copied


def added_tokens(engine: tokenizers.Tokenizer) -> list[AddedToken]:
    """Return copies of the added tokens, special ones included, in the order of their ids."""
    return [token for _, token in sorted(engine.get_added_tokens_decoder().items(), key=lambda item: item[0])]


def added_texts(engine: tokenizers.Tokenizer) -> set[str]:
    """Return the texts of the added tokens."""
    return {token.content for token in added_tokens(engine)}


def add_user_tokens(engine: tokenizers.Tokenizer, user_tokens: Sequence[str | AddedToken]) -> None:
    """Add entries that the engine matches in the raw text, and let special tokens in a text be text."""
    engine.add_tokens([t if isinstance(t, AddedToken) else AddedToken(t, normalized=False) for t in user_tokens])
    engine.encode_special_tokens = True


def to_json(engine: tokenizers.Tokenizer, extra: Collection[str]) -> str:
    """Return the contents of tokenizer.json. extra: the added tokens to mark as special."""
    written = engine.to_str(pretty=True)
    if not extra:
        return written
    content = json.loads(written)
    for token in content["added_tokens"]:
        token["special"] = token["special"] or token["content"] in extra
    return json.dumps(content, ensure_ascii=False, indent=2)
