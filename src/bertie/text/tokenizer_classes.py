"""The tokenizer classes of transformers that bertie reproduces: how each builds a tokenizer from a vocabulary.

Each is described by the documentation and the behavior of transformers 5, with which tests/parity compares. A class
decides about normalization, words and special tokens from its own settings, also if tokenizer.json says otherwise; only
the generic class takes tokenizer.json as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertie.text.byte_vocabulary import END, PAD
from bertie.text.wordpiece_backend import CONTINUATION, NormalizerOptions

BLANK = "▁"  # SentencePiece writes the space before a word so
BYTES = "bytes"  # not a class of transformers, which has none for them
GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizer")  # they take tokenizer.json as it is
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
BERTS = (("cls A sep", 0), ("B sep", 1))
ROBERTAS = (("cls A sep sep B sep", 0),)


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a vocabulary file or of tokenizer.json.

    Attributes:
        entries: token -> id; for a unigram model, the tokens in id order with their scores.
        merges: The merges of BPE.
        unk_id: Id of the entry for unknown characters, if the file names it.
        charsmap: The table of SentencePiece's normalizer, or empty.
    """

    entries: Any
    merges: list[tuple[str, str]]
    unk_id: int | None = None
    charsmap: bytes = b""


ClassSettings = Mapping[str, Any]
"""ClassSettings of tokenizer_config.json, with the class's defaults; `TokenizerClass.settings` says which."""


@dataclass(frozen=True)
class TokenizerClass:
    """A class of transformers.

    Attributes:
        model: Kind of its model: WordPiece, BPE or Unigram.
        build: Builds the tokenizer without special tokens, from a vocabulary, the settings and the role of each token.
        roles: The token of each role by default.
        settings: The settings that it obeys, with their defaults. `None` as default allows a bool or null.
        vocabulary: Name of its vocabulary file, for folders without tokenizer.json.
        token_types: Whether it tells the model which text of a pair a token belongs to.
        single: Special tokens around one text, and the token type of each part. None: as tokenizer.json says.
        pair: The same for a pair of texts.
        extra: Further special tokens by default.
        json_first: Whether the special tokens around texts are those of tokenizer.json, if it says them.
        fairseq: Whether SentencePiece's ids are moved, as fairseq's dictionaries have them.
    """

    model: str
    build: Callable[[Vocabulary, ClassSettings, dict[str, str]], tokenizers.Tokenizer]
    roles: dict[str, str]
    settings: dict[str, Any]
    vocabulary: str
    token_types: bool = True
    single: tuple[tuple[str, int], ...] | None = (("cls A sep", 0),)
    pair: tuple[tuple[str, int], ...] = BERTS
    extra: tuple[str, ...] = ()
    json_first: bool = False
    fairseq: Callable[[list[tuple[str, float]], dict[str, str]], list[tuple[str, float]]] | None = None

    def post_processor(self, roles: dict[str, str], engine: tokenizers.Tokenizer) -> Any:
        """Return what puts the special tokens around texts, or None if tokenizer.json says it."""
        if self.single is None:
            return None
        ids = {token: number for token in roles.values() if (number := engine.token_to_id(token)) is not None}
        if self.build is _byte_level and self.roles == _ROBERTA:
            sep, cls = ((roles[name], ids[roles[name]]) for name in ("sep", "cls"))
            return processors.RobertaProcessing(sep, cls, True, engine.pre_tokenizer.add_prefix_space)
        parts = [
            [f"{roles.get(name, '$' + name)}:{kind}" for names, kind in template for name in names.split()]
            for template in (self.single, self.pair)
        ]
        used = {roles[name] for names, _ in self.pair for name in names.split() if name in roles}
        return processors.TemplateProcessing(
            single=parts[0],
            pair=parts[1],
            special_tokens=[(token, engine.token_to_id(token)) for token in sorted(used)],
        )


def _wordpiece(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.WordPiece(vocabulary.entries, unk_token=roles["unk"]))
    options = NormalizerOptions(
        settings["do_lower_case"], settings["strip_accents"], settings["tokenize_chinese_chars"]
    )
    engine.normalizer, engine.pre_tokenizer = options.normalizer(), options.splitter()
    engine.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return engine


def _byte_level(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:  # noqa: ARG001
    engine = tokenizers.Tokenizer(models.BPE(vocabulary.entries, vocabulary.merges))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings["add_prefix_space"])
    engine.decoder = decoders.ByteLevel()
    return engine


