"""Vocabulary training. The library's trainer merges the most frequent pair of pieces (byte-pair encoding's rule).

Left to itself that trainer gives another vocabulary at every run: it numbers the "##" forms of characters in the order
of a hash table, and breaks ties between equally frequent pairs by those numbers. So the alphabet is counted here, and
the trainer is handed it, with its "##" forms, as tokens whose numbers are fixed; what it then merges is decided.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bertie import console
from bertie.errors import UsageError, UserError
from bertie.text.sentences import cut
from bertie.text.tokenizer import CONTINUATION, SPECIAL_TOKENS, UNK, normalizer

COUNTED_TOGETHER = 1 << 20  # characters; a count costs an array as long as the largest code point, so not per text


def train(
    texts: Callable[[], Iterable[str]],
    *,
    vocab_size: int,
    lowercase: bool = True,
    alphabet_limit: int = 1000,
    min_frequency: int = 2,
    exact: bool = True,
) -> list[str]:
    """The word list in id order: special tokens, alphabet, its "##" forms, merges. Same texts, same list.

    texts: called twice, gives the same texts each time. alphabet_limit: keep this many characters, the most frequent.
    min_frequency: pieces seen less often together are not merged. exact: a text that cannot fill vocab_size is an error.
    Errors: UsageError where vocab_size cannot hold the alphabet, UserError where the text is empty or cannot fill it.
    """
    flags = {"--vocab-size": vocab_size, "--alphabet-limit": alphabet_limit, "--min-frequency": min_frequency}
    for flag, value in flags.items():
        if not 1 <= value < 1 << 31:
            raise UsageError(f"{flag} {value}: give a number from 1 to {(1 << 31) - 1:,}")
    rules = normalizer(lowercase)
    characters = _count_characters(texts())
    alphabet, foreign = _choose_alphabet(characters, rules, alphabet_limit)
    if not alphabet:
        raise UserError("the text is empty: a vocabulary needs some")
    fixed = [*SPECIAL_TOKENS, *alphabet, *(CONTINUATION + character for character in alphabet)]
    if vocab_size < len(fixed):
        raise UsageError(
            f"--vocab-size {vocab_size} is too small: the {len(alphabet)} characters of this text, their ## forms "
            f"and {len(SPECIAL_TOKENS)} special tokens take {len(fixed)}"
        )
    backend = tokenizers.Tokenizer(models.WordPiece({}, unk_token=UNK))
    backend.normalizer = rules
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=fixed,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    with console.progress("count words", int(characters.sum()) / 1e6, "M characters") as bar:
        backend.train_from_iterator(_without(foreign, texts(), bar), trainer)
    vocabulary = backend.get_vocab()
    if exact and len(vocabulary) < vocab_size:
        raise UserError(
            f"the text fills a vocabulary of only {len(vocabulary)} entries: "
            f"ask for --vocab-size {len(vocabulary)} or give more text"
        )
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _count_characters(texts: Iterable[str]) -> np.ndarray:
    """How often each code point occurs, int64 [0x110000]."""
    counts = np.zeros(0x110000, np.int64)
    with console.progress("count characters", 0, "M characters") as bar:
        for text in _joined(texts):
            found = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
            counts[: len(found)] += found
            bar.advance(len(text) / 1e6)
    return counts


def _joined(texts: Iterable[str]) -> Iterator[str]:
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= COUNTED_TOGETHER:
            yield "".join(waiting)
            waiting, size = [], 0
    yield "".join(waiting)


def _choose_alphabet(counts: np.ndarray, rules: Any, limit: int) -> tuple[list[str], re.Pattern[str] | None]:
    """The `limit` most frequent characters as the model will see them, by code point; and what matches all others."""
    splitter = pre_tokenizers.BertPreTokenizer()
    seen_as: dict[str, str] = {}  # a character of the text → its characters after normalization, blanks dropped
    frequency: Counter[str] = Counter()
    for code in np.flatnonzero(counts):
        raw = chr(code)
        seen_as[raw] = "".join(piece for piece, _ in splitter.pre_tokenize_str(rules.normalize_str(raw)))
        for character in seen_as[raw]:
            frequency[character] += int(counts[code])
    # Equally frequent characters: the lower code point stays, whatever the order of the texts.
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    alphabet = set(ranked[:limit])
    foreign = [raw for raw, characters in seen_as.items() if not alphabet.issuperset(characters)]
    pattern = re.compile(f"[{re.escape(''.join(foreign))}]") if foreign else None
    return sorted(alphabet), pattern


def _without(foreign: re.Pattern[str] | None, texts: Iterable[str], bar: console.Progress) -> Iterator[str]:
    """The texts with a blank for each foreign character: the trainer would drop it and join its neighbours."""
    for text in texts:
        for part in cut(text):  # a document may be a large file, and the trainer takes some 100 bytes a character
            yield foreign.sub(" ", part) if foreign else part
        bar.advance(len(text) / 1e6)
