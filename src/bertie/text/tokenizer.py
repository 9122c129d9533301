"""BERT's tokenizer at run time: the library `tokenizers` with BERT's normalizer, word splitter and greedy WordPiece."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Encoding, decoders, models, normalizers, pre_tokenizers, processors

from bertie import console, storage
from bertie.errors import UsageError, UserError

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
LONGEST_WORD = 100  # characters; a longer word is [UNK], as in the paper's code of 2018 and in Hugging Face's


@dataclass(frozen=True)
class NormalizerOptions:
    """What BERT does to text before it looks for pieces, beside taking out control characters."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: where letters are lowered
    split_chinese: bool = True  # every CJK character is a word

    def normalizer(self) -> Any:
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_chinese,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back. V = vocabulary size."""

    backend: tokenizers.Tokenizer
    lowercase: bool

    @classmethod
    def build(
        cls, words: list[str], rules: NormalizerOptions = NormalizerOptions(), user_tokens: Many[str | AddedToken] = ()
    ) -> Tokenizer:
        """From a word list in id order that holds the five special tokens.

        user_tokens: entries of it that are found in raw text as they are, such as "<url>", wherever they stand.
        Errors: UserError.
        """
        return _build(words, rules, "the vocabulary", user_tokens)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json, or else from vocab.txt; then tokenizer_config.json says the casing, or the words do.

        Truncation and padding that a tokenizer.json carries are dropped. Errors: UsageError, UserError.
        """
        if (folder / "tokenizer.json").is_file():
            found = _load_json(folder / "tokenizer.json")
            if (folder / "vocab.txt").is_file() and set(_listed(folder / "vocab.txt")) - set(found.words):
                console.warn(
                    f"{folder}/vocab.txt lists entries that tokenizer.json, which counts, does not know: to use them, put "
                    "vocab.txt and tokenizer_config.json into a folder without it"
                )
            return found
        if (folder / "vocab.txt").is_file():
            return _load_vocabulary(folder)
        raise UsageError(f"{folder} holds no tokenizer: there is neither tokenizer.json nor vocab.txt in it")

    def save(self, folder: Path, model_max_length: int = 512) -> None:
        """Write vocab.txt, tokenizer.json and two JSON files: AutoTokenizer reads the folder as is.

        model_max_length: where its `truncation=True` cuts, in tokens.
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
        storage.write_atomic(folder / "vocab.txt", "".join(f"{word}\n" for word in self.words))
        storage.write_atomic(folder / "tokenizer.json", self.backend.to_str(pretty=True) + "\n")
        storage.write_json(folder / "tokenizer_config.json", config)
        storage.write_json(folder / "special_tokens_map.json", names)

    @cached_property
    def words(self) -> list[str]:
        """The vocabulary in id order, [V]."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @property
    def size(self) -> int:
        return len(self.words)

    @cached_property
    def pad_id(self) -> int:
        return self.words.index(PAD)

    @cached_property
    def unk_id(self) -> int:
        return self.words.index(UNK)

    @cached_property
    def cls_id(self) -> int:
        return self.words.index(CLS)

    @cached_property
    def sep_id(self) -> int:
        return self.words.index(SEP)

    @cached_property
    def mask_id(self) -> int:
        return self.words.index(MASK)

    @cached_property
    def special_ids(self) -> np.ndarray:
        """int32 [5], sorted."""
        return np.sort(np.array([self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id], np.int32))

    @cached_property
    def word_starts_table(self) -> np.ndarray:
        """bool [V]: false for the pieces that continue a word ("##…")."""
        return np.array([not word.startswith(CONTINUATION) for word in self.words])

    @cached_property
    def user_tokens(self) -> list[str]:
        """What is found in raw text before it is cut into words, in id order."""
        return [token.content for token in self.added]

    @property
    def added(self) -> list[AddedToken]:
        """The same with how they are found."""
        added = self.backend.get_added_tokens_decoder()
        return [added[i] for i in sorted(added) if not added[i].special]

    @property
    def normalization(self) -> NormalizerOptions:
        """What `words.count` needs to see a text as this tokenizer does."""
        found = self.backend.normalizer
        return NormalizerOptions(found.lowercase, found.strip_accents, found.handle_chinese_chars)

    @cached_property
    def rules(self) -> list[Any]:
        """All that decides ids beside the vocabulary."""
        rules = self.backend.normalizer
        # None means "strip accents when lowering", so both ways to say it must compare alike.
        strip = rules.lowercase if rules.strip_accents is None else rules.strip_accents
        longest = self.backend.model.max_input_chars_per_word
        return [rules.lowercase, strip, rules.handle_chinese_chars, rules.clean_text, longest]

    def rebuilt(self, words: list[str]) -> Tokenizer:
        """The same rules and user tokens with another word list. Errors: UserError for rules that are not BERT's own."""
        *_, clean_text, longest = self.rules
        if not clean_text or longest != LONGEST_WORD:
            raise UserError("this tokenizer keeps control characters, or words of another length than BERT's")
        return Tokenizer.build(words, self.normalization, self.added)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides ids: two tokenizers with one fingerprint give the same ids for any text."""
        flags = [[t.content, t.normalized, t.single_word, t.lstrip, t.rstrip] for t in self.added]
        decides = [self.words, self.rules, *([flags] if flags else [])]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def pieces(self, entry: str) -> list[int]:
        """The ids that an entry of another vocabulary, such as "foreshore" or "##ability", is cut into by this one."""
        known = self.backend.get_vocab(with_added_tokens=True)
        found, start, mark = [], 0, ""
        if entry.startswith(CONTINUATION) and len(entry) > len(CONTINUATION):
            entry, mark = entry.removeprefix(CONTINUATION), CONTINUATION
        while start < len(entry):  # the longest first, as WordPiece reads a word
            stop = next((stop for stop in range(len(entry), start, -1) if mark + entry[start:stop] in known), None)
            if stop is None:
                return [self.unk_id]
            found.append(known[mark + entry[start:stop]])
            start, mark = stop, CONTINUATION
        return found

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Per text its ids without special tokens, int32 [n]. A literal "[MASK]" in a text is text."""
        try:
            if any(isinstance(text, list | tuple) for text in texts):  # the library would take it for a pair
                raise TypeError
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError as error:
            raise _no_text(texts) from error
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encodings(self, texts: list[str]) -> list[Encoding]:
        """The same with offsets: where in its text each token lies. Errors: UserError for what is no text."""
        try:
            if any(isinstance(text, list | tuple) for text in texts):  # the library would take it for a pair
                raise TypeError
            return self.backend.encode_batch(texts, add_special_tokens=False)
        except TypeError as error:
            raise _no_text(texts) from error

    def encode_words(self, texts: Iterable[Many[str]]) -> list[Encoding]:
        """Of texts that are cut into words already; `word_ids` of what comes says which word a token is of."""
        texts = [list(words) for words in texts]
        try:
            return self.backend.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        except TypeError as error:
            raise _no_text([word for words in texts for word in words]) from error

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.words[i] for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Text again, special tokens included; blanks, case and accents as far as the ids know them.

        Errors: UserError for what is no id.
        """
        ids = list(ids)
        if wrong := [i for i in ids if not 0 <= i < self.size]:
            raise UserError(f"{wrong[0]} is no id of this vocabulary: they run from 0 to {self.size - 1}")
        return self.backend.decode(ids, skip_special_tokens=False)


def require_texts(texts: Iterable[Any]) -> None:
    """Errors: UserError for what is no text."""
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{text!r:.60} is no text but of type {type(text).__name__}: give a string")
        if not storage.is_unicode(text):
            raise UserError(f"the text {text[:60]!a} holds half of a surrogate pair, which is no character")


def _no_text(texts: list[Any]) -> UserError:
    """What to say where the library refused one of the texts without naming it."""
    try:
        require_texts(texts)
    except UserError as error:
        return error
    return UserError("the tokenizer refused the texts")


def _build(
    words: list[str], rules: NormalizerOptions, where: str, user_tokens: Many[str | AddedToken] = ()
) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(words)}
    _require_special(vocabulary, where)
    model = models.WordPiece(
        vocabulary, unk_token=UNK, continuing_subword_prefix=CONTINUATION, max_input_chars_per_word=LONGEST_WORD
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = rules.normalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, vocabulary[CLS]), (SEP, vocabulary[SEP])],
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    added = [token if isinstance(token, AddedToken) else AddedToken(token, normalized=False) for token in user_tokens]
    backend.add_tokens(added)
    return _finish(backend)


def _finish(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return Tokenizer(backend, backend.normalizer.lowercase)


def _load_json(path: Path) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path} is damaged, or not a tokenizer: {error}") from error
    parts = (backend.model, backend.normalizer, backend.pre_tokenizer)
    kinds = (models.WordPiece, normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer)
    for part, kind in zip(parts, kinds, strict=True):
        if not isinstance(part, kind):
            found = type(part).__name__ if part is not None else "none"
            raise UserError(f"{path} is not BERT's tokenizer: it has {found} where {kind.__name__} belongs")
    if backend.model.continuing_subword_prefix != CONTINUATION or backend.model.unk_token != UNK:
        raise UserError(
            f"{path} is not BERT's tokenizer: its pieces do not continue with ## or its unknown is not {UNK}"
        )
    vocabulary = backend.get_vocab(with_added_tokens=True)
    _require_special(vocabulary, str(path.parent))
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError(f"{path}: the ids of its {len(vocabulary)} tokens do not run from 0 to {len(vocabulary) - 1}")
    return _finish(backend)


def _listed(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # not splitlines: U+2028 is a token
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _load_vocabulary(folder: Path) -> Tokenizer:
    path = folder / "vocab.txt"
    words = _listed(path)
    seen: dict[str, int] = {}
    for number, word in enumerate(words, start=1):
        if word in seen:
            raise UserError(f"{path}:{number}: the token {word!r} stands on line {seen[word]} already")
        seen[word] = number
    beside = folder / "tokenizer_config.json"
    config = storage.read_json(beside) if beside.is_file() else {}
    # [unused0], [CLS], <S> say nothing about the casing of text.
    cased = any(word != word.lower() for word in words if not re.fullmatch(r"\[.*]|<.*>", word))
    lowercase = config.get("do_lower_case", not cased)
    try:
        rules = NormalizerOptions(lowercase, config.get("strip_accents"), config.get("tokenize_chinese_chars", True))
        rules.normalizer()
    except TypeError as error:
        raise UserError(f"{beside} is damaged: {' '.join(str(error).split())}") from error
    return _build(words, rules, str(folder))


def _require_special(vocabulary: dict[str, int], where: str) -> None:
    for token in SPECIAL_TOKENS:
        if token not in vocabulary:
            raise UserError(f"{where} has no token {token}: BERT needs {' '.join(SPECIAL_TOKENS)}")