def _gpt(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:  # noqa: ARG001
    model = models.BPE(vocabulary.entries, vocabulary.merges, end_of_word_suffix="</w>", unk_token=roles["unk"])
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.BPEDecoder(suffix="</w>")
    return engine


def _reformer(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:  # noqa: ARG001
    engine = tokenizers.Tokenizer(
        models.BPE(vocabulary.entries, vocabulary.merges, unk_token=roles["unk"], fuse_unk=True)
    )
    if vocabulary.charsmap:
        blanks = normalizers.Replace(Regex(" {2,}"), " ")
        engine.normalizer = normalizers.Sequence([*_table(vocabulary), blanks])
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
    engine.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    return engine


def _unigram(
    vocabulary: Vocabulary, unk_id: int, steps: list[Any], prefix: str, split: list[Any] | None = None
) -> tokenizers.Tokenizer:
    """Build a unigram model.

    Args:
        vocabulary: The entries with their scores.
        unk_id: Id of the entry for unknown characters.
        steps: The normalizers.
        prefix: Where a blank is put before a text or a word: always, first, never.
        split: What splits a text before blanks become "▁"; by default at white space.
    """
    engine = tokenizers.Tokenizer(models.Unigram(vocabulary.entries, unk_id=unk_id, byte_fallback=False))
    if steps:
        engine.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    splitters = [pre_tokenizers.WhitespaceSplit()] if split is None else split
    metaspace = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme=prefix)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*splitters, metaspace])
    engine.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme=prefix)
    return engine


def _table(vocabulary: Vocabulary) -> list[Any]:
    return [normalizers.Precompiled(vocabulary.charsmap)] if vocabulary.charsmap else []


def _prefix(settings: ClassSettings) -> str:
    return "always" if settings["add_prefix_space"] else "never"


