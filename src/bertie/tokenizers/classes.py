"""The tokenizer classes of transformers that need no transformers: how each reads its files and builds a tokenizer.

Each is described by the documentation and the behavior of transformers 5, with which tests/parity compares. A class
decides about normalization, words and special tokens from its own settings, also if tokenizer.json says otherwise; only
the generic class takes tokenizer.json as it is. `transformers_tokenizer` reads all other classes.

The settings are tokenizer_config.json, special_tokens_map.json and added_tokens.json, merged as transformers does.
`added_tokens_decoder` of tokenizer_config.json is the newest way to list added tokens. If it is there, the two other files
count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from bertie.base import console
from bertie.base.errors import UserError
from bertie.files.model_folder import ModelFolder
from bertie.tokenizers import wordpiece_backend
from bertie.tokenizers.bpe_backend import BYTE_CHARACTERS, BYTE_ORDER, END_OF_TEXT
from bertie.tokenizers.library_backend import ROLES_ORDER, unigram_splitter
from bertie.tokenizers.sentencepiece import read_model
from bertie.tokenizers.special_tokens import library_errors
from bertie.tokenizers.wordpiece_backend import CONTINUATION, MAX_WORD_CHARACTERS, MAX_WORD_SETTING, NormalizerOptions

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
    """Raise UserError if the settings of a tokenizer bring what bertie does not read."""
    for name in REFUSED:
        if name in values:
            raise UserError(f"{path}: {name} is not a setting of tokenizers: remove it")
    for name in ("init_inputs", "fast_tokenizer_files"):
        if [entry for entry in values.get(name) or () if entry != JSON]:
            raise UserError(f"{path}: {name} is {str(values[name])[:100]}, which bertie does not read: remove it")
    if values.get("truncation_side", "right") not in ("left", "right"):
        side = repr(values["truncation_side"])[:60]
        raise UserError(f'{path}: truncation_side is {side}: it must be "right", or "left"')


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


GOOGLES = "30k-clean.model"  # the vocabulary in Google's folders of ALBERT
BYTES = "bytes"  # not a class of transformers, which has none for them
GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizer")  # they take tokenizer.json as it is
Roles = Mapping[str, str]
_Read = tuple[Any, list[AddedToken] | None]
"""A tokenizer without added tokens, and the further special tokens that its vocabulary file lists, if it does."""


@dataclass(frozen=True)
class TokenizerClass:
    """A class of transformers.

    Attributes:
        model: Class of its model, in the library `tokenizers`.
        vocabulary: Name of its vocabulary file, for folders without tokenizer.json.
        read: Reads the vocabulary file.
        dress: Sets how a tokenizer with this model reads text, by the settings.
        roles: The token of each role by default.
        around: The roles of the tokens before and after a text. None: as tokenizer.json says.
        segments: Whether the second text of a pair has token type 1 and one separator before it, instead of two.
        token_types: Whether it tells the model which text of a pair a token belongs to.
    """

    model: type
    vocabulary: str
    read: Callable[[TokenizerSettings, Roles], _Read]
    dress: Callable[[Any, Mapping[str, Any], Roles], None]
    roles: Roles
    around: tuple[str, str] | None = ("cls", "sep")
    segments: bool = False
    token_types: bool = False

    def post_processor(self, engine: Any, roles: Roles) -> Any:
        """Return what puts the special tokens around texts."""
        if self.around is None:
            return engine.post_processor
        first, last = ((roles[name], engine.token_to_id(roles[name])) for name in self.around)
        if self.dress is _byte_level:
            return processors.RobertaProcessing(last, first, True, engine.pre_tokenizer.add_prefix_space)
        second = f"$B:1 {last[0]}:1" if self.segments else f"{last[0]} $B {last[0]}"
        single = f"{first[0]} $A {last[0]}"
        return processors.TemplateProcessing(single=single, pair=f"{single} {second}", special_tokens=[first, last])


def _read_wordpiece(settings: TokenizerSettings, roles: Roles) -> _Read:
    path = settings.folder / "vocab.txt"
    entries = wordpiece_backend.read_vocabulary(path, settings.folder.text(path.name))
    values, bare = settings.values, not settings.folder.has("config.json")
    if not values and bare:
        wordpiece_backend.require_special(entries, str(settings.folder))
    if "do_lower_case" not in values:
        if bare and "tokenizer_class" not in values:
            values["do_lower_case"] = wordpiece_backend.lowercases(path, entries)
        elif wordpiece_backend.is_cased(entries):
            console.warn(
                f"{path} has uppercase letters, and {settings.folder / CONFIG} does not set do_lower_case: the tokenizer "
                'lowercases, as transformers does (if that is wrong, write "do_lower_case": false there)'
            )
    ids = {entry: number for number, entry in enumerate(entries)}
    return tokenizers.Tokenizer(models.WordPiece(ids, unk_token=roles["unk"])), None


def _wordpiece(engine: Any, values: Mapping[str, Any], roles: Roles) -> None:
    engine.model.unk_token, engine.model.continuing_subword_prefix = roles["unk"], CONTINUATION
    engine.model.max_input_chars_per_word = values.get(MAX_WORD_SETTING, MAX_WORD_CHARACTERS)
    lowercase, chinese = values.get("do_lower_case", True), values.get("tokenize_chinese_chars", True)
    options = NormalizerOptions(lowercase, values.get("strip_accents"), chinese, values.get("drop_punctuation", False))
    engine.normalizer, engine.pre_tokenizer = options.normalizer(), options.splitter()
    engine.decoder = decoders.WordPiece(prefix=CONTINUATION)


def _read_bpe(settings: TokenizerSettings, roles: Roles) -> _Read:  # noqa: ARG001 - WordPiece needs them
    lines = settings.folder.text("merges.txt").replace("\r\n", "\n").split("\n")
    merges: Any = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return tokenizers.Tokenizer(models.BPE(settings.folder.json("vocab.json"), merges)), None


def _read_bytes(settings: TokenizerSettings, roles: Roles) -> _Read:  # noqa: ARG001 - WordPiece needs them
    """Return the entries of a model of bytes: padding, the end of a text, and the 256 bytes, as in byte-level BPE."""
    entries = {roles["pad"]: 0, roles["eos"]: 1}
    entries |= {character: 2 + byte for character, byte in zip(BYTE_CHARACTERS, BYTE_ORDER, strict=True)}
    return tokenizers.Tokenizer(models.BPE(entries, [])), None


def _byte_level(engine: Any, values: Mapping[str, Any], roles: Roles) -> None:  # noqa: ARG001 - WordPiece needs them
    engine.model.ignore_merges, engine.model.unk_token, engine.normalizer = False, None, None
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=values.get("add_prefix_space", False))
    engine.decoder = decoders.ByteLevel()


def _read_xlm_roberta(settings: TokenizerSettings, roles: Roles) -> _Read:
    """Read XLM-RoBERTa's SentencePiece model, with the ids of fairseq: four roles, the pieces after the first three, <mask>."""
    path = settings.folder / "sentencepiece.bpe.model"
    model = read_model(path, settings.folder.read(path.name))
    first = [(roles[name], 0.0) for name in ("bos", "pad", "eos", "unk")]
    pieces = [*first, *model.pieces[3:], (roles["mask"], 0.0)]
    engine: Any = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=ROLES_ORDER.index("<unk>"), byte_fallback=False))
    engine.normalizer = normalizers.Precompiled(model.charsmap) if model.charsmap else None
    further = [AddedToken(piece, normalized=False, special=control) for piece, control in model.added]
    if lost := texts(settings.extra) - texts(further) - texts(settings.added):
        console.warn(
            f"{settings.folder / MAP}: additional_special_tokens has {sorted(lost)[0]!r}, which is text here, because "
            "transformers ignores this key beside a SentencePiece model (to use it, write extra_special_tokens into "
            f"{CONFIG})"
        )
    return engine, further


