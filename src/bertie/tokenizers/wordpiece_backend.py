"""WordPiece, one of the two algorithms of `Tokenizer`: the library `tokenizers` with BERT's settings."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import AddedToken, Encoding, decoders, models, normalizers, pre_tokenizers, processors

from bertie.base.errors import UserError
from bertie.tokenizers.special_tokens import (
    LINE_BREAK,
    SpecialTokens,
    Templates,
    add_user_tokens,
    bert_templates,
    ids_of,
    printable,
)

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT = SpecialTokens(CLS, SEP, PAD, UNK, MASK)
CONTINUATION = "##"
_ROLE = re.compile(r"\[.*]|<.*>")
MAX_WORD_CHARACTERS = 100  # longer words are [UNK], as in Google's code of 2018 and in Hugging Face's
MAX_WORD_SETTING = "max_input_chars_per_word"  # in tokenizer_config.json of bertie
MOST_WORD_CHARACTERS = 1000  # the time that a word of n characters takes grows with n²


@dataclass(frozen=True)
class NormalizerOptions:
    """How BERT normalizes text before WordPiece. Control characters are always removed.

    Attributes:
        lowercase: Lowercase the text.
        strip_accents: Remove accents. None: only if `lowercase`.
        split_chinese: Make every CJK character a word of its own.
        drop_punctuation: Treat punctuation as space: it separates words and has no tokens. BERT's definition: Unicode
            punctuation, and all ASCII characters that are not letters, digits or space.
        splits_at_spaces: Whether no rule looks across a space between words, here as in the other rules.
    """

    lowercase: bool = True
    strip_accents: bool | None = None
    split_chinese: bool = True
    drop_punctuation: bool = False
    splits_at_spaces: ClassVar = True

    def normalizer(self) -> Any:
        """Return the corresponding normalizer of the library `tokenizers`."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_chinese,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )

    def splitter(self) -> Any:
        """Return the corresponding splitter of normalized text into words, of the library `tokenizers`."""
        bert = pre_tokenizers.BertPreTokenizer()
        return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("removed"), bert]) if self.drop_punctuation else bert


