"""The settings of a tokenizer: tokenizer_config.json, special_tokens_map.json and added_tokens.json, merged as transformers does.

`added_tokens_decoder` of tokenizer_config.json is the newest way to list added tokens. If it is there, the two other files
count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from bertie import console, storage
from bertie.errors import UserError
from bertie.text.tokenizer_json import guarded, require_few, require_short
from bertie.text.wordpiece_backend import MAX_WORD_CHARACTERS, MAX_WORD_SETTING

CONFIG, MAP, ADDED, JSON = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order in which transformers adds them
OBEYED = frozenset(
    {
        *(f"{role}_token" for role in ROLES),
        *("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "model_specific_special_tokens"),
        *("tokenizer_class", "auto_map", "model_max_length", "max_len", "model_input_names", "split_special_tokens"),
        *(
            "truncation_side",
            "fast_tokenizer_files",
            "init_inputs",
            "drop_punctuation",
            MAX_WORD_SETTING,
            "add_bos_token",
            "add_eos_token",
        ),
        *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "add_prefix_space", "unk_id"),
        "split_by_punct",
    }
)
# They change no token: they are about padding, decoding, Python's old tokenizers, or the origin of the file.
WITHOUT_EFFECT = frozenset(
    {
        *("padding_side", "pad_token_type_id", "pad_to_multiple_of", "max_length", "stride", "truncation_strategy"),
        *("truncation", "padding", "pad_type_id", "return_token_type_ids", "model_input_name"),
        *("clean_up_tokenization_spaces", "errors", "trim_offsets", "spaces_between_special_tokens"),
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        *("do_basic_tokenize", "never_split", "remove_space", "legacy", "sp_model_kwargs", "vocab_type", "use_fast"),
        *(
            "name_or_path",
            "tokenizer_file",
            "vocab_file",
            "merges_file",
            "special_tokens_map_file",
            "full_tokenizer_file",
        ),
        *("added_tokens_file", "from_slow", "processor_class", "feature_extractor_type", "chat_template", "backend"),
        *("is_local", "local_files_only", "_commit_hash", "transformers_version", "files_loaded", "verbose", "device"),
        *(
            "response_template",
            "response_schema",
            "chat_control_tokens",
            "_from_auto",
            "do_clean_text",
            "wordpieces_prefix",
        ),
        *("tokenize_chinese_characters", "use_auth_token", "trust_remote_code", "revision", "cache_dir", "subfolder"),
    }
)
TOKEN_OPTIONS = {"single_word", "lstrip", "rstrip", "normalized", "special"}
REFUSED = ("vocab", "merges", "tokenizer_object", "post_processor", "gguf_file", "_spm_precompiled_charsmap")


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a folder.

    Attributes:
        folder: The folder.
        values: Contents of tokenizer_config.json, with those of special_tokens_map.json where these count.
        named: Tokens by role or by another name that ends in "_token", such as {"mask": …, "entity": …}.
        added: Added tokens, in the order of their ids.
        extra: Further special tokens. None: the class decides.
        source: The file that `values` come from, for messages.
    """

    folder: Path
    values: dict[str, Any]
    named: dict[str, AddedToken]
    added: list[AddedToken]
    extra: list[AddedToken] | None

    @property
    def source(self) -> Path:
        """The file that messages name."""
        return self.folder / CONFIG

    def flag(self, name: str, default: bool | int | None) -> Any:
        """Return a setting of the class: a bool, or null if the default is None, or a number. Raises UserError."""
        value = self.values.get(name, default)
        allowed = (bool, type(None)) if default is None else type(default)
        if not isinstance(value, allowed) or (type(default) is int and isinstance(value, bool)):
            raise UserError(f"{self.source}: {name} is {repr(value)[:60]}: expected {_kind(default)}")
        return value

    @property
    def longest(self) -> int | None:
        """Length in tokens that the folder names as its limit. None: it names none."""
        value = self.values.get("model_max_length", self.values.get("max_len"))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
            raise UserError(f"{self.source}: model_max_length is {repr(value)[:60]}: expected a number of tokens")
        return int(value) if value < 1 << 31 else None  # transformers writes 10^30 for "no limit"


def _kind(default: bool | int | None) -> str:
    return {bool: "true or false", int: "a number"}.get(type(default), "true, false or null")


def read_settings(folder: Path, content: dict[str, Any] | None) -> TokenizerSettings:
    """Read the settings of a folder.

    Args:
        folder: The folder.
        content: Its tokenizer.json, if it has one.

    Raises:
        UserError: A file is damaged, or has a setting that is not obeyed.
    """
    values = _read(folder, CONFIG)
    _require_obeyed(folder, values, content)
    if content is not None:
        values = {key: value for key, value in values.items() if key not in ("add_bos_token", "add_eos_token")}
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    added: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in values:
        added = _numbered(folder / CONFIG, "added_tokens_decoder", values["added_tokens_decoder"])
    else:
        values |= _merged_map(folder, values)
        added = _added_file(folder, values)
        for token in (content or {}).get("added_tokens") or []:
            if not isinstance(token, dict) or not isinstance(token.get("id"), int):
                raise UserError(f"{folder / JSON} is damaged: an added token has no id: {str(token)[:100]}")
            added[token["id"]] = _token(folder / JSON, {k: v for k, v in token.items() if k != "id"})
    known = {token.content: token for token in added.values()}
    named, extra = _named(folder, values)
    require_short(folder, [*added.values(), *named.values(), *(extra or ())])
    named = {role: known.get(token.content, token) if role in ROLES else token for role, token in named.items()}
    return TokenizerSettings(folder, values, named, [added[i] for i in sorted(added)], extra)


