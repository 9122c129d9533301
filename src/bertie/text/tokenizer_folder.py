"""Read the tokenizer of a folder as transformers 5 does, from tokenizer.json or from the vocabulary files of its class.

The class is that of tokenizer_config.json, of config.json, or of its model_type. A class of `tokenizer_classes` builds the
tokenizer from the vocabulary and the settings; the generic class takes tokenizer.json as it is. Then every added token of
every file is one token. One thing is different: a role such as [MASK] that is written in a text is text.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from bertie import console, storage, untrusted
from bertie.errors import UsageError, UserError, naming
from bertie.text import bpe_backend, byte_vocabulary, tokenizer_json, wordpiece_backend
from bertie.text.bpe_backend import BPEBackend
from bertie.text.library_backend import LibraryBackend
from bertie.text.sentencepiece import SentencePieceModel, read_model
from bertie.text.special_tokens import LINE_BREAK, SpecialTokens, copy_engine, read_templates
from bertie.text.tokenizer_case import decide_case
from bertie.text.tokenizer_classes import (
    BYTES,
    CLASS_OF_MODEL,
    CLASSES,
    GENERIC,
    MISNAMED,
    UNKNOWN_TO_TRANSFORMERS,
    TokenizerClass,
    Vocabulary,
)
from bertie.text.tokenizer_json import guarded
from bertie.text.tokenizer_settings import (
    ADDED,
    CONFIG,
    JSON,
    MAP,
    ROLES,
    TokenizerSettings,
    read_settings,
    texts,
    warn_of_unknown,
)
from bertie.text.wordpiece_backend import WordPieceBackend

Backend = WordPieceBackend | BPEBackend | LibraryBackend
MODELS = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
GOOGLES = {"spiece.model": "30k-clean.model"}
"""The name that a vocabulary has in Google's folders, which hold ALBERT."""
FILES = (JSON, CONFIG, MAP, ADDED, "vocab.txt", "vocab.json", "merges.txt", *MODELS, *GOOGLES.values())
"""All files of a tokenizer: what `read_folder` reads beside config.json, or names when it refuses a folder."""
TOKEN_TYPES = "token_type_ids"
AS_JSON = (
    f"write {JSON}, which bertie reads whatever its kind, with the library that the model was trained with, such as "
    "AutoTokenizer.from_pretrained(OLD).save_pretrained(NEW) of transformers"
)


@dataclass(frozen=True, eq=False)
class TokenizerFolder:
    """The tokenizer of a folder.

    Attributes:
        backend: The tokenizer: roles in a text are text, other added tokens are tokens.
        longest: Length in tokens that the folder names as its limit. None: it names none.
        extra: Added tokens that are special without having a role, such as "[E1]".
        name: The class of transformers that reads the folder.
        split: Whether the folder says that special tokens in a text are text (split_special_tokens).
    """

    backend: Backend
    longest: int | None
    extra: tuple[str, ...]
    name: str
    split: bool