@dataclass(frozen=True, eq=False)
class WordPieceBackend:
    """A WordPiece tokenizer. `BPEBackend` and `LibraryBackend` have the same members.

    Attributes:
        algorithm: "wordpiece", "bpe" (byte-level), "unigram", or "other".
        word_mark: The mark of word boundaries: "##", "Ġ", "▁", "</w>", or "" if there is none.
        end_mark: The mark at the end of words, "</w>", or "" if there is none.
        has_words: Whether the entries say where words start.
        splits_words: Whether text is split into words before entries are looked for.
        unknown_unit: What an [UNK] stands for: "words", or "tokens" for a run of characters.
        merges: The merges of byte-level BPE in order, such as "Ġ t"; else none.
    """

    engine: tokenizers.Tokenizer
    """The tokenizer of the library `tokenizers` that does the work."""
    templates: Templates
    """Where special tokens stand in a sequence."""
    special: SpecialTokens
    algorithm: ClassVar = "wordpiece"
    word_mark: ClassVar = CONTINUATION
    end_mark: ClassVar = ""
    has_words: ClassVar = True
    splits_words: ClassVar = True
    unknown_unit: ClassVar = "words"
    merges: ClassVar[list[str]] = []

    @property
    def normalization(self) -> NormalizerOptions:
        """The normalization of text."""
        normalizer = self.engine.normalizer
        flags = (normalizer.lowercase, normalizer.strip_accents, normalizer.handle_chinese_chars)
        return NormalizerOptions(*flags, _drops_punctuation(self.engine))

    @property
    def max_word_length(self) -> int:
        """Characters of the longest word that is not [UNK]."""
        return self.engine.model.max_input_chars_per_word

    @cached_property
    def rules(self) -> list[Any]:
        """Every setting besides the vocabulary and the user tokens that determines ids, for comparisons."""
        normalizer = self.engine.normalizer
        # None means "strip accents if lowercasing": it must compare equal to the bool with the same effect.
        strip = normalizer.lowercase if normalizer.strip_accents is None else normalizer.strip_accents
        flags = [normalizer.lowercase, strip, normalizer.handle_chinese_chars, normalizer.clean_text]
        # Named only if it is in force, so that the fingerprints of other tokenizers stay as they were without the option.
        punctuation = ["drop_punctuation"] if self.normalization.drop_punctuation else []
        names = [] if self.special == BERT else self.special.rules()
        places = [] if self.templates.ids == self._berts.ids else [self.templates.ids]
        return [*punctuation, *names, *places, *flags, self.max_word_length]

    @cached_property
    def _berts(self) -> Templates:
        """Where BERT has special tokens."""
        return bert_templates(*(ids_of(self.engine, self.special) or (0, 0)))

    def starts_word(self, entry: str) -> bool:
        """Return whether an entry starts a word: false for entries that continue one ("##…")."""
        return not entry.startswith(CONTINUATION)

    def spelling(self, entry: str) -> bytes:
        """Return the text of an entry as UTF-8, without the mark of entries that continue a word."""
        return (entry.removeprefix(CONTINUATION) or entry).encode()

    def config(self) -> dict[str, Any]:
        """Return the entries of tokenizer_config.json, without the special tokens."""
        clean_text, max_word_characters = self.rules[-2:]
        usual = clean_text and max_word_characters == MAX_WORD_CHARACTERS and not self.normalization.drop_punctuation
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        berts = self._berts
        if self.templates.without_types() == self.templates:
            inputs.remove("token_type_ids")
            berts = berts.without_types()
        usual = usual and self.templates == berts
        config: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.engine.normalizer.lowercase,
            "strip_accents": self.engine.normalizer.strip_accents,
            "tokenize_chinese_chars": self.engine.normalizer.handle_chinese_chars,
        }
        if not usual:  # BertTokenizer ignores these settings in tokenizer.json
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        if not usual or len(inputs) == 2:
            config["model_input_names"] = inputs
        if self.normalization.drop_punctuation:
            config["drop_punctuation"] = True
        if max_word_characters != MAX_WORD_CHARACTERS:
            config[MAX_WORD_SETTING] = max_word_characters
        return config

    def vocabulary_files(self, vocabulary: list[str]) -> dict[str, str]:
        """Return the files that list the vocabulary: name -> contents."""
        return {"vocab.txt": "".join(f"{printable(word)}\n" for word in vocabulary)}

    def encode(self, method: str, texts: Any, **options: bool) -> list[Encoding]:
        """Tokenize texts by a method of the engine, which takes no role in a text for one."""
        return getattr(self.engine, method)(texts, **options)

    def extensible(self) -> WordPieceBackend:
        """Return the backend. Raises UserError if the tokenizer has settings that `build` does not support."""
        if self.special != BERT:
            raise UserError(
                f"this tokenizer lacks special tokens of BERT ({' '.join(SPECIAL_TOKENS)}): take another one"
            )
        if not self.engine.normalizer.clean_text:
            raise UserError("this tokenizer keeps control characters: bertie cannot change its vocabulary")
        return self

    def with_entries(self, entries: list[str], user_tokens: Sequence[str | AddedToken]) -> WordPieceBackend:
        """Return a backend with another vocabulary."""
        return build(entries, self.normalization, "the vocabulary", user_tokens, self.max_word_length)

    def split_entry(self, entry: str) -> list[int]:
        """Split an entry of another vocabulary: WordPiece's greedy longest match, or [UNK]."""
        known = self.engine.get_vocab(with_added_tokens=True)
        ids, start, prefix = [], 0, ""
        if entry.startswith(CONTINUATION) and len(entry) > len(CONTINUATION):
            entry, prefix = entry.removeprefix(CONTINUATION), CONTINUATION
        while start < len(entry):
            stop = next((stop for stop in range(len(entry), start, -1) if prefix + entry[start:stop] in known), None)
            if stop is None:
                return [known[self.special.unk or UNK]]
            ids.append(known[prefix + entry[start:stop]])
            start, prefix = stop, CONTINUATION
        return ids


