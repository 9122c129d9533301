"""WordPiece training: start from characters and merge the best pair of pieces until the vocabulary is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bertie.base.errors import UsageError, UserError
from bertie.corpus.merges import QUEUES, Criterion, SegmentedWords, merge_pieces
from bertie.corpus.word_counts import require_size, require_trainable
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
    require_trainable(counts, vocab_size=vocab_size, alphabet_limit=alphabet_limit, min_frequency=min_frequency)
    if not 1 <= max_word_length <= MOST_WORD_CHARACTERS:
        raise UsageError(f"--max-word-length {max_word_length}: give a number from 1 to {MOST_WORD_CHARACTERS:,}")
    counts = {word: count for word, count in counts.items() if len(word) <= max_word_length}
    if not counts:
        raise UserError(
            f"all words of the text are longer than {max_word_length} characters: raise --max-word-length, or use "
            "--algorithm bpe"
        )
    alphabet = _alphabet(counts, alphabet_limit)
    fixed = [*SPECIAL_TOKENS, *reserved]
    pieces = [*fixed, *alphabet, *(CONTINUATION + character for character in alphabet)]
    require_size(vocab_size, len(pieces))
    words = _segment_words(counts, alphabet, len(fixed), vocab_size)
    queue = QUEUES[criterion](words, min_frequency)
    merge_pieces(pieces, words, queue, vocab_size, lambda left, right: left + right.removeprefix(CONTINUATION))
    return pieces


def _alphabet(counts: Mapping[str, int], limit: int) -> list[str]:
    """Return the most frequent characters, sorted. Of equally frequent ones, lower code points take precedence."""
    occurrences, lengths = _columns(counts)
    weights = np.repeat(occurrences, lengths).astype(np.float64)
    frequency = np.bincount(_code_points(counts), weights=weights)
    ranked = np.lexsort((np.arange(len(frequency)), -frequency))[: int((frequency > 0).sum())]
    return [chr(code) for code in np.sort(ranked[:limit])]


def _segment_words(counts: Mapping[str, int], alphabet: list[str], first: int, vocab_size: int) -> SegmentedWords:
    """Segment the words that the alphabet can spell into characters. first: id of the alphabet's first character."""
    known = set(alphabet)
    counts = {word: count for word, count in counts.items() if known.issuperset(word)}
    occurrences, lengths = _columns(counts)
    id_of = np.zeros(0x110000, np.int32)
    id_of[[ord(character) for character in alphabet]] = np.arange(first, first + len(alphabet))
    piece = id_of[_code_points(counts)]
    begins = np.cumsum(lengths) - lengths
    continuing = np.ones(len(piece), bool)
    continuing[begins] = False
    piece[continuing] += len(alphabet)
    return SegmentedWords(piece, lengths, occurrences, vocab_size)


def _columns(counts: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the occurrences and the lengths in characters of the words, both int64 [words]."""
    size = len(counts)
    return np.fromiter(counts.values(), np.int64, size), np.fromiter(map(len, counts), np.int64, size)


def _code_points(words: Iterable[str]) -> np.ndarray:
    """Return the code points of all characters, end to end, uint32."""
    return np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
