"""Read the tokenizer of a folder as transformers 5 does, from tokenizer.json or from the vocabulary files of its class.

The generic class takes tokenizer.json as it is. A class of `tokenizer_classes` builds the tokenizer from the vocabulary and
the settings. transformers itself reads every other class. Then every added token of every file is one token. One thing is
different: a role such as [MASK] that is written in a text is text.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertie.base import console, untrusted
from bertie.base.errors import UsageError, UserError, naming, nearest_path
from bertie.files.model_folder import ModelFolder
from bertie.tokenizers import bpe_backend, transformers_tokenizer, wordpiece_backend
from bertie.tokenizers.bpe_backend import BPEBackend, ByteLevel
from bertie.tokenizers.classes import (
    ADDED,
    CLASSES,
    CONFIG,
    GENERIC,
    GOOGLES,
    JSON,
    MAP,
    ROLES,
    TokenizerSettings,
    class_name,
    read_settings,
    texts,
)
from bertie.tokenizers.library_backend import LibraryBackend, LibraryRules
from bertie.tokenizers.special_tokens import (
    LINE_BREAK,
    SpecialTokens,
    added_tokens,
    copy_engine,
    library_errors,
    read_templates,
)
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


MODELS = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model", "sentencepiece.model", GOOGLES)
VOCABULARIES = (JSON, "vocab.txt", "vocab.json", *MODELS)
FILES = (*VOCABULARIES, CONFIG, MAP, ADDED, "merges.txt", "entity_vocab.json")
"""All files of a tokenizer: what `read_folder` reads beside config.json, or names when it refuses a folder."""
TOKEN_TYPES = "token_type_ids"
AS_JSON = f"write {JSON}, as AutoTokenizer.from_pretrained(OLD).save_pretrained(NEW) of transformers does"


@dataclass(frozen=True, eq=False)
class TokenizerFolder:
    """The tokenizer of a folder.

    Attributes:
        backend: The tokenizer: roles in a text are text, other added tokens are tokens.
        longest: Length in tokens that the folder names as its limit. None: it names none.
        extra: Added tokens that are special without having a role, such as "[E1]".
        name: The class of transformers that reads the folder.
        split: Whether the folder says that special tokens in a text are text (split_special_tokens).
        truncates_left: Whether long texts keep their end (truncation_side).
    """

    backend: Backend
    longest: int | None
    extra: tuple[str, ...]
    name: str
    split: bool
    truncates_left: bool


def read_folder(folder: ModelFolder) -> TokenizerFolder:
    """Read the tokenizer of a folder.

    Raises:
        UsageError: The folder has no tokenizer, or one that needs the extra with transformers, which is not installed.
        UserError: A file is damaged, or asks for what bertie does not reproduce. The message names file, key and value.
    """
    untrusted.require_inside(folder.path)
    file = read_engine(folder / JSON, folder.read(JSON)) if folder.has(JSON) else None
    settings = read_settings(folder, file)
    name, values = class_name(settings), settings.values
    if (name in CLASSES or name in GENERIC) and not (values.get("add_bos_token") or values.get("add_eos_token")):
        engine, named = _build(settings, name, file)
        roles, inputs = {role: token.content for role, token in named.items()}, values.get("model_input_names")
        types = TOKEN_TYPES in inputs if isinstance(inputs, list) else name in CLASSES and CLASSES[name].token_types
    else:
        is_named = name or settings.config.get("model_type")
        _require_file(folder, VOCABULARIES if is_named else (), f"no tokenizer_class in {CONFIG}")
        theirs = transformers_tokenizer.load(folder.path, name)
        engine, name, types = theirs.backend_tokenizer, type(theirs).__name__, TOKEN_TYPES in theirs.model_input_names
        roles = {role.removesuffix("_token"): str(token) for role, token in theirs.special_tokens_map.items()}
    side = values.get("truncation_side") or (engine.truncation or {}).get("direction", "right")
    split = bool(values.get("split_special_tokens"))
    with library_errors(f"{folder}: its tokenizer is damaged"), naming(folder):
        tokens = _tokens_with_rows(engine, roles, settings)
        known = engine.get_vocab(with_added_tokens=False) | {t.content: engine.token_to_id(t.content) for t in tokens}
        if sorted(known.values()) != list(range(len(known))):
            raise UserError(f"the ids of its {len(known)} tokens do not run from 0 to {len(known) - 1}")
        special = _special({role: token for role, token in roles.items() if token in known}, known)
        if file is None and wordpiece_backend.is_wordpiece(engine) and LINE_BREAK in known:
            tokens.append(AddedToken(LINE_BREAK, normalized=False))  # in a vocab.txt of bertie
        matched, extra = _without_roles(engine, tokens, special, split)
        backend = backend_of(matched, special)
    if not types:
        backend = replace(backend, templates=backend.templates.without_types())
    if file is not None:
        _warn_of_other_entries(folder, known)
    return TokenizerFolder(backend, settings.longest, extra, name, split, side.lower() == "left")


def _build(settings: TokenizerSettings, name: str, file: Any) -> tuple[Any, dict[str, AddedToken]]:
    """Build the tokenizer of a class of `tokenizer_classes` or of the generic one, and return it with the token of each role.

    Args:
        settings: The settings.
        name: The class.
        file: The tokenizer in tokenizer.json, if there is one.
    """
    folder, named, further = settings.folder, dict(settings.named), settings.extra
    if name in GENERIC:
        _require_file(folder, (JSON,), f"the tokenizer class {name} reads only {JSON}")
        _add_tokens(file, settings, named, further)
        return file, _with_padding(named, file)
    chosen = CLASSES[name]
    named = {role: AddedToken(token, special=True) for role, token in chosen.roles.items()} | named
    roles = {role: token.content for role, token in named.items()}
    with library_errors(f"{folder}: its tokenizer is damaged"):
        if file is None:
            if chosen.vocabulary:
                _require_file(folder, (chosen.vocabulary,), f"its tokenizer class reads {JSON} or {chosen.vocabulary}")
            engine, listed = chosen.read(settings, roles)
            further = settings.extra if listed is None or "extra_special_tokens" in settings.values else listed
        elif isinstance(file.model, chosen.model):
            engine = copy_engine(file)
        else:
            models = f"a {type(file.model).__name__} model, and its class {name} a {chosen.model.__name__} model"
            raise UserError(f"{folder / JSON} has {models}")
        chosen.dress(engine, settings.values, roles)
        _add_tokens(engine, settings, named, further)
        engine.post_processor = chosen.post_processor(engine, roles)
    return engine, _with_padding(named, file)


def _with_padding(named: dict[str, AddedToken], file: Any) -> dict[str, AddedToken]:
    """Return the token of each role, with the padding of tokenizer.json if nothing else names one."""
    if file is None or not file.padding:
        return named
    return {"pad": AddedToken(file.padding["pad_token"], special=True)} | named


def _require_file(folder: ModelFolder, names: Sequence[str], reads: str) -> None:
    """Raise an error unless the folder has one of these files. reads: what reads them, for the message."""
    if any(folder.has(name) for name in names):
        return
    if not folder.path.is_dir():
        what = "is a file" if folder.path.exists() else "does not exist"
        raise UsageError(f"{folder} {what}{nearest_path(folder.path, 'give the folder of a tokenizer or a model')}")
    if model := next((name for name in MODELS if folder.has(name)), None):
        raise UserError(f"{folder / model} is not read: {reads}: {AS_JSON}")
    raise UsageError(f"{folder} holds no tokenizer: {reads}, and it has none of {', '.join(names or VOCABULARIES)}")


def _warn_of_other_entries(folder: ModelFolder, known: Container[str]) -> None:
    path = folder / "vocab.txt"
    if not folder.has(path.name):
        return
    if not all(entry in known for entry in wordpiece_backend.read_vocabulary(path, folder.text(path.name))):
        console.warn(
            f"{folder}/vocab.txt has entries that tokenizer.json, which takes precedence, lacks: copy it into a folder "
            "without tokenizer.json to use them"
        )


def _add_tokens(
    engine: Any, settings: TokenizerSettings, named: dict[str, AddedToken], further: Sequence[AddedToken]
) -> None:
    """Add the tokens that the engine lacks, in the order of transformers, which decides about their ids."""
    present = added_tokens(engine)
    shown = {repr(token) for token in present}
    new = [token for token in settings.added if repr(token) not in shown]
    contents, of_role = texts([*present, *new]), texts(named.values())
    ordered = [*(named[role] for role in ROLES if role in named), *(t for r, t in named.items() if r not in ROLES)]
    for token in [*ordered, *further]:
        if token.content not in contents:
            new.append(token)
            contents.add(token.content)
    for token in new:
        token.special = token.special or token.content in of_role
    engine.add_tokens(new)


def _tokens_with_rows(
    engine: tokenizers.Tokenizer, roles: dict[str, str], settings: TokenizerSettings
) -> list[AddedToken]:
    """Return the added tokens, without roles that only the class names and for which the model has no row (vocab_size)."""
    tokens, rows = added_tokens(engine), settings.config.get("vocab_size")
    named = texts([*settings.named.values(), *settings.added, *settings.extra])
    while isinstance(rows, int) and tokens and (engine.token_to_id(last := tokens[-1].content) or 0) >= rows:
        if last in named or last not in roles.values():
            break
        tokens.pop()
    return tokens


def _special(roles: dict[str, str], known: Container[str]) -> SpecialTokens:
    """Return the token of each role: named, or else known by its name, as in folders that have only a vocabulary."""
    cls, sep = roles.get("cls", roles.get("bos")), roles.get("sep", roles.get("eos"))
    if cls is None and sep is None:
        pairs = (("[CLS]", "[SEP]"), ("<s>", "</s>"), (bpe_backend.END_OF_TEXT,) * 2)
        cls, sep = next((pair for pair in pairs if all(token in known for token in pair)), (None, None))
    cls, sep = cls or sep, sep or cls

    def find(role: str, *names: str) -> str | None:
        return roles.get(role) or next((token for token in names if token in known), None)

    pad = find("pad", "[PAD]", "<pad>", *([bpe_backend.END_OF_TEXT] if cls == bpe_backend.END_OF_TEXT else []))
    special = SpecialTokens(cls, sep, pad, find("unk", "[UNK]", "<unk>"), find("mask", "[MASK]", "<mask>"))
    if "extract" not in roles:
        return special
    return replace(special, extract=roles["extract"], bos=roles.get("bos"), eos=roles.get("eos"))


def _without_roles(
    engine: tokenizers.Tokenizer, tokens: list[AddedToken], special: SpecialTokens, split: bool
) -> tuple[tokenizers.Tokenizer, tuple[str, ...]]:
    """Return the same tokenizer, in which roles in a text are text, and other special tokens are tokens; and these.

    The library matches either all special tokens or none, so those without a role become ordinary added tokens.

    Args:
        engine: The tokenizer.
        tokens: Its added tokens.
        special: The roles.
        split: Whether the folder says that no special token is matched.
    """
    roles = set(special.names().values())
    extra = tuple(token.content for token in tokens if token.special and token.content not in roles)
    for token in tokens:
        token.special = token.content in roles or (token.special and split)
    tokens += [AddedToken(role, special=True) for role in sorted(roles - texts(tokens))]
    return copy_engine(engine, tokens), () if split else extra


def read_engine(path: Path, content: bytes) -> Any:
    """Read tokenizer.json. Raises UserError if it is damaged, or reads a text differently each time."""
    with library_errors(f"{path} is damaged or is not a tokenizer"):
        engine = tokenizers.Tokenizer.from_buffer(content)
    if dropout := getattr(engine.model, "dropout", None):
        raise UserError(f"{path}: model.dropout is {dropout}, so a text is read differently each time: set it to null")
    return engine