def _xlm_roberta(engine: Any, values: Mapping[str, Any], roles: Roles) -> None:  # noqa: ARG001 - WordPiece needs them
    steps = engine.normalizer if isinstance(engine.normalizer, normalizers.Sequence) else [engine.normalizer]
    engine.normalizer = next((step for step in steps if isinstance(step, normalizers.Precompiled)), None)
    prefix = "always" if values.get("add_prefix_space", True) else "never"
    engine.pre_tokenizer = unigram_splitter(prefix)
    engine.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=prefix)


_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_WORDPIECE = (models.WordPiece, "vocab.txt", _read_wordpiece, _wordpiece)
_BPE = (models.BPE, "vocab.json", _read_bpe, _byte_level)
_BERT_CLASS = TokenizerClass(*_WORDPIECE, _BERT, segments=True, token_types=True)
_ROBERTA_CLASS = TokenizerClass(*_BPE, _ROBERTA)
CLASSES = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), _BERT_CLASS),
    "LayoutLMTokenizer": _BERT_CLASS,
    "DistilBertTokenizer": TokenizerClass(*_WORDPIECE, _BERT, segments=True),
    "MPNetTokenizer": TokenizerClass(*_WORDPIECE, {**_ROBERTA, "unk": "[UNK]"}),
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"), _ROBERTA_CLASS),
    "GPT2Tokenizer": TokenizerClass(*_BPE, dict.fromkeys(("bos", "eos"), END_OF_TEXT), around=None),
    "XLMRobertaTokenizer": TokenizerClass(
        *(models.Unigram, "sentencepiece.bpe.model", _read_xlm_roberta, _xlm_roberta, _ROBERTA), around=("bos", "eos")
    ),
    BYTES: TokenizerClass(models.BPE, "", _read_bytes, _byte_level, {"eos": "</s>", "pad": "<pad>"}, around=None),
}
# The class of a model that names none, by model_type of config.json.
CLASS_OF_MODEL = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie", "megatron-bert", "nomic_bert"), "BertTokenizer"),
    **dict.fromkeys(("convbert", "layoutlm", "squeezebert", "visual_bert", "nezha", "qdqbert"), "BertTokenizer"),
    "mobilebert": "MobileBertTokenizer",
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "bart", "longformer", "ibert", "lilt"), "RobertaTokenizer"),
    **dict.fromkeys(("data2vec-text", "mra", "mega"), "RobertaTokenizer"),
    **dict.fromkeys(("xlm-roberta", "xmod", "gte", "jina_embeddings_v3"), "XLMRobertaTokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt"), "GPT2Tokenizer"),
    **dict.fromkeys(("modernbert", "modernbert-decoder", "nystromformer", "xlm-roberta-xl"), "TokenizersBackend"),
    # These need transformers.
    **dict.fromkeys(("albert", "yoso"), "AlbertTokenizer"),
    **{"camembert": "CamembertTokenizer", "xlnet": "XLNetTokenizer", "xlm": "XLMTokenizer"},
    **{"deberta": "DebertaTokenizer", "deberta-v2": "DebertaV2Tokenizer", "flaubert": "FlaubertTokenizer"},
    **{"openai-gpt": "OpenAIGPTTokenizer", "reformer": "ReformerTokenizer", "rembert": "RemBertTokenizer"},
    **{"big_bird": "BigBirdTokenizer", "fnet": "FNetTokenizer", "luke": "LukeTokenizer"},
}
# Classes that transformers had, or that only names exist of: it takes tokenizer.json as it is.
UNKNOWN_TO_TRANSFORMERS = ("RetriBertTokenizer", "NystromformerTokenizer", "ModernBertTokenizer", "NomicBertTokenizer")


