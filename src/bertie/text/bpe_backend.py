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
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from bertie import storage
from bertie.errors import UserError
from bertie.text.special_tokens import (
    LINE_BREAK,
    SpecialTokens,
    add_user_tokens,
    read_engine,
    read_lines,
    require_ids_without_gaps,
    without_automatic_changes,
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
    """A byte-level BPE tokenizer. `WordPieceBackend` has the same attributes and methods.

    Attributes:
        engine: The tokenizer of the library `tokenizers` that does the work.
        special: The special tokens.
    """

    engine: tokenizers.Tokenizer
    special: SpecialTokens
    algorithm: ClassVar = "bpe"
    word_mark: ClassVar = "Ġ"

    @property
    def normalization(self) -> ByteLevel:
        """How text is read."""
        return ByteLevel(self.engine.pre_tokenizer.add_prefix_space, nfc=self.engine.normalizer is not None)

    @cached_property
    def separators(self) -> int:
        """Number of separator tokens between two texts: 2 in RoBERTa's format, <s> A </s></s> B </s>."""
        return 2 if self.engine.num_special_tokens_to_add(is_pair=True) == 4 else 1

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
        names = [f"{role}={token}" for role, token in self.special.names().items()]
        whole_words = bool(self.engine.model.ignore_merges)
        nfc = ["nfc"] if self.normalization.nfc else []
        return ["bpe", self.engine.pre_tokenizer.add_prefix_space, whole_words, self.separators, *names, *nfc]

    def starts_word(self, entry: str) -> bool:
        """Return whether an entry starts a word: it begins with a space or a line end, or is a special token."""
        return entry.startswith(WORD_BEGINNINGS) or entry in self.special.names().values()

    @property
    def tokenizer_class(self) -> str:
        """The class of transformers that reads the tokenizer."""
        # The classes of RoBERTa and GPT-2 do not normalize, and have their own special tokens around a text.
        if not self.normalization.nfc and self.separators == 2:
            return "RobertaTokenizer"
        if not self.normalization.nfc and self.special.cls == self.special.sep:
            return "GPT2Tokenizer"
        return "PreTrainedTokenizerFast"

    def config(self) -> dict[str, Any]:
        """Return the entries of tokenizer_config.json, without the special tokens."""
        config: dict[str, Any] = {"tokenizer_class": self.tokenizer_class}
        if self.tokenizer_class == "PreTrainedTokenizerFast":
            return config
        config["add_prefix_space"] = self.engine.pre_tokenizer.add_prefix_space
        config |= {"bos_token": self.special.cls, "eos_token": self.special.sep}
        return {**config, "trim_offsets": True} if self.separators == 2 else config

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

    def require_reproducible(self) -> None:
        """Raise UserError: entries of byte-level BPE come from merges, so words cannot be appended."""
        raise UserError(
            "this tokenizer is byte-level BPE, whose entries come from merges: bertie adds words only to WordPiece "
            "vocabularies. Train a new vocabulary with `bertie tokenizer train --algorithm bpe`"
        )

    def spelling(self, entry: str) -> bytes:
        """Return the bytes that an entry stands for. Entries that are no such pieces, such as user tokens, are text."""
        added = entry in self._added or not all(character in _BYTE_OF for character in entry)
        return entry.encode() if added else bytes(_BYTE_OF[character] for character in entry)

    @cached_property
    def _added(self) -> set[str]:
        return {token.content for token in self.engine.get_added_tokens_decoder().values()}

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
    return BPEBackend(without_automatic_changes(engine), special)


def _offsets_without_spaces(add_prefix_space: bool) -> Any:
    """Return what leaves the space before a word out of its offsets. A space that the tokenizer adds has no offset."""
    return processors.ByteLevel(add_prefix_space=add_prefix_space, trim_offsets=True)


def is_bpe_json(path: Path) -> bool:
    """Return whether a tokenizer.json describes BPE. A damaged file does not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["model"]["type"] == "BPE"
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def load_json(path: Path) -> BPEBackend:
    """Load tokenizer.json, without its truncation and padding, and with the special tokens of the files beside it.

    Raises:
        UserError: The file is damaged, or is not a byte-level BPE like those of GPT-2, RoBERTa and ModernBERT.
    """
    engine = read_engine(path)
    splitter, model = engine.pre_tokenizer, engine.model
    unusual = {
        "a normalizer other than NFC": not isinstance(engine.normalizer, normalizers.NFC | None),
        "another word splitter": not isinstance(splitter, pre_tokenizers.ByteLevel) or not splitter.use_regex,
        "another decoder": not isinstance(engine.decoder, decoders.ByteLevel),
        "marks at the parts of words": bool(model.continuing_subword_prefix or model.end_of_word_suffix),
        "dropout": bool(model.dropout),
        "byte fallback": bool(model.byte_fallback),
    }
    if found := [name for name, present in unusual.items() if present]:
        raise UserError(
            f"{path} is not byte-level BPE like those of GPT-2, RoBERTa and ModernBERT: it has {', '.join(found)}"
        )
    vocabulary = engine.get_vocab(with_added_tokens=True)
    require_ids_without_gaps(path, vocabulary)
    special = _read_roles(path.parent, vocabulary)
    trimmed = _offsets_without_spaces(splitter.add_prefix_space)  # the files of GPT-2 and ModernBERT keep the spaces
    if isinstance(engine.post_processor, processors.ByteLevel | None):
        engine.post_processor = trimmed
    elif isinstance(engine.post_processor, processors.TemplateProcessing):
        engine.post_processor = processors.Sequence([trimmed, engine.post_processor])
    elif isinstance(engine.post_processor, processors.RobertaProcessing):
        engine.post_processor = processors.RobertaProcessing(
            engine.post_processor.sep, engine.post_processor.cls, True, splitter.add_prefix_space
        )
    return BPEBackend(without_automatic_changes(engine), special)


def load_vocabulary(folder: Path) -> BPEBackend:
    """Build a backend from vocab.json, merges.txt and, if it exists, tokenizer_config.json.

    Raises:
        UserError: A file is damaged or missing, or the vocabulary has no special token to start a sequence with.
    """
    vocabulary = storage.read_json(folder / "vocab.json")
    if sorted(map(str, vocabulary.values())) != sorted(map(str, range(len(vocabulary)))):
        raise UserError(f"{folder / 'vocab.json'} is damaged: its ids do not run from 0 to one below their number")
    path = folder / "merges.txt"
    if not path.is_file():
        raise UserError(f"{folder} has vocab.json but no merges.txt: byte-level BPE needs both")
    merges = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise UserError(f"{path}:{number}: expected two pieces that vocab.json has, with their merge: {line!r}")
        merges.append((pair[0], pair[1]))
    add_prefix_space = bool(_read_config(folder).get("add_prefix_space", False))
    return build(vocabulary, merges, _read_roles(folder, vocabulary), add_prefix_space=add_prefix_space)


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the entries of special_tokens_map.json and tokenizer_config.json. The latter take precedence."""
    paths = (folder / "special_tokens_map.json", folder / "tokenizer_config.json")
    entries = [item for path in paths if path.is_file() for item in storage.read_json(path).items()]
    return {name: value for name, value in entries if value is not None}


def _read_roles(folder: Path, vocabulary: dict[str, int]) -> SpecialTokens:
    """Find the special tokens: those that the files name, or RoBERTa's, or GPT-2's <|endoftext|> for every role."""
    config = _read_config(folder)

    def find(names: tuple[str, ...], known: tuple[str | None, ...]) -> str | None:
        given = (config.get(name) for name in names)
        named = (value.get("content") if isinstance(value, dict) else value for value in given)
        return next((token for token in (*named, *known) if isinstance(token, str) and token in vocabulary), None)

    cls = find(("cls_token", "bos_token"), (ROBERTA.cls, END_OF_TEXT))
    sep = find(("sep_token", "eos_token"), (ROBERTA.sep, END_OF_TEXT))
    if cls is None or sep is None:
        raise UserError(
            f"{folder} has no special token to start or end a sequence with, such as <s> and </s>, or {END_OF_TEXT}: "
            "name them as cls_token and sep_token in tokenizer_config.json"
        )
    pad = find(("pad_token",), (ROBERTA.pad, END_OF_TEXT))
    return SpecialTokens(cls, sep, pad, find(("unk_token",), (ROBERTA.unk,)), find(("mask_token",), (ROBERTA.mask,)))
