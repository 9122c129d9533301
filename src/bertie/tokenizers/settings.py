"""The settings of a tokenizer: tokenizer_config.json, special_tokens_map.json and added_tokens.json, merged as transformers does.

`added_tokens_decoder` of tokenizer_config.json is the newest way to list added tokens. If it is there, the two other files
count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertie.base.errors import UserError
from bertie.files.model_folder import ModelFolder
from bertie.tokenizers.engines import library_errors

CONFIG, MAP, ADDED, JSON = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order in which transformers adds them
# Arguments of transformers' classes that name other files or bring parts of a tokenizer: no such file is read.
REFUSED = ("vocab", "merges", "tokenizer_object", "post_processor", "gguf_file", "_spm_precompiled_charsmap")


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a folder.

    Attributes:
        folder: The folder.
        values: Contents of tokenizer_config.json, and of special_tokens_map.json where it counts.
        config: Contents of config.json.
        named: Tokens by role or by another name that ends in "_token", such as {"mask": …, "entity": …}.
        added: Added tokens, in the order of their ids.
        extra: Further special tokens.
    """

    folder: ModelFolder
    values: dict[str, Any]
    config: dict[str, Any]
    named: dict[str, AddedToken]
    added: list[AddedToken]
    extra: list[AddedToken]

    @property
    def longest(self) -> int | None:
        """Length in tokens that the folder names as its limit. None: it names none."""
        value = self.values.get("model_max_length", self.values.get("max_len"))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
            raise UserError(f"{self.folder / CONFIG}: model_max_length is {repr(value)[:60]}: give a number of tokens")
        return int(value) if value < 1 << 31 else None  # transformers writes 10^30 for "no limit"


def read_settings(folder: ModelFolder, engine: tokenizers.Tokenizer | None) -> TokenizerSettings:
    """Read the settings of a folder.

    Args:
        folder: The folder.
        engine: Its tokenizer.json, if it has one: it lists added tokens, too.

    Raises:
        UserError: A file is damaged, or has a setting that is not obeyed.
    """
    values = dict(folder.json(CONFIG))
    require_obeyed(folder / CONFIG, values)
    with library_errors(f"{folder}: the settings of its tokenizer are damaged"):
        if engine is not None:
            values = {key: value for key, value in values.items() if key not in ("add_bos_token", "add_eos_token")}
        if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
            values["extra_special_tokens"] = values.pop("additional_special_tokens")
        if "added_tokens_decoder" in values:
            added = {int(number): _token(token) for number, token in values["added_tokens_decoder"].items()}
        else:
            values |= _merged_map(folder, values)
            added = _added_file(folder, values) | ({} if engine is None else engine.get_added_tokens_decoder())
        known = {token.content: token for token in added.values()}
        named, extra = _named(values)
        named = {role: known.get(token.content, token) if role in ROLES else token for role, token in named.items()}
    return TokenizerSettings(
        folder, values, folder.json("config.json"), named, [added[i] for i in sorted(added)], extra
    )


def require_obeyed(path: Path, values: dict[str, Any]) -> None:
    """Raise UserError if the settings of a tokenizer bring what bertie does not read, or truncate at the start."""
    for name in REFUSED:
        if name in values:
            raise UserError(f"{path}: {name} is set, which no tokenizer's settings have: remove it")
    for name in ("init_inputs", "fast_tokenizer_files"):
        if [entry for entry in values.get(name) or () if entry != JSON]:
            raise UserError(f"{path}: {name} is {str(values[name])[:100]}, which bertie does not read: remove it")
    require_side(f"{path}: truncation_side", values.get("truncation_side", "right"))


def require_side(name: str, side: object) -> None:
    """Raise UserError unless long texts keep their start."""
    if str(side).lower() != "right":
        raise UserError(f'{name} is {repr(side)[:60]}: bertie truncates at the end: set it to "right"')


def _merged_map(folder: ModelFolder, values: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of special_tokens_map.json, which replace the entries of tokenizer_config.json."""
    merged = {}
    for key, value in folder.json(MAP).items():
        if key == "extra_special_tokens" and isinstance(value, list):
            existing = list(values.get(key) or [])
            value = [*existing, *(token for token in value if token not in existing)]
        elif isinstance(value, dict) and key != "extra_special_tokens":
            value = {**value, "special": True}
        merged[key] = value
    return merged


def _added_file(folder: ModelFolder, values: dict[str, Any]) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json, by id. A token is special if it has a role or is an extra special token."""
    tokens = [values.get(f"{role}_token") for role in ROLES] + list(values.get("extra_special_tokens") or ())
    special = {token.get("content") if isinstance(token, dict) else token for token in tokens}
    entries = folder.json(ADDED).items()
    return {
        int(number): AddedToken(content, normalized=content not in special, special=content in special)
        for content, number in entries
    }


def _named(values: dict[str, Any]) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """Return the tokens by name, and the further special tokens."""
    extra = values.get("extra_special_tokens", values.get("additional_special_tokens"))
    named = {key.removesuffix("_token"): token for key, token in values.items() if key.endswith("_token")}
    for group in (values.get("model_specific_special_tokens"), extra):
        named |= group if isinstance(group, dict) else {}
    further = [] if isinstance(extra, dict) else [_token(token) for token in extra or ()]
    return {name: _token(token) for name, token in named.items() if not isinstance(token, bool | None)}, further


def _token(value: Any) -> AddedToken:
    """Return a token that is written as its text, or as an object with its options."""
    if isinstance(value, dict):
        return AddedToken(**{key: option for key, option in value.items() if key != "__type"})
    return AddedToken(value, special=True)


def texts(tokens: Iterable[AddedToken]) -> set[str]:
    """Return the texts of tokens."""
    return {token.content for token in tokens}