def read_folder(folder: Path) -> TokenizerFolder:
    """Read the tokenizer of a folder.

    Raises:
        UsageError: The folder has no tokenizer.
        UserError: A file is damaged, or asks for what bertie does not reproduce. The message names file, key and value.
    """
    untrusted.require_inside(folder)
    content = tokenizer_json.read(folder / JSON) if (folder / JSON).is_file() else None
    settings = read_settings(folder, content)
    config = storage.read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    name = _class_name(folder, settings, config, content is not None)
    warn_of_unknown(settings)
    chosen = CLASSES.get(name)
    named = dict(settings.named)
    if chosen is None:
        if content is None:
            raise _missing(folder, f"the tokenizer class {name} reads only {JSON}", "which is missing")
        engine, extra = tokenizer_json.engine_of(folder / JSON), settings.extra or ()
    else:
        defaults = {role: AddedToken(token, special=True) for role, token in chosen.roles.items()}
        named = defaults | named
        engine, extra = _build(folder, chosen, settings, named, content)
    padding = (content or {}).get("padding")
    if padding and "pad" not in settings.named and "pad" not in named:
        named["pad"] = AddedToken(str(padding.get("pad_token")), special=True)
    tokenizer_json.require_unknown_token(folder, engine.model)
    guarded(folder, lambda: _add_tokens(engine, settings, named, extra, config.get("vocab_size")))
    known = engine.get_vocab(with_added_tokens=True)
    if sorted(known.values()) != list(range(len(known))):
        raise UserError(f"{folder}: the ids of its {len(known)} tokens do not run from 0 to {len(known) - 1}")
    if chosen is not None and (post := guarded(folder, lambda: _post_processor(chosen, named, engine, settings))):
        engine.post_processor = post
    roles = {role: token.content for role, token in named.items() if token.content in known}
    special = _special(roles, engine)
    inputs = settings.values.get("model_input_names")
    types = TOKEN_TYPES in inputs if isinstance(inputs, list) else chosen is not None and chosen.token_types
    split = settings.flag("split_special_tokens", False)
    lines = content is None and chosen is not None and chosen.model != "Unigram"
    matched, extra_names = guarded(folder, lambda: _without_roles(engine, special, split, lines))
    if content is not None:
        _warn_of_other_entries(folder, known)
    return TokenizerFolder(_backend_of(folder, matched, special, types), settings.longest, extra_names, name, split)


def _backend_of(folder: Path, engine: tokenizers.Tokenizer, special: SpecialTokens, token_types: bool) -> Backend:
    """Choose the backend: one of bertie's own where it is equal to the tokenizer of the folder."""
    with naming(folder):
        templates = guarded("its post-processor", lambda: read_templates(engine))
    if wordpiece_backend.is_wordpiece(engine) and None not in (special.cls, special.sep, special.unk):
        own: Backend = WordPieceBackend(engine, templates, special)
    elif bpe_backend.is_byte_level(engine) and special.cls is not None:
        own = bpe_backend.backend_of(engine, special)
    else:
        own = LibraryBackend(engine, templates, special)
    return own if token_types else replace(own, templates=own.templates.without_types())


def _warn_of_other_entries(folder: Path, known: Container[str]) -> None:
    path = folder / "vocab.txt"
    if path.is_file() and not all(entry in known for entry in wordpiece_backend.read_vocabulary(path)):
        console.warn(
            f"{folder}/vocab.txt has entries that tokenizer.json lacks, and tokenizer.json takes precedence: "
            "to use them, copy vocab.txt and tokenizer_config.json into a folder without tokenizer.json"
        )


def _class_name(folder: Path, settings: TokenizerSettings, config: dict[str, Any], has_json: bool) -> str:
    """Return the class that transformers takes, or the generic one. Raises UserError if it is not reproduced."""
    kind = str(config.get("model_type") or "")
    declared, source = settings.values.get("tokenizer_class"), folder / CONFIG
    if not declared:
        declared, source = config.get("tokenizer_class"), folder / "config.json"
    of_model = CLASS_OF_MODEL.get(kind)
    if declared and of_model and kind in MISNAMED:
        declared = of_model
    if declared and of_model in GENERIC:
        declared = GENERIC[0]
    has_files = has_json or any((folder / name).is_file() for name in MODELS)
    if kind == "reformer" and not declared and not has_files and config.get("vocab_size") == byte_vocabulary.SIZE:
        return BYTES
    if not declared:
        if kind and of_model is None and not has_json:
            raise UserError(
                f"{folder / 'config.json'}: the model_type {kind[:60]!r} has no tokenizer class that bertie knows: name one as "
                "tokenizer_class in tokenizer_config.json"
            )
        declared = of_model or _class_of_files(folder, has_json)
    name = str(declared).removesuffix("Fast")
    if name in GENERIC or name in UNKNOWN_TO_TRANSFORMERS:
        return GENERIC[0] if has_json or "drop_punctuation" not in settings.values else "BertTokenizer"
    if name not in CLASSES:
        raise UserError(
            f"{source}: tokenizer_class is {repr(declared)[:60]}, which bertie does not reproduce: tokens would differ from "
            "those that the model was trained with"
        )
    return name