def _xlm_roberta(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:  # noqa: ARG001
    return _unigram(vocabulary, 3, _table(vocabulary), _prefix(settings))


def _camembert(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:
    unk_id = next((i for i, (token, _) in enumerate(vocabulary.entries) if token == roles["unk"]), 0)
    return _unigram(vocabulary, unk_id, _table(vocabulary), _prefix(settings))


def _quotes(lowercase: bool, keep_accents: bool, vocabulary: Vocabulary) -> list[Any]:
    """Return the normalization of ALBERT and XLNet: LaTeX's quotes, accents, case, SentencePiece's table."""
    accents = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    return [*quotes, *accents, *[normalizers.Lowercase()] * lowercase, *_table(vocabulary)]


def _albert(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:  # noqa: ARG001
    steps = _quotes(settings["do_lower_case"], settings["keep_accents"], vocabulary)
    return _unigram(vocabulary, 1, steps, _prefix(settings))


def _xlnet(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:  # noqa: ARG001
    unk_id = settings["unk_id"] if vocabulary.unk_id is None else vocabulary.unk_id
    return _unigram(vocabulary, unk_id, _quotes(settings["do_lower_case"], False, vocabulary), "always")


def _deberta_v2(vocabulary: Vocabulary, settings: ClassSettings, roles: dict[str, str]) -> tokenizers.Tokenizer:
    unknown = (roles["unk"], 0.0)
    entries = [(token, float(score)) for token, score in vocabulary.entries]
    default = settings["unk_id"] if vocabulary.unk_id is None else vocabulary.unk_id
    unk_id = entries.index(unknown) if unknown in entries else default
    blanks = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    lower = [normalizers.Lowercase()] * settings["do_lower_case"]
    steps = [*lower, blanks, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    split = [pre_tokenizers.Punctuation(behavior="isolated")] * settings["split_by_punct"]
    return _unigram(vocabulary, unk_id, steps, "always" if settings["add_prefix_space"] else "first", split)


def _xlm_robertas_ids(pieces: list[tuple[str, float]], roles: dict[str, str]) -> list[tuple[str, float]]:
    """Move the pieces as fairseq does: <s>, <pad>, </s>, <unk>, the pieces after the first three, <mask>."""
    first = [(roles[name], 0.0) for name in ("bos", "pad", "eos", "unk")]
    return [*first, *pieces[3:], (roles["mask"], 0.0)]


def _camemberts_ids(pieces: list[tuple[str, float]], roles: dict[str, str]) -> list[tuple[str, float]]:
    """Move the pieces as fairseq does with CamemBERT's model, whose first four ids are of another dictionary."""
    first = [
        ("<s>NOTUSED", 0.0),
        (roles["pad"], 0.0),
        ("</s>NOTUSED", 0.0),
        (roles["unk"], 0.0),
        ("<unk>NOTUSED", -100.0),
    ]
    return [*first, *pieces[1:], (roles["mask"], 0.0)]


_CASE = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
_PREFIX = {"add_prefix_space": True}
_BERT_CLASS = TokenizerClass("WordPiece", _wordpiece, _BERT, _CASE, "vocab.txt")
_DISTILBERT = TokenizerClass("WordPiece", _wordpiece, _BERT, _CASE, "vocab.txt", token_types=False)
_MPNET = TokenizerClass(
    *("WordPiece", _wordpiece, {**_ROBERTA, "unk": "[UNK]"}, _CASE, "vocab.txt"), token_types=False, pair=ROBERTAS
)
_ROBERTA_CLASS = TokenizerClass(
    *("BPE", _byte_level, _ROBERTA, {"add_prefix_space": False, "trim_offsets": True}, "vocab.json"),
    token_types=False,
    pair=ROBERTAS,
)
_SINGLE, _PAIR = (("bos A eos", 0),), (("bos A eos eos B eos", 0),)
CLASSES = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"), _BERT_CLASS),
    **dict.fromkeys(("LayoutLMTokenizer",), _BERT_CLASS),
    "DistilBertTokenizer": _DISTILBERT,
    "MPNetTokenizer": _MPNET,
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"), _ROBERTA_CLASS),
    "DebertaTokenizer": TokenizerClass(
        *("BPE", _byte_level, {"bos": "[CLS]", "eos": "[SEP]", **_BERT}, {"add_prefix_space": False}, "vocab.json"),
        pair=ROBERTAS,
    ),
    "GPT2Tokenizer": TokenizerClass(
        *("BPE", _byte_level, {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, {"add_prefix_space": False}, "vocab.json"),
        token_types=False,
        single=None,
    ),
    "OpenAIGPTTokenizer": TokenizerClass(
        *("BPE", _gpt, {"unk": "<unk>"}, {}, "vocab.json"), token_types=False, single=None
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        *("Unigram", _xlm_roberta, _ROBERTA, _PREFIX, "sentencepiece.bpe.model"),
        token_types=False,
        fairseq=_xlm_robertas_ids,
        single=_SINGLE,
        pair=_PAIR,
    ),
    "CamembertTokenizer": TokenizerClass(
        *("Unigram", _camembert, _ROBERTA, _PREFIX, "sentencepiece.bpe.model"),
        token_types=False,
        extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
        fairseq=_camemberts_ids,
        single=_SINGLE,
        pair=_PAIR,
    ),
    "AlbertTokenizer": TokenizerClass(
        "Unigram",
        _albert,
        {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "sep": "[SEP]", "pad": "<pad>", "cls": "[CLS]", "mask": "[MASK]"},
        {"do_lower_case": True, "keep_accents": False, "trim_offsets": True, **_PREFIX},
        "spiece.model",
        token_types=False,
        json_first=True,
    ),
    "XLNetTokenizer": TokenizerClass(
        "Unigram",
        _xlnet,
        {**_ROBERTA, "sep": "<sep>", "cls": "<cls>"},
        {"do_lower_case": False, "unk_id": 0, "keep_accents": False, "remove_space": True},
        "spiece.model",
        token_types=False,
        single=(("A sep", 0), ("cls", 2)),
        pair=(("A sep", 0), ("B sep", 1), ("cls", 2)),
        extra=("<eop>", "<eod>"),
    ),
    "DebertaV2Tokenizer": TokenizerClass(
        "Unigram",
        _deberta_v2,
        {"bos": "[CLS]", "eos": "[SEP]", **_BERT},
        {"do_lower_case": False, "split_by_punct": False, "unk_id": 1, **_PREFIX},
        "spm.model",
    ),
    "ReformerTokenizer": TokenizerClass(
        *("BPE", _reformer, {"eos": "</s>", "unk": "<unk>"}, {}, "spiece.model"), token_types=False, single=None
    ),
    BYTES: TokenizerClass(
        *("BPE", _byte_level, {"eos": END, "pad": PAD}, {"add_prefix_space": False}, ""), token_types=False, single=None
    ),
}  # fmt: skip
# The class of a model that names none, by model_type of config.json; None: the generic one.
CLASS_OF_MODEL = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie", "megatron-bert", "nomic_bert"), "BertTokenizer"),
    **dict.fromkeys(("convbert", "layoutlm", "squeezebert", "visual_bert", "nezha", "qdqbert"), "BertTokenizer"),
    **dict.fromkeys(("mobilebert",), "MobileBertTokenizer"),
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "bart", "longformer", "ibert", "lilt"), "RobertaTokenizer"),
    **dict.fromkeys(("data2vec-text", "mra", "mega"), "RobertaTokenizer"),
    **dict.fromkeys(("xlm-roberta", "xmod", "gte", "jina_embeddings_v3"), "XLMRobertaTokenizer"),
    "camembert": "CamembertTokenizer",
    **dict.fromkeys(("albert", "yoso"), "AlbertTokenizer"),
    "xlnet": "XLNetTokenizer",
    "xlm": "XLMTokenizer",
    "flaubert": "FlaubertTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt"), "GPT2Tokenizer"),
    "openai-gpt": "OpenAIGPTTokenizer",
    "reformer": "ReformerTokenizer",
    **dict.fromkeys(("modernbert", "modernbert-decoder", "nystromformer", "xlm-roberta-xl"), "TokenizersBackend"),
}
# transformers takes the class of the model in place of the one that these folders name.
MISNAMED = ("modernbert", "modernbert-decoder")
# Classes that transformers had, or that only names exist of: it takes tokenizer.json as it is.
UNKNOWN_TO_TRANSFORMERS = ("RetriBertTokenizer", "NystromformerTokenizer", "ModernBertTokenizer", "NomicBertTokenizer")
