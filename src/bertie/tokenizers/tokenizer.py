"""The tokenizer: text to token ids and back, with WordPiece, byte-level BPE, or any tokenizer of the library `tokenizers`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Encoding

from bertie.base import storage
from bertie.base.errors import UserError
from bertie.files.model_folder import ModelFolder
from bertie.tokenizers import bpe_backend, library_backend, wordpiece_backend
from bertie.tokenizers.bpe_backend import ByteLevel
from bertie.tokenizers.folder import Backend, ReadingRules, read_folder
from bertie.tokenizers.special_tokens import (
    LINE_BREAK,
    SpecialTokens,
    Templates,
    added_texts,
    added_tokens,
    library_errors,
    read_templates,
    to_json,
)
from bertie.tokenizers.valid_texts import invalid_text, require_texts
from bertie.tokenizers.wordpiece_backend import CONTINUATION, MAX_WORD_CHARACTERS, SPECIAL_TOKENS, NormalizerOptions

__all__ = ["CONTINUATION", "MAX_WORD_CHARACTERS", "SPECIAL_TOKENS", "ByteLevel", "NormalizerOptions", "Tokenizer"]


def _role_id(role: str, name: str) -> cached_property[int]:
    """Return the property with the id of the token of a role."""

    def find(tokenizer: Tokenizer) -> int:
        if (token := getattr(tokenizer.special, role)) is None:
            raise UserError(f"this tokenizer has no {name}: take another one (or, without a mask, the objective clm)")
        return tokenizer.vocabulary.index(token)

    find.__doc__ = f"Id of the {name}. Raises UserError if there is none."
    return cached_property(find)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer: text to token ids and back.

    Create one with `bertie.train_tokenizer`, `Tokenizer.load` or `Tokenizer.build`. V is the vocabulary size. A role in a
    text, such as "[MASK]", is ordinary text; `encode` never adds special tokens.

    Attributes:
        backend: The part that depends on the algorithm.
        longest: Length in tokens that the folder names as its limit (model_max_length). None: it names none.
        extra: User tokens that Hugging Face calls special, such as "[E1]": decoding may leave them out there.
        split: Whether special tokens in a text are text in transformers, too (split_special_tokens).
        truncates_left: Whether texts that are too long keep their end (truncation_side), where nothing else says it.
    """

    backend: Backend
    longest: int | None = None
    extra: tuple[str, ...] = ()
    split: bool = False
    truncates_left: bool = False

    @classmethod
    def build(
        cls,
        vocabulary: list[str],
        normalization: NormalizerOptions = NormalizerOptions(),
        user_tokens: Many[str | AddedToken] = (),
    ) -> Tokenizer:
        """Build a WordPiece tokenizer from a vocabulary.

        Args:
            vocabulary: The entries in id order, with the five special tokens among them.
            normalization: How to normalize text.
            user_tokens: Entries, such as "<url>" or LINE_BREAK, that are matched anywhere in the raw text before it is
                normalized and split into words.

        Raises:
            UserError: A special token is missing.
        """
        return cls(wordpiece_backend.build(vocabulary, normalization, "the vocabulary", user_tokens))

    @classmethod
    def build_bpe(
        cls, vocabulary: list[str], merges: Many[tuple[str, str]], user_tokens: Many[str | AddedToken] = ()
    ) -> Tokenizer:
        """Build a byte-level BPE tokenizer with RoBERTa's special tokens.

        Args:
            vocabulary: The entries in id order, with RoBERTa's five special tokens among them.
            merges: The pairs of entries to merge, in order.
            user_tokens: Entries, such as "<url>", as for `build`.
        """
        return cls(bpe_backend.build({entry: i for i, entry in enumerate(vocabulary)}, merges, user_tokens=user_tokens))

    @classmethod
    def build_unigram(cls, pieces: list[tuple[str, float]], user_tokens: Many[str | AddedToken] = ()) -> Tokenizer:
        """Build a unigram tokenizer (`library_backend.build_unigram`)."""
        return cls(library_backend.build_unigram(pieces, user_tokens))

    @classmethod
    def load(cls, folder: str | Path | ModelFolder) -> Tokenizer:
        """Load a tokenizer from a folder of bertie, Hugging Face or Google, as transformers 5 does.

        Reads tokenizer.json, or the vocabulary of the folder's class: vocab.txt, vocab.json and merges.txt, or a
        SentencePiece model; and tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json. Classes
        other than BERT's, RoBERTa's, MPNet's, GPT-2's and XLM-RoBERTa's are read by transformers (extra `tokenizers`). A
        bare vocab.txt lowercases unless an entry has uppercase letters; one that leaves doubt is refused. With GPT-2's
        vocabulary, <|endoftext|> starts and ends sequences and is the padding.

        Raises:
            UsageError: The folder has no such file, or needs transformers, which is not installed.
            UserError: A file is damaged, needs what bertie cannot reproduce, or leaves the case in doubt.
        """
        read = read_folder(ModelFolder.of(folder))
        return cls(read.backend, read.longest, read.extra, read.split, read.truncates_left)

    def save(self, folder: Path, model_max_length: int = 512) -> None:
        """Write the tokenizer to a folder that Hugging Face's AutoTokenizer reads too.

        Writes vocab.txt, or vocab.json and merges.txt; tokenizer.json, tokenizer_config.json, special_tokens_map.json.

        Args:
            folder: Where to write. It is created if it does not exist.
            model_max_length: Length in tokens at which AutoTokenizer truncates with `truncation=True`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = self.special.names()
        config = {**self.backend.config(), "model_max_length": model_max_length, **names}
        for name, content in self.backend.vocabulary_files(self.vocabulary).items():
            storage.write_atomic(folder / name, content)
        if self.extra:
            config["additional_special_tokens"] = list(self.extra)  # the name that transformers 4 and 5 read
        if self.split:
            config["split_special_tokens"] = True
        if self.truncates_left:
            config["truncation_side"] = "left"
        storage.write_atomic(folder / "tokenizer.json", to_json(self.backend.engine, self.extra) + "\n")
        storage.write_json(folder / "tokenizer_config.json", config)
        storage.write_json(folder / "special_tokens_map.json", names)

    @cached_property
    def vocabulary(self) -> list[str]:
        """The vocabulary entries in id order, [V]."""
        ids = self.backend.engine.get_vocab(with_added_tokens=True)
        return sorted(ids, key=ids.__getitem__)

    @property
    def size(self) -> int:
        """Vocabulary size V, special tokens included."""
        return len(self.vocabulary)

    @property
    def algorithm(self) -> str:
        """The algorithm: "wordpiece", "bpe" (byte-level), "unigram", or "other"."""
        return self.backend.algorithm

    @property
    def lowercase(self) -> bool:
        """Whether text is lowercased."""
        return self.normalization.lowercase

    @property
    def special(self) -> SpecialTokens:
        """The special token of each role: [CLS], [SEP] … for WordPiece, <s>, </s> … for RoBERTa."""
        return self.backend.special

    pad_id = _role_id("pad", "padding token")
    unk_id = _role_id("unk", "token for unknown words")
    cls_id = _role_id("cls", "token that starts a sequence")
    sep_id = _role_id("sep", "token that ends a text")
    mask_id = _role_id("mask", "mask token")

    @cached_property
    def special_ids(self) -> np.ndarray:
        """Ids of the special tokens, int32 [at most 8], sorted."""
        ids = {self.vocabulary.index(token) for token in self.special.names().values()}
        return np.array(sorted(ids), np.int32)

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Ids of all other entries, int64, sorted."""
        return np.setdiff1d(np.arange(self.size), self.special_ids)

    @cached_property
    def word_starts_table(self) -> np.ndarray:
        """Whether each entry starts a word, bool [V].

        False for entries that continue one ("##…" in WordPiece); true for "Ġ…" and "Ċ…" in byte-level BPE, for "▁…" and
        entries in scripts without spaces in unigram vocabularies. The first token of a text does, too (`word_starts`).
        """
        return np.array([self.backend.starts_word(entry) for entry in self.vocabulary])

    def word_starts(self, ids: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Return whether each token starts a word, bool [n].

        Args:
            ids: Token ids, [n].
            texts: Positions of the first tokens of texts, which start words, except in WordPiece ("##…").
        """
        starts = self.word_starts_table[ids]
        if self.backend.end_mark:
            starts[1:] = self._word_ends_table[ids[:-1]] | np.isin(ids[1:], self.special_ids)
        if self.backend.word_mark != CONTINUATION:
            starts[texts[texts < len(ids)]] = True
        return starts

    @cached_property
    def _word_ends_table(self) -> np.ndarray:
        added = added_texts(self.backend.engine)
        return np.array([entry.endswith(self.backend.end_mark) or entry in added for entry in self.vocabulary])

    def require_words(self, what: str) -> None:
        """Raise UserError if the vocabulary does not say where words start. `what` needs words, for the message."""
        if not self.backend.has_words:
            raise UserError(f"{what} needs words, and the entries of this tokenizer do not say where a word starts")

    @cached_property
    def user_tokens(self) -> list[str]:
        """Entries that are matched in the raw text before it is split into words, in id order."""
        return [token.content for token in self.added_tokens]

    @cached_property
    def line_break_id(self) -> int | None:
        """Id of the line break, or None: then line breaks are white space, and `prepare` leaves them out."""
        return self.vocabulary.index(LINE_BREAK) if LINE_BREAK in self.user_tokens else None

    @property
    def added_tokens(self) -> list[AddedToken]:
        """The user tokens with their matching options (`normalized`, `single_word`, `lstrip`, `rstrip`)."""
        return [token for token in added_tokens(self.backend.engine) if not token.special]

    @property
    def normalization(self) -> ReadingRules:
        """How text is read. `word_counts.count_words` needs it to count the words that this tokenizer sees."""
        return self.backend.normalization

    @property
    def rules(self) -> list[Any]:
        """Every setting besides vocabulary, merges and user tokens that determines ids, for comparisons."""
        return self.backend.rules

    @property
    def merges(self) -> list[str]:
        """The merges of byte-level BPE in order, such as "Ġ t"; else none."""
        return self.backend.merges

    @property
    def templates(self) -> Templates:
        """Where special tokens stand in the sequence of one text and of a pair."""
        return self.backend.templates

    @property
    def adds_around(self) -> bool:
        """Whether the special tokens around a text are bertie's: the tokenizer of the folder, such as GPT-2's, adds none."""
        return self.templates.ids != read_templates(self.backend.engine).ids

    @property
    def splits_characters(self) -> bool:
        """Whether it reads every character by itself: see `characters`."""
        return isinstance(self.backend, library_backend.LibraryBackend) and self.backend.splits_characters

    def with_vocabulary(self, vocabulary: list[str]) -> Tokenizer:
        """Return a tokenizer with the same normalization, user tokens and longest words, and another vocabulary.

        Args:
            vocabulary: The entries in id order, with the special tokens and user tokens among them.

        Raises:
            UserError: This tokenizer has settings that `Tokenizer.build` does not support, or is byte-level BPE.
        """
        return Tokenizer(self.backend.extensible().with_entries(vocabulary, self.added_tokens))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that determines ids: tokenizers with equal fingerprints give the same ids for every text."""
        flags = [[t.content, t.normalized, t.single_word, t.lstrip, t.rstrip] for t in self.added_tokens]
        merges = [self.merges] if self.algorithm == "bpe" else []
        content = [self.vocabulary, self.rules, *merges, *([flags] if flags else [])]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def split_entry(self, entry: str) -> list[int]:
        """Split an entry of another vocabulary into the pieces of this one. Return their ids; [unk_id] if there are none.

        Args:
            entry: A word or a continuation, such as "foreshore" or "##ability"; "Ġforeshore" for byte-level BPE.
        """
        return self.backend.split_entry(entry)

    def spelling(self, entry: str) -> bytes:
        """Return the text of an entry as bytes of UTF-8. In byte-level BPE it may be a part of a character."""
        return self.backend.spelling(entry)

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Tokenize texts, without adding special tokens.

        Args:
            texts: The texts. A literal "[MASK]" is ordinary text.

        Returns:
            The ids of each text, int32 [n].

        Raises:
            UserError: A text is not a valid string.
        """
        encodings = self._encode("encode_batch_fast", texts)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, texts: list[str]) -> list[Encoding]:
        """Tokenize texts, without adding special tokens, and keep the place of each token in its text.

        Args:
            texts: The texts.

        Returns:
            One `tokenizers.Encoding` per text, with `ids`, `offsets` (characters of the text, without the space before
            a word) and `word_ids`.

        Raises:
            UserError: A text is not a valid string.
        """
        return self._encode("encode_batch", texts)

    def _encode(self, method: str, texts: Many[Any], split: bool = False) -> list[Encoding]:
        with library_errors("this tokenizer cannot read a text"):
            try:
                if not split and any(isinstance(text, list | tuple) for text in texts):
                    raise TypeError  # the library would take it for a pair
                return self.backend.encode(method, texts, is_pretokenized=split, add_special_tokens=False)
            except TypeError as error:
                raise invalid_text([word for words in texts for word in words] if split else list(texts)) from error

    def encode_words(self, texts: Iterable[Many[str]]) -> list[Encoding]:
        """Tokenize texts that are already split into words, without adding special tokens.

        Args:
            texts: The words of each text.

        Returns:
            One `tokenizers.Encoding` per text. Its `word_ids` give the word of each token.

        Raises:
            UserError: A word is not a valid string.
        """
        texts = [list(words) for words in texts]
        if self.backend.word_mark == "Ġ":  # a word in a text follows a space, which is part of its first token
            require_texts(word for words in texts for word in words)
            texts = [[word if word.startswith(" ") else f" {word}" for word in words] for words in texts]
        return self._encode("encode_batch", texts, split=True)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the vocabulary entry of each id."""
        return [self.vocabulary[i] for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids back into text, special tokens included.

        Spaces, case and accents that tokenization removed are lost.

        Args:
            ids: Token ids.

        Raises:
            UserError: An id is not in the vocabulary.
        """
        ids = list(ids)
        if invalid := [i for i in ids if not 0 <= i < self.size]:
            raise UserError(f"{invalid[0]} is not an id of this vocabulary: ids run from 0 to {self.size - 1}")
        with library_errors("this tokenizer cannot decode the ids"):
            return self.backend.engine.decode(ids, skip_special_tokens=False)
