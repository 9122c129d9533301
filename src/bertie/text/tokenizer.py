"""The tokenizer: text to token ids and back, with BERT's WordPiece or the byte-level BPE of GPT-2 and RoBERTa."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Encoding

from bertie import console, storage
from bertie.errors import UsageError, UserError
from bertie.text import bpe_backend, wordpiece_backend
from bertie.text.bpe_backend import BPEBackend, ByteLevel
from bertie.text.special_tokens import LINE_BREAK, SpecialTokens
from bertie.text.valid_texts import invalid_text, require_texts
from bertie.text.wordpiece_backend import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    SPECIAL_TOKENS,
    NormalizerOptions,
    WordPieceBackend,
)

__all__ = ["CONTINUATION", "MAX_WORD_CHARACTERS", "SPECIAL_TOKENS", "ByteLevel", "NormalizerOptions", "Tokenizer"]
Backend = WordPieceBackend | BPEBackend


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer, WordPiece or byte-level BPE: text to token ids and back.

    Create one with `bertie.train_tokenizer`, `Tokenizer.load` or `Tokenizer.build`. V is the vocabulary size. Special
    tokens in a text, such as "[MASK]", are ordinary text; `encode` never adds special tokens.

    Attributes:
        backend: What depends on the algorithm.
    """

    backend: Backend

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
            user_tokens: Entries, such as "<url>", that are matched anywhere in the text before it is split into words.
        """
        ids = {entry: i for i, entry in enumerate(vocabulary)}
        return cls(bpe_backend.build(ids, merges, user_tokens=user_tokens))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load a tokenizer from a folder of bertie, Hugging Face or Google.

        Reads tokenizer.json, without its truncation and padding. If that file is missing, reads vocab.txt (WordPiece),
        or vocab.json and merges.txt (byte-level BPE). The normalization of vocab.txt is that of tokenizer_config.json.
        If that does not specify the case, the tokenizer lowercases unless an entry of the vocabulary has uppercase
        letters. The special tokens of byte-level BPE are those of tokenizer_config.json or special_tokens_map.json, or
        else RoBERTa's; with GPT-2's vocabulary, <|endoftext|> starts and ends sequences and is the padding.

        Args:
            folder: A folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt.

        Raises:
            UsageError: The folder has no such file.
            UserError: A file is damaged, or is not a tokenizer that bertie supports.
        """
        path = folder / "tokenizer.json"
        if path.is_file() and bpe_backend.is_bpe_json(path):
            return cls(bpe_backend.load_json(path))
        if path.is_file():
            tokenizer = cls(wordpiece_backend.load_json(path))
            vocabulary_path = folder / "vocab.txt"
            if vocabulary_path.is_file() and (
                set(wordpiece_backend.read_entries(vocabulary_path)) - set(tokenizer.vocabulary)
            ):
                console.warn(
                    f"{folder}/vocab.txt has entries that tokenizer.json lacks, and tokenizer.json takes precedence: "
                    "to use them, copy vocab.txt and tokenizer_config.json into a folder without tokenizer.json"
                )
            return tokenizer
        if (folder / "vocab.txt").is_file():
            return cls(wordpiece_backend.load_vocabulary(folder))
        if (folder / "vocab.json").is_file():
            return cls(bpe_backend.load_vocabulary(folder))
        raise UsageError(f"{folder} holds no tokenizer: it has neither tokenizer.json, vocab.txt nor vocab.json")

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
        storage.write_atomic(folder / "tokenizer.json", self.backend.engine.to_str(pretty=True) + "\n")
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
        """The algorithm, "wordpiece" or "bpe"."""
        return self.backend.algorithm

    @property
    def lowercase(self) -> bool:
        """Whether text is lowercased."""
        return isinstance(self.normalization, NormalizerOptions) and self.normalization.lowercase

    @property
    def special(self) -> SpecialTokens:
        """The special token of each role: [CLS], [SEP] … for WordPiece, <s>, </s> … for RoBERTa."""
        return self.backend.special

    @cached_property
    def pad_id(self) -> int:
        """Id of the padding token. Raises UserError if there is none, like the next four."""
        return self._special_id("padding token", self.special.pad)

    @cached_property
    def unk_id(self) -> int:
        """Id of the unknown token."""
        return self._special_id("token for unknown words", self.special.unk)

    @cached_property
    def cls_id(self) -> int:
        """Id of the token that starts a sequence."""
        return self.vocabulary.index(self.special.cls)

    @cached_property
    def sep_id(self) -> int:
        """Id of the token that ends a text."""
        return self.vocabulary.index(self.special.sep)

    @cached_property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return self._special_id("mask token", self.special.mask)

    def _special_id(self, role: str, token: str | None) -> int:
        if token is None:
            raise UserError(
                f"this tokenizer has no {role}, which masked language models and padded batches may need: take another "
                "tokenizer, or for GPT-2's an objective without a mask, such as clm"
            )
        return self.vocabulary.index(token)

    @cached_property
    def special_ids(self) -> np.ndarray:
        """Ids of the special tokens, int32 [at most 5], sorted."""
        ids = {self.vocabulary.index(token) for token in self.special.names().values()}
        return np.array(sorted(ids), np.int32)

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Ids of all other entries, int64, sorted."""
        return np.setdiff1d(np.arange(self.size), self.special_ids)

    @cached_property
    def word_starts_table(self) -> np.ndarray:
        """Whether each entry starts a word, bool [V].

        WordPiece: false for entries that continue a word ("##…"). Byte-level BPE: true for special tokens and entries
        that begin with white space ("Ġ…", "Ċ…"). The first token of a text starts a word too: see `word_starts`.
        """
        return np.array([self.backend.starts_word(entry) for entry in self.vocabulary])

    def word_starts(self, ids: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Return whether each token starts a word, bool [n].

        Args:
            ids: Token ids, [n].
            texts: Positions of the first tokens of texts, which start words in byte-level BPE.
        """
        starts = self.word_starts_table[ids]
        if isinstance(self.backend, BPEBackend):
            starts[texts] = True
        return starts

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
        added = self.backend.engine.get_added_tokens_decoder()
        return [added[i] for i in sorted(added) if not added[i].special]

    @property
    def normalization(self) -> NormalizerOptions | ByteLevel:
        """How text is read. `word_counts.count_words` needs it to count the words that this tokenizer sees."""
        return self.backend.normalization

    @property
    def rules(self) -> list[Any]:
        """Every setting besides vocabulary, merges and user tokens that determines ids, for comparisons."""
        return self.backend.rules

    @property
    def merges(self) -> list[str]:
        """The merges of byte-level BPE in order, such as "Ġ t". WordPiece has none."""
        return self.backend.merges

    @property
    def separators(self) -> int:
        """Separator tokens between the two texts of a pair: 1 in BERT's format, 2 in RoBERTa's."""
        return self.backend.separators

    def with_vocabulary(self, vocabulary: list[str]) -> Tokenizer:
        """Return a tokenizer with the same normalization and user tokens and another vocabulary.

        Args:
            vocabulary: The entries in id order, with the special tokens and user tokens among them.

        Raises:
            UserError: This tokenizer has settings that `Tokenizer.build` does not support, or is byte-level BPE.
        """
        self.backend.require_reproducible()
        assert isinstance(self.normalization, NormalizerOptions)
        return Tokenizer.build(vocabulary, self.normalization, self.added_tokens)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that determines ids: tokenizers with equal fingerprints give the same ids for every text."""
        flags = [[t.content, t.normalized, t.single_word, t.lstrip, t.rstrip] for t in self.added_tokens]
        merges = [self.merges] if self.algorithm == "bpe" else []
        content = [self.vocabulary, self.rules, *merges, *([flags] if flags else [])]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def split_entry(self, entry: str) -> list[int]:
        """Split an entry of another vocabulary into the pieces of this one.

        Args:
            entry: A word or a continuation, such as "foreshore" or "##ability"; "Ġforeshore" for byte-level BPE.

        Returns:
            The ids of the pieces, or [unk_id] if WordPiece finds none.
        """
        return self.backend.split_entry(entry)

    def spelling(self, entry: str) -> bytes:
        """Return the text of an entry as bytes of UTF-8, without marks of word boundaries.

        An entry of byte-level BPE may be a part of a character, and includes the space before a word.
        """
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
        encodings = self._encode(self.backend.engine.encode_batch_fast, texts)
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
        return self._encode(self.backend.engine.encode_batch, texts)

    def _encode(self, encode_batch: Callable[..., list[Encoding]], texts: list[str]) -> list[Encoding]:
        try:
            if any(isinstance(text, list | tuple) for text in texts):  # the library would take it for a pair
                raise TypeError
            return encode_batch(texts, add_special_tokens=False)
        except TypeError as error:
            raise invalid_text(texts) from error

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
        if self.algorithm == "bpe":  # a word in a text follows a space, which is part of its first token
            require_texts(word for words in texts for word in words)
            texts = [[word if word.startswith(" ") else f" {word}" for word in words] for words in texts]
        try:
            return self.backend.engine.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        except TypeError as error:
            raise invalid_text([word for words in texts for word in words]) from error

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
        return self.backend.engine.decode(ids, skip_special_tokens=False)
