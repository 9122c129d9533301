"""BERT's tokenizer: the library `tokenizers` with BERT's normalizer, word splitter and greedy WordPiece."""

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
import tokenizers
from tokenizers import AddedToken, Encoding

from bertie import console, storage
from bertie.errors import UsageError, UserError
from bertie.text import tokenizer_backend
from bertie.text.tokenizer_backend import (
    CLS,
    CONTINUATION,
    MASK,
    MAX_WORD_CHARACTERS,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    NormalizerOptions,
)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """BERT's WordPiece tokenizer: text to token ids and back.

    Create one with `bertie.train_tokenizer`, `Tokenizer.load` or `Tokenizer.build`. V is the vocabulary size. Special
    tokens in a text, such as "[MASK]", are ordinary text; `encode` never adds special tokens.

    Attributes:
        backend: The tokenizer of the library `tokenizers` that does the work.
        lowercase: Whether text is lowercased.
    """

    backend: tokenizers.Tokenizer
    lowercase: bool

    @classmethod
    def build(
        cls,
        vocabulary: list[str],
        normalization: NormalizerOptions = NormalizerOptions(),
        user_tokens: Many[str | AddedToken] = (),
    ) -> Tokenizer:
        """Build a tokenizer from a vocabulary.

        Args:
            vocabulary: The entries in id order, with the five special tokens among them.
            normalization: How to normalize text.
            user_tokens: Entries, such as "<url>", that are matched anywhere in the raw text before it is normalized and
                split into words.

        Raises:
            UserError: A special token is missing.
        """
        return cls._wrap(tokenizer_backend.build(vocabulary, normalization, "the vocabulary", user_tokens))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load a tokenizer from a folder of bertie, Hugging Face or Google.

        Reads tokenizer.json, without its truncation and padding. If that file is missing, reads vocab.txt. The
        normalization is then that of tokenizer_config.json. If that does not specify the case, the tokenizer lowercases
        unless an entry of the vocabulary has uppercase letters.

        Args:
            folder: A folder with tokenizer.json or vocab.txt.

        Raises:
            UsageError: The folder has neither file.
            UserError: A file is damaged, or is not BERT's tokenizer.
        """
        if (folder / "tokenizer.json").is_file():
            tokenizer = cls._wrap(tokenizer_backend.load_json(folder / "tokenizer.json"))
            vocabulary_path = folder / "vocab.txt"
            if vocabulary_path.is_file() and (
                set(tokenizer_backend.read_entries(vocabulary_path)) - set(tokenizer.vocabulary)
            ):
                console.warn(
                    f"{folder}/vocab.txt has entries that tokenizer.json lacks, and tokenizer.json takes precedence: "
                    "to use them, copy vocab.txt and tokenizer_config.json into a folder without tokenizer.json"
                )
            return tokenizer
        if (folder / "vocab.txt").is_file():
            return cls._wrap(tokenizer_backend.load_vocabulary(folder))
        raise UsageError(f"{folder} holds no tokenizer: it has neither tokenizer.json nor vocab.txt")

    @classmethod
    def _wrap(cls, backend: tokenizers.Tokenizer) -> Tokenizer:
        return cls(backend, backend.normalizer.lowercase)

    def save(self, folder: Path, model_max_length: int = 512) -> None:
        """Write the tokenizer to a folder that Hugging Face's AutoTokenizer reads too.

        Writes vocab.txt, tokenizer.json, tokenizer_config.json and special_tokens_map.json.

        Args:
            folder: Where to write. It is created if it does not exist.
            model_max_length: Length in tokens at which AutoTokenizer truncates with `truncation=True`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.backend.normalizer.strip_accents,
            "tokenize_chinese_chars": self.backend.normalizer.handle_chinese_chars,
            "model_max_length": model_max_length,
            **names,
        }
        storage.write_atomic(folder / "vocab.txt", "".join(f"{word}\n" for word in self.vocabulary))
        storage.write_atomic(folder / "tokenizer.json", self.backend.to_str(pretty=True) + "\n")
        storage.write_json(folder / "tokenizer_config.json", config)
        storage.write_json(folder / "special_tokens_map.json", names)

    @cached_property
    def vocabulary(self) -> list[str]:
        """The vocabulary entries in id order, [V]."""
        ids = self.backend.get_vocab(with_added_tokens=True)
        return sorted(ids, key=ids.__getitem__)

    @property
    def size(self) -> int:
        """Vocabulary size V, special tokens included."""
        return len(self.vocabulary)

    @cached_property
    def pad_id(self) -> int:
        """Id of [PAD]."""
        return self.vocabulary.index(PAD)

    @cached_property
    def unk_id(self) -> int:
        """Id of [UNK]."""
        return self.vocabulary.index(UNK)

    @cached_property
    def cls_id(self) -> int:
        """Id of [CLS]."""
        return self.vocabulary.index(CLS)

    @cached_property
    def sep_id(self) -> int:
        """Id of [SEP]."""
        return self.vocabulary.index(SEP)

    @cached_property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self.vocabulary.index(MASK)

    @cached_property
    def special_ids(self) -> np.ndarray:
        """Ids of the five special tokens, int32 [5], sorted."""
        return np.sort(np.array([self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id], np.int32))

    @cached_property
    def word_starts_table(self) -> np.ndarray:
        """Whether each entry starts a word, bool [V]: false for entries that continue one ("##…")."""
        return np.array([not entry.startswith(CONTINUATION) for entry in self.vocabulary])

    @cached_property
    def user_tokens(self) -> list[str]:
        """Entries that are matched in the raw text before it is split into words, in id order."""
        return [token.content for token in self.added_tokens]

    @property
    def added_tokens(self) -> list[AddedToken]:
        """The user tokens with their matching options (`normalized`, `single_word`, `lstrip`, `rstrip`)."""
        added = self.backend.get_added_tokens_decoder()
        return [added[i] for i in sorted(added) if not added[i].special]

    @property
    def normalization(self) -> NormalizerOptions:
        """The normalization of text. `word_counts.count_words` needs it to count the words that this tokenizer sees."""
        normalizer = self.backend.normalizer
        return NormalizerOptions(normalizer.lowercase, normalizer.strip_accents, normalizer.handle_chinese_chars)

    @cached_property
    def rules(self) -> list[Any]:
        """Every setting besides the vocabulary and the user tokens that determines ids, for comparisons."""
        normalizer = self.backend.normalizer
        # None means "strip accents if lowercasing": it must compare equal to the bool with the same effect.
        strip = normalizer.lowercase if normalizer.strip_accents is None else normalizer.strip_accents
        max_word_characters = self.backend.model.max_input_chars_per_word
        flags = [normalizer.lowercase, strip, normalizer.handle_chinese_chars, normalizer.clean_text]
        return [*flags, max_word_characters]

    def with_vocabulary(self, vocabulary: list[str]) -> Tokenizer:
        """Return a tokenizer with the same normalization and user tokens and another vocabulary.

        Args:
            vocabulary: The entries in id order, with the special tokens and user tokens among them.

        Raises:
            UserError: This tokenizer has settings that `Tokenizer.build` does not support.
        """
        *_, clean_text, max_word_characters = self.rules
        if not clean_text or max_word_characters != MAX_WORD_CHARACTERS:
            raise UserError(
                "this tokenizer keeps control characters, or its maximum word length is not BERT's "
                f"{MAX_WORD_CHARACTERS} characters: bertie cannot change its vocabulary"
            )
        return Tokenizer.build(vocabulary, self.normalization, self.added_tokens)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that determines ids: tokenizers with equal fingerprints give the same ids for every text."""
        flags = [[t.content, t.normalized, t.single_word, t.lstrip, t.rstrip] for t in self.added_tokens]
        content = [self.vocabulary, self.rules, *([flags] if flags else [])]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def split_entry(self, entry: str) -> list[int]:
        """Split an entry of another vocabulary into the pieces of this one.

        Args:
            entry: A word or a continuation, such as "foreshore" or "##ability".

        Returns:
            The ids of the pieces, found by WordPiece's greedy longest match, or [unk_id].
        """
        known = self.backend.get_vocab(with_added_tokens=True)
        ids, start, prefix = [], 0, ""
        if entry.startswith(CONTINUATION) and len(entry) > len(CONTINUATION):
            entry, prefix = entry.removeprefix(CONTINUATION), CONTINUATION
        while start < len(entry):
            stop = next((stop for stop in range(len(entry), start, -1) if prefix + entry[start:stop] in known), None)
            if stop is None:
                return [self.unk_id]
            ids.append(known[prefix + entry[start:stop]])
            start, prefix = stop, CONTINUATION
        return ids

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Tokenize texts, without adding special tokens.

        Args:
            texts: The texts. A literal "[MASK]" is ordinary text.

        Returns:
            The ids of each text, int32 [n].

        Raises:
            UserError: A text is not a valid string.
        """
        try:
            if any(isinstance(text, list | tuple) for text in texts):  # the library would take it for a pair
                raise TypeError
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError as error:
            raise _invalid_text(texts) from error
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, texts: list[str]) -> list[Encoding]:
        """Tokenize texts, without adding special tokens, and keep the place of each token in its text.

        Args:
            texts: The texts.

        Returns:
            One `tokenizers.Encoding` per text, with `ids`, `offsets` (characters of the text) and `word_ids`.

        Raises:
            UserError: A text is not a valid string.
        """
        try:
            if any(isinstance(text, list | tuple) for text in texts):  # the library would take it for a pair
                raise TypeError
            return self.backend.encode_batch(texts, add_special_tokens=False)
        except TypeError as error:
            raise _invalid_text(texts) from error

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
        try:
            return self.backend.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        except TypeError as error:
            raise _invalid_text([word for words in texts for word in words]) from error

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
        return self.backend.decode(ids, skip_special_tokens=False)


def require_texts(texts: Iterable[Any]) -> None:
    """Raise UserError, naming the first offender, unless all texts are strings without lone surrogates."""
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{text!r:.60} is not a text but of type {type(text).__name__}: give a string")
        if not storage.is_unicode(text):
            raise UserError(f"the text {text[:60]!a} contains half of a surrogate pair, which is not a character")


def _invalid_text(texts: list[Any]) -> UserError:
    """Return the error that names the invalid text: the library rejects a batch without saying which text it is."""
    try:
        require_texts(texts)
    except UserError as error:
        return error
    return UserError("the tokenizer rejected the texts")