def build(
    entries: list[str],
    normalization: NormalizerOptions,
    source: str,
    user_tokens: Sequence[str | AddedToken] = (),
    max_word_length: int = MAX_WORD_CHARACTERS,
) -> WordPieceBackend:
    """Build a backend from a vocabulary.

    Args:
        entries: The vocabulary in id order.
        normalization: How to normalize text.
        source: Names the vocabulary in error messages.
        user_tokens: Entries to match in the raw text.
        max_word_length: Longer words, in characters, become [UNK].

    Raises:
        UserError: A special token is missing.
    """
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    require_special(vocabulary, source)
    model = models.WordPiece(
        vocabulary, unk_token=UNK, continuing_subword_prefix=CONTINUATION, max_input_chars_per_word=max_word_length
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalization.normalizer()
    backend.pre_tokenizer = normalization.splitter()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, vocabulary[CLS]), (SEP, vocabulary[SEP])],
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    add_user_tokens(backend, user_tokens)
    return WordPieceBackend(backend, bert_templates(vocabulary[CLS], vocabulary[SEP]), BERT)


def is_wordpiece(engine: tokenizers.Tokenizer) -> bool:
    """Return whether an engine is WordPiece with BERT's normalizer and word splitter."""
    model, splitter = engine.model, engine.pre_tokenizer
    return (
        isinstance(model, models.WordPiece)
        and model.continuing_subword_prefix == CONTINUATION
        and isinstance(engine.normalizer, normalizers.BertNormalizer)
        and (isinstance(splitter, pre_tokenizers.BertPreTokenizer) or _drops_punctuation(engine))
    )


def _drops_punctuation(engine: tokenizers.Tokenizer) -> bool:
    """Return whether the engine has the splitter of `NormalizerOptions.drop_punctuation`."""
    splitter, expected = engine.pre_tokenizer, NormalizerOptions(drop_punctuation=True).splitter()
    return isinstance(splitter, pre_tokenizers.Sequence) and splitter.__getstate__() == expected.__getstate__()


def read_vocabulary(path: Path, text: str) -> list[str]:
    """Read the text of a vocab.txt: one entry per line, in id order, without the white space after it.

    Only a line feed ends a line: U+2028 is a token. The line break is written as a backslash and an n.

    Raises:
        UserError: It repeats a token.
    """
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    entries = [LINE_BREAK if line == printable(LINE_BREAK) else line for line in lines]
    entries = [entry if entry.isspace() else entry.rstrip() for entry in entries]
    line_of: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        if entry in line_of:
            raise UserError(f"{path}:{number}: the token {entry!r} is already on line {line_of[entry]}: remove one")
        line_of[entry] = number
    return entries


def is_cased(entries: Iterable[str]) -> bool:
    """Return whether a vocabulary has uppercase letters. Entries such as [unused0], [CLS], <S> do not count."""
    return any(entry != entry.lower() for entry in entries if not _ROLE.fullmatch(entry))


def lowercases(path: Path, entries: Iterable[str]) -> bool:
    """Return whether text is lowercased, if no file says it: unless an entry has uppercase letters.

    Google's uncased models, its Chinese one and its first multilingual one lowercase. Their vocabularies have no uppercase
    letters, the vocabularies of the cased models do.

    Raises:
        UserError: No entry has letters with a case, or the name of the folder says otherwise.
    """
    cased = is_cased(entries)
    named = re.search(r"(?<![a-z])(un)?cased(?![a-z])", path.parent.resolve().name.lower())
    doubt = ""
    if not any(entry.lower() != entry.upper() for entry in entries if not _ROLE.fullmatch(entry)):
        doubt = "no entry has letters with a case"
    elif named and cased == (named[1] is not None):
        doubt = f"{'some entries' if cased else 'no entries'} have uppercase letters, and the name says {named[0]}"
    if doubt:
        remedy = f'write {{"do_lower_case": true}} or false to {path.parent / "tokenizer_config.json"}'
        raise UserError(f"{path} does not say whether text is lowercased ({doubt}): {remedy}")
    return not cased


def require_special(vocabulary: Container[str], source: str) -> None:
    """Raise UserError if a vocabulary lacks one of BERT's special tokens."""
    for token in SPECIAL_TOKENS:
        if token not in vocabulary:
            raise UserError(f"{source} has no token {token}: BERT needs {' '.join(SPECIAL_TOKENS)}")
