"""WordPiece training: start from characters and merge the best pair of pieces until the vocabulary is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bertie.base.errors import UsageError, UserError
from bertie.corpus.merges import PAIR_BASE, QUEUES, Criterion, SegmentedWords, merge_pieces
from bertie.tokenizers.tokenizer import CONTINUATION, MAX_WORD_CHARACTERS, SPECIAL_TOKENS
from bertie.tokenizers.wordpiece_backend import MOST_WORD_CHARACTERS


def train(
    counts: Mapping[str, int],
    *,
    vocab_size: int,
    criterion: Criterion = "frequency",
    alphabet_limit: int = 1000,
    min_frequency: int = 2,
    reserved: Sequence[str] = (),
    max_word_length: int = MAX_WORD_CHARACTERS,
) -> list[str]:
    """Train a vocabulary on word counts. The same counts give the same vocabulary.

    Args:
        counts: word -> occurrences, from `word_counts.count_words`. Words of more than `max_word_length` characters, which
            the tokenizer turns into [UNK], are left out.
        vocab_size: Number of entries; fewer if the text is too small to fill them.
        criterion: Which pair of pieces to merge next, see `merges`.
        alphabet_limit: Number of characters to keep, the most frequent. Words with other characters, which the
            tokenizer turns into [UNK], are left out.
        min_frequency: Pairs with fewer occurrences are not merged.
        reserved: Entries that follow the special tokens.
        max_word_length: Characters of the longest word.

    Returns:
        The entries in id order: special tokens, `reserved`, the alphabet, its "##" forms, merges.

    Raises:
        UsageError: An argument is out of range, or `vocab_size` cannot hold the alphabet.
        UserError: The text is empty.
    """
    flags = {"--vocab-size": vocab_size, "--alphabet-limit": alphabet_limit, "--min-frequency": min_frequency}
    for flag, value in flags.items():
        if not 1 <= value < PAIR_BASE:
            raise UsageError(f"{flag} {value}: give a number from 1 to {PAIR_BASE - 1:,}")
    if not 1 <= max_word_length <= MOST_WORD_CHARACTERS:
        raise UsageError(
            f"--max-word-length {max_word_length}: give 1 to {MOST_WORD_CHARACTERS:,} characters; for longer words without "
            "blanks, use --algorithm bpe or unigram"
        )
    if not counts:
        raise UserError("the text is empty: give text to train a vocabulary on")
    counts = {word: count for word, count in counts.items() if len(word) <= max_word_length}
    if not counts:
        raise UserError(
            f"all words of the text are longer than {max_word_length} characters, which WordPiece does not split: "
            "put blanks between words, raise --max-word-length, or use --algorithm bpe"
        )
    alphabet = _alphabet(counts, alphabet_limit)
    fixed = [*SPECIAL_TOKENS, *reserved]
    pieces = [*fixed, *alphabet, *(CONTINUATION + character for character in alphabet)]
    if vocab_size < len(pieces):
        raise UsageError(
            f"--vocab-size {vocab_size} is too small: the {len(alphabet)} characters of this text, their ## forms "
            f"and {len(fixed)} special tokens take {len(pieces)}: give at least that, or lower --alphabet-limit"
        )
    words = _segment_words(counts, alphabet, len(fixed), vocab_size)
    queue = QUEUES[criterion](words, min_frequency)
    merge_pieces(pieces, words, queue, vocab_size, lambda left, right: left + right.removeprefix(CONTINUATION))
    return pieces


def _alphabet(counts: Mapping[str, int], limit: int) -> list[str]:
    """Return the most frequent characters, sorted. Of equally frequent ones, lower code points take precedence."""
    words, occurrences, lengths = _columns(counts)
    weights = np.repeat(occurrences, lengths).astype(np.float64)
    frequency = np.bincount(_code_points(words), weights=weights)
    ranked = np.lexsort((np.arange(len(frequency)), -frequency))[: int((frequency > 0).sum())]
    return [chr(code) for code in np.sort(ranked[:limit])]


def _segment_words(counts: Mapping[str, int], alphabet: list[str], first: int, vocab_size: int) -> SegmentedWords:
    """Segment the words that the alphabet can spell into characters. first: id of the alphabet's first character."""
    known = set(alphabet)
    counts = {word: count for word, count in counts.items() if known.issuperset(word)}
    words, occurrences, lengths = _columns(counts)
    id_of = np.zeros(0x110000, np.int32)
    id_of[[ord(character) for character in alphabet]] = np.arange(first, first + len(alphabet))
    piece = id_of[_code_points(words)]
    begins = np.cumsum(lengths) - lengths
    continuing = np.ones(len(piece), bool)
    continuing[begins] = False
    piece[continuing] += len(alphabet)
    return SegmentedWords(piece, lengths, occurrences, vocab_size)


def _columns(counts: Mapping[str, int]) -> tuple[Iterable[str], np.ndarray, np.ndarray]:
    """Return the words, their occurrences and their lengths in characters, both int64 [words]."""
    occurrences = np.fromiter(counts.values(), np.int64, len(counts))
    return counts, occurrences, np.fromiter(map(len, counts), np.int64, len(counts))


def _code_points(words: Iterable[str]) -> np.ndarray:
    """Return the code points of all characters, end to end, uint32."""
    return np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
