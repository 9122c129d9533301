"""Byte-level BPE, one of the two algorithms of `Tokenizer`: the tokenizer of GPT-2, RoBERTa and ModernBERT.

Text is split into words by GPT-2's pattern; a word includes the space before it. The bytes of a word are written as
256 printable characters ("Ġ" is the space, "Ċ" the line end) and merged in the order of the merges (Radford et al.
2019; Sennrich et al. 2016). Every text has tokens, and tokens decode to exactly their text, in NFC for a tokenizer that
normalizes as ModernBERT's does (Warner et al. 2024).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import tokenizers
from tokenizers import AddedToken, Encoding, decoders, models, normalizers, pre_tokenizers, processors

from bertie.base.errors import UserError
from bertie.tokenizers.special_tokens import (
    LINE_BREAK,
    SpecialTokens,
    Templates,
    add_user_tokens,
    added_texts,
    bert_templates,
    ids_of,
    read_templates,
)

ROBERTA = SpecialTokens(cls="<s>", sep="</s>", pad="<pad>", unk="<unk>", mask="<mask>")
ROBERTA_ORDER = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # of their ids in a new vocabulary
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token
BYTE_CHARACTERS = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))  # in GPT-2's id order
# GPT-2 writes printable bytes as their Latin-1 character, the others as the characters from U+0100 in order.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTE_ORDER = (*_PRINTABLE, *(byte for byte in range(256) if byte not in _PRINTABLE))  # the bytes of BYTE_CHARACTERS
_BYTE_OF = dict(zip(BYTE_CHARACTERS, BYTE_ORDER, strict=True))
# Space, line end, tab, carriage return; the last two are of user tokens, such as ModernBERT's runs of spaces.
WORD_BEGINNINGS = ("Ġ", "Ċ", "ĉ", "č", LINE_BREAK, " ")
# A single space between two other characters always starts a word of GPT-2's pattern.
_SPACE = re.compile(r"(?<=\S)(?= \S)")


@dataclass(frozen=True)
class ByteLevel:
    """How byte-level BPE reads text.

    Attributes:
        add_prefix_space: Put a space before a text that does not start with one.
        nfc: Compose characters first, such as "e" and a combining accent (Unicode's normalization form C).
    """

    add_prefix_space: bool = False
    nfc: bool = False
    lowercase: ClassVar = False
    drop_punctuation: ClassVar = False

    @property
    def splits_at_spaces(self) -> bool:
        """Whether no rule looks across a space between words."""
        return not self.add_prefix_space

    def normalize(self, text: str) -> str:
        """Return the text that is split into words."""
        return normalizers.NFC().normalize_str(text) if self.nfc else text

    def splitter(self) -> Any:
        """Return the splitter of text into words, of the library `tokenizers`."""
        return pre_tokenizers.ByteLevel(add_prefix_space=self.add_prefix_space)


def split_at_spaces(text: str) -> list[str]:
    """Split a text before spaces that always start a word. The parts concatenate to the text."""
    return _SPACE.split(text)


@dataclass(frozen=True, eq=False)
class BPEBackend:
    """A byte-level BPE tokenizer."""

    engine: tokenizers.Tokenizer
    """The tokenizer of the library `tokenizers` that does the work."""
    templates: Templates
    """Where special tokens stand in a sequence."""
    special: SpecialTokens
    algorithm: ClassVar = "bpe"
    word_mark: ClassVar = "Ġ"
    end_mark: ClassVar = ""
    has_words: ClassVar = True
    splits_words: ClassVar = True
    unknown_unit: ClassVar = "tokens"

    @property
    def normalization(self) -> ByteLevel:
        """How text is read."""
        return ByteLevel(self.engine.pre_tokenizer.add_prefix_space, nfc=self.engine.normalizer is not None)

    @cached_property
    def merges(self) -> list[str]:
        """The merges in order, each as the two pieces with a space between them."""
        return [" ".join(pair) for pair in self._model["merges"]]

    @cached_property
    def _model(self) -> dict[str, Any]:
        return json.loads(self.engine.to_str())["model"]

    @cached_property
    def rules(self) -> list[Any]:
        """Every setting besides vocabulary, merges and user tokens that determines ids, for comparisons."""
        nfc = ["nfc"] if self.normalization.nfc else []
        around = [] if self._has_known_ids else [self.templates.ids]
        settings = ["bpe", self.engine.pre_tokenizer.add_prefix_space, self._whole_words, self.templates.separators]
        return [*settings, *self.special.rules(), *nfc, *around]

    @property
    def _has_known_ids(self) -> bool:
        """Whether special tokens stand where BERT or RoBERTa has them."""
        cls, sep = ids_of(self.engine, self.special) or (None, None)
        known = [cls, None, sep, None, sep], [cls, None, sep, sep, None, sep]
        return cls is not None and self.templates.ids in known

    @property
    def _whole_words(self) -> bool:
        return bool(self.engine.model.ignore_merges)

    def starts_word(self, entry: str) -> bool:
        """Return whether an entry starts a word: it begins with a space or a line end, or is a special token."""
        return entry.startswith(WORD_BEGINNINGS) or entry in self.special.names().values()

    @property
    def tokenizer_class(self) -> str:
        """The class of transformers that reads the tokenizer."""
        # The classes of RoBERTa and GPT-2 do not normalize, and have their own special tokens around a text.
        post = self.engine.post_processor
        if not self.normalization.nfc and isinstance(post, processors.RobertaProcessing) and not self._whole_words:
            return "RobertaTokenizer"
        if not self.normalization.nfc and self.special.cls == self.special.sep and not self._whole_words:
            return "GPT2Tokenizer"
        return "PreTrainedTokenizerFast"

    def config(self) -> dict[str, Any]:
        """Return the entries of tokenizer_config.json, without the special tokens."""
        config: dict[str, Any] = {"tokenizer_class": self.tokenizer_class}
        if self.tokenizer_class == "PreTrainedTokenizerFast":
            return config
        config["add_prefix_space"] = self.engine.pre_tokenizer.add_prefix_space
        config |= {"bos_token": self.special.cls, "eos_token": self.special.sep}
        return {**config, "trim_offsets": True} if self.tokenizer_class == "RobertaTokenizer" else config

    def vocabulary_files(self, vocabulary: list[str]) -> dict[str, str]:  # noqa: ARG002 - WordPiece needs it
        """Return the files that list the vocabulary: name -> contents. They exist for RoBERTa's and GPT-2's format."""
        if self.tokenizer_class == "PreTrainedTokenizerFast":
            return {}
        merges = "".join(f"{merge}\n" for merge in self.merges)
        vocab = dict(sorted(self._model["vocab"].items(), key=lambda item: item[1]))
        return {
            "vocab.json": json.dumps(vocab, ensure_ascii=False) + "\n",
            "merges.txt": f"#version: 0.2\n{merges}",
        }

    def encode(self, method: str, texts: Any, **options: bool) -> list[Encoding]:
        """Tokenize texts by a method of the engine, which takes no role in a text for one."""
        return getattr(self.engine, method)(texts, **options)

    def extensible(self) -> NoReturn:
        """Raise UserError: entries of byte-level BPE come from merges, so words cannot be appended."""
        raise UserError(
            "this tokenizer is byte-level BPE, and words can be added only to WordPiece: train a new vocabulary"
        )

    @cached_property
    def _added(self) -> set[str]:
        return added_texts(self.engine)

    def spelling(self, entry: str) -> bytes:
        """Return the bytes that an entry stands for. Entries that are no such pieces, such as user tokens, are text."""
        added = entry in self._added or not all(character in _BYTE_OF for character in entry)
        return entry.encode() if added else bytes(_BYTE_OF[character] for character in entry)

    def split_entry(self, entry: str) -> list[int]:
        """Split an entry of another vocabulary into the ids of the pieces of its text."""
        text = self.engine.decoder.decode([entry])
        return self.engine.encode(text, add_special_tokens=False).ids


def build(
    vocabulary: dict[str, int],
    merges: Sequence[tuple[str, str]],
    special: SpecialTokens = ROBERTA,
    user_tokens: Sequence[str | AddedToken] = (),
    add_prefix_space: bool = False,
) -> BPEBackend:
    """Build a backend from a vocabulary and merges.

    Args:
        vocabulary: entry -> id, with the special tokens.
        merges: The merges in order.
        special: The special tokens.
        user_tokens: Entries to match in the raw text.
        add_prefix_space: Put a space before a text that does not start with one.
    """
    engine = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    engine.decoder = decoders.ByteLevel()
    assert special.cls is not None
    assert special.sep is not None
    cls, sep = ((token, vocabulary[token]) for token in (special.cls, special.sep))
    if cls == sep:
        engine.post_processor = _offsets_without_spaces(add_prefix_space)
    else:
        engine.post_processor = processors.RobertaProcessing(
            sep, cls, trim_offsets=True, add_prefix_space=add_prefix_space
        )
    names = dict.fromkeys(special.names().values())
    # Hugging Face's <mask> takes the space before it, as in "Paris is <mask>."
    engine.add_special_tokens([AddedToken(name, lstrip=name == special.mask, normalized=False) for name in names])
    add_user_tokens(engine, user_tokens)
    return BPEBackend(engine, _templates(engine, special), special)


def _offsets_without_spaces(add_prefix_space: bool) -> Any:
    """Return what leaves the space before a word out of its offsets. A space that the tokenizer adds has no offset."""
    return processors.ByteLevel(add_prefix_space=add_prefix_space, trim_offsets=True)


def is_byte_level(engine: tokenizers.Tokenizer) -> bool:
    """Return whether an engine is byte-level BPE as in GPT-2, RoBERTa and ModernBERT."""
    model, splitter = engine.model, engine.pre_tokenizer
    return (
        isinstance(model, models.BPE)
        and isinstance(engine.normalizer, normalizers.NFC | None)
        and isinstance(splitter, pre_tokenizers.ByteLevel)
        and splitter.use_regex
        and isinstance(engine.decoder, decoders.ByteLevel)
        and not (model.continuing_subword_prefix or model.end_of_word_suffix or model.byte_fallback)
    )


def backend_of(engine: tokenizers.Tokenizer, special: SpecialTokens) -> BPEBackend:
    """Build a backend over an engine that `is_byte_level`. Offsets leave out the space before a word."""
    prefixed = engine.pre_tokenizer.add_prefix_space
    trimmed = _offsets_without_spaces(prefixed)  # the files of GPT-2 and ModernBERT keep the spaces
    post = engine.post_processor
    if isinstance(post, processors.TemplateProcessing):
        engine.post_processor = processors.Sequence([trimmed, post])
    elif isinstance(post, processors.RobertaProcessing):
        engine.post_processor = processors.RobertaProcessing(post.sep, post.cls, True, prefixed)
    elif isinstance(post, processors.ByteLevel | None):
        engine.post_processor = trimmed
    return BPEBackend(engine, _templates(engine, special), special)


def _templates(engine: tokenizers.Tokenizer, special: SpecialTokens) -> Templates:
    """Return where special tokens stand. GPT-2's tokenizer adds none; here <|endoftext|> is around each text."""
    templates, around = read_templates(engine), ids_of(engine, special)
    return bert_templates(*around) if around and len(templates.pair) == 2 else templates
