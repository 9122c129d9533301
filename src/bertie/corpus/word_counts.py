"""Word counts of a text: the only thing that vocabulary training keeps of it in memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from bertie.base.errors import MAX_INT32, UsageError, UserError
from bertie.corpus.sentences import split_long_text
from bertie.tokenizers.batching import batches
from bertie.tokenizers.bpe_backend import split_at_spaces
from bertie.tokenizers.folder import ReadingRules
from bertie.tokenizers.library_backend import LibraryRules
from bertie.tokenizers.tokenizer import ByteLevel, NormalizerOptions

COUNT_BATCH = 1 << 24  # characters of text to count before normalization
NORMALIZE_BATCH = 1 << 16  # characters per call of the normalizer, which uses about 150 bytes for each
MAX_UNIQUE_WORDS = 2_000_000  # takes about 1.5 GB while a vocabulary is trained on them


@dataclass
class WordCounts:
    """Occurrences of the words of a text, for a limited number of distinct words.

    If there are more than `limit` words, the rarest are dropped; of equally rare words, the last in code point order.
    The same texts in the same order give the same counts.

    Attributes:
        limit: Number of distinct words to keep.
        counts: word -> occurrences.
        forgotten: Occurrences of dropped words.
    """

    limit: int = MAX_UNIQUE_WORDS
    counts: Counter[str] = field(default_factory=Counter)
    forgotten: int = 0

    def add(self, counts: dict[str, int], forgotten: int = 0) -> None:
        """Add the counts of another part of the text."""
        self.counts.update(counts)
        self.forgotten += forgotten
        if len(self.counts) > self.limit:
            frequencies = np.fromiter(self.counts.values(), np.int64, len(self.counts))
            threshold = int(np.partition(frequencies, -self.limit)[-self.limit])
            vacancies = self.limit - int((frequencies > threshold).sum())
            kept = set(sorted(word for word, count in self.counts.items() if count == threshold)[:vacancies])
            self.forgotten += int(frequencies.sum())
            self.counts = Counter({w: count for w, count in self.counts.items() if count > threshold or w in kept})
            self.forgotten -= self.counts.total()


def require_trainable(counts: Mapping[str, int], **numbers: int) -> None:
    """Raise UsageError if an argument of training is out of range, and UserError if there are no words."""
    for name, value in numbers.items():
        if not 1 <= value <= MAX_INT32:
            raise UsageError(f"--{name.replace('_', '-')} {value}: give a number from 1 to {MAX_INT32:,}")
    if not counts:
        raise UserError("the text is empty: give text to train a vocabulary on")


def require_size(vocab_size: int, least: int) -> None:
    """Raise UsageError if a vocabulary cannot hold the special tokens and characters, which take `least` entries."""
    if vocab_size < least:
        raise UsageError(
            f"--vocab-size {vocab_size} is too small for the characters of this text: give {least} or more"
        )


def count_words(
    texts: Iterable[str],
    normalization: ReadingRules = NormalizerOptions(),
    user_tokens: Sequence[str] = (),
    limit: int = MAX_UNIQUE_WORDS,
) -> WordCounts:
    """Count the words of texts: what BERT's normalizer and word splitter leave between user tokens.

    For byte-level BPE, words are the matches of GPT-2's pattern, with the space before them.

    Args:
        texts: The texts.
        normalization: How to normalize them, or `ByteLevel`.
        user_tokens: Strings that are not part of words.
        limit: Number of distinct words to keep, see `WordCounts`.
    """
    table = WordCounts(limit)
    if user_tokens:
        user_token = re.compile("|".join(map(re.escape, sorted(user_tokens, key=len, reverse=True))))
        if isinstance(normalization, ByteLevel):
            texts = (part for text in texts for part in user_token.split(text))
        else:
            texts = (user_token.sub(" ", text) for text in texts)
    for batch in batches(texts, COUNT_BATCH):
        # Only distinct strings are normalized: far fewer than there are words in the text.
        parts = chain.from_iterable(split_long_text(text, NORMALIZE_BATCH) for text in batch)
        if isinstance(normalization, ByteLevel):
            table.add(_split_bytelevel(Counter(chain.from_iterable(map(split_at_spaces, parts))), normalization))
        else:
            strings = (part.replace("\n", " ").split(" ") for part in parts)
            table.add(normalize_words(Counter(chain.from_iterable(strings)), normalization))
    return table


def normalize_words(strings: Counter[str], normalization: NormalizerOptions | LibraryRules) -> Counter[str]:
    """Normalize counted strings and split them into words.

    Neither step looks across a space. Strings with equal counts are therefore joined and processed in one call.
    """
    normalizer, splitter = normalization.normalizer(), normalization.splitter()
    by_count: dict[int, list[str]] = {}
    for string, count in strings.items():
        by_count.setdefault(count, []).append(string)
    words: Counter[str] = Counter()
    for count, with_count in by_count.items():
        for line in split_long_text(" ".join(with_count), NORMALIZE_BATCH):
            in_line = Counter(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line)))
            for word, number in in_line.items():
                words[word] += number * count
    return words


def _split_bytelevel(strings: Counter[str], normalization: ByteLevel) -> Counter[str]:
    """Split counted strings by GPT-2's pattern."""
    splitter = ByteLevel().splitter()
    words: Counter[str] = Counter()
    for part, count in strings.items():
        string = normalization.normalize(part)
        for _, (start, end) in splitter.pre_tokenize_str(string):
            words[string[start:end]] += count
    return words