def _class_of_files(folder: Path, has_json: bool) -> str:
    """Return the class of a folder that names none and has no model: that of its files."""
    if has_json:
        return GENERIC[0]
    if (folder / "vocab.txt").is_file():
        return "BertTokenizer"
    if (folder / "vocab.json").is_file():
        entries = storage.read_json(folder / "vocab.json")
        return "GPT2Tokenizer" if bpe_backend.END_OF_TEXT in entries and "<s>" not in entries else "RobertaTokenizer"
    if any((folder / name).is_file() for name in GOOGLES.values()):
        return "AlbertTokenizer"
    found = next((name for name in MODELS if (folder / name).is_file()), None)
    if found in {chosen.vocabulary for chosen in CLASSES.values()}:
        raise UserError(
            f"{folder} has {found}, and no file that names its class: write tokenizer_config.json with tokenizer_class, such "
            'as {"tokenizer_class": "XLMRobertaTokenizer"}'
        )
    files = f"{JSON}, vocab.txt, vocab.json or a SentencePiece model ({', '.join(MODELS)})"
    raise _missing(folder, "no file names its class", f"and it has no {files}")


def _missing(folder: Path, problem: str, absent: str) -> UserError | UsageError:
    """Return the error for a folder whose vocabulary file is missing. problem, absent: what would be read, and is not there."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        return UsageError(f"{folder} {what}: give the folder of a tokenizer or a model")
    if found := next((name for name in MODELS if (folder / name).is_file()), None):
        return UserError(f"{folder / found} is not read: {problem}: {AS_JSON}")
    return UsageError(f"{folder} holds no tokenizer: {problem}, {absent}")


def _build(
    folder: Path,
    chosen: TokenizerClass,
    settings: TokenizerSettings,
    named: dict[str, AddedToken],
    content: dict[str, Any] | None,
) -> tuple[tokenizers.Tokenizer, Sequence[AddedToken]]:
    """Build the tokenizer of a class, and return it with its further special tokens."""
    values = {name: settings.flag(name, default) for name, default in chosen.settings.items()}
    roles = {role: token.content for role, token in named.items()}
    extra = settings.extra
    if extra is None:
        extra = [AddedToken(token, special=True) for token in chosen.extra]
    if content is not None:
        vocabulary, source = _of_json(folder / JSON, content, chosen), folder / JSON
    elif not chosen.vocabulary:
        vocabulary, source = Vocabulary(byte_vocabulary.byte_entries(), []), folder / "config.json"
    else:
        source = folder / chosen.vocabulary
        if not source.is_file():
            source = folder / GOOGLES.get(chosen.vocabulary, chosen.vocabulary)
        if not source.is_file():
            raise _missing(folder, f"its tokenizer class reads {JSON} or {chosen.vocabulary}", "and both are missing")
        vocabulary, own = _of_files(source, chosen, settings, values, roles)
        if own is not None and "extra_special_tokens" not in settings.values:
            _warn_of_lost(source, texts(settings.extra or ()) - texts(own) - texts(settings.added))
            extra = own
    engine = guarded(source, lambda: chosen.build(vocabulary, values, roles))
    if "drop_punctuation" in settings.values:  # written by bertie, for folders without tokenizer.json
        dropped = settings.flag("drop_punctuation", False)
        engine.pre_tokenizer = wordpiece_backend.NormalizerOptions(drop_punctuation=dropped).splitter()
    return engine, extra


def _warn_of_lost(model: Path, lost: set[str]) -> None:
    if lost:
        names = ", ".join(repr(token)[:60] for token in sorted(lost)[:20])
        console.warn(
            f"{model.parent / MAP}: additional_special_tokens has {names}: text here, because transformers does not read them "
            f"beside {model.name} (to use them, name them as extra_special_tokens in {CONFIG})"
        )


def _of_json(path: Path, content: dict[str, Any], chosen: TokenizerClass) -> Vocabulary:
    kind, model = tokenizer_json.kind_of(content), content["model"]
    if kind != chosen.model:
        raise UserError(f"{path}: model.type is {kind[:60]}, and the tokenizer class of the folder has {chosen.model}")
    entries, merges = model["vocab"], model.get("merges") or []
    if kind == "Unigram":
        entries = [(token, score) for token, score in entries]
    pairs = guarded(path, lambda: [tuple(each.split(" ") if isinstance(each, str) else each) for each in merges])
    return Vocabulary(entries, pairs, charsmap=tokenizer_json.charsmap_of(content))


def _of_files(
    path: Path, chosen: TokenizerClass, settings: TokenizerSettings, values: dict[str, Any], roles: dict[str, str]
) -> tuple[Vocabulary, list[AddedToken] | None]:
    """Read the vocabulary files of a class, and the control pieces of a SentencePiece model."""
    if chosen.model == "WordPiece":
        entries = wordpiece_backend.read_vocabulary(path)
        decide_case(path, entries, settings, values)
        return Vocabulary({entry: i for i, entry in enumerate(entries)}, []), None
    if chosen.model == "BPE" and path.name not in MODELS:
        entries = storage.read_json(path)
        ids = [i for i in entries.values() if isinstance(i, int) and not isinstance(i, bool)]
        if sorted(ids) != list(range(len(entries))):
            raise UserError(f"{path} is damaged: its ids do not run from 0 to one below their number")
        return Vocabulary(entries, bpe_backend.read_merges(path.parent / "merges.txt", entries)), None
    model: SentencePieceModel = read_model(path)
    own = [AddedToken(piece, normalized=False, special=control) for piece, control in model.added]
    if chosen.model == "BPE" and not model.unigram:
        merges, ids = byte_vocabulary.merges_of(model.pieces), {piece: i for i, (piece, _) in enumerate(model.pieces)}
        return Vocabulary(ids, merges, model.unk_id, model.charsmap), own
    if model.unigram != (chosen.model == "Unigram"):
        raise UserError(
            f"{path}: its model_type is {'unigram' if model.unigram else 'BPE'}, and the tokenizer class of the folder has "
            f"another kind of model: {AS_JSON}"
        )
    pieces = model.pieces if chosen.fairseq is None else chosen.fairseq(model.pieces, roles)
    return Vocabulary(pieces, [], model.unk_id, model.charsmap), own


def _add_tokens(
    engine: tokenizers.Tokenizer,
    settings: TokenizerSettings,
    named: dict[str, AddedToken],
    extra: Sequence[AddedToken],
    rows: Any,
) -> None:
    """Add the tokens that the engine lacks, in the order of transformers, which decides about their ids.

    Roles that only the class names stay out if the vocabulary lacks them, nothing follows, and the model has no row for
    them (`rows`: its vocab_size).
    """
    present = engine.get_added_tokens_decoder()
    shown = {repr(token) for token in present.values()}
    new = [token for token in settings.added if repr(token) not in shown]
    contents = texts(present.values()) | texts(new)
    ordered = [*(named[role] for role in ROLES if role in named), *(t for r, t in named.items() if r not in ROLES)]
    for token in [*ordered, *extra]:
        if token.content not in contents:
            new.append(token)
            contents.add(token.content)
    given = texts(settings.named.values()) | texts(settings.added) | texts(extra)
    beyond = sum(engine.token_to_id(token.content) is None for token in new) + engine.get_vocab_size()
    while new and isinstance(rows, int) and beyond > rows:
        if new[-1].content in given or engine.token_to_id(new[-1].content) is not None:
            break
        new.pop()
        beyond -= 1
    of_role = texts(named.values())
    for token in new:
        token.special = token.special or token.content in of_role
    engine.add_tokens(new)


def _post_processor(
    chosen: TokenizerClass, named: dict[str, AddedToken], engine: tokenizers.Tokenizer, settings: TokenizerSettings
) -> Any:
    roles = {role: token.content for role, token in named.items()}
    content, post = settings.folder / JSON, None
    if (chosen.single is None or chosen.json_first) and content.is_file():
        post = tokenizer_json.engine_of(content).post_processor
    if chosen.single is not None:
        return post or chosen.post_processor(roles, engine)
    if content.is_file():
        return post
    first, last = (settings.flag(f"add_{name}_token", False) and name in roles for name in ("bos", "eos"))
    if not first and not last:
        return None
    around = [roles[name] for name, wanted in (("bos", first), ("eos", last)) if wanted]
    begin, end = ([roles["bos"]] if first else []), ([roles["eos"]] if last else [])
    return processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *(f"{token}:1" for token in begin), "$B:1", *(f"{token}:1" for token in end)],
        special_tokens=[(token, engine.token_to_id(token)) for token in dict.fromkeys(around)],
    )


def _special(roles: dict[str, str], engine: tokenizers.Tokenizer) -> SpecialTokens:
    """Return the token of each role: named, or else known by its name, as in folders that have only a vocabulary."""
    cls, sep = roles.get("cls", roles.get("bos")), roles.get("sep", roles.get("eos"))
    if cls is None and sep is None:
        pairs = (("[CLS]", "[SEP]"), ("<s>", "</s>"), (bpe_backend.END_OF_TEXT,) * 2)
        known = (pair for pair in pairs if all(engine.token_to_id(token) is not None for token in pair))
        cls, sep = next(known, (None, None))
    if cls is None or sep is None:
        cls, sep = cls or sep, sep or cls

    def find(role: str, *known: str) -> str | None:
        return roles.get(role) or next((token for token in known if engine.token_to_id(token) is not None), None)

    pad = find("pad", "[PAD]", "<pad>", *([bpe_backend.END_OF_TEXT] if cls == bpe_backend.END_OF_TEXT else []))
    special = SpecialTokens(cls, sep, pad, find("unk", "[UNK]", "<unk>"), find("mask", "[MASK]", "<mask>"))
    if "extract" not in roles:
        return special
    return replace(special, extract=roles["extract"], bos=roles.get("bos"), eos=roles.get("eos"))


def _without_roles(
    engine: tokenizers.Tokenizer, special: SpecialTokens, split: bool, lines: bool
) -> tuple[tokenizers.Tokenizer, tuple[str, ...]]:
    """Return the same tokenizer, in which roles in a text are text, and other special tokens are tokens.

    The library matches either all special tokens or none, so those without a role become ordinary added tokens.

    Args:
        engine: The tokenizer.
        special: The roles.
        split: Whether the folder says that no special token is matched.
        lines: Whether an entry that is a line break is one in the text, as in bertie's own vocab.txt.
    """
    roles = set(special.names().values())
    added = engine.get_added_tokens_decoder()
    extra = [token.content for token in added.values() if token.special and token.content not in roles]
    matched = copy_engine(engine)
    tokens = [added[i] for i in sorted(added)]
    if lines and LINE_BREAK in engine.get_vocab() and LINE_BREAK not in texts(tokens):
        tokens.append(AddedToken(LINE_BREAK, normalized=False))
    for token in tokens:
        token.special = token.content in roles or (token.special and split)
    tokens += [AddedToken(role, special=True) for role in sorted(roles - texts(tokens))]
    matched.add_tokens(tokens)
    return matched, () if split else tuple(extra)
