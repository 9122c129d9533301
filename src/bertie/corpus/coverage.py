"""How well a vocabulary covers a text: pieces per word, whole words, unknown words, entries in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertie.base import console
from bertie.tokenizers.library_backend import BLANK
from bertie.tokenizers.tokenizer import Tokenizer

MOST_UNKNOWN = 0.03  # with BERT's vocabularies, texts of their languages have up to 2 % (dev/decisions/003)
BATCH_WORDS = 100_000  # words to encode at a time


@dataclass(frozen=True)
class Coverage:
    """Coverage of a text by a vocabulary. A word counts as often as it occurs."""

    words: int  # running words
    pieces_per_word: float
    whole: float  # share of words that are a single entry other than [UNK]
    unknown: float  # share of words with an [UNK]; in WordPiece, it is the whole word
    unknown_characters: float  # share of characters that became [UNK]
    used: int  # vocabulary entries that occur in the text

    @property
    def share(self) -> UnknownShare:
        """The share of [UNK]."""
        return UnknownShare(self.unknown, characters=self.unknown_characters)


@dataclass(frozen=True)
class UnknownShare:
    """How much of a text became [UNK], from its tokens."""

    words: float  # share of the words, or of the tokens, 0 to 1
    unit: str = "words"
    characters: float | None = None  # share of the characters; None: not counted

    def __str__(self) -> str:
        also = "" if self.characters is None else f" ({console.percent(self.characters)} of the characters)"
        return f"{console.percent(self.words)} of the {self.unit}{also} are [UNK]"

    def warn(self, place: str) -> bool:
        """Print a warning if the vocabulary does not fit the text. Return whether it does not.

        place: What the message names, such as the text.
        """
        much = max(self.words, self.characters or 0.0) >= MOST_UNKNOWN
        if much:
            console.warn(f"{place}: {self}")
            console.info_once(
                "a word that the vocabulary cannot spell is [UNK]: use one that was trained on such text (if it has no spaces: "
                "with --max-word-length, or with --algorithm bpe, which has no [UNK])"
            )
        return much


def can_be_unknown(tokenizer: Tokenizer) -> bool:
    """Return whether text can become [UNK]. Byte-level BPE has entries for all of it."""
    return tokenizer.special.unk is not None and tokenizer.algorithm != "bpe"


def unknown_share(tokenizer: Tokenizer, counts: Mapping[str, Any]) -> UnknownShare:
    """Return the share of [UNK] of tokenized text. In WordPiece an [UNK] is a word, elsewhere a run of characters.

    Args:
        tokenizer: The tokenizer of the text.
        counts: The manifest of shards, or its "splits" with the numbers of "tokens", "words" and "unknown" (tokens).
    """
    unit = tokenizer.backend.unknown_unit
    unknown, every = (sum(split[name] for split in counts["splits"].values()) for name in ("unknown", unit))
    lost, characters = counts.get("unknown_characters"), counts.get("characters")
    return UnknownShare(unknown / max(every, 1), unit, None if lost is None else lost / max(characters or 0, 1))


def report_unknown(tokenizer: Tokenizer, counts: Mapping[str, Any], place: str) -> None:
    """Print the `unknown_share` of a text, if it can have one, as a warning if the vocabulary does not fit the text."""
    share = unknown_share(tokenizer, counts)
    if can_be_unknown(tokenizer) and not share.warn(place) and share.words:
        console.info(f"{place}: {share}")


def words_of_tokens(tokenizer: Tokenizer, ids: np.ndarray, texts: np.ndarray) -> int:
    """Return the number of words of texts: those that the tokenizer splits text into before it looks for entries.

    Where "▁" marks words, these are the parts between spaces, also in scripts without spaces, in which every entry
    counts as a word for masking. 0 if the entries do not say where words start.

    Args:
        tokenizer: The tokenizer.
        ids: The tokens of all texts, end to end, [n].
        texts: Positions of the first tokens of the texts.
    """
    backend = tokenizer.backend
    if backend.word_mark != BLANK:
        return int(tokenizer.word_starts(ids, texts).sum()) if backend.has_words else 0
    starts = np.array([entry.startswith(BLANK) for entry in tokenizer.vocabulary])[ids]
    starts[texts[texts < len(ids)]] = True
    return int(starts.sum())


def unknown_characters(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Return how many characters of each text became [UNK], int64 [texts], from the places of the tokens."""
    characters = np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), BATCH_WORDS // 10):
        batch = list(texts[start : start + BATCH_WORDS // 10])
        for number, encoding in enumerate(tokenizer.encode_with_offsets(batch), start):
            pairs = zip(encoding.ids, encoding.offsets, strict=True)
            characters[number] = sum(end - begin for id, (begin, end) in pairs if id == tokenizer.unk_id)
    return characters


def measure_coverage(tokenizer: Tokenizer, counts: Mapping[str, int]) -> Coverage:
    """Measure how well a vocabulary covers a text.

    Args:
        tokenizer: The tokenizer to measure.
        counts: word -> occurrences, counted with the tokenizer's normalization (`word_counts.count_words`).
    """
    words = list(counts)
    pieces, unknown, used = count_pieces(tokenizer, words)
    occurrences = np.fromiter(counts.values(), np.int64, len(counts))
    characters = occurrences * np.array([len(word.removeprefix(BLANK)) for word in words], np.int64)
    lost = np.zeros(len(words), np.int64)
    if unknown.any():
        lost[unknown] = unknown_characters(tokenizer, [words[i] for i in np.flatnonzero(unknown)])
    total = max(int(occurrences.sum()), 1)
    return Coverage(
        int(occurrences.sum()),
        float((pieces * occurrences).sum() / total),
        float(occurrences[(pieces == 1) & ~unknown].sum() / total),
        float(occurrences[unknown].sum() / total),
        float((lost * occurrences).sum() / max(characters.sum(), 1)),
        int(used.sum()),
    )


def count_pieces(tokenizer: Tokenizer, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokenize words and count their pieces.

    Returns:
        Pieces of each word, int64 [words]; whether each word has an [UNK], bool [words]; whether each entry occurs, bool [V].
    """
    pieces = np.zeros(len(words), np.int64)
    unknown = np.zeros(len(words), bool)
    used = np.zeros(tokenizer.size, bool)
    unk_id = tokenizer.unk_id if tokenizer.special.unk else None
    for start in range(0, len(words), BATCH_WORDS):
        for number, ids in enumerate(tokenizer.encode(words[start : start + BATCH_WORDS]), start):
            pieces[number] = len(ids)
            unknown[number] = unk_id in ids
            used[ids] = True
    return pieces, unknown, used


def longest_entries(tokenizer: Tokenizer, limit: int = 10) -> list[str]:
    """Return the entries with the most characters, without special tokens and [unused…] entries."""
    special, mark = set(tokenizer.special.names().values()), tokenizer.backend.word_mark
    entries = [entry for entry in tokenizer.vocabulary if entry not in special and not entry.startswith("[unused")]
    return sorted(entries, key=lambda entry: (-len(entry.removeprefix(mark)), entry))[:limit]


def compare_tokenizers(first: Tokenizer, second: Tokenizer, counts: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """List the ten words that two vocabularies with the same normalization split into different numbers of pieces.

    Args:
        first: A tokenizer.
        second: The tokenizer to compare it with.
        counts: word -> occurrences in a text.

    Returns:
        (word, pieces by `first`, pieces by `second`), ordered by the difference times the occurrences, largest first.
    """
    words = list(counts)
    pieces_first, pieces_second = count_pieces(first, words)[0], count_pieces(second, words)[0]
    cost = np.abs(pieces_first - pieces_second) * np.fromiter(counts.values(), np.int64, len(counts))
    order = np.argsort(-cost, kind="stable")[:10].tolist()
    return [(words[i], int(pieces_first[i]), int(pieces_second[i])) for i in order if cost[i]]