def class_name(settings: TokenizerSettings) -> str:
    """Return the class that transformers takes: of `CLASSES`, the first of `GENERIC`, or another one; "" if none is named."""
    kind, config = str(settings.config.get("model_type") or ""), settings.config
    declared = settings.values.get("tokenizer_class") or config.get("tokenizer_class")
    of_model = CLASS_OF_MODEL.get(kind, "")
    has_json = settings.folder.has(JSON)
    if kind == "reformer" and not declared and not has_json and not settings.folder.has("spiece.model"):
        return BYTES if config.get("vocab_size") == 2 + len(BYTE_CHARACTERS) else of_model
    name = str(declared or of_model).removesuffix("Fast")
    if name in GENERIC and not has_json and settings.values.keys() & {"drop_punctuation", MAX_WORD_SETTING}:
        return "BertTokenizer"  # written by bertie
    if of_model in GENERIC or name in (*GENERIC, *UNKNOWN_TO_TRANSFORMERS) or (has_json and not name):
        return GENERIC[0]
    return name or ("" if kind else _class_of_files(settings))


def _class_of_files(settings: TokenizerSettings) -> str:
    """Return the class of a folder that names none, and has no model and no tokenizer.json."""
    if settings.folder.has("vocab.txt"):
        return "BertTokenizer"
    if settings.folder.has("vocab.json"):
        entries = settings.folder.json("vocab.json")
        return "GPT2Tokenizer" if END_OF_TEXT in entries and "<s>" not in entries else "RobertaTokenizer"
    return "AlbertTokenizer" if settings.folder.has(GOOGLES) else ""
