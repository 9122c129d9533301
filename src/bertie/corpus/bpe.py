"""Training of byte-level BPE: start from bytes and merge the most frequent pair until the vocabulary is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

import numpy as np

from bertie.corpus.merges import FrequencyQueue, SegmentedWords, merge_pieces
from bertie.corpus.word_counts import require_size, require_trainable
from bertie.tokenizers.bpe_backend import BYTE_CHARACTERS, BYTE_ORDER, ROBERTA_ORDER


def train(
    counts: Mapping[str, int],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    reserved: Sequence[str] = (),
) -> tuple[list[str], list[tuple[str, str]]]:
    """Train a vocabulary on word counts. The same counts give the same vocabulary.

    Args:
        counts: word -> occurrences, from `word_counts.count_words` with `ByteLevel`.
        vocab_size: Number of entries; fewer if the text is too small to fill them.
        min_frequency: Pairs with fewer occurrences are not merged.
        reserved: Entries that follow the special tokens.

    Returns:
        The entries in id order (special tokens, `reserved`, the 256 bytes, merges), and the pairs merged, in order.

    Raises:
        UsageError: An argument is out of range, or `vocab_size` cannot hold the bytes.
        UserError: The text is empty.
    """
    pieces = [*ROBERTA_ORDER, *reserved, *BYTE_CHARACTERS]
    require_trainable(counts, vocab_size=vocab_size, min_frequency=min_frequency)
    require_size(vocab_size, len(pieces))
    words = _segment_words(counts, len(pieces) - 256, vocab_size)
    merges = merge_pieces(pieces, words, FrequencyQueue(words, min_frequency), vocab_size, add)
    return pieces, merges


def _segment_words(counts: Mapping[str, int], first: int, vocab_size: int) -> SegmentedWords:
    """Segment words into bytes. first: id of the first byte entry."""
    encoded = [word.encode() for word in counts]
    id_of_byte = np.zeros(256, np.int32)
    id_of_byte[list(BYTE_ORDER)] = np.arange(first, first + 256)
    piece = id_of_byte[np.frombuffer(b"".join(encoded), np.uint8)]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return SegmentedWords(piece, lengths, np.fromiter(counts.values(), np.int64, len(counts)), vocab_size)