def _read(folder: Path, name: str) -> dict[str, Any]:
    return storage.read_json(folder / name) if (folder / name).is_file() else {}


def _require_obeyed(folder: Path, values: dict[str, Any], content: dict[str, Any] | None) -> None:
    path = folder / CONFIG
    for name in REFUSED:
        if name in values:
            raise UserError(f"{path}: {name} is set, which no tokenizer's settings have: remove it")
    truncation = (content or {}).get("truncation") or {}
    direction = str(truncation.get("direction", "Right")).lower() if isinstance(truncation, dict) else "right"
    if (side := values.get("truncation_side", direction)) != "right":
        where = f"{path}: truncation_side" if "truncation_side" in values else f"{folder / JSON}: truncation.direction"
        raise UserError(
            f'{where} is {repr(side)[:60]}: bertie keeps the start of a text that is too long: set it to "right"'
        )
    longest = values.get(MAX_WORD_SETTING, MAX_WORD_CHARACTERS)
    if longest != MAX_WORD_CHARACTERS and not (folder / JSON).is_file():
        raise UserError(
            f"{path}: {MAX_WORD_SETTING} is {repr(longest)[:60]}, which only {JSON} can say, and it is missing: restore it"
        )
    for name in ("init_inputs", "fast_tokenizer_files"):
        if [each for each in values.get(name) or () if each != JSON]:
            raise UserError(f"{path}: {name} is {str(values[name])[:100]}, which bertie does not read: remove it")


def warn_of_unknown(settings: TokenizerSettings) -> None:
    """Name the settings that bertie does not know, in one line."""
    unknown = [name for name in settings.values if name not in OBEYED | WITHOUT_EFFECT and not name.endswith("_token")]
    if unknown:
        names = ", ".join(repr(name)[:60] for name in sorted(unknown)[:20])
        console.warn(f"{settings.source}: unknown settings, which bertie ignores: {names}")


def _merged_map(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of special_tokens_map.json, which replace those of tokenizer_config.json."""
    merged = {}
    for key, value in _read(folder, MAP).items():
        if key == "extra_special_tokens" and isinstance(value, list):
            existing = list(values.get(key) or [])
            value = [*existing, *(token for token in value if token not in existing)]
        elif isinstance(value, dict) and key != "extra_special_tokens":
            value = {**value, "special": True}
        merged[key] = value
    return merged


def _added_file(folder: Path, values: dict[str, Any]) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json, by id. A token is special if it has a role or is an extra special token."""
    if not (folder / ADDED).is_file():
        return {}
    entries = storage.read_json(folder / ADDED)
    require_few(folder / ADDED, "the file", entries)
    extra = values.get("extra_special_tokens")
    special = {_content(values.get(f"{role}_token")) for role in ROLES}
    special |= {_content(token) for token in (extra if isinstance(extra, list) else [])}
    added = {}
    for content, number in entries.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise UserError(f"{folder / ADDED}: the id of {content[:100]!r} is {str(number)[:100]}: expected a number")
        is_special = content in special
        added[number] = AddedToken(content, normalized=not is_special, special=is_special)
    return added


def _numbered(path: Path, key: str, entries: Any) -> dict[int, AddedToken]:
    if not isinstance(entries, dict):
        raise UserError(f"{path}: {key} is no object")
    require_few(path, key, entries)
    return {guarded(path, lambda i=i: int(i)): _token(path, token) for i, token in entries.items()}


def _named(folder: Path, values: dict[str, Any]) -> tuple[dict[str, AddedToken], list[AddedToken] | None]:
    """Return the tokens by name, and the further special tokens."""
    path = folder / CONFIG
    named: dict[str, AddedToken] = {}
    require_few(path, "the file", [key for key in values if key.endswith("_token")])
    for key, value in values.items():
        if (
            key.endswith("_token")
            and key not in ("add_bos_token", "add_eos_token")
            and not isinstance(value, bool | None)
        ):
            named[key.removesuffix("_token")] = _token(path, value)
    more = values.get("model_specific_special_tokens")
    extra = values.get("extra_special_tokens", values.get("additional_special_tokens"))
    for group in (more, extra):
        if isinstance(group, dict):
            require_few(path, "extra_special_tokens", group)
            named |= {key: _token(path, value) for key, value in group.items()}
    if isinstance(extra, dict):
        extra = []
    if extra is not None and not isinstance(extra, list):
        raise UserError(f"{path}: extra_special_tokens is {str(extra)[:100]}: expected a list")
    if extra is None and "extra_special_tokens" in values:
        extra = []
    require_few(path, "extra_special_tokens", extra or ())
    return named, None if extra is None else [_token(path, token) for token in extra]


def _content(token: Any) -> str:
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _token(path: Path, value: Any) -> AddedToken:
    """Return a token that is written as its text, or as an object with its options. Raises UserError."""
    if isinstance(value, str):
        return guarded(path, lambda: AddedToken(value, special=True))
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        options = {key: option for key, option in value.items() if key not in ("__type", "content")}
        if unknown := sorted(options.keys() - TOKEN_OPTIONS):
            raise UserError(
                f"{path}: the token {value['content'][:100]!r} has the unknown option {unknown[0][:100]!r}: remove it"
            )
        return guarded(path, lambda: AddedToken(value["content"], **options))
    raise UserError(f"{path}: {str(value)[:100]} is no token: expected a text or an object with its content")


def texts(tokens: Iterable[AddedToken]) -> set[str]:
    """Return the texts of tokens."""
    return {token.content for token in tokens}
