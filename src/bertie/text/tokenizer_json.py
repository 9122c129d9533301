"""Read tokenizer.json, the file of the library `tokenizers`, and refuse what would take unbounded time or memory."""

from __future__ import annotations

import base64
import binascii
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from bertie import storage
from bertie.errors import UserError
from bertie.text.sentencepiece import require_valid_charsmap

MOST_ADDED, MOST_ADDED_CHARACTERS = 20_000, 500_000  # of added tokens; published tokenizers have up to some thousands
MOST_PARTS = 500  # of a normalizer, and so on; published tokenizers have up to 20
MOST_GROWTH = 300
"""Characters that a normalizer may make of one."""
TABLE_GROWTH = 10  # of a SentencePiece table: known tokenizers have one, which makes up to 18 characters of a rare one
# Patterns of published tokenizers. Another pattern may need exponential time, so it is refused.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = frozenset(
    {
        *(_GPT2, _CL100K % r"\p{N}{1,3}", _CL100K % r"\p{N}", _CL100K % r"\p{N}{1,2}"),
        *(r"\s{2,}|[\n\r\t]", r" {2,}", r" +", r"\s+", r"\s", r"\s{2,}", r"[\r\n\t]", r"\n", r"[\n\r]+"),
        *(
            r"\d",
            r"\d+",
            r"[0-9]",
            r"\p{N}",
            r"\p{N}+",
            r"\p{Nd}",
            r"\p{Nd}+",
            r"[^\S\r\n]+",
            r"(?=\S)",
            r"\w+|[^\w\s]+",
        ),
    }
)


def guarded(what: object, make: Callable[[], Any]) -> Any:
    """Return what the library `tokenizers` makes. Raises UserError for anything that it raises."""
    try:
        return make()
    except UserError:
        raise
    except BaseException as error:  # the library's panics are no Exceptions
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{what} is damaged or is not a tokenizer: {reason}") from error
        raise


def read(path: Path) -> dict[str, Any]:
    """Read tokenizer.json and check what the library does not.

    Raises:
        UserError: It is damaged, too large, has a pattern that is not known, or says more than bertie reads.
    """
    content = storage.read_json(path)
    model, added = content.get("model"), content.get("added_tokens") or []
    if not isinstance(model, dict) or not isinstance(added, list):
        raise UserError(f"{path} is damaged: it has no model, or its added_tokens are no list")
    require_few(path, "added_tokens", added)
    if model.get("dropout"):
        raise UserError(
            f"{path}: model.dropout is {repr(model['dropout'])[:60]}, so each reading of a text is another: set it to null"
        )
    try:
        for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
            parts = list(itertools.islice(_objects(content.get(name)), MOST_PARTS + 1))
            lists = (value for part in parts for value in part.values() if isinstance(value, list))
            if len(parts) > MOST_PARTS or any(len(value) > MOST_PARTS for value in lists):
                raise UserError(f"{path}: {name} has more than {MOST_PARTS} parts, more than any known tokenizer")
            for part in parts:
                _check(path, name, part)
        for name in ("normalizer", "decoder"):
            _require_bounded(path, name, content.get(name))
    except RecursionError as error:
        raise UserError(f"{path} is damaged: it nests too deeply") from error
    if kind_of(content) == "Unigram":
        for entry in _vocabulary(path, model, list):
            if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and _is_number(entry[1])):
                raise UserError(
                    f"{path} is damaged: the entry {str(entry)[:100]} of its vocabulary is no token and score"
                )
    else:
        _vocabulary(path, model, dict)
    return content


def require_few(path: Path, key: str, tokens: Any) -> None:
    """Raise UserError if there are more added tokens than the library handles in seconds."""
    if len(tokens) > MOST_ADDED:
        raise UserError(f"{path}: {key} has {len(tokens):,} tokens: at most {MOST_ADDED:,} are read")


def require_short(path: Path, tokens: Iterable[AddedToken]) -> None:
    """Raise UserError if added tokens have more characters than the library handles in seconds."""
    if (characters := sum(len(token.content) for token in tokens)) > MOST_ADDED_CHARACTERS:
        problem = f"its added tokens have {characters:,} characters: at most {MOST_ADDED_CHARACTERS:,} are read"
        raise UserError(f"{path}: {problem}")


def require_unknown_token(path: Path, model: Any) -> None:
    """Raise UserError if a model of whole words needs a token for unknown ones that its vocabulary lacks."""
    if isinstance(model, models.WordPiece | models.WordLevel) and model.token_to_id(model.unk_token) is None:
        problem = f"unk_token is {model.unk_token[:100]!r}, which the vocabulary lacks, so other words cannot be read"
        raise UserError(f"{path}: {problem}")


def kind_of(content: dict[str, Any]) -> str:
    """Return the kind of the model: WordPiece, BPE, Unigram or WordLevel. Old files do not name it."""
    model = content["model"]
    if isinstance(model.get("type"), str):
        return model["type"]
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def engine_of(path: Path) -> Any:
    """Build the tokenizer of a tokenizer.json that was `read`. Raises UserError."""
    return guarded(path, lambda: tokenizers.Tokenizer.from_file(str(path)))


def charsmap_of(content: dict[str, Any]) -> bytes:
    """Return the first table of SentencePiece's normalizer in a tokenizer.json that was `read`; empty if there is none."""
    parts = _objects(content.get("normalizer"))
    found = (part.get("precompiled_charsmap") for part in parts if part.get("type") == "Precompiled")
    return next((base64.b64decode(each) for each in found if each), b"")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _vocabulary(path: Path, model: dict[str, Any], kind: type) -> Any:
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, kind) or not vocabulary:
        raise UserError(f"{path} is damaged: its model has no vocabulary")
    return vocabulary


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield an object and all objects in it."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _objects(part)


def _check(path: Path, name: str, part: dict[str, Any]) -> None:
    pattern = part.get("Regex")
    if pattern is not None and not (isinstance(pattern, str) and pattern in PATTERNS):
        raise UserError(
            f"{path}: {name} has the pattern {str(pattern)[:100]!r}, which no known tokenizer has, so it is not run: it "
            "might never end"
        )
    table = part.get("precompiled_charsmap")
    if part.get("type") == "Precompiled" and table:
        try:
            require_valid_charsmap(base64.b64decode(table, validate=True))
        except (UserError, binascii.Error, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged: the precompiled_charsmap of its normalizer: {error}") from error


def _require_bounded(path: Path, name: str, written: Any) -> None:
    """Raise UserError if a normalizer or decoder may make a text much longer than it is: replacements in a row multiply it."""
    growth = 1.0
    for part in _objects(written):
        if part.get("type") == "Replace":
            pattern, content = part.get("pattern"), str(part.get("content", ""))
            replaced = pattern.get("String") if isinstance(pattern, dict) else pattern
            growth *= max(
                1.0, len(content) / len(replaced) if replaced and isinstance(replaced, str) else 1 + len(content)
            )
        elif part.get("type") == "Precompiled":
            growth *= TABLE_GROWTH
        elif part.get("type") == "Prepend":
            growth += len(str(part.get("prepend", "")))
        if growth > MOST_GROWTH:
            raise UserError(
                f"{path}: {name} makes a text more than {MOST_GROWTH} times as long, as no known tokenizer does, so it is "
                "not run"
            )
